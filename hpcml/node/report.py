"""The report of a run that ends, made by a process of its own, for which the nodes wait some seconds at most."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from hpcml.node.outcome import say
from hpcml.node.settings import Context

LONGEST = 3.0  # seconds that the nodes wait for it
KILLED = 1.0  # seconds until it has gone when it was killed


class Report:
    """The process: it imports what it needs while the roles are told to close, and makes the report when they have.

    Nothing of it can fail the run: what goes wrong is said in the job's log, with how to make the report later.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.process: subprocess.Popen[bytes] | None = None
        words = [sys.executable, "-P", "-m", "hpcml.report", str(context.run.directory), str(context.number)]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(words, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, cwd="/")
        except OSError as error:
            self._missed(str(error))

    def begin(self) -> None:
        """Let the process begin: all that the roles write is there."""
        if self.process and self.process.stdin:
            with contextlib.suppress(BrokenPipeError):  # it has failed, which its end tells
                self.process.stdin.write(b"go\n")
                self.process.stdin.flush()

    def end(self) -> None:
        """Wait for the report, not longer than its deadline."""
        if not self.process:
            return
        try:
            _, words = self.process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the file system holds it; nobody waits for it
                self.process.communicate(timeout=KILLED)
            self._missed(f"it was not ready in {LONGEST:g} s")
            return
        if self.process.returncode:
            last = words.decode(errors="replace").strip().rpartition("\n")[2]
            self._missed(last or f"exit status {self.process.returncode}")

    def _missed(self, why: str) -> None:
        say(
            self.context,
            f"the report was not made ({why}); make it later: hpcml report {self.context.run.directory.name}",
        )
