"""Ranks that did not find each other: MPI or JAX started in a rank as a world of one process."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from hpcml import errors
from hpcml.kind import FailedProcess, Hindrance
from hpcml.kinds.ranks.own_settings import Own
from hpcml.node import process_helpers
from hpcml.node.context import Context

LOOKS = (0.25, 1.0, 5.0, 20.0)  # seconds after a rank's start at which its processes are looked at
# The libraries of Open MPI, MPICH, Intel, MVAPICH, ParaStation and Cray as the loader maps them.
_LIBRARY = re.compile(r"/(libmpi|libmpich|libmpi_(?:cray|gnu|intel|nvidia|amd)\w*)\.so[^/\n]*$", re.MULTILINE)


def record_of(context: Context, rank: int) -> Path:
    """Return the file into which a rank's Python processes write that their world has one process."""
    return context.attempt.world.with_name(f"world-{rank}.json")


def programs_with_mpi(leaders: Collection[int]) -> dict[int, str]:
    """Return by process group of a rank which of its programs uses an MPI library, as a clause.

    Python is left out: there it is known whether MPI was started, and with how many processes
    (hpcml/node/script/worlds_of_one.py).
    """
    clauses: dict[int, str] = {}
    for pid in process_helpers.pids() if leaders else ():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            group = os.getpgid(pid)
            if group not in leaders or group in clauses:
                continue
            program = Path(f"/proc/{pid}/exe").readlink().name
            match = _LIBRARY.search(Path(f"/proc/{pid}/maps").read_text(errors="replace"))
            if match and not program.startswith("python"):
                clauses[group] = f"the program {program} uses MPI ({match[1]})"
    return clauses


class Looks:
    """The looks of a node's agent at the programs of its ranks; none where Slurm connects the ranks."""

    def __init__(self, *, wanted: bool) -> None:
        self.due = [time.monotonic() + seconds for seconds in LOOKS] if wanted else []

    def look(self, ranks: Mapping[int, int]) -> Iterator[tuple[int, str]]:
        """Yield the ranks, given by their process groups, whose programs use MPI, each with a clause."""
        if self.due and time.monotonic() >= self.due[0]:
            del self.due[0]
            for group, how in programs_with_mpi(ranks).items():
                yield ranks[group], how


class Alone:
    """The ranks of a run that are each a world of one process, as the supervisor knows them."""

    def __init__(self, context: Context, size: int, log_of: Callable[[Context, int, str], Path]) -> None:
        self.context, self.size, self.log_of = context, size, log_of
        self.by_rank: dict[int, tuple[str, str]] = {}  # the node of a rank, and how it is alone, as a clause

    def take(self, node: str, rank: int, how: str) -> None:
        """Take note that a rank is alone; nothing if ``how`` is empty."""
        if how and self.size > 1:
            self.by_rank.setdefault(rank, (node, how))

    def hindrance(self) -> Hindrance | None:
        """Return the end that this means for the run, None if no rank is alone."""
        if not self.by_rank:
            return None
        rank, (node, how) = next(iter(self.by_rank.items()))
        others = len(self.by_rank) - 1
        more = f", and in {others} other rank{'s' if others > 1 else ''}" if others else ""
        reason = f"the {self.size} ranks did not find each other: in rank {rank} on {node}{more}, {how}"
        mpi = self.context.settings.own(Own).mpi
        if how.startswith("JAX"):
            hint = "Call jax.distributed.initialize() without arguments."
        elif mpi:
            other = "pmi2 (MPICH, Intel MPI)" if mpi.startswith("pmix") else "pmix (Open MPI)"
            hint = f"This MPI does not support --mpi {mpi}. Use --mpi {other}."
        else:
            hint = "Add --mpi pmix (Open MPI) or --mpi pmi2 (MPICH, Intel MPI)."
        failed = FailedProcess(rank, node, self.log_of(self.context, rank, node).name)
        return Hindrance(errors.START_FAILED, reason, f"{hint} More: hpcml help ranks.", failed)
