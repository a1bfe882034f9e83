"""A disk without room, for bytes or for files, while a run goes on: it ends with a sentence that says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
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
def fill(folder, files):
    number = 0
    while True:
        try:
            with open(f"{folder}/fill-{number}", "wb") as file:
                while not files:
                    file.write(bytes(1 << 14))
                    file.flush()
        except OSError as error:
            if number > 3 and not files or files and number:
                return error.errno
        number += 1
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of its own for runs, as large as the test says."""
    mounted: list[Path] = []

    def make(size: str) -> Path:
        folder = tmp_path / "small"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "hpcml-test", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_the_script_uses_up_its_inodes_and_fails(here: Here, small: Callable[[str], Path]) -> None:
    folder = small("8m,nr_inodes=420")
    text = FILL + CONNECT + "error = fill(hpcml.run.out, True)\nraise OSError(error, os.strerror(error))\n"
    done = here.submit(text, "--set", f"paths.runs={folder}")
    assert done.returncode == 1, done.stderr + done.stdout
    assert "the script exited with status 1; " in done.stderr
    assert "no inodes are left" in done.stderr
    found = here.json("status", "--set", f"paths.runs={folder}")
    assert (found["state"], found["exit_status"], found["by"]) == ("FAILED", 1, "script")
    assert "no inodes are left" in found["message"]


def test_its_log_fills_it(here: Here, small: Callable[[str], Path]) -> None:
    """A script that prints without end, also to a log that takes nothing any more."""
    folder = small("8m")
    text = CONNECT + "while True: print('x' * 10000)\n"
    done = here.submit(text, "--set", f"paths.runs={folder}")
    assert done.returncode not in (0, errors.ALLOCATION_LOST), done.stderr
    assert "the file system is full" in done.stderr


def test_it_is_full_when_the_script_does_not_mind(here: Here, small: Callable[[str], Path]) -> None:
    """Its results need no disk: the run goes on, a worker that dies comes back, and all is said."""
    folder = small("8m")
    text = FILL + CONNECT + (
        "fill(hpcml.run.out, False)\n"
        "before = set(client.scheduler_info()['workers'])\n"
        "os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)\n"
        "deadline = time.monotonic() + 60\n"
        "while not set(client.scheduler_info()['workers']) - before:\n"
        "    assert time.monotonic() < deadline\n    time.sleep(0.2)\n"
        "open('back', 'w').write(str(os.getpid()))\n"
        "while not os.path.exists(os.environ['SEEN']) and time.monotonic() < deadline: time.sleep(0.2)\n"
        "sys.exit(7)\n"
    )  # fmt: skip
    seen = here.folder / "seen"
    here.environment["SEEN"] = str(seen)
    done = here.run("submit", "--json", "--set", f"paths.runs={folder}", here.script(text))
    directory = Path(json.loads(done.stdout)["directory"])

    def status() -> run_status.Status:
        return run_status.now(directories.find(folder, directory.name))[1]

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
    assert not (directory / "reserve").exists()


@pytest.mark.parametrize(
    ("size", "words"), [("8m", "the file system is full"), ("8m,nr_inodes=420", "No space left on device")]
)
def test_it_is_full_when_the_run_begins(
    here: Here,
    small: Callable[[str], Path],
    size: str,
    words: str,
) -> None:
    """As after days in the queue: the supervisor cannot make its files, or the batch script not even its folders."""
    folder = small(size)
    stop = here.folder / "stop"
    hook = here.folder / "hook.sh"
    hook.write_text(f"while [ ! -e '{stop}' ]; do sleep 0.1; done\n".replace("it's", "it'\\''s"))
    here.environment["BASH_ENV"] = str(hook)
    done = here.run("submit", "--json", "--set", f"paths.runs={folder}", here.script(CONNECT))
    directory = Path(json.loads(done.stdout)["directory"])
    number, left = 0, True
    while left:
        try:
            (folder / f"fill-{number}").write_bytes(b"" if "inodes" in size else bytes(1 << 12))
            number += 1
        except OSError:
            left = False
    stop.touch()
    here.until((directory / "status.json").exists)
    found = json.loads(here.run("status", "--json", "--set", f"paths.runs={folder}").stdout)
    assert found["exit_status"] == errors.STORAGE, found
    assert found["message"].count(words) == 1


def test_bash_env_that_ends_bash(here: Here) -> None:
    hook = here.folder / "hook.sh"
    hook.write_text("exit 7\n")
    here.environment["BASH_ENV"] = str(hook)
    done = here.submit(CONNECT)
    assert done.returncode == errors.ALLOCATION_LOST
    assert f"BASH_ENV was set at the submission, so bash reads {hook} before the batch script." in done.stderr
