"""A laptop in a world of its own: an `ssh` on PATH that leads to another home, where the fake Slurm is."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from world import World

FAKE = Path(__file__).with_name("fake_ssh.py")


class Laptop:
    """A world whose `ssh` leads to another home, where the fake Slurm is."""

    def __init__(self, world: World, control: str) -> None:
        self.world = world
        self.state = world.top / "ssh"
        self.far = world.top / "far"
        binaries = world.top / "far-bin"
        for folder in (self.state, self.far, binaries):
            folder.mkdir()
        (binaries / "hpcml").symlink_to(world.command)
        (world.bin / "ssh").write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(FAKE))} "$@"\n'
        )
        (world.bin / "ssh").chmod(0o755)
        self.environment = {**world.environment, "HOME": str(self.far), "HPCML_SITE": "slurm"}
        self.environment["PATH"] = f"{binaries}:{world.environment['PATH']}"
        self.tell()
        # The folder of a test is too long a path for a socket.
        world.environment |= {"FAKE_SSH": str(self.state), "HPCML_LOGIN__CONTROL": control}

    def tell(self, mode: str = "", **environment: str) -> None:
        (self.state / "mode").write_text(mode)
        (self.state / "environment").write_text(json.dumps({**self.environment, **environment}))

    def run(self, *words: str, host: str = "cluster", **options: object) -> subprocess.CompletedProcess[str]:
        return self.world.run("--host", host, *words, **options)  # type: ignore[arg-type]

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.state / "calls").read_text().splitlines()]

    def runs(self) -> list[str]:
        folder = self.far / ".hpcml" / "runs"
        return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.is_dir() else []

    def staged(self) -> list[str]:
        folder = self.far / ".hpcml" / "incoming"
        return os.listdir(folder) if folder.is_dir() else []
