"""Where rapidsmpf's ranks meet: the server of its socket protocol (RRUN_SOCKET_ADDR), which `rrun` has for one node."""

from __future__ import annotations

import hashlib
import hmac
import re
import socketserver
import threading
from collections import Counter
from typing import Any, ClassVar

from hpcml import listening

_HELLO, _STRANGERS = 5.0, 64  # seconds that a new connection has to show the token, and how many may not have
_LINE, _VALUE = 512, 1 << 20  # bytes of a line, and of a value
_AUTH = re.compile(r"AUTH rank=(\d+) nranks=(\d+) token=(\w+)\n")
_COMMAND = re.compile(r"(PUT|GET|BARRIER|SYNC)(?: key=(\S+) (?:valuelen|timeout)=(\d{1,9}))?\n")


def token_of(key: bytes) -> str:
    """Return the token of a run by the key that its agents have."""
    return hmac.new(key, b"rapidsmpf", hashlib.sha256).hexdigest()


class Server(listening.ThreadingServer):
    """Serve ``size`` ranks at a port of ``address``, in threads, until the end of the context."""

    block_on_close = False

    def __init__(self, address: str, size: int, token: str) -> None:
        super().__init__(listening.RAPIDSMPF, address, 0, _Rank, backlog=1024)
        self.size, self.token, self.port = size, token, int(self.server_address[1])
        self.changed, self.values, self.came = threading.Condition(), dict[str, bytes](), Counter[str]()
        self.places = threading.Semaphore(size + _STRANGERS)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a rank has gone, or another program has come."""


class _Rank(socketserver.StreamRequestHandler):
    timeout: ClassVar[float | None] = _HELLO
    server: Server

    def handle(self) -> None:
        if self.server.places.acquire(blocking=False):
            try:
                self._serve()
            finally:
                self.server.places.release()

    def _serve(self) -> None:
        auth = _AUTH.fullmatch(self.rfile.readline(_LINE).decode())
        if auth and hmac.compare_digest(auth[3], self.server.token) and int(auth[1]) < int(auth[2]) == self.server.size:
            self.connection.settimeout(None)
            self.wfile.write(b"OK\n")
            while command := _COMMAND.fullmatch(self.rfile.readline(_LINE).decode()):
                self.wfile.write(self._answer(command[1], command[2], int(command[3] or 0), is_root=auth[1] == "0"))

    def _answer(self, command: str, key: str | None, number: int, *, is_root: bool) -> bytes:
        changed, values, came = self.server.changed, self.server.values, self.server.came
        value = self.rfile.read(number) if command == "PUT" and number <= _VALUE else b""
        with changed:
            if command in ("BARRIER", "SYNC"):
                came[command] += 1
                goal = -(-came[command] // self.server.size) * self.server.size
                changed.notify_all()
                changed.wait_for(lambda: came[command] >= goal)
            elif command == "GET" and key:
                is_there = changed.wait_for(lambda: key in values, number / 1000)
                return b"VALUE valuelen=%d\n%b" % (len(values[key]), values[key]) if is_there else b"TIMEOUT\n"
            elif not (key and is_root and len(value) == number):
                return b"ERROR only rank 0 may put, and no more than 1 MiB\n"
            else:
                values[key] = value
                changed.notify_all()
        return b"OK\n"
