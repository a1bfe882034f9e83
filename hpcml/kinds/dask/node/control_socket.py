"""The supervisor's end of its line to the scheduler: a unix socket in a folder that only the user can enter."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from pathlib import Path
from typing import Any, Self

TOPIC = "hpcml"  # of Dask's events: what workers and clients tell the supervisor by way of the scheduler


def warn_after(deadline: float) -> float:
    """Return after how many seconds supervisor or scheduler say that the other does not answer (deadlines.answer)."""
    return max(deadline / 10, 5.0)  # a job that Slurm suspends stops step by step


class Channel:
    """Accept one scheduler, read its lines and send it orders; its death is seen as the end of the stream."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        path.chmod(0o600)
        self.listener.listen(1)
        self.connection: socket.socket | None = None
        self.closed = False
        self.buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.connection is not None:
            self.connection.close()
        self.listener.close()
        self.path.unlink(missing_ok=True)

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """Return the lines that arrived, waiting at most ``timeout`` seconds for the first."""
        ready, _, _ = select.select([] if self.closed else [self.connection or self.listener], [], [], timeout)
        if not ready:
            return []
        if self.connection is None:
            self.connection, _ = self.listener.accept()
            return []
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        self.closed = not data
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def send(self, **order: object) -> None:
        """Send an order; without a scheduler there is nobody to tell."""
        if self.connection is None or self.closed:
            return
        with contextlib.suppress(OSError):  # it dies in this moment, as the next receive() will see
            self.connection.sendall(json.dumps(order).encode() + b"\n")
