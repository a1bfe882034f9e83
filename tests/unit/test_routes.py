"""What answers at the laptop's end of a tunnel is looked at, whatever it says."""

from __future__ import annotations

import http.server
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.remote import routes
from hpcml.remote.answers import Service

SERVICE = Service("n1", "/tmp/s", "/status", "Scheduler-1")


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body: bytes = self.server.said  # type: ignore[attr-defined]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.mark.parametrize("said", [
    b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"", b"5", b"null", b'["Scheduler-1"]',
    b'{"id": ["Scheduler-1"]}',
])  # fmt: skip
def test_what_is_no_identity_is_another_service(server: http.server.ThreadingHTTPServer, said: bytes) -> None:
    server.said = said  # type: ignore[attr-defined]
    assert routes.look(server.server_address[1], SERVICE) in ("something else answers", "another service answers")
    server.said = b'{"id": "Scheduler-1"}'  # type: ignore[attr-defined]
    assert routes.look(server.server_address[1], SERVICE) == ""


def test_folders_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    """A key or a socket of a tunnel that was killed goes, also where another process has its pid by now."""
    mine = routes.process_folder(tmp_path, "session-")
    assert mine.stat().st_mode & 0o777 == 0o700
    for name, owner, age in (
        ("session-gone", "999999999 1", 0.0), ("session-reused", f"{os.getpid()} 1", 0.0), ("session-old", "", 7200.0),
        ("session-new", "", 0.0), ("session-odd", "x", 7200.0), ("other-gone", "999999999 1", 0.0),
    ):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        if owner:
            (folder / "owner").write_text(owner)
        os.utime(folder, (time.time() - age, time.time() - age))
    (tmp_path / "session-link").symlink_to(tmp_path / "session-new")
    second = routes.process_folder(tmp_path, "session-")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {mine.name, second.name, "session-new", "session-odd", "session-link", "other-gone"}
