"""A login node in somebody else's hands, or broken: what it says is refused in words, bounded, and shown, never obeyed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import planted
from hpcml import errors, subprocesses
from hpcml.config_trust import HPCML
from hpcml.remote import login_call
from hpcml.remote.pack_delivery import Delivery
from remote_world import Laptop

HELLO = '{"hello": 2, "version": "0"}'
# What stands in the place of hpcml there says; tests/unit/test_answers.py has all kinds.
FACTS = {
    "nested": ["[" * 100_000],
    "version": ['{"hello": 2, "version": "1\\u001b[2J"}'],
    "run escapes": [HELLO, '{"run": "\\u001b]0;owned\\u0007-20260101-000000-0000"}'],
    "no end": [HELLO, '{"exit_status": "' + "x" * (3 << 20)],
}  # fmt: skip
EVIL = """import json, os, sys, time
header = json.loads(sys.stdin.readline())
mark = "\\x1e" + header["nonce"] + " "
"""


def stand_in(laptop: Laptop, text: str) -> dict[str, str]:
    return laptop.stand_in(EVIL + text)


def test_facts_that_are_none_are_refused(laptop: Laptop) -> None:
    for name, lines in FACTS.items():
        end = "" if name == "no end" else "\n"
        env = stand_in(
            laptop,
            f"for line in {lines!r}:\n    sys.stderr.write(mark + line + {end!r})\nsys.stderr.flush()\nsys.stdin.read()\n",
        )
        for command in (("ls",), ("fetch", "last")):
            done = laptop.run(*command, env=env)
            assert done.returncode == errors.CONFIG, (name, command, done.stderr[-2000:])
            assert "hpcml on cluster sent an invalid message" in done.stderr, name
            assert planted.is_plain(done.stderr + done.stdout), name
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["ls", "fetch"])
def test_talk_without_an_end_is_cut_off(laptop: Laptop, command: str) -> None:
    """Before a greeting, in lines or without; and instead of a run's files."""
    for text in (
        "while True: sys.stderr.write('x' * 65536)",
        "while True: sys.stderr.write('welcome\\n' * 9999)",
        "while True: sys.stdout.write('x' * 65536)",
    ):
        done = laptop.run(command, *(["last"] if command == "fetch" else []), env=stand_in(laptop, text))
        assert done.returncode == errors.CONFIG, done.stderr[-2000:]
        assert "too much other text" in done.stderr
    if command == "fetch":
        text = f"sys.stderr.write(mark + {HELLO!r} + '\\n'); sys.stderr.flush()\nwhile True: print('welcome' * 1000)"
        done = laptop.run(command, "last", env=stand_in(laptop, text))
        assert done.returncode == errors.CONFIG, done.stderr[-2000:]


GREET = f"sys.stderr.write(mark + {HELLO!r} + '\\n'); sys.stderr.flush()\n"


