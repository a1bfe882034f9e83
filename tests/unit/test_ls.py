"""The table of runs at every width."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcml.cli import ls
from hpcml.runs import directories, listing
from hpcml.runs.status import Status

ID = "kmeans-20261122-223919-4499"
NOW = 1795387159.0 + 65  # 65 s after ID
TIMES = {"allocated": NOW - 60, "script-ended": NOW - 3, "torn-down": NOW - 2}
ROWS = [
    Status.of(ID, "leonardo", "ended", "the script exited with status 0", job="12345678", nodes=("a", "b"), times=TIMES,
           exit_status=0, ended_as="OUT_OF_MEMORY"),
    Status.of("b-20261120-000000-0000", "leonardo", "queued", "waiting for free nodes", job="12345679", node_count=128),
    Status.of("c-20261122-223959-0000", "local", "running", "the script runs", nodes=("n1",), node_count=2, times={"allocated": NOW - 7}),
    Status.of("d-20261122-223959-0000", "lab", "ended", "a node of the allocation failed", job="7", exit_status=87,
           ended_as="NODE_FAIL", times={"allocated": NOW - 9}),
]  # fmt: skip


def lines(width: int, *more: Status) -> list[str]:
    return ls.table([ls.cells(row, NOW) for row in (*ROWS, *more)], width)


def test_in_a_pipe_nothing_is_cut() -> None:
    command = "train.py --epochs 3"
    rows = [row.changed(command=command if row is ROWS[0] else "") for row in ROWS]
    table = [line.split("  ") for line in ls.table([ls.cells(row, NOW) for row in rows], 0)]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in table]
    assert cells == [
        list(ls.HEADER),
        [ID, "OUT_OF_MEMORY", "0", "2", "1m", "0:58", "12345678", "leonardo", "the script exited with status 0", command],
        ["b-20261120-000000-0000", "PENDING", "-", "128", "2d", "-", "12345679", "leonardo", "waiting for free nodes"],
        ["c-20261122-223959-0000", "RUNNING", "-", "2", "25s", "0:07", "-", "local"],
        ["d-20261122-223959-0000", "NODE_FAIL", "87", "-", "25s", "-", "7", "lab", "a node of the allocation failed"],
    ]  # fmt: skip


def test_what_the_exit_status_says_is_not_repeated() -> None:
    """By the end's reason, whatever its sentence is."""
    row = Status.of(ID, "lab", "ended", "any sentence", exit_status=3, by="script", ended_as="FAILED")
    what = ls.HEADER.index("WHAT")
    assert ls.cells(row, NOW)[what] == "any sentence"
    assert ls.cells(row.changed(reason="exit"), NOW)[what] == ""
    assert ls.cells(row.changed(cause="cancelled", ended_as="CANCELLED"), NOW)[what] == ""
    assert ls.cells(ROWS[2].changed(expected=4), NOW)[what] == "the script runs"  # without some of its workers


@pytest.mark.parametrize(("width", "titles"), [
    (60, "RUN STATE NODES TIME"),
    (80, "RUN STATE EXIT NODES AGE TIME JOB"),
    (120, "RUN STATE EXIT NODES AGE TIME JOB SITE"),
    (140, " ".join(ls.HEADER)),
])  # fmt: skip
def test_a_terminal_s_width(width: int, titles: str) -> None:
    """Where the table is too wide, what a run waits for is a line below its row."""
    table = lines(width)
    assert table[0].split() == titles.split()
    assert max(map(len, table)) <= width
    rows = [line for line in table[1:] if not line.startswith(" ")]
    assert [line.split()[0] for line in rows] == [row.run for row in ROWS]
    assert ("  waiting for free nodes" in table) == ("WHAT" not in titles)


@pytest.mark.parametrize(("width", "below"), [(0, False), (60, True), (100, True), (140, False)])
def test_a_cause_is_told_at_every_width(width: int, below: bool) -> None:
    """In its column, or on a line below its row; the command then has the room."""
    cause, command = "Dask worker killed, memory was full", "fit.py --a 1"
    rows = [ls.cells(row.changed(command=command), NOW) for row in (ROWS[3].changed(cause=cause), ROWS[2])]
    table = ls.table(rows, width)
    assert (table[2] == f"  {cause}", cause in table[1]) == (below, not below)
    assert width < 100 or command in table[1]
    assert width == 0 or max(map(len, table)) <= width


def test_which_runs_failed() -> None:
    assert [row.failed for row in ROWS] == [False, False, False, True]
    assert Status.of(ID, "", "refused", exit_status=72).failed
    assert not Status.of(ID, "", "unknown", exit_status=75).failed


def planted(folder: Path, number: int, exit_status: int) -> Path:
    """Write a run that has ended, some minutes ago."""
    run = folder / f"train-20261122-22{number // 60:02}{number % 60:02}-0000"
    run.mkdir(mode=0o700)
    (run / "submission.json").write_text(json.dumps({"job": str(number), "scheduler": "slurm"}))
    code = {"script": f"/r/t{number}.py", "arguments": ["--Big"]}
    inside = {"job": {"nodes": 2}, "workers": {"per_node": 1}, "code": code}
    (run / "plan.json").write_text(json.dumps({"site": "lab", "inside": inside}))
    events = [{"time": 5, "event": "allocated", "nodes": ["n1", "n2"]}, {"time": 9, "event": "clock", "node": "n2"}]
    events[1] |= {"ahead": 0.5, "within": 0.25}
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    end = {"over": True, "state": "FAILED", "exit_status": exit_status, "by": "script", "message": "it ended", "hint": ""}  # fmt: skip
    (run / "status.json").write_text(json.dumps(end | {"quote": ["a line"], "cause": "disk full"}))
    settle(run)
    return run


