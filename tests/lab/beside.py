"""Tests that mostly wait run beside each other: each stays a test with its own name, result and failure.

A test marked ``beside`` takes the cluster, parameters and fixtures of a module or session, asks for a part of each node
(``PART``, ``SMALL``) and looks at its own run, never at the whole lab; what it left running is cancelled. All marked tests
of a file that were selected begin with the first of them, ``AT_ONCE`` at a time; nothing else of the file runs meanwhile.
``beside(at_once=8)`` is for a file whose tests ask for other nodes too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import slurmd_crashes

AT_ONCE = 4
# So many such runs have room beside each other.
PART = ("--cpus-per-node", "2", "--memory-per-node", "900M")
SMALL = ("--nodes", "2", "--nodelist", "n1,n2", *PART)
GROUPS = pytest.StashKey[dict[Path, "Group"]]()


class Group:
    """The marked tests of one file."""

    def __init__(self, items: list[pytest.Function], request: pytest.FixtureRequest) -> None:
        self.cluster = request.getfixturevalue("cluster")
        marker = items[0].get_closest_marker("beside")
        self.pool = ThreadPoolExecutor(max_workers=marker.kwargs.get("at_once", AT_ONCE) if marker else AT_ONCE)
        self.results: dict[str, Future[None]] = {item.nodeid: self._begin(item, request) for item in items}

    def _begin(self, item: pytest.Function, request: pytest.FixtureRequest) -> Future[None]:
        chosen = item.callspec.params if hasattr(item, "callspec") else {}
        try:
            words = {
                name: chosen[name] if name in chosen else request.getfixturevalue(name)
                for name in inspect.signature(item.obj).parameters
            }
        except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - its test's result
            result: Future[None] = Future()
            result.set_exception(error)
            return result
        return self.pool.submit(_run, item.obj, words)

    @property
    def over(self) -> bool:
        return all(result.done() for result in self.results.values())

    def end(self) -> None:
        """Begin no more, and wait for what has begun."""
        self.pool.shutdown(cancel_futures=True)


def _run(body: Callable[..., None], words: dict[str, Any]) -> None:
    cluster = words["cluster"]
    try:
        slurmd_crashes.survive(cluster.lab.places.log, lambda: body(**words), cluster.cancel_own)
    finally:
        cluster.cancel_own()


def marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("beside") is not None


def of(item: pytest.Item) -> Group | None:
    """Return the group of an item's file, if it has begun."""
    return item.session.stash.setdefault(GROUPS, {}).get(item.path)


def call(item: pytest.Function) -> None:
    """Wait for the end of a marked test, and let it fail or skip as it did; the first begins all of its file."""
    groups = item.session.stash.setdefault(GROUPS, {})
    if item.path not in groups:
        items = [one for one in item.session.items if one.path == item.path and marked(one)]
        groups[item.path] = Group([one for one in items if isinstance(one, pytest.Function)], item._request)
    groups[item.path].results[item.nodeid].result()


def sort(items: list[pytest.Item]) -> None:
    """Put a file's marked tests before its others; files stay in their order."""
    order = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (order[item.path], not marked(item)))
