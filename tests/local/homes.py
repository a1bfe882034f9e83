"""A home on this machine in which runs are submitted: what the tests of the local site share."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs import directories
from hpcml.runs import status as run_status
from tests.looks import whole_lines

HPCML = str(Path(sys.executable).with_name("hpcml"))
CONNECT = "import hpcml, sys, os, time, signal\nclient = hpcml.connect()\n"


@dataclass
class Here:
    """A home, a working folder and the command, on this machine."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HPCML, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout,
            check=False)  # fmt: skip

    def script(self, text: str) -> str:
        path = self.folder / "my script.py"
        path.write_text(text)
        return path.name

    def submit(self, text: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("submit", "--wait", *options, self.script(text))

    def detach(self, text: str, *options: str) -> tuple[int, Path]:
        done = self.run("submit", "--json", *options, self.script(text))
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        return facts["pid"], Path(facts["directory"])

    def status(self, run: str = "last") -> dict[str, Any]:
        """Return what ``hpcml status --json`` says, without a process for each look."""
        found, status = run_status.now(directories.find(self.folder / ".hpcml/runs", run))
        assert found.paths.directory == Path(status.directory)
        facts: dict[str, Any] = json.loads(json.dumps(status.as_json()))
        return facts

    def started(self, text: str, *options: str) -> Path:
        """Submit a script, and return the run's directory when it runs."""
        _, directory = self.detach(text, *options)
        self.until(lambda: self.events(directory, "script-started"), 90)
        return directory

    def events(self, directory: Path, kind: str) -> list[dict[str, Any]]:
        path = directory / "events.jsonl"
        found = [json.loads(line) for line in whole_lines(path)]
        return [event for event in found if event["event"] == kind]

    def ended(self, directory: Path, seconds: float = 60) -> dict[str, Any]:
        """Wait for a run's end; return how it ended."""
        self.until(lambda: self.status(directory.name)["phase"] == "ended", seconds)
        return self.status(directory.name)

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        """Wait for an event; a busy machine gets three times as long as a quiet one is given."""
        deadline = time.monotonic() + 3 * seconds
        while not condition():
            assert time.monotonic() < deadline, self.run("status").stdout
            time.sleep(0.05)

    def processes(self, place: Path | None = None) -> dict[int, str]:
        """Return the command lines of all processes that this home (or a place in it) is in the environment of, by their ids."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if str(place or self.folder) in (path / "environ").read_text(errors="replace"):
                    found[int(path.name)] = (path / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
            except OSError:
                continue  # it ended while we looked, or is not ours to read
        return found

    def left(self) -> list[str]:
        """Return the command lines of processes that belong to this home's runs."""
        lines = self.processes().values()
        return [
            line
            for line in lines
            if "hpcml.kinds" in line or "hpcml.node" in line or "/code/" in line or "job.sh" in line
        ]

    def common_folder(self) -> Path:
        """Make a folder as /tmp is, and have runs use it in its place."""
        folder = self.folder / "tmp"
        folder.mkdir()
        folder.chmod(0o1777)
        self.environment["TMPDIR"] = str(folder)
        return folder


@contextlib.contextmanager
def home(parent: Path) -> Iterator[Here]:
    """Make a home whose path holds spaces and a quote; afterwards wait until nothing of its runs is left running."""
    folder = parent / "it's a home"
    folder.mkdir()
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("HPCML_", "SLURM_", "DASK_", "JUPYTER"))
    }
    place = Here(folder, {**kept, "HOME": str(folder), "HPCML_SITE": "local"})
    yield place
    place.until(lambda: not place.left(), 10)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    with home(tmp_path) as place:
        yield place


def report(directory: Path) -> Any:
    """Return report.json, whose ledger adds up; it is made where the run had no time for it, as its warning says."""
    if not (directory / "report.json").exists():
        words = [HPCML, "report", "--set", f"paths.runs={directory.parent}", directory.name]
        subprocess.run(words, capture_output=True, text=True, timeout=240, check=True)
    found = json.loads((directory / "report.json").read_text())
    ledger = found["ledger"]
    assert sum(ledger["parts"].values()) == pytest.approx(ledger["paid"], rel=0.01)
    assert ledger["paid"] == pytest.approx(ledger["number"] * (found["end"] - found["began"]) / 3600)
    return found
