"""The option that makes a run one of ranks, and its group of the request."""

from __future__ import annotations

from typing import NamedTuple

from hpcml.errors import UsageError
from hpcml.request.option import CONTINUED, KindOptions, Option
from hpcml.request.record import RunRequest

_TAKERS = CONTINUED | {"run", "interconnect"}
OF_EACH_GPU = "/gpu"  # behind a number of ranks: several share a GPU, which nobody gets by chance
PMI = ("pmix", "pmi2")  # kinds that srun --mpi may have


class Ranks(NamedTuple):
    """How many processes of the script a node has."""

    ranks: str = ""  # gpu, node, a number, or a number for each GPU (2/gpu)
    mpi: str = ""  # pmix or pmi2: srun's own tasks connect the ranks; empty: they do not


def read(text: str, option: str) -> str:
    """Return the ranks on a node: ``gpu`` (one for each), ``node`` (one), a number, or ``2/gpu``; else UsageError."""
    number = text.removesuffix(OF_EACH_GPU)
    if text in ("gpu", "node") or (number.isascii() and number.isdecimal() and len(number) < 5 and int(number)):
        return text
    raise UsageError(f"'{text}' is not gpu, node or a number of ranks", place=option, hint=f"Write {option} gpu.")


def read_mpi(text: str, option: str) -> str:
    """Return the kind of PMI by which MPI's ranks find each other: ``pmix`` or ``pmi2``; else UsageError."""
    if text in PMI:
        return text
    hint = f"Write {option} pmix for Open MPI, or {option} pmi2 for MPICH and Intel MPI."
    raise UsageError(f"'{text}' is not {' or '.join(PMI)}", place=option, hint=hint)


# fmt: off
OPTIONS = KindOptions(
    {
        "how much": (
            Option("ranks", "ranks: 1 per GPU, 1 per node, or N per node", _TAKERS,
                   read=read, metavar="gpu|node|N", values=("gpu", "node"), common=_TAKERS),
            Option("mpi", "interface between srun and MPI: pmix (Open MPI) or pmi2 (MPICH); needs --ranks",
                   CONTINUED | {"run"}, read=read_mpi, metavar="pmix|pmi2", values=PMI),
        ),
    },
    {
        "--nproc-per-node": "Use --ranks N to start N ranks on each node.",
        "--nnodes": "Use --nodes.",
        "--ranks": "Only hpcml submit, rerun and run accept --ranks. Submit each sweep point as a separate run.",
    },
)
# fmt: on


def asked(request: RunRequest) -> Ranks:
    """Return the options of a request for ranks."""
    return Ranks(**request.of_kind) if request.kind == "ranks" else Ranks()
