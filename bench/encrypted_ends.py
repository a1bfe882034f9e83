"""The two ends of a transfer, each in a process of its own, for encrypted.py."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import distributed
import numpy as np
from distributed.comm import connect, listen
from distributed.protocol import to_serialize

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from hpcml.kinds.dask.node.security import connection_limits, tls  # noqa: E402
from hpcml.repairs import switching  # noqa: E402

MESSAGE = 64 << 20


class Case(NamedTuple):
    name: str
    kind: str  # socket, ssl, tcp or tls
    threads: int = 1  # and connections
    processes: int = 1  # of each end
    suite: str = ""  # of TLS 1.3; by default TLS_AES_256_GCM_SHA384
    fresh: bool = False  # each message into new memory, as Dask does
    both: bool = False
    busy: bool = False  # a thread of the receiver computes in Python
    repaired: bool = False  # by hpcml.repairs.switching


def security_of(folder: Path) -> Any:
    """Return Dask's security with a certificate as a run has it."""
    paths: Any = SimpleNamespace(certificate=folder / "secret/certificate.pem", key=folder / "secret/key.pem")
    if not paths.key.exists():
        tls.make_certificate(paths, 86400)
    return tls.security(paths)


def end(case: Case, folder: Path, size: int, sends: bool, pipe: Any) -> None:
    """Be one end: send the address, receive the peer's, be ready, transfer, and send the cost."""
    if case.kind in {"tcp", "tls"}:
        security = security_of(folder) if case.kind == "tls" else distributed.Security()
        asyncio.run(_dask(case, security, size, sends, pipe))
    else:
        _loop(case, security_of(folder), size, sends, pipe)


@contextlib.contextmanager
def _measured(pipe: Any, busy: bool, deserialize: list[float]) -> Iterator[None]:
    over, clock = threading.Event(), time.thread_time if busy else time.process_time
    if busy:
        threading.Thread(target=lambda: collections.deque(iter(over.is_set, True), 0), daemon=True).start()
    used, wall = clock(), time.perf_counter()
    yield
    used, wall = clock() - used, time.perf_counter() - wall
    pipe.send({"processor": used, "wall": wall, "deserialize": sum(deserialize)})
    over.set()


def _loop(case: Case, security: Any, size: int, sends: bool, pipe: Any) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname())
    peer, data = pipe.recv(), np.ones(MESSAGE, "u1").data
    arguments = security.get_connection_args("client") if sends else security.get_listen_args("worker")

    def transfer(one: Any) -> None:
        for _ in range(size // MESSAGE // case.threads):
            buffer, at = np.empty(MESSAGE, "u1").data if case.fresh and not sends else data, 0
            while at < MESSAGE:
                at += one.send(buffer[at:]) if sends else one.recv_into(buffer[at:])

    sockets: list[Any] = [
        socket.create_connection(peer) if sends else listener.accept()[0] for _ in range(case.threads)
    ]
    if case.kind == "ssl":
        sockets = [arguments["ssl_context"].wrap_socket(one, server_side=not sends) for one in sockets]
        assert case.suite in ("", sockets[0].cipher()[0]), sockets[0].cipher()
    threads = [threading.Thread(target=transfer, args=(one,)) for one in sockets]
    pipe.send("ready")
    pipe.recv()
    with _measured(pipe, False, []):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    pipe.recv()  # a socket that closes earlier loses what the peer has not read


async def _dask(case: Case, security: Any, size: int, sends: bool, pipe: Any) -> None:
    connection_limits.guard()
    if case.repaired:
        switching.install()
    data, left, seconds = {"data": to_serialize(np.ones(MESSAGE, "u1"))}, asyncio.Event(), [0.0]
    deserialize = distributed.comm.tcp.from_frames

    async def timed(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        message = await deserialize(*arguments, **options)
        seconds.append(time.process_time() - began)
        return message

    async def give(comm: Any) -> None:
        with contextlib.suppress(distributed.comm.CommClosedError):
            while await comm.read():
                await comm.write(data)
        left.set()

    distributed.comm.tcp.from_frames = timed
    async with listen(f"{case.kind}://127.0.0.1:0", give, **security.get_listen_args("worker")) as listener:
        pipe.send(listener.contact_address)
        comm = await connect(pipe.recv(), **security.get_connection_args("worker"))
        assert case.kind == "tcp" or case.suite in ("", comm.extra_info["cipher"][0])
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)  # the peer may still be connecting
        with _measured(pipe, case.busy and not sends, seconds):
            for _ in range(size // MESSAGE if case.both or not sends else 0):
                await comm.write("give")
                await comm.read()
            await comm.close()
            await left.wait()
    pipe.recv()
