"""A Jupyter run under the local site for tests: start it, reach it over its socket or a port of loopback, end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from notebook_api import Jupyter

HPCML = str(Path(sys.executable).with_name("hpcml"))


class Session:
    """A run of ``hpcml jupyter`` on this machine, and where its server is."""

    def __init__(self, home: Path, *options: str) -> None:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HPCML_", "SLURM_", "DASK_", "JUPYTER"))
        }
        self.environment = {**kept, "HOME": str(home), "HPCML_SITE": "local"}
        self.home, self.notebooks = home, home / "note books"
        self.notebooks.mkdir(exist_ok=True)
        done = self.hpcml("jupyter", "--json", *options)
        assert done.returncode == 0, done.stderr
        self.directory = Path(json.loads(done.stdout)["directory"])
        path = self.directory / "attempts/0/services/jupyter.json"
        self.until(path.exists, 90)
        self.facts: dict[str, Any] = json.loads(path.read_text())
        self.token = Path(self.facts["token_file"]).read_text()
        self.folder = Path(self.facts["socket"]).parent
        self.server = Jupyter(self.facts["socket"], self.token)

    def hpcml(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([HPCML, *words], cwd=self.notebooks, env=self.environment, capture_output=True, text=True,
                              timeout=240, check=False)  # fmt: skip

    def until(self, condition: Any, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.log() + self.hpcml("status").stdout
            time.sleep(0.05)

    def log(self) -> str:
        path = self.directory / "logs/driver.log"
        return path.read_text() if path.exists() else ""

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.hpcml("status", self.directory.name, "--json").stdout)
        return found

    def ended(self, seconds: float = 40) -> dict[str, Any]:
        """Wait for the run's end; return its status, with nothing of it left."""
        self.until(lambda: self.status()["phase"] == "ended", seconds)
        self.server.close()
        self.until(lambda: not self.processes(), 10)
        assert not self.folder.exists()
        assert list(self.directory.glob("attempts/*/secret/*")) == []
        return self.status()

    def end(self) -> None:
        self.hpcml("cancel", self.directory.name)
        self.ended()

    def processes(self) -> dict[int, str]:
        """Return the processes that have this run in their environment, with their command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.directory) in (path / "environ").read_text(errors="replace"):
                    found[int(path.name)] = (path / "cmdline").read_text(errors="replace").replace("\0", " ")
        return found


@contextlib.contextmanager
def tunnelled(session: Session) -> Iterator[int]:
    """`hpcml tunnel` to the session's server; gives the port."""
    words = [HPCML, "tunnel", "--json", "--service", "jupyter", session.directory.name]
    with subprocess.Popen(
        words, cwd=session.notebooks, env=session.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield int(json.loads(process.stdout.readline())["port"])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
