"""The ranks' part of the plan: how many ranks a node has, and which of Dask's settings mean nothing."""

from __future__ import annotations

from hpcml.errors import UsageError
from hpcml.kind import Role
from hpcml.kinds.ranks.login.options import OF_EACH_GPU, asked
from hpcml.kinds.ranks.roles import MPI, RANK
from hpcml.request.record import RunRequest
from hpcml.settings import Workers
from hpcml.sites.schema import Site
from hpcml.workload_forms import Form

_FORMS = (Form.SCRIPT, Form.MODULE, Form.PROGRAM, Form.INTERCONNECT)


def decided(site: Site, spec: RunRequest) -> Site:
    """Return the site, without what is Dask's.

    Raises
    ------
    UsageError
        If what the run starts cannot be ranks.
    """
    if spec.code.form not in _FORMS:
        raise UsageError(f"A {spec.code.form} cannot run as ranks", place="--ranks", hint="Leave out --ranks.")
    return site._replace(network=site.network._replace(protocol="tls"))


def count(spec: RunRequest) -> int:
    """Return the number of ranks on a node.

    Raises
    ------
    UsageError
        If the node has not as many GPUs or CPUs.
    """
    text, gpus, cpus = asked(spec).ranks, spec.size.gpus_per_node, spec.size.cpus_per_node
    number, of_each_gpu, _ = text.partition(OF_EACH_GPU)
    if (text == "gpu" or of_each_gpu) and not gpus:
        hint = "Add --gpus-per-node N, or use --ranks node."
        raise UsageError(f"--ranks {text} needs GPUs, but the run requests none", place="--ranks", hint=hint)
    if text == "gpu":
        return gpus
    ranks = 1 if text == "node" else int(number) * (gpus if of_each_gpu else 1)
    for unit, has in (("GPU", 0 if of_each_gpu else gpus), ("CPU", cpus)):
        if 0 < has < ranks:
            hint = f"Use --ranks {has}, or request more {unit}s: --{unit.lower()}s-per-node {ranks}."
            if unit == "GPU" and ranks % has == 0:
                hint += f" If several ranks are to share a GPU: --ranks {ranks // has}{OF_EACH_GPU}."
            problem = f"{ranks} ranks per node need {ranks} {unit}s, but each node has {has}"
            raise UsageError(problem, place="--ranks", hint=hint)
    return ranks


def roles(spec: RunRequest) -> tuple[Role, ...]:
    """Return the agents, and for MPI the tasks of srun, one for each rank."""
    mpi = asked(spec).mpi
    return (RANK, MPI._replace(tasks=count(spec), mpi=mpi)) if mpi else (RANK,)


def workers(spec: RunRequest) -> Workers:
    """Return the ranks of each node: one that ends is not replaced."""
    return Workers(per_node=count(spec))


def reasons(spec: RunRequest) -> list[str]:
    """Return the number of ranks of the run, in words."""
    each = count(spec)
    total = each * spec.size.nodes
    mpi = [f"srun --mpi={asked(spec).mpi} connects the ranks"] if asked(spec).mpi else []
    return [f"{total} ranks, {each} on each node, without Dask", *mpi]
