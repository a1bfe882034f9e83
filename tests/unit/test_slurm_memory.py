"""The memory that accounting says a job has asked for, in the forms of older and newer versions of Slurm."""

from __future__ import annotations

import pytest

from hpcml.schedulers import slurm, slurm_memory
from hpcml.subprocesses import Answer

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "nodes", "cpus", "size"),
    [
        ("4Gn", 2, 16, 4 * GIB),
        ("2000Mc", 2, 16, 8 * 2000 * 2**20),
        ("2000Mc", 1, 4, 4 * 2000 * 2**20),
        ("16G", 2, 16, 8 * GIB),
        ("1.50T", 3, 6, 512 * GIB),
        ("4096Mn", 1, 1, 4 * GIB),
        ("0n", 2, 16, 0),
        ("0", 2, 16, 0),
        ("", 2, 16, 0),
        ("?", 2, 16, 0),
        ("16G", 0, 0, 0),
    ],
)
def test_the_forms_of_reqmem(text: str, nodes: int, cpus: int, size: int) -> None:
    assert slurm_memory.per_node(text, nodes, cpus) == size


def test_accounting_is_asked_for_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[list[str]] = [["12", "16G", "2", "16"]]
    asked: list[list[str]] = []

    def ask(command: list[str], timeout: float = 0) -> Answer:
        asked.append(command)
        return Answer(0, "".join("|".join(row) + "\n" for row in rows), "")

    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm_memory.requested("12") == 8 * GIB
    assert [word for word in asked[0] if "ReqMem" in word] == [
        "--format=JobID,ReqMem,NNodes,NCPUS,Submit,UID,JobName,Comment"
    ]
    for answer in ([], [["12", "16G", "", "16"]], [["12", "an error"]]):
        rows[:] = answer
        assert slurm_memory.requested("12") == 0
