"""hpcml's command in a world of its own: a home, a folder with a script, and Slurm's commands on PATH."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typed
from tests.looks import whole_lines

LAB_SITE = Path(__file__).resolve().parents[1] / "lab/site"  # settings of a site's own, with the profile `lab`
FAKES = Path(__file__).resolve().parent / "fakes"
TOOLS = ("bash", "sh", "env", "dirname", "mkdir", "mv", "sleep", "rm", "cat")


class World:
    """A user's surroundings; `run` starts hpcml in them."""

    def __init__(self, folder: Path, command: Path) -> None:
        self.command = command
        # Hostile by default: what holds for this path holds for a plain one.
        self.top = folder / "a b'c $HOME"
        self.home, self.project, self.state, self.bin = (
            self.top / name for name in ("home", "project", "state", "bin")
        )
        for place in (self.home, self.project, self.state, self.bin):
            place.mkdir(parents=True)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)
        (self.bin / "python3").symlink_to(Path(sys.executable).resolve())
        self.script = self.project / "job.py"
        self.script.write_text("print('hello')\n")
        self.runs = self.home / ".hpcml" / "runs"
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{FAKES}:{self.bin}",
            "FAKE_STATE": str(self.state),
            "HPCML_SYSTEM_CONFIG": str(self.top / "etc"),
            "LANG": "C.UTF-8",
        }

    def run(self, *arguments: str, env: dict[str, str] | None = None, without: tuple[str, ...] = (), cwd: Path | None = None,
            before: Callable[[], None] | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:  # fmt: skip
        environment = {key: value for key, value in {**self.environment, **(env or {})}.items() if key not in without}
        if before:  # a limit for the sizes of files would leave half of a module's bytecode, for all tests after it
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        odd = any(key.startswith(("PYTHON", "LC_")) for key in environment)  # what an interpreter reads at its start
        if self.command == typed.COMMAND and not before and not odd:
            return typed.run(arguments, environment, cwd or self.project, timeout)
        return subprocess.run([str(self.command), *arguments], env=environment, cwd=cwd or self.project, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, preexec_fn=before,
                              errors="surrogateescape")  # fmt: skip

    def answer(self, program: str, **facts: object) -> None:
        """Let one of Slurm's commands answer otherwise from now on; with no facts, as usual again."""
        path = self.state / f"{program}.answer"
        if facts:
            self._write(path, repr(facts))
        else:
            path.unlink()

    @staticmethod
    def _write(path: Path, text: str) -> None:
        """Write a file whole, as a command may read it meanwhile."""
        new = path.with_name(f"{path.name}.new")
        new.write_text(text)
        new.replace(path)

    def calls(self, program: str) -> list[dict[str, Any]]:
        lines = whole_lines(self.state / "calls")
        return [call for call in map(ast.literal_eval, lines) if call["program"] == program]

    def refusal(self) -> list[str]:
        """Return the lines of the last refusal of sbatch, and forget them; none if it refused nothing since."""
        path = self.state / "refusal"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def jobs(self) -> dict[str, dict[str, str]]:
        path = self.state / "jobs"
        return dict(ast.literal_eval(path.read_text())) if path.exists() else {}

    def set_jobs(self, jobs: dict[str, dict[str, str]]) -> None:
        self._write(self.state / "jobs", repr(jobs))

    def set_job(self, job: str, **facts: str) -> None:
        found = self.jobs()
        self.set_jobs({**found, job: found[job] | facts})

    def add_job(self, job: str, **facts: str) -> None:
        """Have a job in the queue that hpcml did not submit, in the place of one of the same number."""
        self.set_jobs({**self.jobs(), job: {"reason": "None", "script": "", **facts}})

    def forget(self, *jobs: str) -> None:
        """Have Slurm know some jobs, or all, no longer."""
        self.set_jobs({job: facts for job, facts in self.jobs().items() if jobs and job not in jobs})

    def left(self) -> list[str]:
        """Return the names in the runs folder, hidden ones too, but for the library that its runs share."""
        return (
            sorted(name for name in os.listdir(self.runs) if not name.startswith(".lib-")) if self.runs.is_dir() else []
        )

    def directory(self) -> Path:
        (name,) = self.left()
        return self.runs / name

    def made(self, *words: str, cwd: Path | None = None) -> Path:
        """Run a command that makes one run; return the run's directory."""
        before = set(self.left())
        done = self.run(*words, cwd=cwd)
        assert done.returncode == 0, done.stderr
        (name,) = set(self.left()) - before
        return self.runs / name

    def submit(self, *arguments: str) -> Path:
        """Submit the script to the fake Slurm; return the run's directory."""
        return self.made("submit", "--site", "slurm", *arguments, str(self.script))

    def answers(self, verb: str, *words: str) -> Any:
        """Return what a command that must succeed prints as JSON."""
        done = self.run(verb, "--json", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so, for two minutes at most."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def write_end(directory: Path, exit_status: int = 0, **facts: object) -> None:
    """Write a run's end as its supervisor does."""
    usual: dict[str, object] = {"over": True, "state": "FAILED" if exit_status else "COMPLETED", "exit_status": exit_status, "by": "script",
             "message": f"the script exited with status {exit_status}", "hint": "", "quote": [], "time": 1.0, "attempt": 0}  # fmt: skip
    new = directory / "status.json.new"
    new.write_text(json.dumps(usual | facts))
    new.rename(directory / "status.json")


def write_events(directory: Path, *events: dict[str, object]) -> None:
    """Write a run's diary; what an event does not say is of its first attempt."""
    lines = [json.dumps({"time": 1.0, "attempt": 0, **event}) for event in events]
    (directory / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
