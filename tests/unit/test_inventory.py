"""What the lab's inventory makes of what it finds: what has no row is seen, whoever opened it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inventory

ROOT = Path(__file__).resolve().parents[2]
TCP = {"kind": "tcp", "address": "10.79.0.11", "port": 4000}
PYTHON = ["python", "-P", "-m", "hpcml.kinds"]


def unix(path: str, mode: int = 0o600, above: int = 0o700) -> dict[str, Any]:
    return {"kind": "unix", "address": path, "port": 0, "mode": mode, "above": above}


def test_each_row_of_the_table_is_recognized_and_seen_or_attacked_by_tests() -> None:
    """A row that another account can connect to is attacked; there is no other way out than a test that is named."""
    assert inventory.SOCKETS.keys() == inventory.ROWS.keys()
    for name, row in inventory.ROWS.items():
        known = inventory.SOCKETS[name]
        assert known.kinds, name
        assert not [kind for kind in known.kinds if inventory.PAGE_WORDS[kind] not in row.where], name
        assert known.roles or known.seen_by, name
        assert (ROOT / known.seen_by).is_file() if known.seen_by else True, name
        attacked = name in inventory.REACHED or {*known.kinds} == {inventory.UNIX} or row.opener not in inventory.OURS
        assert attacked or known.seen_by.startswith("tests/lab/test_"), name


def test_each_name_and_variable_is_on_the_page() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    assert [one.row for one in inventory.NAMES if f"\n| {one.row} | " not in page] == []
    assert [one.name for one in inventory.VARIABLES if f"`{one.name}`" not in page] == []
    assert [one.seen_by for one in inventory.NAMES if one.seen_by and not (ROOT / one.seen_by).is_file()] == []


@pytest.mark.parametrize(
    ("socket", "role", "announced", "row"),
    [
        (TCP, "scheduler", "DASK", "DASK"),
        (TCP, "scheduler", "", ""),  # a second port of the scheduler
        (TCP, "supervisor", "DASK", ""),  # another process has the port
        ({**TCP, "address": "0.0.0.0"}, "scheduler", "DASK", ""),
        ({**TCP, "kind": "udp"}, "scheduler", "DASK", ""),
        ({**TCP, "address": "0.0.0.0"}, "worker", "", ""),
        ({**TCP, "address": "127.0.0.1"}, "script", "", ""),
        (unix("/tmp/hpcml_a/dashboard.sock"), "scheduler", "", "DASHBOARD"),
        (unix("/tmp/hpcml_a/dashboard.sock", mode=0o660), "scheduler", "", ""),
        (unix("/tmp/hpcml_a/dashboard.sock", above=0o755), "scheduler", "", ""),
        (unix("/tmp/hpcml_a/other.sock"), "supervisor", "", ""),
        ({**unix("@hpcml-" + "a" * 64), "kind": "abstract"}, "agent", "", "MPI_TASKS"),
        ({**unix("@hpcml"), "kind": "abstract"}, "agent", "", ""),
    ],
)
def test_a_socket_is_of_a_row_or_of_none(socket: dict[str, Any], role: str, announced: str, row: str) -> None:
    assert inventory.judge(socket, {role}, announced, ucx=False) == row


def test_a_socket_whose_process_is_unknown_has_no_row() -> None:
    assert inventory.judge(TCP, set(), "DASK", ucx=False) == ""
    assert inventory.judge(TCP, {"scheduler", "script"}, "DASK", ucx=False) == ""


def test_a_script_is_told_apart_from_hpcml_s_processes() -> None:
    table = {
        1: {"name": "srun", "words": ["srun", *PYTHON, "supervisor"], "parent": 0, "mine": True},
        2: {"name": "python", "words": [*PYTHON, "supervisor"], "parent": 0, "mine": True},
        3: {"name": "python", "words": ["python", "-c", "launcher", "script.py"], "parent": 2, "mine": True},
        4: {"name": "nc", "words": ["nc", "-l", "1"], "parent": 3, "mine": True},
        5: {"name": "python", "words": [*PYTHON, "worker"], "parent": 0, "mine": True},
        6: {"name": "python", "words": ["python", "-m", "hpcml.kinds.report_process"], "parent": 2, "mine": True},
        7: {"name": "python", "words": ["python", "own.py"], "parent": 0, "mine": True},
        8: {"name": "sshd", "words": ["sshd"], "parent": 0, "mine": False},
    }
    roles = [inventory.role(pid, table) for pid in table]
    assert roles == ["srun", "supervisor", "script", "script", "worker", "hpcml.kinds.report_process", "program", ""]


def test_a_name_is_of_a_row_or_of_none() -> None:
    assert inventory.judge_file("/tmp/hpcml_abcdefgh", 0o700)
    assert not inventory.judge_file("/tmp/hpcml_abcdefgh", 0o750)
    assert not inventory.judge_file("/tmp/hpcml-stacks.1", 0o600)
    assert not inventory.judge_file("/tmp/hpcml_abcdefgh.away", 0o700)


def test_a_secret_is_found_as_text_and_in_hexadecimal_and_base64() -> None:
    key = bytes(range(200, 232))
    assert key.hex() in inventory.forms(key)
    assert "yMnKy8zNzs_Q0dLT1NXW19jZ2tvc3d7f4OHi4-Tl5uc" in inventory.forms(key)
    assert inventory.forms(b"token\n")[-1] == "token"
    assert inventory.forms(b"-----BEGIN KEY-----\nabc\n-----END KEY-----\n") == ["abc"]
