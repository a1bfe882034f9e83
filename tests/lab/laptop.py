"""What the tests of tunnels do on the laptop: start `hpcml tunnel` as a user would, look through it, and break things."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lab_ssh
from conftest import Cluster
from lab_state import wait_for
from labs import Lab

# A web service of a run that stands for Jupyter: on a socket of mode 0600, with a token in a file, and with bytes to
# download. It serves until its run is told to stop, or there is enough.
SERVICE = """
import http.server, json, os, pathlib, secrets, socketserver, tempfile, threading, time
import hpcml
hpcml.connect()
os.umask(0o077)
folder = pathlib.Path(tempfile.mkdtemp(prefix="hpcml-web-"))
attempt = hpcml.run.directory / "attempts" / str(hpcml.run.attempt)
token = secrets.token_urlsafe(32)
(attempt / "secret" / "web.token").write_text(token)
STARTED = f"started-{time.time_ns()}"
BLOCK = bytes(range(256)) * 4096  # 1 MiB of every byte

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Authorization") != f"token {token}":
            self.send_response(403); self.end_headers(); return
        self.send_response(200)
        if self.path.startswith("/big"):
            count = int(self.path.partition("=")[2])
            self.send_header("Content-Length", str(count << 20)); self.end_headers()
            for _ in range(count):
                self.wfile.write(BLOCK)
            return
        self.end_headers(); self.wfile.write(json.dumps({"started": STARTED, "connections": 0}).encode())
    def address_string(self): return "-"
    def log_message(self, *words): pass

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

