"""What a waiting user sees: the script's bytes as they are, and hpcml's lines beside them, never among them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from hpcml.cli import submit
from hpcml.cli import why as why_command
from hpcml.cli.progress import Progress, Tail
from hpcml.errors import StorageError
from hpcml.failures.evidence import Line
from hpcml.kinds.dask.node import tls
from hpcml.runs import why
from hpcml.runs.status import Status

QUEUED = "waiting for free nodes, and for a reservation whose name is as long as a name can be, or longer still"
STARTED = {"allocated": 1.0, "scheduler-up": 2.0}


def screen(data: bytes, columns: int) -> list[str]:
    """Return the lines that a terminal of this width shows after this output."""
    lines, row, column = [[" "] * columns], 0, 0
    for word in re.findall(r"\x1b\[K|\x1b\[[0-9;]*m|.", data.decode(), re.DOTALL):
        if word == "\x1b[K":
            lines[row][column:] = [" "] * (columns - column)
        elif word == "\r":
            column = 0
        elif word == "\n":
            row += 1
        elif not word.startswith("\x1b"):
            if column == columns:
                row, column = row + 1, 0
            while len(lines) <= row:
                lines.append([" "] * columns)
            lines[row][column] = word
            column += 1
        while len(lines) <= row:
            lines.append([" "] * columns)
    return ["".join(line).rstrip() for line in lines]


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


def say(status: Status, **facts: object) -> Status:
    return status.changed(**facts)


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


@pytest.mark.parametrize("xterm", [True, False])
def test_a_terminal_that_changes_its_width(xterm: bool, tmp_path: Path) -> None:
    """Narrower: what the terminal has folded goes with the rows above (xterm cuts instead). Wider: more is shown."""
    written: list[str] = []

    def act(stream: TextIO) -> None:
        environment = {"TERM": "xterm", **({"XTERM_VERSION": "XTerm(379)"} if xterm else {})}
        progress = Progress(stream, environment, Tail(tmp_path / "log", stream))
        progress.show(Status.of("r", "lab", "queued", QUEUED, job="12"))
        progress.stream = Noting(stream, written)  # type: ignore[assignment]
        progress.fit()  # the same width: nothing is written
        for columns in (40, 200):
            fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            progress.fit()

    on_a_terminal(100, act)
    above, narrow, clear, wide = written
    assert above == ("\r\x1b[K" if xterm else "\x1b[2A\r\x1b[J")
    assert len(narrow) == 39
    assert clear == "\r\x1b[K"
    assert wide == f"· queued     job 12: {QUEUED}"


class Noting:
    """A stream that keeps what is written to it, too."""

    def __init__(self, stream: TextIO, written: list[str]) -> None:
        self.stream, self.written = stream, written

    def write(self, text: str) -> int:
        self.written.append(text)
        return self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()


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
        written: list[str] = []
        progress.stream = Noting(stream, written)  # type: ignore[assignment]
        progress.show(Status.of("r", "lab", "ended", "the run was cancelled", exit_status=86))
        assert "".join(written).startswith("\x1b[31m✗\x1b[0m" if colour else "✗ ")

    on_a_terminal(80, act)


@pytest.mark.parametrize(("message", "line"), [
    ("the script exited with status 3", "the script exited with status 3"),
    ("the run was cancelled", "the run was cancelled (status 3)"),
    ("the script exited with status 13", "the script exited with status 13 (status 3)"),
])  # fmt: skip
def test_an_exit_status_is_said_once(message: str, line: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Progress(out, {"TERM": "xterm"}).show(Status.of("r", "lab", "ended", message, exit_status=3))
    assert isinstance(out.buffer, io.BytesIO)
    assert out.buffer.getvalue().decode() == f"✗ ended      {line}\n"


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
        times = {**STARTED, "workers-ready": 3.0, "fabric-checked": 3.0, "driver-started": 4.0}
        progress.show(status := say(status, phase="running", workers=2, times=times))
        for character in output:  # it comes in pieces, as the script writes it
            with log.open("a") as file:
                file.write(character)
            tail.copy()
        progress.show(status := say(status, message="the script runs, with 1 of 2 workers", workers=1))
        progress.show(status := say(status, phase="ended", message="the script ended", exit_status=0))

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
    """And that nobody reads what is passed on is none: the command ends as all do whose reader has gone."""
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(StorageError, match="the path is a link"):
        Tail(tmp_path / "link", io.StringIO()).copy()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        Tail(tmp_path / "file" / "log", io.StringIO()).mark()
    (tmp_path / "log").write_text("x")
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    with pytest.raises(BrokenPipeError):
        Tail(tmp_path / "log", stream).copy()
    with contextlib.suppress(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize(("last", "more"), [
    (Status.of("r", "lab", "ended", "the run was cancelled", exit_status=86), False),
    (Status.of("r", "lab", "ended", "the run was cancelled", exit_status=86, hint="Look there."), True),
    (Status.of("r", "lab", "ended", "n2 has no worker", exit_status=81), True),
])  # fmt: skip
def test_an_end_is_explained_where_there_is_more_to_say(
    last: Status, more: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    submit.explain(last)
    assert bool(capsys.readouterr().err) == more


def test_an_end_is_explained_once_with_the_next_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = "the time limit was reached"
    answer = why.Answer(
        "r", "FAILED", True, f"{reached} while the script ran", rule="time-limit", again="hpcml rerun r"
    )
    monkeypatch.setattr(why, "of_status", lambda *_: answer)
    last = Status.of("r", "lab", "ended", reached, exit_status=85, by="slurm", hint="Increase --time.")
    run: Any = SimpleNamespace(id="r")
    submit._tell_end(run, last, as_json=False)
    said = capsys.readouterr().err
    assert (said.count("he time limit was reached"), "Increase --time." in said) == (1, True)
    assert said.endswith("hpcml: to run the script again: hpcml rerun r\n")


def test_a_line_is_evidence_or_what_followed(capsys: pytest.CaptureFixture[str]) -> None:
    line = Line("ValueError: x", "script", "logs/driver.log")
    answer = why.Answer("r", "FAILED", True, "x", evidence=(line,), followed=(line, line._replace(text="then")))
    why_command._show(answer, "", "")
    assert capsys.readouterr().out.count("ValueError: x") == 1


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_long_line_goes_on_below_its_text(columns: int) -> None:
    reason = "3 processes, python 3.11.2, dask 2026.7.1, ucx 1.21.0, pandas 3.0.1, cudf 26.10.00"
    status = Status.of("r", "lab", "starting", versions=reason, times={"allocated": 1.0, "environment-ready": 2.0,
                    "scheduler-up": 2.0})  # fmt: skip

    shown = on_a_terminal(columns, lambda stream: Progress(stream, {"TERM": "xterm"}).show_past(status))
    line = next(number for number, text in enumerate(shown) if text.startswith("✓ python     3 processes"))
    text = " ".join("\n".join(shown[line:]).split())
    assert text.startswith(f"✓ python {reason} 1.0 s")
    if columns < 120:
        assert shown[line + 1].startswith(" " * 13)


@pytest.mark.parametrize("columns", range(60, 76))
def test_no_line_of_a_phase_is_broken_by_the_terminal(columns: int, tmp_path: Path) -> None:
    """Also where it just fits, mark and duration included."""
    versions = "3 processes, python 3.11.2, dask 2026.7.1, ucx 1.21.0"
    facts = {"times": {**STARTED, "environment-ready": 1.5}, "versions": versions, "protocol": "tls"}

    def act(stream: TextIO) -> None:
        progress = Progress(stream, {"TERM": "xterm"}, Tail(tmp_path / "log", stream))
        progress.show_past(Status.of("r", "lab", "starting", "", nodes=("n1",), **facts))

    shown = on_a_terminal(columns, act)
    first = next(number for number, line in enumerate(shown) if "python" in line)
    whole = f"✓ python     {versions}  0.5 s"
    assert " ".join(" ".join(shown[first:]).split()) == " ".join(whole.split())
    assert shown[first] == whole if len(whole) <= columns else shown[first + 1].startswith(" " * 13)
    assert any(line.endswith(("  0.5 s", " " * 13 + "0.5 s")) for line in shown)


def test_a_cluster_that_others_can_reach_is_shown_at_once() -> None:
    shown = io.StringIO()
    progress = Progress(shown, {})
    security = f"mutual TLS; {tls.OPEN}: NCCL"
    progress.show(Status.of("r", "lab", "starting", "", times=STARTED, security=security))
    assert "open to all users who can connect: NCCL" in shown.getvalue()


def test_a_second_attempt_shows_its_phases_again(tmp_path: Path) -> None:
    def act(stream: TextIO) -> None:
        progress = Progress(stream, {}, Tail(tmp_path / "log", stream))
        for attempt in (0, 1):
            progress.show(Status.of("r", "lab", "starting", attempt=attempt, times=STARTED, nodes=("n1",)))

    shown = [line.partition("  ")[0] for line in on_a_terminal(80, act) if line]
    assert shown.index("· attempt") < len(shown) - 1
    assert shown.count("✓ nodes") == 2
