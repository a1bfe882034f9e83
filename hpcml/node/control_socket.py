"""The supervisor's end of its line to the scheduler: a unix socket in a folder that only the user can enter."""

from __future__ import annotations

import json
import os
import selectors
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TOPIC = "hpcml"  # of Dask's events: what workers and clients tell the supervisor by way of the scheduler


def warn_after(deadline: float) -> float:
    """Return after how many seconds supervisor or scheduler say that the other does not answer (deadlines.answer)."""
    return max(deadline / 10, 5.0)  # a job that Slurm suspends stops step by step


class Channel:
    """Accept one scheduler, read its lines and send it orders; its death is seen as the end of the stream."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        path.chmod(0o600)
        self.listener.listen(1)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.connection: socket.socket | None = None
        self.closed = False
        self.buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.connection is not None:
            self.connection.close()
        self.listener.close()
        self.selector.close()
        self.path.unlink(missing_ok=True)

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """Return the lines that arrived, waiting at most ``timeout`` seconds for the first."""
        messages: list[dict[str, Any]] = []
        for key, _ in self.selector.select(timeout):
            if key.fileobj is self.listener:
                self._accept()
            else:
                messages += self._read()
        return messages

    def send(self, **order: object) -> None:
        """Send an order; without a scheduler there is nobody to tell."""
        if self.connection is None or self.closed:
            return
        try:
            self.connection.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            self.closed = True  # it died in this moment; the reader says the same

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        os.set_inheritable(connection.fileno(), False)
        self.connection = connection
        self.selector.unregister(self.listener)
        self.selector.register(connection, selectors.EVENT_READ)

    def _read(self) -> list[dict[str, Any]]:
        assert self.connection is not None
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.closed = True
            self.selector.unregister(self.connection)
            return []
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines if line]
