"""The variables of a rank: what torchrun, srun and mpirun set, computed in one place for every way to start a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

OPEN = (  # what of a run is secured
    "only hpcml's own connections are authenticated; other users who reach the ports of TCPStore, Gloo, NCCL, UCX or "
    "MPI can connect"
)


TOKEN = "RRUN_SOCKET_TOKEN"  # noqa: S105 - the variable by which rapidsmpf's ranks show that they belong to the run


class World(NamedTuple):
    """What all ranks of a run share."""

    nodes: int = 1  # nodes
    each: int = 1  # ranks on each node
    gpus: int = 0  # GPUs of each node
    address: str = ""  # IPv4 address of the first node, which every node has connected to
    port: int = 0  # free on the first node: MASTER_PORT
    coordinator: int = 0  # another free port there, for JAX's coordinator
    rapidsmpf: int = 0  # the port there at which rapidsmpf's ranks meet, if it may be used

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.each

    @property
    def may_use_rapidsmpf(self) -> bool:
        """Whether the ranks may meet by rapidsmpf: nothing of it runs without GPUs."""
        return self.gpus > 0 and self.size > 1


def of_rank(world: World, rank: int, *, interface: str, threads: int, errors: str) -> dict[str, str]:
    """Return the variables of one rank.

    Parameters
    ----------
    rank
        Its number, from 0; the ranks of a node have neighbouring numbers.
    interface
        The network interface of this node that leads to ``world.address``; empty if it is not known.
    threads
        The CPUs that it has.
    errors
        The file into which torch writes an error.

    :data:`TOKEN` is left empty: it is a secret.
    """
    node, local = divmod(rank, world.each)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": world.each,
        "NODE_RANK": node,
        "GROUP_RANK": node,
        "MASTER_ADDR": world.address,
        "MASTER_PORT": world.port,
        "JAX_COORDINATOR_ADDRESS": f"{world.address}:{world.coordinator}",
        "TORCHELASTIC_ERROR_FILE": errors,
        "OMP_NUM_THREADS": threads,
    }
    if interface:
        variables |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    if world.may_use_rapidsmpf:
        place = f"{world.address}:{world.rapidsmpf}"
        variables |= {"RRUN_RANK": rank, "RRUN_NRANKS": world.size, "RRUN_SOCKET_ADDR": place, TOKEN: ""}
    if world.each == 1:  # elsewhere a torchrun that a rank starts would join the ranks' own group
        variables |= {
            "PET_NNODES": world.nodes,
            "PET_NODE_RANK": node,
            "PET_NPROC_PER_NODE": max(1, world.gpus),
            "PET_RDZV_BACKEND": "static",  # torch unpickles the state of others, which every account may write
            "PET_RDZV_ENDPOINT": f"{world.address}:{world.port}",  # without it torchrun on one node takes c10d
        }
    return {name: str(value) for name, value in variables.items()}


# A user's own value of these wins; the others say which rank a process is.
USERS = (
    "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME", "PET_NPROC_PER_NODE", "PET_RDZV_BACKEND",
)  # fmt: skip


_ON_NODES = {  # what only the nodes know
    "MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS",
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "PET_RDZV_ENDPOINT",
}  # fmt: skip


def described(world: World, given: Collection[str]) -> list[str]:
    """Return the variables of the ranks before the start, some together in a text; ``given`` are the user's own."""
    first, last = (of_rank(world, rank, interface="-", threads=1, errors="") for rank in (0, world.size - 1))
    users = [name for name in USERS if name in given]
    rest = [name for name in first if name in _ON_NODES and name not in users]
    names = [
        f"{name}={value}" if value == last[name] else f"{name}={value}…{last[name]}"
        for name, value in first.items()
        if name not in (*rest, *users) and not name.startswith("RRUN_")
    ]
    yours = [f"{name} (yours)" for name in users]
    others = "SLURM_… RRUN_…" if world.may_use_rapidsmpf else "SLURM_…"
    return [" ".join([*names, *yours]), f"set on the nodes: {' '.join(rest)} {others}"]


def with_users_own(variables: Mapping[str, str], environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables with the user's own values, and what cannot work of these, a clause each."""
    kept = {name: environment[name] for name in USERS if environment.get(name)}
    notes = []
    if (given := kept.get("GLOO_SOCKET_IFNAME", "")) and not given.replace(",", "").replace("-", "").isalnum():
        used = variables.get("GLOO_SOCKET_IFNAME", "")
        instead = f" and uses {used}" if used else ""
        notes.append(f"Gloo needs names of network interfaces: hpcml ignores GLOO_SOCKET_IFNAME={given}{instead}")
        del kept["GLOO_SOCKET_IFNAME"]
    return {**variables, **kept}, notes
