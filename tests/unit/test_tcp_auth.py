"""Authenticated TCP with real sockets: both ways with the key, and every attack of a peer that has none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed.comm import connect, listen, registry
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.core import CommClosedError, FatalCommClosedError

from hpcml.kinds.dask.node.security import connection_limits, key_proof, tcp_auth
from hpcml.kinds.dask.node.security.key_proof import Handshake, KeyProofError, pack

KEY, OTHER = b"k" * 32, b"o" * 32
PATIENCE = 60.0  # seconds, which nothing here takes
REQUIRED = {"require_encryption": True}  # as Dask's settings in a run say

PEERS: list[Peer] = []  # of the running test
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def key_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "data.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    tcp_auth.install(path)
    yield path
    del registry.backends[tcp_auth.SCHEME]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test within its time, and close its peers."""

    async def main() -> None:
        try:
            await test()
        finally:
            for one in PEERS:
                one.writer.close()
                with contextlib.suppress(OSError):
                    await one.writer.wait_closed()
            PEERS.clear()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


async def echo(comm: Any) -> None:
    with contextlib.suppress(CommClosedError):
        while True:
            await comm.write(await comm.read())


@contextlib.asynccontextmanager
async def listening(handle: Callable[[Any], Awaitable[None]] = echo) -> AsyncIterator[Any]:
    """Yield a listener with the key, at loopback."""
    async with listen(f"{tcp_auth.SCHEME}://127.0.0.1:0", handle, **REQUIRED) as listener:
        yield listener


def place(listener: Any) -> tuple[str, int]:
    host, port = parse_host_port(parse_address(listener.contact_address)[1])
    return host, port


async def is_served(listener: Any) -> None:
    """Connect with the key, and have something answered."""
    comm = await connect(listener.contact_address, timeout=PATIENCE, **REQUIRED)
    await comm.write({"said": bytes(100_000)})
    assert await comm.read() == {"said": bytes(100_000)}
    await comm.close()


class Peer:
    """A raw end of a connection, by which :class:`Handshake` sends and receives; ``sent`` is what it has sent."""

    def __init__(self, streams: Streams) -> None:
        self.reader, self.writer = streams
        self.sent: list[bytes] = []
        PEERS.append(self)

    async def send(self, message: bytes) -> None:
        self.sent.append(bytes(message))
        self.writer.write(message)
        await self.writer.drain()

    async def recv(self, buffer: bytearray) -> None:
        try:
            buffer[:] = await self.reader.readexactly(len(buffer))
        except asyncio.IncompleteReadError as error:
            raise OSError("closed") from error

    async def said(self) -> bytes:
        """Return what comes until the other end closes."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""


async def peer(listener: Any) -> Peer:
    return Peer(await asyncio.open_connection(*place(listener)))


def test_the_key_opens_both_ways() -> None:
    async def main() -> None:
        async with listening() as listener:
            assert listener.contact_address.startswith("hpcml-tcp://127.0.0.1:")
            limits = listener.half_open  # those of TLS
            assert (limits.deadline, limits.most) == (connection_limits.DEADLINE, connection_limits.most_half_open())
            await asyncio.gather(*(is_served(listener) for _ in range(20)))

    run(main)


def test_another_key_is_refused_by_both_ends() -> None:
    handled: list[Any] = []

    async def note(comm: Any) -> None:
        handled.append(comm)

    async def main() -> None:
        async with listening(note) as listener:
            location = parse_address(listener.contact_address)[1]
            with pytest.raises(FatalCommClosedError, match="another key"):
                await tcp_auth._Connector(OTHER).connect(location)
            liar = await peer(listener)
            await liar.send(b"\x01" + pack(*place(listener)) + os.urandom(32))
            await liar.recv(bytearray(65))
            await liar.send(b"\x01" + os.urandom(32))  # a wrong proof
            assert await liar.said() == b""

    run(main)
    assert not handled


def test_no_byte_is_read_before_the_proof(tmp_path: Path) -> None:
    """What Dask sends first, a pickle in it, and garbage: nothing is answered and nothing is unpickled."""
    from distributed.comm.utils import to_frames
    from distributed.protocol.serialize import ToPickle

    mark = tmp_path / "mark"

    class Evil:
        def __reduce__(self) -> Any:
            return open, (str(mark), "w")

    async def main() -> None:
        frames = [bytes(frame) for frame in await to_frames({"evil": ToPickle(Evil())}, serializers=["pickle"])]
        body = struct.pack(f"<Q{len(frames)}Q", len(frames), *map(len, frames)) + b"".join(frames)
        message = struct.pack("<Q", len(body)) + body
        async with listening() as listener:
            address = pack(*place(listener))
            hello = b"\x01" + address + os.urandom(32)
            for sent in (message, os.urandom(51), b"GET / HTTP/1.0\r\n\r\n".ljust(60), b"\x02" + hello[1:]):
                stranger = await peer(listener)
                await stranger.send(sent)
                assert await stranger.said() == b"", sent[:20]
            half = await peer(listener)
            await half.send(hello)
            await half.recv(bytearray(65))  # the listener's nonce and proof
            await half.send(message)
            assert await half.said() == b"", "nothing of Dask's"
            await is_served(listener)

    run(main)
    assert not mark.exists()


def test_dask_s_own_tcp_is_refused() -> None:
    async def main() -> None:
        async with listening() as listener:
            plain = listener.contact_address.replace(tcp_auth.SCHEME, "tcp")
            comm = await registry.get_backend("tcp").get_connector().connect(parse_address(plain)[1])
            with pytest.raises(CommClosedError):
                await comm.write({"op": "identity"})
                await comm.read()

    run(main)


def test_a_recorded_proof_opens_nothing() -> None:
    async def main() -> None:
        async with listening() as listener:
            first = await peer(listener)
            await Handshake(first).prove_as_connector(KEY, pack(*place(listener)))
            again = await peer(listener)
            await again.send(first.sent[0])
            await again.recv(bytearray(65))
            await again.send(first.sent[1])
            assert await again.said() == b""

    run(main)


def test_a_relay_between_two_listeners_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Who has the port of a worker that died passes all bytes on to one that lives."""

    async def main() -> None:
        passed = asyncio.Event()
        async with listening() as listener:

            async def pass_on(*streams: Any) -> None:
                async def one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    with contextlib.suppress(ConnectionError):
                        while part := await reader.read(1000):
                            writer.write(part)
                    writer.close()

                there = await peer(listener)
                await asyncio.gather(one_way(streams[0], there.writer), one_way(there.reader, streams[1]))
                passed.set()

            relay = await asyncio.start_server(pass_on, "127.0.0.1", 0)
            host, port = relay.sockets[0].getsockname()
            with pytest.raises(CommClosedError):
                await tcp_auth._Connector(KEY).connect(f"{host}:{port}")
            await passed.wait()
            relay.close()
            assert f"the peer requested 127.0.0.1 port {port}, which is not" in caplog.text
            await is_served(listener)

    with caplog.at_level(logging.WARNING, "hpcml.tcp"):
        run(main)


