"""The processes of a hold's next run, which start before it: they import what the last run needed, and run nothing.

They are those of the last run's batch script, in a directory of their own below the hold's. A run gets them if they
would start in the same way for it; otherwise they end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from hpcml import hold_queue
from hpcml.kinds.hold import END
from hpcml.node import shared_files
from hpcml.paths import RunPaths

_OF_SHELL = {"_", "OLDPWD", "SHLVL"}  # variables that differ between two commands of one shell
_OTHERS = ("lib.zip", "plan.json")  # what the batch script needs of a run's directory, beside shell
_OPTIONS, _HPCML, _NODES = "options or settings", "hpcml", "number of nodes"
_Parts = Mapping[str, str]


def launched(start: hold_queue.Start, nodes: tuple[str, ...], log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a batch script on nodes; return its first process, and the end of a pipe whose other end that process has.

    So it sees when this process has gone.
    """
    command, variables = [*start.command], {name: os.environ.get(name, "") for name in start.of_job}
    if start.option:
        command.insert(1, f"{start.option}={nodes[0]}")
        variables[start.variable] = ",".join(nodes)
    reader, writer = os.pipe()
    try:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command, env={**start.environment, **variables}, stdin=reader, stdout=output, stderr=output,
                start_new_session=True, cwd="/",
            )  # fmt: skip
    except OSError:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    return process, writer


def parts(run: RunPaths, start: hold_queue.Start, nodes: int) -> _Parts:
    """Return all that the processes of a run start with, by its name in a sentence."""
    variables = {f"the variable {name}": value for name, value in start.environment.items() if name not in _OF_SHELL}
    shell = []
    for path in sorted(run.directory.glob("*.sh")):
        text = path.read_bytes().decode(errors="surrogateescape")  # a variable may be no UTF-8
        lines = text.replace(run.directory.name, "RUN").splitlines()
        shell += [path.name, *(line for line in lines if not line.startswith("#"))]
    library = hashlib.sha256(run.library.read_bytes()).hexdigest()
    return {**variables, _NODES: str(nodes), _OPTIONS: "\n".join(shell), _HPCML: library}


def difference(before: _Parts, now: _Parts) -> str:
    """Return the difference as a clause; empty if there is none."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]} changed since the last run{more}" if names else ""


class Ahead:
    """The processes of the next run; ``nodes`` are those that they are on."""

    def __init__(self, folder: Path, last: RunPaths, start: hold_queue.Start, nodes: tuple[str, ...]) -> None:
        """Start them as a run's that has ended, in a new folder; OSError if that cannot be."""
        self.paths, self.nodes, self.parts = RunPaths(folder), nodes, parts(last, start, len(nodes))
        name = str(folder.relative_to(last.directory.parent))
        for directory in (folder, self.paths.logs, folder / "attempts"):
            directory.mkdir(mode=0o700)
        for source in (*last.directory.glob("*.sh"), *(last.directory / other for other in _OTHERS)):
            target = folder / source.name
            if source == last.script:
                target.write_bytes(source.read_bytes().replace(last.directory.name.encode(), name.encode()))
            else:
                shutil.copyfile(source, target)
        command = tuple(word.replace(last.directory.name, name) for word in start.command)
        started = start._replace(command=(*command, hold_queue.AHEAD))
        self.process, self.lifeline = launched(started, nodes, self.paths.job_log)
        self.since = float("inf")  # when they had to end

    @property
    def lives(self) -> bool:
        """Whether they have not ended."""
        return self.process.poll() is None

    def become(self, run: RunPaths) -> tuple[subprocess.Popen[bytes], int]:
        """Have them be the run's, and return the same as :func:`launched`; OSError if that cannot be.

        Their open files move into the run's directory, and what they know by its old name leads there.
        """
        here, there = (paths.directory / "attempts" for paths in (self.paths, run))
        here.rename(there)
        try:
            here.symlink_to(there)
            for name in shared_files.listed(self.paths.logs):
                (self.paths.logs / name).rename(run.logs / name)
            self.paths.logs.rmdir()
            self.paths.logs.symlink_to(run.logs)
            os.write(self.lifeline, os.fsencode(f"{run.directory}\n"))
        except OSError:
            shutil.rmtree(there, ignore_errors=True)
            raise
        return self.process, self.lifeline

    def end(self) -> None:
        """Tell them to end: no run will come."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline, self.since = -1, time.monotonic()

    def has_ended(self) -> bool:
        """Whether they have ended as they had to; kill them if that takes too long, and then wait for them no more."""
        late = time.monotonic() - self.since
        if self.lives and late > END:
            self.kill(signal.SIGKILL if late > 2 * END else signal.SIGTERM)
        return late > 2 * END or not self.lives

    def kill(self, number: int = signal.SIGTERM) -> None:
        """Kill what is left of them."""
        self.end()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def remove(self) -> None:
        """Remove the directory in which they began."""
        shutil.rmtree(self.paths.directory, ignore_errors=True)