server = Server(str(folder / "web.sock"), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
facts = {"node": os.uname().nodename, "socket": str(folder / "web.sock"), "pid": os.getpid(), "started": time.time(),
         "identity": STARTED, "path": "/lab", "probe": "/api/status", "token_file": str(attempt / "secret/web.token")}
new = attempt / "services" / ".web.new"
new.write_text(json.dumps(facts)); new.rename(attempt / "services" / "web.json")
while not hpcml.run.should_stop() and not (hpcml.run.out / "enough").exists():
    time.sleep(0.1)
"""


class Tunnel:
    """A `hpcml tunnel --json` that runs on the laptop."""

    def __init__(self, lab: Lab, run: str, *options: str, env: dict[str, str] | None = None) -> None:
        self.log = lab.places.log / f"tunnel-{time.time_ns()}.err"
        self.error = self.log.open("w")
        self.process = lab.popen(["hpcml", "--host", "lab", "tunnel", "--json", *options, run], node=lab_ssh.LAPTOP,
                                 stderr=self.error, env=env)  # fmt: skip
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.lines: list[dict[str, Any]] = []
        self.rest = ""

    def read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.process.stdout.fileno(), 65536):
                *whole, self.rest = (self.rest + piece.decode()).split("\n")
                self.lines += [facts for line in whole if "url" in (facts := json.loads(line))]

    @property
    def said(self) -> str:
        return self.log.read_text()

    def up(self, count: int = 1, seconds: float = 40) -> dict[str, Any]:
        """Wait until the tunnel has said `count` times where it is open; return the last."""

        def there() -> bool:
            self.read()
            return len(self.lines) >= count or self.process.poll() is not None

        until(there, seconds, lambda: self.said)
        assert len(self.lines) >= count, f"it ended with {self.process.returncode}: {self.said}"
        return self.lines[count - 1]

    def ended(self, seconds: float = 40) -> int:
        """Wait until it ends; return its status."""
        until(lambda: self.process.poll() is not None, seconds, lambda: self.said)
        self.read()
        return int(self.process.returncode)

    def stop(self) -> int:
        """End it as Ctrl-C does, to the process alone."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.error.close()
        return int(self.process.returncode)


def until(condition: Callable[[], bool], seconds: float, words: Callable[[], str] = lambda: "") -> None:
    """Wait for a condition, and fail in words if it does not come."""
    if not wait_for(condition, seconds, 0.05):
        pytest.fail(f"not within {seconds:g} s; {words()}")


class Outside:
    """The lab with its laptop: alice sits there, and mallory is everywhere."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.cluster = Cluster(lab)
        self.tunnels: list[Tunnel] = []

    def tunnel(self, run: str, *options: str, env: dict[str, str] | None = None) -> Tunnel:
        self.tunnels.append(Tunnel(self.lab, run, *options, env=env))
        return self.tunnels[-1]

    def on(self, node: str, *words: str, user: str = "alice", timeout: float = 60, input: str | None = None) -> subprocess.CompletedProcess[str]:  # fmt: skip
        cwd = "/" if user != "alice" else None
        return self.lab.exec(list(words), node=node, user=user, timeout=timeout, input=input, cwd=cwd)

    def laptop(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return self.on(lab_ssh.LAPTOP, *words, timeout=timeout)

    def status_of(self, port: int, page: str = "/hpcml/identity.json", *options: str) -> str:
        """The status that a request on the laptop's port is answered with; 000 for no answer."""
        words = ["curl", "-s", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", *options]
        return self.laptop(*words, f"http://127.0.0.1:{port}{page}").stdout

    def start_run(self, name: str, text: str, *options: str) -> tuple[str, Path]:
        """Submit a script and wait until it runs; return the run's id and directory."""
        _, directory = self.cluster.detach(text, "--name", name, "--time", "30", *options)
        self.cluster.wait_event(directory, "script-started", 60)
        return directory.name, directory

    @contextlib.contextmanager
    def going_on(self, name: str, text: str) -> Iterator[tuple[str, Path]]:
        """A run of two nodes that goes on until it is cancelled here: its id and directory."""
        self.lab.wait_idle(60)
        yield self.start_run(name, text, "--nodes", "2", "--nodelist", "n1,n2")
        self.on("login", "scancel", "--me", "--quiet")
        self.lab.wait_idle(60)

    def service(self, directory: Path, name: str = "dashboard") -> dict[str, Any]:
        pattern = f"attempts/*/services/{name}.json"
        until(lambda: any(directory.glob(pattern)), 30)
        found: dict[str, Any] = json.loads(max(directory.glob(pattern)).read_text())
        return found

    def logins(self, node: str) -> int:
        """How often sshd on a node has let somebody in since it was started."""
        return lab_ssh.log(self.lab.places, node).count("Accepted publickey")

    def close_connection(self) -> None:
        """Close alice's shared connection, as when the laptop is switched off; a lab started anew has no laptop."""
        for path in self.home.glob(".hpcml/cm/*"):
            if self.lab.has(lab_ssh.LAPTOP):
                self.laptop("ssh", "-F", "none", "-S", str(path), "-O", "exit", "lab")
            path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Close the connection and forget routes and logins."""
        self.close_connection()
        for path in self.home.glob(".hpcml/ssh/*"):
            if path.is_file():
                path.unlink(missing_ok=True)
            else:  # keys of a tunnel that was killed; one that ends takes its own away at the same time
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(path)

    @property
    def home(self) -> Path:
        return lab_ssh.laptop_home(self.lab.places, "alice")

    def kill_sessions(self, node: str) -> None:
        """End alice's ssh sessions on a node, as when the node goes down; its sshd stays."""
        for pid, line in self.lab.processes("alice"):
            if line.startswith("sshd: hpcml-alice") and self._is_on(pid, node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _is_on(self, pid: int, node: str) -> bool:
        holder = self.lab.state().holders[node].pid
        try:
            return Path(f"/proc/{pid}/ns/net").readlink() == Path(f"/proc/{holder}/ns/net").readlink()
        except OSError:
            return False

    @contextlib.contextmanager
    def sshd(self, nodes: tuple[str, ...], *extra: str, **options: bool) -> Iterator[None]:
        """Have sshd of some nodes follow other rules for a while; connections that stand are closed."""
        try:
            self._restart(nodes, *extra, **options)
            yield
        finally:
            self._restart(nodes)

    def _restart(self, nodes: tuple[str, ...], *extra: str, **options: bool) -> None:
        state = self.lab.state()
        for node in nodes:
            lab_ssh.configure(self.lab.places, node, extra, **options)
            if state.daemons[f"sshd-{node}"].alive:
                lab_ssh.stop_sshd(state, node)
            self.kill_sessions(node)
            lab_ssh.start_sshd(self.lab.places, state, node)
