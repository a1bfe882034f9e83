"""The handshake of UCX connections without UCX: two ends in memory, key files, doors and the log."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.config
import pytest

from hpcml.kinds.dask.node.security import connection_limits, ucx_auth
from hpcml.kinds.dask.node.security import tls as secure
from hpcml.kinds.dask.node.security.connection_limits import HalfOpen
from hpcml.kinds.dask.node.security.key_proof import Handshake, KeyProofError, RefusedError, pack, read_key
from hpcml.paths import AttemptPaths
from tests.said import in_order

KEY, OTHER = b"k" * 32, b"o" * 32
HERE, THERE = pack("10.0.0.1", 4711), pack("10.0.0.2", 4711)

Change = bytes | Callable[[bytes], bytes]  # what comes instead of a message, or is made of it

CLIENT_PRELOAD = "hpcml.kinds.dask.node.security.client_preload"


class End:
    """One end of a connection in memory; ``sent`` is what it sent, ``changed`` what becomes of each message."""

    def __init__(self, changed: dict[int, Change] | None = None) -> None:
        self.sent: list[bytes] = []
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.changed = changed or {}
        self.other: End

    async def send(self, buffer: bytes) -> None:
        self.sent.append(buffer)
        change = self.changed.get(len(self.sent), buffer)
        self.other.inbox.put_nowait(change if isinstance(change, bytes) else change(buffer))

    async def recv(self, buffer: bytearray) -> None:
        message = await asyncio.wait_for(self.inbox.get(), 60)
        if message is None:
            raise TimeoutError("the other end says no more")
        if len(message) > len(buffer):
            raise OSError("truncated")
        buffer[: len(message)] = message  # a shorter one is taken, as UCXX does


def talk(
    connector: bytes = KEY, listener: bytes = KEY, *, own: bytes = HERE, dialled: bytes = HERE,
    says: dict[int, Change] | None = None, answers: dict[int, Change] | None = None,
) -> tuple[Any, Any, End, End]:  # fmt: skip
    """Let both ends prove themselves; return the exception of each (None if there is none) and the ends."""

    async def run() -> tuple[Any, Any, End, End]:
        one, two = End(says), End(answers)
        one.other, two.other = two, one

        async def to_its_end(proving: Coroutine[Any, Any, None], waits: End) -> None:
            try:
                await proving
            finally:
                waits.inbox.put_nowait(None)

        results = await asyncio.gather(
            to_its_end(Handshake(one).prove_as_connector(connector, dialled), two),
            to_its_end(Handshake(two).prove_as_listener(listener, {own}), one), return_exceptions=True)  # fmt: skip
        return *results, one, two

    return asyncio.run(run())


def test_both_hold_the_key() -> None:
    connector, listener, one, two = talk()
    assert connector is None
    assert listener is None
    assert (len(one.sent), len(two.sent)) == (2, 1)  # one and a half round trips
    again = talk()[2]
    assert not set(one.sent) & set(again.sent), "nonces are fresh"


@pytest.mark.parametrize(("connector", "listener"), [(KEY, OTHER), (OTHER, KEY)])
def test_one_holds_another_key(connector: bytes, listener: bytes) -> None:
    first, second, one, _ = talk(connector, listener)
    assert isinstance(first, RefusedError)
    assert isinstance(second, TimeoutError)
    assert len(one.sent) == 1, "the connector proves nothing to who has not proved itself"


def test_messages_passed_on_to_another_listener() -> None:
    """Who sits on the port of a worker that died cannot pass a connector's messages on to one that lives."""
    _, listener, _, two = talk(own=THERE, dialled=HERE)
    assert re.search(in_order("10.0.0.1 port 4711", "this process's"), str(listener))
    assert not two.sent


async def _attack(listener: End, attacker: End, hello: bytes, proof: bytes | None) -> None:
    """Send a hello and then a proof, or what the listener itself sent as one."""
    attacker.other, listener.other = listener, attacker
    proving = asyncio.ensure_future(Handshake(listener).prove_as_listener(KEY, {HERE}))
    await attacker.send(hello)
    answer = await asyncio.wait_for(attacker.inbox.get(), 60)
    assert answer is not None
    await attacker.send(answer[:1] + answer[33:] if proof is None else proof)
    await proving


@pytest.mark.parametrize("reflect", [False, True])
def test_replay_and_reflection(reflect: bool) -> None:
    """A recorded handshake opens nothing, nor does the listener's own proof."""
    hello, proof = talk()[2].sent
    with pytest.raises(RefusedError, match="the peer has another key or no key"):
        asyncio.run(_attack(End(), End(), hello, None if reflect else proof))


def test_replay_to_a_connector() -> None:
    answer = talk()[3].sent[0]
    connector, *_ = talk(answers={1: answer})
    assert isinstance(connector, RefusedError)


