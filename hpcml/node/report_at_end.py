"""The report as the supervisor has it made at the run's end: its process, and what its figures say of unused GPUs."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys

from hpcml.node import shared_files
from hpcml.node.context import Context

REPORT_LONGEST = 3.0  # seconds that the nodes wait for it
SEEN_UNUSED = 20.0  # seconds of a script after which samples tell that a GPU was not used
REPORT_KILLED = 1.0  # seconds until it has gone when it was killed


def unused_gpus(context: Context) -> str:
    """Return a sentence on GPUs that the samples never saw in use, by the report's figures; empty if there are none."""
    try:
        facts = shared_files.read_json(context.run.report_facts) or {}
    except (OSError, ValueError):  # the report's own process has said why it could not be written
        return ""
    figures, seconds = facts.get("figures", {}), facts.get("script_seconds", 0.0)
    unused, count = int(figures.get("gpus_unused", 0)), int(figures.get("gpus", 0))
    has_code = context.settings.code.form.traits.has_code  # a hold's runs have reports of their own
    if not has_code or not unused or facts.get("attempt") != context.number or seconds < SEEN_UNUSED:
        return ""
    which = f"{unused} of the run's {count} GPUs" if count > 1 else "the run's GPU"
    return f"The script did not use {which}. Request fewer GPUs (--gpus-per-node), or give work to every GPU."


class ReportProcess:
    """The process: it imports what it needs while the roles are ordered to close, and makes the report when they have.

    Nothing of it can fail the run: what goes wrong is a warning, with how to make the report later.
    """

    missed = ""  # the warning

    def __init__(self, context: Context) -> None:
        self.context = context
        self.process: subprocess.Popen[bytes] | None = None
        if importlib.util.find_spec("jinja2") is None:  # this environment need not have it: hpcml report makes the page
            return
        command = [
            sys.executable,
            "-P",
            "-m",
            "hpcml.kinds.report_process",
            str(context.run.directory),
            str(context.number),
        ]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, cwd="/")
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
            _, output = self.process.communicate(timeout=REPORT_LONGEST)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the file system holds it; nobody waits for it
                self.process.communicate(timeout=REPORT_KILLED)
            self._missed(f"the report was not ready within {REPORT_LONGEST:g} s")
            return
        if self.process.returncode:
            last = output.decode(errors="replace").strip().rpartition("\n")[2]
            self._missed(last or f"the report process ended with exit status {self.process.returncode}")

    def _missed(self, why: str) -> None:
        name = self.context.run.directory.name
        self.missed = f"The report was not written ({why}). Write the report: hpcml report {name}."
