"""A disk without room while a run goes on: it ends with a sentence that says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes import CONNECT, Here, here
from hpcml import errors
from hpcml.runs import directories
from hpcml.runs import status as run_status

pytestmark = pytest.mark.local

__all__ = ["here"]


FILL = """
import os
def fill(folder):
    number = 0
    while number < 4:
        try:
            with open(f"{folder}/fill-{number}", "wb") as file:
                while True:
                    file.write(bytes(1 << 14))
                    file.flush()
        except OSError:
            number += 1
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own for runs."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "hpcml-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_its_log_fills_it(here: Here, small: Path) -> None:
    """A script that prints without end, also to a log that takes nothing any more."""
    text = CONNECT + "while True: print('x' * 10000)\n"
    done = here.submit(text, "--set", f"paths.runs={small}")
    assert done.returncode not in (0, errors.ALLOCATION_LOST), done.stderr
    assert "the file system is full" in done.stderr


def test_it_is_full_when_the_script_does_not_mind(here: Here, small: Path) -> None:
    """Its results need no disk: the run goes on, a worker that dies comes back, and all is said."""
    text = FILL + CONNECT + (
        "fill(hpcml.run.out)\n"
        "before = set(client.scheduler_info()['workers'])\n"
        "os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)\n"
        "deadline = time.monotonic() + 240\n"
        "while not set(client.scheduler_info()['workers']) - before:\n"
        "    assert time.monotonic() < deadline\n    time.sleep(0.2)\n"
        "open('back', 'w').write(str(os.getpid()))\n"
        "while not os.path.exists(os.environ['SEEN']) and time.monotonic() < deadline: time.sleep(0.2)\n"
        "sys.exit(7)\n"
    )  # fmt: skip
    seen = here.folder / "seen"
    here.environment["SEEN"] = str(seen)
    done = here.run("submit", "--json", "--set", f"paths.runs={small}", here.script(text))
    directory = Path(json.loads(done.stdout)["directory"])

    def status() -> run_status.Status:
        return run_status.now(directories.find(small, directory.name))[1]

    here.until(lambda: "is full" in status().hint)
    back = here.folder / "back"
    here.until(lambda: back.exists() and back.read_text(), 60)
    script, filled = int(back.read_text()), directory / "out/fill-0"
    os.truncate(filled, filled.stat().st_size - (40 << 10))  # room for an event, and still too little to count as any
    os.kill(script, signal.SIGSTOP)
    here.until(
        lambda: any("The script is stopped" in warning for warning in status().progress.warnings)
    )  # seen with the disk
    os.kill(script, signal.SIGCONT)
    seen.touch()
    here.until(lambda: status().phase == "ended", 60)
    ended = json.loads((directory / "status.json").read_text())
    assert (ended["exit_status"], ended["state"], ended["by"]) == (7, "FAILED", "script"), ended
    assert ended["message"].startswith("the script exited with status 7; the file system is full")
    assert any("is full" in warning for warning in ended["warnings"])
    here.until(lambda: not (directory / "reserve").exists())  # it goes after the end is written


def test_it_is_full_when_the_run_begins(here: Here, small: Path) -> None:
    """As after days in the queue: the supervisor cannot make its files."""
    stop = here.folder / "stop"
    hook = here.folder / "hook.sh"
    hook.write_text("while [ ! -e stop ]; do sleep 0.1; done\n")
    here.environment["BASH_ENV"] = str(hook)
    done = here.run("submit", "--json", "--set", f"paths.runs={small}", here.script(CONNECT))
    directory = Path(json.loads(done.stdout)["directory"])
    number, left = 0, True
    while left:
        try:
            (small / f"fill-{number}").write_bytes(bytes(1 << 12))
            number += 1
        except OSError:
            left = False
    stop.touch()
    here.until((directory / "status.json").exists)
    found = here.json("status", "--set", f"paths.runs={small}")
    assert found["exit_status"] == errors.STORAGE, found
    assert found["message"].count("the file system is full") == 1


def test_bash_env_that_ends_bash(here: Here) -> None:
    hook = here.folder / "hook.sh"
    hook.write_text("exit 7\n")
    here.environment["BASH_ENV"] = str(hook)
    done = here.submit(CONNECT)
    assert done.returncode == errors.ALLOCATION_LOST
    assert f"at the submission, so bash reads {hook} before the batch script." in done.stderr