def test_any_changed_byte_of_the_hello(subtests: pytest.Subtests) -> None:
    for at in range(51):
        with subtests.test(at=at):
            connector, listener, *_ = talk(
                says={1: lambda hello, at=at: hello[:at] + bytes([hello[at] ^ 1]) + hello[at + 1 :]}  # type: ignore[misc]
            )
            assert isinstance(connector, RefusedError | TimeoutError)
            assert isinstance(listener, RefusedError | TimeoutError)


@pytest.mark.parametrize("message", [b"", b"\x01", b"\x01" * 32, bytes(33), b"\x01" + bytes(32)])
def test_a_proof_that_is_none(message: bytes) -> None:
    connector, listener, *_ = talk(says={2: message})
    assert connector is None
    assert isinstance(listener, RefusedError)


def test_too_many_half_open_handshakes() -> None:
    """The oldest gives way, and at once."""

    async def main() -> list[str]:
        doors, ended = HalfOpen(600, 2), []
        never, a_gone, c_through = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def one(name: str, until: asyncio.Event, then: asyncio.Event) -> None:
            try:
                async with doors.one():
                    await until.wait()
                ended.append(name)
            except TimeoutError:
                ended.append(f"{name} dropped")
            then.set()

        together = asyncio.gather(one("a", never, a_gone), one("b", c_through, never), one("c", a_gone, c_through))
        await asyncio.wait_for(together, 60)
        return ended

    assert asyncio.run(main()) == ["a dropped", "c", "b"]


def test_who_connects_and_says_nothing_is_dropped() -> None:
    closed: list[bool] = []

    async def main() -> object:
        listener: Any = object.__new__(connection_limits._Listener)
        listener.half_open = HalfOpen(0, 2)
        silent = SimpleNamespace(wait_for_handshake=asyncio.Future, close=lambda: closed.append(True))
        return await asyncio.wait_for(listener._prepare_stream(silent, "10.0.0.9:7"), 20)

    assert (asyncio.run(main()), closed) == (None, [True])


def test_nobody_fills_the_log(caplog: pytest.LogCaptureFixture) -> None:
    (limit,) = ucx_auth.logger.filters
    assert isinstance(limit, connection_limits.LineLimit)
    limit.minute = 0.0
    traceback = "Unexpected error in listener handler coroutine\nTraceback …\nTimeoutError"
    with caplog.at_level(logging.WARNING, "hpcml.ucx"):
        for _ in range(1000):
            ucx_auth._log_refusal("no answer in time")
            assert not ucx_auth._no_traceback(logging.LogRecord("ucx", logging.ERROR, "", 1, traceback, (), None))
        assert len(caplog.records) == connection_limits.LINES_A_MINUTE
        limit.minute -= 61
        ucx_auth._log_refusal("no answer in time")
    assert caplog.messages[-1].endswith(f"(and {2000 - connection_limits.LINES_A_MINUTE} more lines, not shown)")


@pytest.mark.parametrize(("content", "mode", "said"), [
    (32, 0o644, "other users can read the key .*mode 0644, not 0600"), (32, 0o660, "mode 0660"), (31, 0o600, "not a key of 32 bytes"),
    (33, 0o600, "not a key of 32 bytes"), (None, 0o600, "must belong to you")])  # fmt: skip
def test_a_key_file_that_is_no_good(tmp_path: Path, content: int | None, mode: int, said: str) -> None:
    path = tmp_path / "key"
    os.mkfifo(path, mode) if content is None else path.write_bytes(bytes(content))
    path.chmod(mode)
    with pytest.raises(KeyProofError, match=said):
        read_key(path)


def test_a_key_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    assert read_key(path) == KEY
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(KeyProofError, match="must belong to you"):
        read_key(path)


def test_a_proof_holds_for_one_address() -> None:
    """Who changes the address in the hello on its way gets no connection to another listener."""
    connector, *_ = talk(own=THERE, says={1: lambda hello: hello.replace(HERE, THERE)})
    assert isinstance(connector, RefusedError)


@pytest.mark.parametrize("protocol", ["ucx", "tcp"])
def test_the_environment_of_the_script(tmp_path: Path, protocol: str) -> None:
    paths = AttemptPaths(tmp_path)
    tls = secure.client_environment(paths, "tls://127.0.0.1:1", "tls")
    assert not any("DATA_KEY" in name or "PRELOAD" in name for name in tls)
    keyed = secure.client_environment(paths, "tls://127.0.0.1:1", protocol)
    added = {name: keyed[name] for name in keyed.keys() - tls.keys()}
    preload = "DASK_DISTRIBUTED__CLIENT__PRELOAD"
    assert added == {
        "HPCML_DATA_KEY": f"{protocol}:{paths.data_key}",
        preload: str([CLIENT_PRELOAD]),
    }
    assert keyed["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "True"
    with dask.config.set({"distributed.client.preload": ["mine", CLIENT_PRELOAD]}):
        keyed = secure.client_environment(paths, "tls://127.0.0.1:1", protocol)
    assert keyed[preload] == str([CLIENT_PRELOAD, "mine"]), "the key first: a preload may start UCX"
