"""Whether all roles have the same versions and all nodes the same time: each role tells its own over the link.

Python objects travel between the roles as pickles, so what one role packs another must be able to unpack.

A role tells its time after its connection was accepted and before its words were read, both by the supervisor's clock;
the time must lie between. Where words come by a file, they were written after the batch script began. No file's time is
asked, because some file systems take it from the client.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from hpcml import installed_packages
from hpcml.kind import Role
from hpcml.node.context import Context
from hpcml.node.process_helpers import Process
from hpcml.units import first_of_many, listed

# What must be equal, and how many numbers of the version: Dask speaks its protocol with itself only; pickles hold names
# of functions and classes, which packages move between the versions named here.
AGREE = {
    "python": 2,
    "dask": 3,
    "distributed": 3,
    "cloudpickle": 2,
    "msgpack": 1,
    "toolz": 1,
    "tornado": 1,
    "lz4": 1,
    "numpy": 1,
    "pandas": 2,
    "pyarrow": 1,
    "scikit-learn": 2,
    "dask-ml": 2,
    "dask-cuda": 2,
    "rapids-dask-dependency": 2,
    "dask-cudf": 2,
    "distributed-ucxx": 2,
    "ucxx": 2,
    "ucx": 2,
    "cuda": 1,
    "rmm": 2,
    "cudf": 2,
    "cuml": 2,
    "cupy": 2,
    "polars": 2,
    "cudf-polars": 2,
    "rapidsmpf": 2,
    "torch": 2,
    "nccl": 2,
    "jax": 2,
    "jaxlib": 2,
    "mpi4py": 1,
}
NOTED = 10.0  # seconds between two nodes' clocks from which on it is told


def here() -> dict[str, str]:
    """Return the versions of this interpreter and of its packages."""
    python = ".".join(map(str, sys.version_info[:3]))
    return dict(sorted({"python": python, **installed_packages.versions(AGREE)}.items()))


def unlike(theirs: Mapping[str, str]) -> str:
    """Return the version that keeps this process from talking to one with others, empty if there is none."""
    local_versions = here()
    for package in ("python", "distributed"):
        mine, other = local_versions.get(package, ""), theirs.get(package, "")
        if mine and _numbers(mine, AGREE[package]) != _numbers(other, AGREE[package]):
            return f"{package} is {mine} in this process but {other} in the run"
    return ""


class Clocks:
    """The other nodes' clocks against that of ``node``, where the supervisor and the batch script run.

    A node may be ``behind`` or ``ahead`` of it by so many seconds and still accept the run's certificate.
    """

    def __init__(self, node: str, behind: float, ahead: float) -> None:
        self.node, self.behind, self.ahead = node, behind, ahead
        age = Process.named(int(os.environ.get("HPCML_BATCH", "0"))).age  # by no clock that somebody sets
        self.began = time.time() - age if age else float(os.environ.get("HPCML_BEGAN") or time.time() - NOTED)
        self.differences: dict[str, float] = {}
        self.bounds: dict[str, tuple[float, float]] = {}  # seconds ahead, and by how many that may be wrong

    def take(self, node: str, seconds: float, began: float = 0.0) -> None:
        """Take in the time that a role on a node reported when it started, as soon as it is seen.

        ``began`` is a time here before which it cannot have reported; 0: when the batch script began.
        """
        if node == self.node:
            return
        seen, began = time.time(), began or self.began
        self.bounds[node] = (seconds - (seen + began) / 2, abs(seen - began) / 2)
        least = max(0.0, seconds - seen) or min(0.0, seconds - began)
        if abs(least) > abs(self.differences.get(node, 0.0)) or node not in self.differences:
            self.differences[node] = least

    @property
    def fatal(self) -> str:
        """Why no connection would come about, empty if they will."""
        return self._sentence(lambda least: least < -self.behind or least > self.ahead)

    @property
    def note(self) -> str:
        """Which clocks differ, empty if none does by much."""
        return self._sentence(lambda least: abs(least) > NOTED)

    def _sentence(self, counts: Callable[[float], bool]) -> str:
        wrong = {node: least for node, least in self.differences.items() if counts(least)}
        if not wrong:
            return ""
        if len(wrong) == len(self.differences) > 1 and len({least > 0 for least in wrong.values()}) == 1:
            nearest = min(wrong.values(), key=abs)  # all others agree that it is this one
            return f"clocks differ: the clock of {self.node} is {_by(-nearest)} all other nodes"
        named = [f"the clock of {node} is {_by(least)} {self.node}'s" for node, least in wrong.items()]
        return f"clocks differ: {first_of_many(named, 4, more=', and {} more')}"


def _by(seconds: float) -> str:
    return f"{abs(seconds):.0f} s or more {'ahead of' if seconds > 0 else 'behind'}"


class Comparison:
    """The supervisor's versions against those of all other roles, as they come.

    ``complete`` once all have reported; ``ends`` is why the run must end, else empty; ``notes`` are differences
    that do no harm. ``behind`` and ``ahead``: see :class:`Clocks`. ``shown`` are the packages of the summary.
    """

    def __init__(
        self,
        context: Context,
        roles: Sequence[Role],
        *,
        behind: float = math.inf,
        ahead: float = math.inf,
        shown: Sequence[str] = ("python", "dask", "cudf", "ucx"),
    ) -> None:
        self.context, self.shown = context, shown
        self.local = here()
        self.titles = {role.name: role.title for role in roles}
        nodes = context.node_names
        self.waiting = {f"{role.name}@{node}" for role in roles for node in (nodes if role.every_node else nodes[:1])}
        self.roles = len(self.waiting) + 1
        self.clocks = Clocks(context.node, behind=behind, ahead=ahead)
        self.fatal: dict[str, dict[str, list[str]]] = {}
        self.harmless: dict[str, dict[str, list[str]]] = {}

    @property
    def complete(self) -> bool:
        """Whether all roles have reported."""
        return not self.waiting

    def take(self, role: str, node: str, theirs: Mapping[str, str], seconds: float, began: float) -> None:
        """Take in what a role on a node reported over a connection: its versions, its time (:meth:`Clocks.take`)."""
        if (who := f"{role}@{node}") in self.waiting:
            self.waiting.remove(who)
            self.clocks.take(node, seconds, began)
            self._compare(who, theirs)

    def _compare(self, who: str, theirs: Mapping[str, str]) -> None:
        role, _, node = who.partition("@")
        for name, count in AGREE.items():
            mine, other = self.local.get(name, ""), theirs.get(name, "")
            if mine != other:
                table = self.fatal if _numbers(mine, count) != _numbers(other, count) else self.harmless
                table.setdefault(name, {}).setdefault(other, []).append(f"{self.titles[role]} on {node}")

    @property
    def ends(self) -> str:
        """Why the run must end: one package with its versions and roles, and how many others differ."""
        if not self.fatal:
            return ""
        name, versions_found = next(iter(self.fatal.items()))
        others = list(self.fatal)[1:]
        more = f"; {listed(others, 3)} also differ{'s' if len(others) == 1 else ''}" if others else ""
        return f"the versions of the run's processes differ: {self._sentence(name, versions_found)}{more}"

    @property
    def notes(self) -> list[str]:
        """The differences that do no harm."""
        return [self._sentence(name, nodes_by_version) for name, nodes_by_version in self.harmless.items()]

    def _sentence(self, name: str, nodes_by_version: Mapping[str, list[str]]) -> str:
        versions = {self.local.get(name, ""): [f"the script on {self.context.node}"], **nodes_by_version}
        parts = [f"{version or 'missing'} in {listed(who, 3)}" for version, who in versions.items()]
        return f"{name} is {', '.join(parts)}"

    @property
    def summary(self) -> str:
        """What all have, for people."""
        packages = [f"{name} {self.local[name]}" for name in self.shown if name in self.local]
        return f"{self.roles} processes, {', '.join(packages)}"


def _numbers(version: str, count: int) -> tuple[str, ...]:
    """Return the first numbers of a version as text; none for a package that is not there."""
    return tuple(re.split(r"[.+-]", version)[:count]) if version else ()
