"""What a waiting user sees: the script's bytes as they are, and hpcml's lines beside them, never among them."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

pytest.importorskip("pyte", reason="pyte, which draws the terminal, is not installed here")

import pyte

from hpcml.cli import submit
from hpcml.cli.waiting_display import Progress, Tail
from hpcml.errors import StorageError
from hpcml.failures.end import End
from hpcml.kinds.dask.node.security import tls
from hpcml.runs import why
from hpcml.runs.status import Status

QUEUED = "waiting for free nodes, and for a reservation whose name is as long as a name can be, or longer still"
STARTED = {"allocated": 1.0, "scheduler-up": 2.0}


def screen(data: bytes, columns: int) -> list[str]:
    """Return the lines that a terminal of this width shows after this output."""
    shown = pyte.Screen(columns, 400)
    pyte.ByteStream(shown).feed(data)
    return [line.rstrip() for line in shown.display]


def on_a_terminal(columns: int, act: Callable[[TextIO], None]) -> list[str]:
    """Return what a terminal shows of what is written to it; ``act`` gets the stream."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    read: list[bytes] = []

    def drain() -> None:
        try:
            while data := os.read(master, 65536):
                read.append(data)
        except OSError:  # the other end is closed: Linux's way of saying end of file
            return

    reader = threading.Thread(target=drain)
    reader.start()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        act(stream)
    reader.join(20)
    os.close(master)
    return screen(b"".join(read), columns)


@pytest.mark.parametrize("columns", [60, 80])
def test_a_long_wait_stays_one_line(columns: int, tmp_path: Path) -> None:
    def act(stream: TextIO) -> None:
        progress = Progress(stream, {"TERM": "xterm"}, Tail(tmp_path / "log", stream))
        for number in range(5):
            progress.show(Status.of("r", "lab", "queued", f"{number}: {QUEUED}", job="12"))
        progress.show(
            Status.of("r", "lab", "starting", "the Dask scheduler starts", nodes=("n1",), times={"allocated": 1.0})
        )

    shown = on_a_terminal(columns, act)
    assert [line.partition("  ")[0] for line in shown if line] == ["✓ nodes", "· scheduler"]


@pytest.mark.parametrize(("environment", "colour", "changes"), [
    ({"TERM": "xterm"}, True, True),
    ({"TERM": "xterm", "NO_COLOR": "1"}, False, True),
    ({"TERM": "dumb"}, False, False),
    ({}, False, False),
])  # fmt: skip
def test_what_a_terminal_obeys(environment: dict[str, str], colour: bool, changes: bool) -> None:
    def act(stream: TextIO) -> None:
        progress = Progress(stream, environment)
        assert (progress.colour, progress.live) == (colour, changes)

    on_a_terminal(80, act)


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("output", ["step 0\n", "step 0", "10%\r20%\r30%", "x" * 200, "a\nb"])
def test_the_script_s_lines_are_its_own(output: str, columns: int, tmp_path: Path) -> None:
    """The first output comes while a changing line stands there; then workers are lost, and then the run ends."""
    log = tmp_path / "log"
    log.write_bytes(b"")

    def act(stream: TextIO) -> None:
        tail = Tail(log, stream)
        progress = Progress(stream, {"TERM": "xterm"}, tail)
        status = Status.of("r", "lab", "starting", nodes=("n1", "n2"), times=dict(STARTED), workers=1, expected=2)
        progress.show(status)
        times = {**STARTED, "workers-ready": 3.0, "interconnect-checked": 3.0, "script-started": 4.0}
        progress.show(status := status.changed(phase="running", workers=2, times=times))
        for character in output:  # it comes in pieces, as the script writes it
            with log.open("a") as file:
                file.write(character)
            tail.copy()
        progress.show(status := status.changed(message="the script runs, with 1 of 2 workers", workers=1))
        progress.show(status.changed(phase="ended", message="the script ended", exit_status=0))

    shown = [line for line in on_a_terminal(columns, act) if line]
    start = next(index for index, line in enumerate(shown) if line.startswith("✓ script")) + 1
    expected = [line for line in screen(output.encode().replace(b"\n", b"\r\n"), columns) if line]
    assert shown[start : start + len(expected)] == expected
    assert [line[:8] for line in shown[start + len(expected) :]] == ["· script", "✓ ended "]


