"""Processes that a role forks for the user's code: signals, and forks that have ended before their order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcml.node.sweep.forker import Forker, Slot
from hpcml.node.sweep.forks import Fork, ResetError
from hpcml.node.sweep.points import Point

# The first hook runs before the role's own: a signal comes between the fork and the moment at which the fork answers it.
SENT_AT_ONCE = """
import os, signal
from hpcml.node import script_environment

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
script_environment.answer_no_signals()
if not (pid := os.fork()):
    os._exit(0)
_, status = os.waitpid(pid, 0)
os.kill(os.getpid(), signal.SIGTERM)  # the role itself lets it pass, and holds nothing back any more
print(os.waitstatus_to_exitcode(status), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_signal_right_after_a_fork_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", SENT_AT_ONCE], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "-15 set()\n"


def ended_fork() -> Fork:
    fork = object.__new__(Fork)
    reading, fork.pipe = os.pipe()
    os.close(reading)
    fork.reports = socket.socket()
    fork.pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    return fork


def test_a_point_whose_forks_have_ended_has_ended() -> None:
    first, second = ended_fork(), ended_fork()
    said: list[dict[str, Any]] = []
    plan = SimpleNamespace(points=[Point("k", "", {}, {})])
    forker: Any = SimpleNamespace(
        plan=plan, study=None, _orders=lambda *_: {}, next_fork=first, _fork=lambda: second,
        _say=lambda event, **facts: said.append({"event": event, **facts}))  # fmt: skip
    slot = Slot(0, "", SimpleNamespace())  # type: ignore[arg-type]
    slot.order = {"point": 0, "more": False}
    Forker._begin(forker, slot)
    assert os.waitpid(slot.pid, 0) == (second.pid, 0)
    assert [(one["event"], one["pid"]) for one in said] == [("began", second.pid)]
    assert first.reports.fileno() == -1, "it is closed"
    second.reports.close()


DRAWN = """
import os
import numpy.random
from hpcml.node.sweep import forks

def become(*_):
    print(numpy.random.random(), flush=True)
    os._exit(0)

forks._become = become
for _ in range(2):
    fork = forks.Fork(None, [])
    fork.begin({})
    os.waitpid(fork.pid, 0)
"""


def test_each_point_draws_numbers_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, text=True, timeout=240, check=True)
    assert len({*done.stdout.split()}) == 2, done


FAILS_EARLY = """
import sys
from types import SimpleNamespace
from hpcml.node.sweep import forks

def use(_):
    raise OSError("no group")

forks._become({"group": "a", "log": sys.argv[1]}, 0, SimpleNamespace(use=use))
"""


def test_a_point_that_fails_before_its_script_leaves_no_line_of_an_earlier_attempt_in_its_log(tmp_path: Path) -> None:
    """The last line there is the cause that hpcml why names."""
    log = tmp_path / "point-a.log"
    log.write_text("loss 0.5\n")
    done = subprocess.run([sys.executable, "-c", FAILS_EARLY, log], capture_output=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "loss" not in log.read_text()
    assert log.read_text().endswith("OSError: no group\n")


def test_what_a_point_leaves_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append((group, number)))
    forker: Any = SimpleNamespace(_reset=lambda _: None, _say=lambda *_, **__: None, study=None)
    slot: Any = SimpleNamespace(number=0, pid=7, clock=0.0, hang_up=lambda: None)
    Forker._point_ended(forker, slot, 0)
    assert killed == [(7, signal.SIGKILL)]


def test_no_point_begins_where_the_worker_group_could_not_be_reset() -> None:
    """The supervisor may have ordered it before it hears of the reset's failure."""

    def fails() -> str:
        raise ResetError("gone")

    said: list[dict[str, Any]] = []
    slot = Slot(0, "", cast("Any", SimpleNamespace(answer=fails)))
    forker: Any = SimpleNamespace(slots=[slot], _say=lambda event, **facts: said.append({"event": event, **facts}))
    Forker._reset_done(forker, slot)
    Forker._obey(forker, {"do": "begin", "slot": 0, "point": 0, "more": False})
    assert said == 2 * [{"event": "reset", "slot": 0, "restarted": "", "problem": "gone"}]
