"""The laptop's end of a tunnel: a free port that stays the same, and whether the right service answers on it."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket

from hpcml import files
from hpcml.remote.answers import Service

FIRST, SPAN, TRIES = 20000, 10000, 20
TIMEOUT = 5.0  # seconds for an answer through the tunnel


def port_of(cluster: str, run: str, service: str) -> int:
    """Return the port that a run's service has on this laptop, the same each time unless it is taken."""
    digest = hashlib.sha256("\0".join((cluster, run, service)).encode()).digest()
    return FIRST + int.from_bytes(digest[:4], "big") % SPAN


def candidates(port: int) -> list[int]:
    """Return the port and those that are tried if it is taken."""
    return [FIRST + (port - FIRST + step) % SPAN if port >= FIRST else port + step for step in range(TRIES)]


def is_free(port: int) -> bool:
    """Whether nobody listens on the port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def get(address: int | str, page: str, token: str = "") -> tuple[int, bytes]:
    """Return the status and the first MiB of a page, by a port of 127.0.0.1 or the path of a unix socket.

    Raises
    ------
    OSError, http.client.HTTPException
        If nobody speaks HTTP there, or not in time.
    """
    connection = http.client.HTTPConnection("127.0.0.1", address if isinstance(address, int) else None, timeout=TIMEOUT)
    try:
        if isinstance(address, str):
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(TIMEOUT)
            connection.sock.connect(address)
        connection.request("GET", page, headers={"Authorization": f"token {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)
    finally:
        connection.close()


def look(port: int, service: Service, token: str = "") -> str:
    """Ask the service for its identity; return nothing if it is the one, else what is wrong in a few words."""
    try:
        status, body = get(port, service.probe or service.path, token)
    except TimeoutError:
        return "it does not answer in time"
    except (OSError, http.client.HTTPException) as error:
        return f"the connection is closed at once ({type(error).__name__})"
    if status != 200:
        return f"it answers with status {status}"
    try:
        facts = files.parsed(json.loads, body.decode())
    except ValueError:
        return "something else answers"
    if not isinstance(facts, dict) or service.identity not in facts.values():
        return "another service answers"
    return ""
