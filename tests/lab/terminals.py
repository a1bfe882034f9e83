"""A command on a terminal of its own: what is typed there, and what it shows."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path
from typing import Self

import pytest

from lab_state import PATIENCE
from labs import Lab


class Terminal:
    """A command line that runs under `script`; it is killed if its test ends before it."""

    def __init__(self, lab: Lab, line: str, *, node: str = "login", cwd: Path | str | None = None) -> None:
        words = ["script", "-qec", line, "/dev/null"]
        self.process = lab.popen(words, node=node, cwd=cwd, env={"SHELL": "/bin/sh", "TERM": "xterm"}, stdin=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def type(self, keys: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(keys)
        self.process.stdin.flush()

    def shown(self, mark: str, seconds: float = 60) -> None:
        """Wait until the terminal has shown these words."""
        assert self.process.stdout is not None
        screen = self.process.stdout.fileno()
        deadline = time.monotonic() + PATIENCE * seconds
        while mark not in self.text:
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds:g} s: {mark!r}; {self.text}")
            if select.select([screen], [], [], 0.2)[0]:
                if not (piece := os.read(screen, 65536)):
                    pytest.fail(f"it ended without {mark!r}: {self.text}")
                self.text += piece.decode(errors="replace").replace("\r", "")

    def ended(self, seconds: float = 60) -> int:
        """Wait for the end of the command; return its exit status."""
        rest, _ = self.process.communicate(timeout=PATIENCE * seconds)
        self.text += rest.replace("\r", "")
        return int(self.process.returncode)
