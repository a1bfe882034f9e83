"""Which nodes are at fault, and the file that remembers them: private, whole, read with care, written by many."""

from __future__ import annotations

import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest

from hpcml import errors
from hpcml.runs import bad_nodes
from hpcml.runs.bad_nodes import BadNode, Memory
from hpcml.runs.status import Status
from tests.said import in_order

NOW = 1_795_387_000.0
FOUR = ("n1", "n2", "n3", "n4")


def failed(exit_status: int, *at_fault: str, by: str = "hpcml", nodes: tuple[str, ...] = FOUR) -> Status:
    facts: dict[str, Any] = {"exit_status": exit_status, "by": by, "nodes": nodes, "at_fault": at_fault}
    return Status.of("a-20261123-000000-0000", "lab", "ended", "n2: something", **facts)


def test_whose_fault_it_is(subtests: pytest.Subtests) -> None:
    lost, never = errors.ROLE_LOST, errors.WORKERS_NEVER_CAME
    cases = [
        ("gone", failed(lost), "off-bus", ("n3",), ("n3",)),
        ("the script saw it", failed(1, by="script"), "off-bus", ("n3",), ("n3",)),
        ("on all", failed(lost), "off-bus", FOUR, ()),
        ("on the only one", failed(lost, nodes=("n1",)), "off-bus", ("n1",), ("n1",)),
        ("another's name", failed(lost), "off-bus", ("login",), ()),
        ("a module", failed(1, by="script"), "no-module", ("n3",), ()),
        ("never came", failed(never, "n3"), "", (), ("n3",)),
        ("kept away by others", failed(never), "", (), ()),
        ("two never came", failed(never, "n3", "n4"), "", (), ()),
        ("it alone", failed(never, "n1", nodes=("n1",)), "", (), ()),
        ("for memory", failed(never, "n3"), "oom-kill", (), ()),
        ("for time", failed(errors.TIME_LIMIT, "n3"), "time-limit", (), ()),
        ("an image", failed(errors.IMAGE, "n2"), "", (), ("n2",)),
        ("an image on the first", failed(errors.IMAGE, "n1"), "", (), ()),
        ("no such rule", failed(lost), "nothing", ("n3",), ()),
    ]
    for name, known, rule, nodes, expected in cases:
        with subtests.test(name=name):
            assert bad_nodes.at_fault(known, rule, nodes) == expected


def bad(node: str, age: float = 60.0) -> BadNode:
    return BadNode(node, "GPU gone", f"a-{node}", NOW - age)


def test_a_day_long_for_you_alone(tmp_path: Path) -> None:
    memory = Memory("lab", str(tmp_path))
    assert memory.nodes(NOW) == []
    memory.add(["r1"], [bad("n3"), bad("n2", 80000)], NOW)
    memory.add(["r2"], [bad("n3", 90000), bad("n9", 90000)], NOW)
    assert memory.nodes(NOW) == [bad("n2", 80000), bad("n3")]
    assert memory.judged(NOW) == {"r1", "r2"}
    assert memory.nodes(NOW + 7000) == [bad("n3")]
    assert memory.judged(NOW + 90000) == set()
    assert Memory("other", str(tmp_path)).nodes(NOW) == []
    assert memory.path.stat().st_mode & 0o077 == memory.path.parent.stat().st_mode & 0o077 == 0
    memory.add(["r3"], [bad("n4")], NOW)
    assert [one.node for one in memory.nodes(NOW)] == ["n2", "n3", "n4"]


def _add(home: str, number: int) -> None:
    Memory("lab", home).add([f"r{number}"], [bad(f"n{number}")], NOW)


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(str(tmp_path), number)) for number in range(12)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    memory = Memory("lab", str(tmp_path))
    assert {one.node for one in memory.nodes(NOW)} == {f"n{number}" for number in range(12)}
    assert len(memory.judged(NOW)) == 12


@pytest.mark.parametrize("text", [
    "[" * 100_000, '{"nodes": [{"node": "--help", "why": "x", "run": "r", "time": 1795386900}], "judged": {"r": "soon"}}',
])  # fmt: skip
def test_a_damaged_file_is_nothing_and_is_written_anew(tmp_path: Path, text: str) -> None:
    memory = Memory("lab", str(tmp_path))
    memory.path.parent.mkdir(parents=True)
    memory.path.write_text(text)
    assert memory.nodes(NOW) == []
    memory.add(["r1"], [bad("n3")], NOW)
    assert memory.nodes(NOW) == [bad("n3")]


def test_what_is_not_a_file_of_yours(tmp_path: Path) -> None:
    memory = Memory("lab", str(tmp_path))
    memory.path.parent.mkdir(parents=True)
    target = tmp_path / "other"
    target.write_text('{"nodes": [{"node": "n1", "why": "x", "run": "r", "time": 1795386900}], "judged": {}}')
    memory.path.symlink_to(target)
    assert memory.nodes(NOW) == []
    memory.path.unlink()
    lock = memory.path.with_suffix(".lock")
    lock.symlink_to(target)
    memory.add(["r1"], [bad("n3")], NOW)
    assert not memory.path.exists()
    assert target.read_text().startswith("{")
    Memory("../evil", str(tmp_path)).add(["r1"], [bad("n3")], NOW)
    Memory("lab", "").add(["r1"], [bad("n3")], NOW)
    assert sorted(tmp_path.rglob("*.json")) == []


def test_one_line_with_the_option() -> None:
    assert re.search(
        in_order("n3 made a run fail in the last 24", "(GPU gone, a-n3)", "--exclude n3"),
        bad_nodes.sentence([bad("n3")]),
    )
    several = bad_nodes.sentence([bad(f"n{number}") for number in range(5)])
    assert "(n0: GPU gone; n1: GPU gone; n2: GPU gone; …): " in several
    assert several.endswith("--exclude n0,n1,n2,n3,n4")
