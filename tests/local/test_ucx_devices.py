"""What UCX itself does, which hpcml's value of UCX_NET_DEVICES rests on: one process listens, another connects."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from hpcml.node.hardware import topology

pytest.importorskip("ucxx", reason="ucxx is not installed (extra 'ucx')")
pytestmark = pytest.mark.local

_PEER = """
import asyncio, sys, ucxx

async def listen():
    async def serve(endpoint):
        await asyncio.sleep(0)
    listener = ucxx.create_listener(serve)
    print(listener.port, flush=True)
    await asyncio.sleep(60)

async def connect(ip, port):
    try:
        await asyncio.wait_for(ucxx.create_endpoint(ip, int(port)), 20)
    except (ucxx.exceptions.UCXError, asyncio.CancelledError) as error:
        sys.exit(f"refused: {type(error).__name__}")

asyncio.run(connect(*sys.argv[1:]) if sys.argv[1:] else listen())
"""


def _own_address() -> tuple[str, str]:
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if (
                entry.family == socket.AF_INET
                and not entry.address.startswith("127.")
                and psutil.net_if_stats()[name].isup
            ):
                return name, entry.address
    pytest.skip("this machine has no address but loopback")


@contextmanager
def _listener(devices: str) -> Iterator[str]:
    environment = {**os.environ, **topology.EVERYWHERE, "UCX_NET_DEVICES": devices}
    with subprocess.Popen([sys.executable, "-c", _PEER], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:  # fmt: skip
        assert process.stdout is not None
        lines = (line for line in process.stdout if line.strip().isdigit())  # UCX warns there too
        try:
            yield next(lines).strip()
        finally:
            process.kill()


def _connect(devices: str, ip: str, port: str) -> str:
    environment = {**os.environ, **topology.EVERYWHERE, "UCX_NET_DEVICES": devices, "UCX_LOG_LEVEL": "diag"}
    done = subprocess.run([sys.executable, "-c", _PEER, ip, port], env=environment, capture_output=True, text=True,
                          check=False, timeout=240)  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_ucx_refuses_connections_over_devices_that_are_not_listed() -> None:
    interface, ip = _own_address()
    with _listener(interface) as port:
        assert _connect(interface, ip, port) == ""
        refusal = _connect("lo", ip, port)
        assert f"device {interface} is not enabled, enable it in UCX_NET_DEVICES" in refusal
        assert refusal  # refused at once, or not answered in time
    with _listener("lo") as port:
        assert "refused: " in _connect(interface, ip, port)
