"""Processes that start before their run: when they are a run's, and what they do when what they imported has changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcml import assets, held
from hpcml.kinds.hold import END
from hpcml.kinds.hold.node import ahead
from hpcml.paths import RunPaths

WAITS = """
import os, sys
import settled
print("imported", settled.VALUE, flush=True)
if os.environ.get("HPCML_AHEAD"):
    from hpcml.node import ahead
    line = ahead._line
    ahead._line = lambda: print("waits", flush=True) or line()
    ahead.wait()
print(os.environ["HPCML_RUN_DIR"], settled.VALUE, sys.stdin.read(), os.environ.get("HPCML_AHEAD"), flush=True)
"""

SINCE = "changed since the last run"


def made(folder: Path, text: str = "echo\n") -> RunPaths:
    folder.mkdir()
    run = RunPaths(folder)
    run.script.write_text(f"# run {folder.name}\nexport HPCML_RUN_DIR={folder}\n{text}")
    run.library.write_bytes(b"modules")
    return run


def parts(run: RunPaths, nodes: int = 1, **variables: str) -> dict[str, str]:
    return dict(ahead.parts(run, held.Start(("bash",), {"PATH": "/bin", **variables}), nodes))


def test_two_runs_of_one_shell_start_in_the_same_way(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a-20260101-000000-0000"), made(tmp_path / "b-20260101-000001-0000")
    assert ahead.difference(parts(first, _="/bin/ls", SHLVL="1"), parts(second, _="/bin/cat", OLDPWD="/")) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"variables": {"OMP_NUM_THREADS": "4"}}, f"the variable OMP_NUM_THREADS {SINCE}"),
        ({"text": "module load cuda\n"}, f"options or settings {SINCE}"),
        ({"nodes": 2, "variables": {"X": ""}}, f"number of nodes {SINCE} (and 1 more)"),
        ({"library": b"other"}, f"hpcml {SINCE}"),
    ],
)
def test_what_would_start_in_another_way_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    first = made(tmp_path / "a-20260101-000000-0000")
    second = made(tmp_path / "a-20260101-000001-0000", str(change.get("text", "echo\n")))
    second.library.write_bytes(change.get("library", b"modules"))  # type: ignore[arg-type]
    now = parts(second, change.get("nodes", 1), **change.get("variables", {}))  # type: ignore[arg-type]
    assert ahead.difference(parts(first), now) == said


def test_a_variable_that_is_not_utf_8_is_compared_like_any_other(tmp_path: Path) -> None:
    """An error here would end the hold's supervisor, and with it all runs of the hold."""
    first, second, third = (made(tmp_path / f"a-20260101-00000{index}-0000") for index in range(3))
    for run, value in ((first, b"\xff"), (second, b"\xff"), (third, b"\xfe")):
        run.variables.write_bytes(b"export NAME='" + value + b"'\n")
    assert ahead.difference(parts(first), parts(second)) == ""
    assert ahead.difference(parts(first), parts(third)) == f"options or settings {SINCE}"


@pytest.mark.parametrize("changes", [False, True])
def test_a_process_that_waits_gets_its_run_and_imports_again_what_has_changed(tmp_path: Path, changes: bool) -> None:
    """It reads one line alone."""
    module = tmp_path / "settled.py"
    module.write_text("VALUE = 'old'\n")
    (tmp_path / "waits.py").write_text(WAITS)
    environment = {**os.environ, "HPCML_RUN_DIR": "/before", "HPCML_AHEAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen([sys.executable, tmp_path / "waits.py"], env=environment, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert [process.stdout.readline() for _ in "ab"] == ["imported old\n", "waits\n"]
        if changes:
            module.write_text("VALUE = 'edited'\n")
        process.stdin.write("/runs/a\n/runs/a\n")
        process.stdin.flush()
        said = process.stdout.read()
    again = (
        "hpcml: a package or a file of settings has changed: this process imports all modules again.\nimported edited\n"
    )
    assert said == (f"{again}/runs/a edited  None\n" if changes else "/runs/a old  None\n")


def test_a_batch_script_that_waits_reads_its_run_whole() -> None:
    """It looks at its processes each second, also when that second ends within the line."""
    text = (assets.folder("templates") / "batch.sh.j2").read_text()
    reads = text[text.index("  directory=\n") : text.index('  [ -n "$directory" ]')]
    script = f'ahead=0; gone() {{ echo looks; return 1; }}\n{reads}\necho "<$directory>"'
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("/runs")
        process.stdin.flush()
        assert process.stdout.readline() == "looks\n"
        process.stdin.write("/a b\n")
        process.stdin.flush()
        assert process.stdout.read().splitlines()[-1] == "</runs/a b>"


@pytest.mark.parametrize("ignores", [False, True])
def test_a_hold_does_not_wait_long_for_processes_that_do_not_end(ignores: bool) -> None:
    """Else their node is paid for until the time limit of the hold, which has no run and takes none."""
    stays = f"{'trap : TERM; ' if ignores else ''}echo here; while :; do sleep 0.1; done"
    ready = ahead.Ahead.__new__(ahead.Ahead)
    with subprocess.Popen(["bash", "-c", stays], stdout=subprocess.PIPE, start_new_session=True) as ready.process:
        try:
            assert ready.process.stdout
            assert ready.process.stdout.readline() == b"here\n"
            ready.lifeline, ready.since = -1, time.monotonic()
            assert not ready.has_ended()
            ready.since -= END * (2 if ignores else 1)
            assert ready.has_ended() == ignores
            assert ready.process.wait(30) == -(signal.SIGKILL if ignores else signal.SIGTERM)
        finally:
            ready.process.kill()


def test_a_process_for_which_no_run_comes_ends(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "from hpcml.node import ahead; ahead.wait(); print('runs')"],
                          env={**os.environ, "HPCML_AHEAD": "1"}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False, cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
