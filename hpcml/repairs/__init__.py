"""Repairs of Dask, RAPIDS, UCX and cloudpickle, until their own releases make them needless: see ``table``.

hpcml works without them. Each has a switch in the site's table ``repairs``, and is off where the installed release of
its library is not among those that it was tried with.
"""

from __future__ import annotations

import functools
import operator
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpcml import installed_packages
from hpcml.repairs.table import REPAIRS, Repair

VARIABLE = "HPCML_REPAIRS"  # in a run where some are switched off: the modules of the others
NO_REPAIRS = (VARIABLE, "none")
OFF, APPLIED, UNTRIED = "off", "applied", "untried"
_RELEASE = re.compile(r"(\d+(?:\.\d+)*)(?:\+.*)?")  # no alpha, no development version: these were never tried
_CLAUSE = re.compile(r"(==|>=|<=)([\d.]+)")
_COMPARE = {"==": operator.eq, ">=": operator.ge, "<=": operator.le}
_ROWS = {row.module: row for row in REPAIRS}


class Decision(NamedTuple):
    """Whether a repair is applied, and the release of its library that decides."""

    state: str = ""  # applied; off: by the site's settings; untried: with this release
    library: str = ""
    version: str = ""  # that is installed
    tried: str = ""  # the releases that it was tried with, as a specifier

    def sentence(self, module: str) -> str:
        """Return in words what became of a repair, behind the word "repair"."""
        if self.state == APPLIED:
            return f"{module} is applied to {self.library} {self.version}"
        if self.state == OFF:
            return f"{module} is off: repairs.{module} = false"
        return f"{module} is off: it was tested with {self.library} {self.tried}, not with {self.version}"


def variables(switches: Mapping[str, bool]) -> tuple[tuple[str, str], ...]:
    """Return the variable for a run's processes by the site's switches, none if all are on."""
    on = [name for name, is_on in switches.items() if is_on]
    return () if len(on) == len(switches) else ((VARIABLE, ",".join(on) or NO_REPAIRS[1]),)


def is_on(module: str, version: str = "") -> bool:
    """Whether this process applies a repair; ``version``: of the library, if it is better known than from its name."""
    row = _ROWS[module]
    return _state(row, version or _installed().get(row.library, "")) == APPLIED


def decisions(versions: Mapping[str, str], rows: Iterable[Repair] = REPAIRS) -> dict[str, Decision]:
    """Return by module what this process does about each library that is among the ``versions``."""
    return {
        row.module: Decision(_state(row, version), row.library, version, row.tried)
        for row in rows
        if (version := versions.get(row.library))
    }


def notes(made: Mapping[str, Decision]) -> list[str]:
    """Return the log's sentences on repairs that are off for an untried release."""
    return [f"repair {one.sentence(name)}." for name, one in made.items() if one.state == UNTRIED]


def notes_here() -> list[str]:
    """Return :func:`notes` of the libraries of this process."""
    return notes(decisions(_installed()))


@functools.cache
def _installed() -> dict[str, str]:
    return installed_packages.versions({row.library for row in REPAIRS})


def _state(row: Repair, version: str) -> str:
    switched_on = os.environ.get(VARIABLE)
    if switched_on is not None and row.module not in switched_on.split(","):
        return OFF
    return APPLIED if _was_tried(version, row.tried) else UNTRIED


def _was_tried(version: str, specifier: str) -> bool:
    """Whether a version fits all clauses of a specifier, such as ``>=2026.7.0,<=2026.7.1``."""
    release = _RELEASE.fullmatch(version)
    if release is None:
        return False
    clauses = [_CLAUSE.fullmatch(text) for text in specifier.split(",")]
    return all(clause and _COMPARE[clause[1]](_numbers(release[1]), _numbers(clause[2])) for clause in clauses)


def _numbers(release: str) -> tuple[int, ...]:
    """Return a release as numbers, without zeros at its end: 26.10 is 26.10.0."""
    numbers = [int(part) for part in release.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
