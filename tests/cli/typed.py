"""Typed commands without their start: a server that has imported hpcml forks a process for each."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

COMMAND = Path(sys.executable).with_name("hpcml")
# All of the login node's side, also what a command imports only when it needs it; and nothing of Dask.
IMPORTED = ("cli", "doctor", "failures", "images", "plan", "remote", "report", "runs", "schedulers", "sites", "survey",
            "sweeps")  # fmt: skip


@cache
def _server() -> socket.socket:
    """Start the server of this pytest; it ends with the socket."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        words = [sys.executable, __file__, str(there.fileno())]
        process = subprocess.Popen(words, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, env={"LANG": "C.UTF-8"})
    atexit.register(process.wait)
    atexit.register(here.close)  # which is called before
    return here


def run(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, timeout: float) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Do what subprocess.run does with the installed command."""
    server = _server()
    server.settimeout(timeout)
    with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+", errors="surrogateescape") as out, \
            tempfile.TemporaryFile("w+", errors="surrogateescape") as err:  # fmt: skip
        json.dump([str(folder), dict(environment), [str(COMMAND), *arguments]], asked)
        asked.seek(0)
        socket.send_fds(server, [b" "], [asked.fileno(), out.fileno(), err.fileno()])
        child = int(server.recv(16))
        try:
            status = int(server.recv(16))
        except TimeoutError as error:
            os.kill(child, signal.SIGKILL)
            server.settimeout(None)
            server.recv(16)
            raise subprocess.TimeoutExpired([str(COMMAND), *arguments], timeout) from error
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([str(COMMAND), *arguments], status, out.read(), err.read())


def _end(status: int) -> NoReturn:
    """End as sys.exit does, but leave the memory as it is."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve(link: socket.socket) -> None:
    """Fork a process for each command until nobody asks any more."""
    import hpcml.options.parser
    from hpcml.cli.main import main

    for folder in IMPORTED:
        for module in pkgutil.walk_packages([f"{hpcml.__path__[0]}/{folder}"], f"hpcml.{folder}."):
            importlib.import_module(module.name)
    sys.path[0] = str(COMMAND.parent)
    gc.freeze()
    while files := socket.recv_fds(link, 1, 3)[1]:
        child = os.fork()
        if not child:
            link.close()
            with open(files[0]) as asked:
                folder, environment, sys.argv = json.load(asked)
            os.environ.clear()
            os.environ.update(environment)
            time.tzset()
            os.chdir(folder)
            for number, file in enumerate(files[1:], 1):
                os.dup2(file, number)
                os.close(file)
            _end(main())
        for file in files:
            os.close(file)
        link.send(str(child).encode())
        link.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
