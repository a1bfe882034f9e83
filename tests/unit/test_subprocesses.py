"""A child's pipes: nobody waits for one that somebody else holds open, and each is closed in the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml import subprocesses
from hpcml.config_trust import HPCML, Named, Origin
from hpcml.errors import ConfigError


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocesses, "_LAST_WORDS", 0.5)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[list[str]]:
    """A command that ends at once; what it has started, in a session of its own, holds its output open."""
    note = tmp_path / "pid"
    stays = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    program = f"import os, subprocess; subprocess.Popen([{sys.executable!r}, '-c', {stays!r}], start_new_session=True); os.write(1, b'said'); os.write(2, b'word')"
    yield [sys.executable, "-c", program]
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(note.read_text()), signal.SIGKILL)


def test_output_that_a_daemon_holds_open_ends(daemon: list[str]) -> None:
    child = subprocesses.Child(daemon, out=subprocess.PIPE, program=HPCML)
    assert child.out is not None
    child.expect_end(1.0)
    begin = time.monotonic()
    assert child.out.read() == b"said"
    assert child.wait(30) == 0
    child.stop()
    assert time.monotonic() - begin < 30
    child._reader.join(30)
    assert child.errors == "word"
    assert child.out.closed
    assert child.process.stderr is not None
    assert child.process.stderr.closed


def test_a_reader_of_a_child_that_is_stopped_is_not_waited_for(daemon: list[str]) -> None:
    child = subprocesses.Child(daemon, out=subprocess.PIPE, program=HPCML)
    assert child.out is not None
    got: list[bytes] = []
    reader = threading.Thread(target=lambda out: got.append(out.read()), args=(child.out,), daemon=True)
    reader.start()
    assert child.wait(30) == 0
    child.stop()
    reader.join(30)
    assert got == [b"said"]


def test_a_command_that_hangs_is_killed(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    answer = subprocesses.run(
        [sys.executable, "-c", f"import time; time.sleep(20); open({str(ended)!r}, 'w')"], 0.01, program=HPCML
    )
    assert (answer.code, ended.exists()) == (None, False)


def test_a_group_that_ignores_signals_is_killed() -> None:
    code = "import signal\nfor number in (2, 15): signal.signal(number, signal.SIG_IGN)\nprint(1, flush=True)\nsignal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            subprocesses._end_group(process, grace=0.01)
            process.wait(60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


def test_a_dead_process_that_nobody_collected_has_no_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert subprocesses.start_time(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert subprocesses.start_time(process.pid) == ""


def test_what_runs_in_the_background_has_no_terminal(tmp_path: Path) -> None:
    """Ctrl-C there reaches the processes of the terminal's session."""
    pid = subprocesses.start_in_background(["sleep", "600"], tmp_path / "log", program=HPCML)
    try:
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_program_that_somebody_else_s_file_names_is_not_started(tmp_path: Path, subtests: pytest.Subtests) -> None:
    trace = tmp_path / "started"
    command = ["touch", str(trace)]
    starters: dict[str, Callable[[Named], object]] = {
        "run": lambda named: subprocesses.run(command, 60, program=named),
        "stream": lambda named: subprocesses.stream(command, 60, lambda _: None, program=named),
        "Child": lambda named: subprocesses.Child(command, program=named).wait(60),
        "start_in_background": lambda named: subprocesses.start_in_background(command, tmp_path / "log", program=named),
        "interactive": lambda named: subprocesses.interactive(command, program=named),
        "become": lambda named: subprocesses.become(command, {}, program=named),
    }
    for name, start in starters.items():
        for origin in (Origin.PROJECT, Origin.LINE):
            with subtests.test(name, origin=origin):
                with pytest.raises(ConfigError, match="does not start 'touch' on this machine") as raised:
                    start(Named(origin, "hpcml.toml: some.key"))
                assert (raised.value.place, trace.exists()) == ("hpcml.toml: some.key", False)
    for origin in (Origin.HPCML, Origin.TYPED, Origin.USER, Origin.SITE):
        assert subprocesses.run(command, 60, program=Named(origin)).code == 0
        trace.unlink()


ASKS = """
import signal
signal.signal(signal.SIGINT, lambda *_: None)
from hpcml.schedulers import slurm
answer = slurm.ask(["squeue"], 60.0)
print(answer.code, answer.out.strip())
"""
SQUEUE = """#!/bin/sh
: >"$0.began"
until [ -e "$0.go" ]; do sleep 0.02; done
echo 7
"""


def test_ctrl_c_does_not_reach_hpcml_s_own_slurm_commands(tmp_path: Path) -> None:
    """Slurm would seem to have refused the question."""
    squeue = tmp_path / "squeue"
    squeue.write_text(SQUEUE)
    squeue.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with subprocess.Popen(
        [sys.executable, "-c", ASKS], stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "PATH": path}
    ) as asking:  # fmt: skip
        deadline = time.monotonic() + 60
        while not (tmp_path / "squeue.began").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(asking.pid, signal.SIGINT)
        (tmp_path / "squeue.go").touch()
        assert asking.communicate(timeout=60)[0] == "0 7\n"


def test_what_a_wrapper_of_a_command_started_ends_with_it(tmp_path: Path) -> None:
    """Slurm's commands have a session of their own, so that the terminal's Ctrl-C ends nothing that is left of them."""
    note = tmp_path / "pid"
    wrapper = ["sh", "-c", f"sleep 600 & echo $! > {note}; wait"]
    answer = subprocesses.run(wrapper, 2.0, program=HPCML, apart=True)
    assert answer.code is None
    pid = int(note.read_text())
    try:
        deadline = time.monotonic() + 60
        while subprocesses.start_time(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not subprocesses.start_time(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
