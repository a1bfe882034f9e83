"""What answers at the laptop's end of a tunnel is looked at, whatever it says."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from hpcml.remote.answers import Service
from hpcml.remote.tunnel import service_port

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
    assert service_port.look(server.server_address[1], SERVICE) in ("something else answers", "another service answers")
    server.said = b'{"id": "Scheduler-1"}'  # type: ignore[attr-defined]
    assert service_port.look(server.server_address[1], SERVICE) == ""