@pytest.mark.parametrize("command", ["ls", "why", "doctor"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_answer_without_end_is_cut_off_after_the_greeting(laptop: Laptop, command: str, stream: str) -> None:
    """Though it says at once that it has ended well."""
    end = "sys.stderr.write(mark + '{\"exit_status\": 0}\\n'); sys.stderr.flush()\n"
    text = f"{GREET}{end}while True: sys.{stream}.write('x' * 65535 + '\\n')"
    done = laptop.run(command, env=stand_in(laptop, text))
    assert done.returncode == errors.CONFIG, done.stderr[-2000:]
    assert "hpcml on cluster sent an invalid" in done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert len(done.stdout) + len(done.stderr) < 80 << 20


def test_ctrl_c_ends_an_output_that_has_no_end_on_purpose(laptop: Laptop) -> None:
    env = {**laptop.world.environment, **stand_in(laptop, f"{GREET}while True: sys.stdout.write('x' * 65535 + '\\n')")}
    words = [str(laptop.world.command), "--host", "cluster", "logs", "-f", "last"]
    with subprocess.Popen(
        words, env=env, cwd=laptop.world.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(100 << 20)) == 100 << 20, process.stderr.read()
        process.send_signal(signal.SIGINT)
        while process.stdout.read(1 << 20):
            pass
        assert process.wait(120) in (130, -signal.SIGINT), process.stderr.read()


def test_the_same_fact_again_and_again_is_cut_off(laptop: Laptop) -> None:
    text = f"for line in [{HELLO!r}] * 100000:\n    sys.stderr.write(mark + line + '\\n')\nsys.stderr.flush()\nsys.stdin.read()\n"
    done = laptop.run("ls", env=stand_in(laptop, text))
    assert done.returncode == errors.CONFIG, done.stderr[-2000:]
    assert "the same message was sent twice" in done.stderr
    assert len(done.stderr) < 10_000


def test_ctrl_c_is_not_kept_waiting(laptop: Laptop) -> None:
    """One that greets and then neither ends nor reads."""
    greet = f"sys.stderr.write(mark + {HELLO!r} + '\\n' + 'greeted\\n'); sys.stderr.flush()\nwhile True: time.sleep(1)"
    env = {**laptop.world.environment, **stand_in(laptop, greet)}
    words = [str(laptop.world.command), "--host", "cluster"]
    for command in (["ls"], ["fetch", "last"]):
        with subprocess.Popen(
            [*words, *command], env=env, cwd=laptop.world.project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            while b"greeted" not in (line := process.stderr.readline()):
                assert line, command
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            assert process.wait(60) in (130, -signal.SIGINT), command


def test_a_silent_host_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that says that it is ready and takes nothing, and one that takes all and says nothing."""
    monkeypatch.setattr(login_call, "SILENCE", 1.0)
    (tmp_path / "data").write_bytes(b"x" * (4 << 20))
    ready = "import sys, time\nline = sys.stdin.buffer.read(int(sys.argv[1]))\nask = sys.stdin.buffer.readline()\n"
    ready += "import json\nprint(json.loads(ask)['mark'], '{}', flush=True)\n"

    class Host:
        host = "cluster"

        def __init__(self, code: str) -> None:
            self.code = code

        def check_shell(self) -> None:
            pass

        def python(self, *words: str) -> list[str]:
            return [sys.executable, "-c", self.code, words[-1]]

    for code in (
        f"{ready}time.sleep(3600)",
        f"{ready}sys.stdin.buffer.read()\ntime.sleep(3600)",
        "import time; time.sleep(3600)",
    ):
        with pytest.raises(errors.LinkError, match="has not answered for"):
            Delivery(Host(code), "pack", "x").send(tmp_path, lambda _: None)  # type: ignore[arg-type]


def test_a_listing_of_too_many_files_or_folders_is_refused(laptop: Laptop) -> None:
    """Before it costs memory, and before anything is made here."""
    for files, says in (
        ("[['f%d' % n, 1, 0, 0o644] for n in range(450000)]", "files to send, but hpcml sends at most"),
        ("[['d/' * 1500 + 'f', 1, 0, 0o644]]", "folders deep"),
    ):
        text = (f"sys.stderr.write(mark + {HELLO!r} + '\\n'); sys.stderr.flush()\n"
                f"print(header['nonce'], json.dumps({{'run': 'r-20260101-000000-0000', 'files': {files}}}), flush=True)\nsys.stdin.readline()\n")  # fmt: skip
        done = laptop.run("fetch", "last", "results", env=stand_in(laptop, text))
        assert done.returncode == errors.STORAGE, done.stderr[-2000:]
        assert says in done.stderr
        assert not (laptop.world.project / "results").exists()


def test_what_it_prints_drives_no_terminal(laptop: Laptop) -> None:
    text = (f"sys.stderr.write(mark + {HELLO!r} + '\\n' + 'err \\x1b[2J\\x9b \\u202e\\n'); sys.stderr.flush()\n"
            "sys.stdout.buffer.write(b'out \\x1b]0;owned\\x07 \\xc2\\x9b2J\\n'); sys.stdout.flush()\n"
            "sys.stderr.write(mark + '{\"exit_status\": 3}\\n')\n")  # fmt: skip
    env = {**laptop.world.environment, **stand_in(laptop, text)}
    words = shlex.join([str(laptop.world.command), "--host", "cluster", "ls"])
    shown = subprocess.run(["script", "-qec", words, "/dev/null"], env=env | {"PATH": f"{env['PATH']}:{os.environ['PATH']}", "SHELL": "/bin/sh"},
                           cwd=laptop.world.project, capture_output=True, check=False, timeout=240)  # fmt: skip
    assert shown.returncode == 3, shown.stdout
    assert b"\x1b" not in shown.stdout
    assert b"out \\x1b]0;owned\\x07 \\x9b2J" in shown.stdout
    assert b"err \\x1b[2J" in shown.stdout
    piped = subprocess.run(
        shlex.split(words), env=env, cwd=laptop.world.project, capture_output=True, check=False, timeout=240
    )
    assert piped.stdout == b"out \x1b]0;owned\x07 \xc2\x9b2J\n", "a pipe gets every byte"


@pytest.mark.parametrize(("text", "hello"), [
    ("fact('{\"standing\": {\"run\": \"x\"}}')", True), ("fact('{' + 'x' * (5 << 20), end='')", True),
    ("while True: fact('{\"standing\": {\"state\": 1}}')", True), ("fact('{\"standing\": {}}')", False),
    ("sys.stderr.write('\x1b[2J evil\\n'); fact('{\"exit_status\": 3}'); sys.exit(3)", True),
    ("sys.stderr.write('\x1b[2J evil\\n'); sys.exit(3)", False), ("while True: sys.stderr.write('x' * 65536)", False),
])  # fmt: skip
def test_a_tunnel_s_facts_that_are_none_are_refused(laptop: Laptop, text: str, hello: bool) -> None:
    begin = "def fact(text, end='\\n'):\n    sys.stderr.write(mark + text + end)\n    sys.stderr.flush()\n\n"
    env = stand_in(laptop, f"{begin}{f'fact({HELLO!r})' if hello else ''}\n{text}\nsys.exit(3)\n")
    done = laptop.world.run("tunnel", "--host", "cluster", "last", env=env)
    assert done.returncode == errors.CONFIG, done.stderr[-2000:]
    assert planted.is_plain(done.stderr + done.stdout)
    assert "Traceback" not in done.stderr


def test_an_answer_without_an_end_is_cut_off(tmp_path: Path) -> None:
    answer = subprocesses.run([sys.executable, "-c", "while True: print('x' * 65536)"], 600, program=HPCML)
    assert answer.code is None
    assert len(answer.out) < 100 << 20
    words = "import sys\nprint('x' * (1 << 20))\nfor _ in range(999): sys.stderr.write('x' * 65536)\nsys.stderr.write('end')"
    child = subprocesses.Child([sys.executable, "-c", words], program=HPCML)
    try:
        assert child.wait(400) == 0
        assert len(child.errors) == 65536
        assert child.errors.endswith("end")
    finally:
        child.stop()
    heard: list[bytes] = []
    words = "import sys\nwhile True: sys.stderr.write('x' * 65536)"

    def hear(piece: bytes) -> bool:
        heard.append(piece)
        return len(heard) > 9

    child = subprocesses.Child([sys.executable, "-c", words], hear, program=HPCML)
    try:
        assert child.wait(60) is not None, "who hears it has had enough"
        assert len(heard) == 10
    finally:
        child.stop()
    echo = subprocesses.run(["cat"], 60, program=HPCML, data=b"y" * (5 << 20))
    assert (echo.code, len(echo.out)) == (0, 5 << 20)
    assert subprocesses.run(["true"], 60, program=HPCML, data=b"y" * (5 << 20)).code == 0, (
        "one that does not read its input"
    )
