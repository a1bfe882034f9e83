"""What roles say to their supervisor: each event that code sends is one that a supervisor takes."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import hpcml
from hpcml.kinds.dask.node import messages as of_dask
from hpcml.kinds.ranks.node import supervised as of_ranks
from hpcml.node.link import messages

ROOT = Path(hpcml.__file__).parent
KNOWN = messages.EVENTS.keys() | of_dask.EVENTS.keys() | of_ranks.EVENTS.keys()


def sent() -> Iterator[tuple[str, ast.expr]]:
    """Yield each value of ``event=`` in a call that sends, with its module."""
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(["hpcml", *path.relative_to(ROOT).with_suffix("").parts])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("send", "give_sign")
            ):
                yield from ((module, word.value) for word in node.keywords if word.arg == "event")


def test_a_supervisor_knows_each_event_that_is_sent() -> None:
    names = set()
    for module, value in sent():
        if isinstance(value, ast.Constant):
            names.add(value.value)
        elif isinstance(value, ast.Name) and value.id.isupper():
            names.add(getattr(importlib.import_module(module), value.id))
    assert {"polars-engine", "rank-ended", "mark", "scheduler-up"} <= names
    assert names <= KNOWN  # a message of another kind closes the line of its sender (hpcml/node/link/hub.py)