def test_silent_peers_hold_up_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Of too many half-open connections the oldest go; the others at the deadline."""
    monkeypatch.setattr(tcp_auth, "most_half_open", lambda: 5)

    async def main() -> None:
        async with listening() as listener:
            old = [await peer(listener) for _ in range(3)]
            await old[0].send(b"\x01" + pack(*place(listener)) + os.urandom(32))  # half a proof
            rest = [await peer(listener) for _ in range(5)]
            for silent in old:
                await silent.said()
            await is_served(listener)
            assert len(listener.half_open._limits) <= 5
            assert not any(silent.reader.at_eof() for silent in rest[1:]), "the newest stay, until the deadline"

    with caplog.at_level(logging.WARNING, "hpcml.tcp"):
        run(main)
    assert "no answer in time" in caplog.text


@pytest.mark.parametrize(("answer", "error"), [(bytes(range(65)), FatalCommClosedError), (b"", CommClosedError), (None, CommClosedError)], ids=["wrong", "closed", "silent"])  # fmt: skip
def test_an_impostor_is_told_nothing(
    answer: bytes | None, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sits at the address and answers garbage, closes or is silent: the connector sends its hello and no more."""
    monkeypatch.setattr(key_proof, "DEADLINE", 0.5 if answer is None else PATIENCE)
    got: list[bytes] = []

    async def main() -> None:
        closed = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.append(await reader.readexactly(51))
            if answer is not None:
                writer.write(answer)
                if not answer:
                    writer.close()
            got.append(await reader.read())
            writer.close()
            closed.set()

        impostor = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = impostor.sockets[0].getsockname()
        with pytest.raises(error, match="another key") as raised:
            await tcp_auth._Connector(KEY).connect(f"{host}:{port}")
        assert type(raised.value) is error
        await closed.wait()
        impostor.close()

    run(main)
    assert [len(part) for part in got] == [51, 0]


def test_a_process_has_the_key_of_one_run(key_file: Path, tmp_path: Path) -> None:
    tcp_auth.install(key_file)
    other = tmp_path / "other.key"
    other.write_bytes(OTHER)
    other.chmod(0o600)
    with pytest.raises(KeyProofError, match="another run"):
        tcp_auth.install(other)
    other.chmod(0o644)
    with pytest.raises(KeyProofError, match="other users can read"):
        tcp_auth.install(other)
