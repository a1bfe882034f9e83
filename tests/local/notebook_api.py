"""A client of a run's JupyterLab without a browser: ``python notebook_api.py SOCKET TOKEN_FILE CODE…``, and a class.

It speaks HTTP and the kernels' websocket over the server's unix socket. The command starts one kernel, runs each CODE
in it and prints what it printed.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import websocket  # of jupyter-server's own dependencies


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


class Jupyter:
    """A server by its socket; ``token`` may be empty, to see what a stranger sees."""

    def __init__(self, path: str, token: str) -> None:
        self.path, self.token = path, token
        self.opened: list[socket.socket] = []

    def request(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, str]:
        """Return the status and the text of an answer."""
        connection = UnixConnection(self.path)
        key = {"Authorization": f"token {self.token}"} if self.token else {}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, {**key, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def table(self, method: str, path: str, body: object = None) -> Any:
        """Return what a JSON request gives, which must succeed."""
        status, text = self.request(method, path, body)
        assert status < 300, (status, text)
        return json.loads(text) if text else None

    def kernel(self) -> Kernel:
        """Start a kernel of the run."""
        return Kernel(self, self.table("POST", "/api/kernels", {"name": "python3"})["id"])

    def log_in(self, token: str) -> str:
        """Return the cookies that a browser has after it opened the page with the token once."""
        connection = UnixConnection(self.path)
        try:
            connection.request("GET", f"/lab?token={token}")
            said = connection.getresponse().headers.get_all("Set-Cookie") or []
        finally:
            connection.close()
        return "; ".join(line.partition(";")[0] for line in said)

    def connect(self, path: str, origin: str = "http://localhost", cookies: str = "") -> websocket.WebSocket:
        """Open a websocket."""
        raw = socket.socket(socket.AF_UNIX)
        self.opened.append(raw)
        raw.settimeout(30)
        raw.connect(self.path)
        header = [f"Authorization: token {self.token}"] if self.token else []
        header += [f"Cookie: {cookies}"] if cookies else []
        return websocket.create_connection(f"ws://localhost{path}", socket=raw, header=header, origin=origin)

    def close(self) -> None:
        """Close all websockets."""
        while self.opened:
            self.opened.pop().close()


class Kernel:
    """A running kernel."""

    def __init__(self, server: Jupyter, number: str) -> None:
        self.server, self.id, self.session = server, number, uuid.uuid4().hex
        self.channels = f"/api/kernels/{number}/channels?session_id={self.session}"
        self.socket = server.connect(self.channels)

    def run(self, code: str, seconds: float = 60) -> str:
        """Run a cell; return all that it printed, and its error if it raised."""
        message = uuid.uuid4().hex
        header = {
            "msg_id": message,
            "msg_type": "execute_request",
            "username": "",
            "session": self.session,
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        self.socket.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content,
                                     "channel": "shell", "buffers": []}))  # fmt: skip
        text, deadline = "", time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.socket.settimeout(deadline - time.monotonic())
            said = json.loads(self.socket.recv())
            if said["parent_header"].get("msg_id") != message:
                continue
            kind, content = said["msg_type"], said["content"]
            if kind == "stream":
                text += content["text"]
            elif kind == "execute_result":
                text += content["data"]["text/plain"]
            elif kind == "error":
                text += f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                return text
        raise TimeoutError(f"the cell did not end within {seconds} s: {text}")

    def restart(self) -> None:
        """Restart it, as the button in the toolbar does: with a new connection, which waits until outputs come through."""
        self.server.table("POST", f"/api/kernels/{self.id}/restart")
        self.socket.close()
        self.socket = self.server.connect(self.channels)


if __name__ == "__main__":
    kernel = Jupyter(sys.argv[1], Path(sys.argv[2]).read_text()).kernel()
    for cell in sys.argv[3:]:
        print(kernel.run(cell))