BYTES = bytes(range(256)) + b"\xff\xfe\0" * 1000 + "ä".encode()[:1] + b"\x1b[31m" + b"long" * 700_000 + b"\r50%\r60%"


def test_bytes_pass_unchanged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(BYTES[:1001])
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    tail = Tail(log, out)
    tail.mark()
    log.write_bytes(BYTES)
    tail.copy_marked()
    assert isinstance(out.buffer, io.BytesIO)
    assert out.buffer.getvalue() == BYTES[:1001]
    while tail.copy():
        pass
    assert out.buffer.getvalue() == BYTES


@pytest.mark.parametrize("own", [True, False])
def test_colours_pass_to_the_terminal_only_from_the_user_s_own_script(own: bool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\x1b[31mred\x1b[0m\n")

    def act(stream: TextIO) -> None:
        Tail(log, stream, of_user=own).copy()

    shown = on_a_terminal(80, act)
    assert shown[0] == ("red" if own else r"\x1b[31mred\x1b[0m")


@pytest.mark.parametrize("apart", [True, False])
def test_a_line_is_ended_only_where_both_go_to_one_place(apart: bool, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("no line break")
    with (tmp_path / "out").open("w") as out, (tmp_path / ("err" if apart else "out")).open("a") as err:
        tail = Tail(tmp_path / "log", out)
        progress = Progress(err, {}, tail)
        tail.copy()
        progress.show(Status.of("r", "lab", "ended", "the script ended", exit_status=0))
    shown = "no line break" if apart else "no line break\n✓ ended      the script ended (status 0)\n"
    assert (tmp_path / "out").read_text() == shown


def test_a_log_that_is_no_file_of_ours_is_an_error_of_storage(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(StorageError, match="the path is a link"):
        Tail(tmp_path / "link", io.StringIO()).copy()


def test_an_end_is_explained_once_with_the_next_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = "the time limit was reached"
    answer = why.Answer(
        "r", "FAILED", True, f"{reached} while the script ran", rule="time-limit", again="hpcml rerun r"
    )
    monkeypatch.setattr(why, "of_status", lambda *_: answer)
    last = Status.of(
        "r", "lab", "ended", reached, exit_status=85, by="slurm", hint="Increase --time.", times={"script-started": 1.0}
    )
    run: Any = SimpleNamespace(id="r")
    submit._tell_end(run, last, as_json=False)
    said = capsys.readouterr().err
    assert (said.count("he time limit was reached"), "Increase --time." in said) == (1, True)
    assert said.endswith("hpcml: to run the script again: hpcml rerun r\n")


def test_what_is_said_of_a_queued_run_and_of_one_that_starts() -> None:
    """Also that others can reach the cluster, at once."""
    shown = io.StringIO()
    progress = Progress(shown, {})
    progress.show(Status.of("r", "lab", "queued", "waiting for free nodes", job="12"))
    times = {**STARTED, "environment-ready": 1.5}
    security = f"mutual TLS; {tls.OPEN}: NCCL"
    progress.show(Status.of("r", "lab", "starting", "", times=times, security=security, versions="python 3.11"))
    assert "· queued     job 12: waiting for free nodes\n" in shown.getvalue()
    assert "open to all users who can connect: NCCL" in shown.getvalue()
    assert "✓ python     python 3.11  0.5 s\n" in shown.getvalue()


def test_a_file_gets_each_line_once() -> None:
    stream = io.StringIO()
    progress = Progress(stream, {})
    for role in ("scheduler", "script", "workers", "script"):
        progress._now(role, "starts")
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["scheduler", "script", "workers"]


def test_a_second_attempt_shows_its_phases_again(tmp_path: Path) -> None:
    end = End(92, by="script", message="saved", ended_as="TIMEOUT")
    (tmp_path / "status.json").write_text(json.dumps(end.as_json()))

    def act(stream: TextIO) -> None:
        progress = Progress(stream, {}, Tail(tmp_path / "log", stream))
        for attempt in (0, 1):
            facts: dict[str, Any] = {"attempt": attempt, "times": STARTED, "nodes": ("n1",), "directory": str(tmp_path)}
            progress.show(Status.of("r", "lab", "starting", **facts))

    shown = [line.partition("  ")[0] for line in on_a_terminal(80, act) if line]
    assert shown.index("· before") < shown.index("· attempt") < len(shown) - 1
    assert shown.count("✓ nodes") == 2
