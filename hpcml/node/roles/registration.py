"""Dask's comparison of versions when a worker or client joins: with one worker of each kind in the place of all.

Dask looks through all workers that are there for each that comes, on the scheduler's one thread: for a thousand workers
that is half a million looks. Workers of a run are mostly alike, as they share one environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from distributed import scheduler, versions

Versions = Mapping[str, Any]


class Kinds:
    """The versions that workers have told: equal ones are one object, by which :func:`error_message` knows them."""

    def __init__(self) -> None:
        self._known: dict[str, Versions] = {}

    def one(self, told: Versions) -> Versions:
        """Return the first that was equal."""
        return self._known.setdefault(json.dumps(told, sort_keys=True, default=str), told)


def error_message(own: Versions, workers: Mapping[str, Versions], source: Versions, source_name: str = "Client") -> Any:
    """Return what Dask says of different versions, of one worker of each kind."""
    kinds = {id(told): name for name, told in workers.items()}
    return versions.error_message(own, {name: workers[name] for name in kinds.values()}, source, source_name)


def install() -> None:
    """Have Dask's scheduler in this process compare so; again it does nothing."""
    if scheduler.version_module is versions:
        scheduler.version_module = SimpleNamespace(**{**vars(versions), "error_message": error_message})
