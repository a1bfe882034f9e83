"""Write, read and wait for the small files that roles share: whole or not at all, and for the user alone."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from hpcml import safe_files
from hpcml.paths import AttemptPaths

LOOKS = 500  # a second, of all processes of a run together, at one folder of the shared file system
SOONEST = 0.02  # seconds between two looks of one process


def interval(lookers: int) -> float:
    """Return the seconds between two looks of each of so many processes: the more look, the more seldom each does."""
    return max(SOONEST, lookers / LOOKS)


def write_json(path: Path, content: object) -> None:
    """Put a JSON file in place."""
    safe_files.write(path, json.dumps(content) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON file's table, or None if there is no such file."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return content


def write_service(path: Path, node: str, socket: Path, identity: str, /, **page: object) -> None:
    """Say at which socket of a node a web service of the run is: what tunnels lead to (runs.record.Service)."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    process = {"node": node, "socket": str(socket), "pid": os.getpid(), "started": time.time()}
    write_json(path, {**process, "identity": identity, **page})


def listed(folder: Path) -> set[str]:
    """Return the names in a folder, leaving out files that are being written.

    Listing is also what makes a network file system look again: NFS keeps "there is no such file" for up to a minute,
    but asks the server again when a directory is opened.
    """
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".")}
    except FileNotFoundError:
        return set()


def wait_for(path: Path, deadline: float, interval: float) -> bool:
    """Wait until a file exists; return False when ``deadline`` (of time.monotonic) has passed."""
    while path.name not in listed(path.parent):
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def remove_secrets(attempt: AttemptPaths) -> None:
    """Remove the keys, the certificate, the token, and what tunnels left; they are of no use after the attempt."""
    for path in (attempt.key, attempt.certificate, attempt.data_key, attempt.jupyter_token, attempt.link_key):
        path.unlink(missing_ok=True)
    for folder in attempt.secret.glob("relay-*"):
        shutil.rmtree(folder, ignore_errors=True)