def settle(run: Path) -> None:
    os.utime(run, (time.time() - 300 + len(os.listdir(run)),) * 2)


def test_a_note_comes_behind_the_rows(tmp_path: Path) -> None:
    for number in range(2):
        planted(tmp_path, number, 0)
    command = [sys.executable, "-m", "hpcml", "ls", "--site", "local", "--set", f"paths.runs={tmp_path}", "--last", "1"]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    assert [line.split()[0] for line in said.stdout.splitlines()] == ["RUN", "train-20261122-220001-0000", "1"]


def test_ends_are_kept_for_long_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [planted(tmp_path, number, exit_status=int(number % 10 == 0)) for number in range(listing.WORTH)]
    read: list[str] = []
    load = directories.load

    def counted(path: Path) -> directories.Run:
        read.append(path.name)
        return load(path)

    monkeypatch.setattr(directories, "load", counted)

    def listed(*, failed: bool = False, text: str = "") -> list[Status]:
        read.clear()
        return listing.newest(tmp_path, directories.ids(tmp_path), None, failed=failed, text=text)[0]

    first = listed()
    assert (len(first), len(read)) == (listing.WORTH, listing.WORTH)
    assert first[0].progress.clocks == {"n2": (0.5, 0.25)}
    assert (listed(), read) == (first, [])  # every value, of the same kind
    assert (listed(failed=True), read) == (first[::10], [])
    assert (listed(text="T77.py --big"), read) == ([first[77]], [])
    assert (listed(text=runs[5].name[:-5]), read) == ([first[5]], [])
    assert [row.run for row in listing.newest(tmp_path, directories.ids(tmp_path), 1, failed=False, text="t7")[0]] == [
        runs[79].name
    ]

    (file,) = tmp_path.glob(".ends.*")
    assert file.stat().st_mode & 0o777 == 0o600
    (runs[1] / "report.html").touch()  # a run whose folder was changed is read again
    (runs[1] / "status.json").unlink()
    settle(runs[1])
    shutil.rmtree(runs[2])
    assert [row.run for row in listed() if not row.over] == [runs[1].name]
    assert (len(listed()), read) == (listing.WORTH - 1, [runs[1].name])
    text = file.read_text()
    assert '"n2"' in text
    head = text.splitlines()[0]
    for damaged in (
        "",
        "hpcml 0 other",
        f"{head}\nno line\n",
        f"{head}\n{runs[3].name} x 0 {{}}\n",
        "\udcff",
        text.replace('"n2"', '"n3"', 1),
    ):
        file.write_bytes(damaged.encode(errors="surrogateescape"))
        assert (len(listed()), len(read)) == (listing.WORTH - 1, listing.WORTH - 1)


def test_an_end_that_may_change_is_not_kept(tmp_path: Path) -> None:
    run = directories.load(planted(tmp_path, 1, 0))
    ends = listing.Ends(tmp_path)
    over = Status.of(run.id, "lab", "ended")
    now = time.time_ns()
    again = run._replace(submission=run.submission and run.submission._replace(requeue=True))
    ends.keep(over, run, now)  # its files may still be written
    ends.keep(over, again, 1)
    ends.keep(over._replace(phase="ending"), run, 1)
    ends.keep(over.changed(job_state="FAILED"), run, 1)  # Slurm's word
    assert not ends.new
    ends.keep(over, run, 1)
    assert list(ends.new) == [run.id]


def test_a_cause_below_its_row_takes_no_width_from_the_commands() -> None:
    cause, command = "KeyError: the column 'price' is missing in data", "dist.py --n 500 --title another"
    failed = Status.of("e-20261122-223959-0000", "lab", "ended", job="7", exit_status=1, ended_as="FAILED", cause=cause)
    rows = [row.changed(command=command) for row in (failed, ROWS[2])]
    table = ls.table([ls.cells(row, NOW) for row in rows], 120)
    assert table[0].split()[-2:] == ["SITE", "COMMAND"]
    assert [line.endswith(command) for line in table] == [False, True, False, True]
    assert table[2].strip() == cause
    assert max(map(len, table)) <= 120


def with_events(runs: Path, *lines: str) -> Status:
    runs.mkdir()
    run = planted(runs, 1, 0)
    (run / "status.json").unlink()
    (run / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return listing.newest(runs, [run.name], None, failed=False)[0][0]


def test_a_new_attempt_has_no_interconnect_before_its_check(tmp_path: Path) -> None:
    checked = {"time": 2, "event": "interconnect-checked", "line": "fast", "problem": "", "ok": True, "differences": []}
    first = [json.dumps(event) for event in ({"time": 1, "event": "allocated", "nodes": ["n1"]}, checked)]
    assert with_events(tmp_path / "one", *first).cluster.interconnect == "fast"
    second = json.dumps({"time": 9, "event": "allocated", "nodes": ["n2"], "attempt": 1})
    again = with_events(tmp_path / "two", *first, second)
    assert (again.cluster.interconnect, again.progress.attempt, again.progress.seconds_before) == ("", 1, 1)


def test_a_damaged_line_of_events_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    event = '{"event": "allocated", "time": 1, "nodes": ["n1"]}'
    assert with_events(tmp_path / "good", event).allocation.nodes == ("n1",)
    for number, damaged in enumerate(("", "1", "null", "{", f"{event}, {event}", "\x00", '"x', "[" * 100_000)):
        with subtests.test(line=damaged[:9]):
            row = with_events(tmp_path / str(number), event, damaged)
            assert "The file is" in row.message, row
