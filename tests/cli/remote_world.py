"""A laptop in a world of its own: an `ssh` on PATH that leads to another home, where the fake Slurm is."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from world import World

HERE = Path(__file__).parent


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
        (world.bin / "ssh").symlink_to(HERE / "fake_ssh")
        (self.state / "cut_off.py").symlink_to(HERE / "cut_off.py")
        self.environment = {**world.environment, "HOME": str(self.far), "HPCML_SITE": "slurm"}
        self.environment["PATH"] = f"{binaries}:{world.environment['PATH']}"
        self.tell()
        # The folder of a test is too long a path for a socket.
        world.environment |= {"FAKE_SSH": str(self.state), "HPCML_LOGIN__CONTROL": control}

    def tell(self, mode: str = "", **environment: str) -> None:
        (self.state / "mode").write_text(mode)
        variables = shlex.join(f"{name}={value}" for name, value in {**self.environment, **environment}.items())
        enter = f'cd {shlex.quote(str(self.far))}\nexec /usr/bin/env -i {variables} /bin/sh -c "$1"\n'
        (self.state / "enter").write_text(enter)

    def run(self, *words: str, host: str = "cluster", **options: object) -> subprocess.CompletedProcess[str]:
        return self.world.run("--host", host, *words, **options)  # type: ignore[arg-type]

    def stand_in(self, text: str) -> dict[str, str]:
        """Put a Python program in the place of hpcml on the login node; return the variable that names it."""
        path = self.world.top / "other.py"
        path.write_text(text)
        return {"HPCML_LOGIN__HPCML": shlex.join([sys.executable, str(path)])}

    def calls(self) -> list[list[str]]:
        return [call.split("\x1f") for call in (self.state / "calls").read_text().split("\x1f;;\x1f")[:-1]]

    def runs(self) -> list[str]:
        folder = self.far / ".hpcml" / "runs"
        return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.is_dir() else []

    def staged(self) -> list[str]:
        folder = self.far / ".hpcml" / "incoming"
        return os.listdir(folder) if folder.is_dir() else []
