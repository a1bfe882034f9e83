"""An executable on PATH in place of Apptainer, and the command that uses it."""

from __future__ import annotations

import json
import subprocess

from tests.fixtures.images import sif_file
from world import World

NO_UCX: dict[str, object] = {"version": "", "library": "", "modules": [], "transports": {}}
PROBED = {
    "python": "3.12", "failed": {}, "absent": [], "verbs": "", "ucx": NO_UCX, "compute": "", "driver": "",
    "packages": {"dask": "2026.7.1", "distributed": "2026.7.1"}, "library_path": [], "outside": [],
}  # fmt: skip
GPU_LABELS = {
    "org.hpcml.kind": "rapids",
    "org.hpcml.cuda": "12",
    "org.hpcml.dask": "2026.7.1",
    "org.hpcml.rapids": "26.10",
}
DEFINITION = """Bootstrap: docker
From: {{ BASE }}:1
%arguments
    BASE=python
    SIZE=1
%labels
    org.hpcml.kind cpu
    org.hpcml.space 1M
%post
    echo {{ SIZE }}
"""


class Program:
    """An Apptainer of our own: it notes its words, and each of its commands is a piece of shell."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.image = sif_file.make(world.state / "image.sif")
        (world.project / "own.def").write_text(DEFINITION)

    def install(self, version: str = "apptainer version 1.4.5", name: str = "apptainer", **commands: str) -> None:
        copy = (
            'echo "INFO:    Starting build..."; cat "$FAKE_STATE/image.sif" >"$target"; echo "INFO:    Build complete"'
        )
        cases = {"build": copy, "exec": f"echo '{json.dumps(PROBED)}'", "inspect": "echo '{}'", **commands}
        lines = [
            "#!/bin/sh",
            'case "$1" in exec) said="$1 $2 $3 $4" ;; *) said=$* ;; esac; echo "$said" >>"$FAKE_STATE/words"',
            'for word; do target=$last; last=$word; done',
            'case "$1" in',
            f"--version) echo '{version}' ;;",
            *(f"{command})\n{text}\n;;" for command, text in cases.items()),
            "esac",
        ]  # fmt: skip
        path = self.world.bin / name
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)

    def words(self) -> list[str]:
        path = self.world.state / "words"
        return path.read_text().splitlines() if path.exists() else []


def image(world: World, *words: str, status: int, says: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    done = world.run("image", *words)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    for text in says:
        assert text in done.stderr + done.stdout, done.stderr + done.stdout
    return done
