"""Passing on what two sockets say, and whose they are by Linux' own list of connections."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
from pathlib import Path
from typing import Any, NamedTuple

_CONNECTIONS = Path("/proc/net/tcp")  # Linux' list of connections, with whose they are (proc_pid_net(5))
_LOCAL, _STATE, _OWNER, _INODE = 1, 3, 7, 9  # its columns; a socket that its program has closed has uid 0 and inode 0
_ESTABLISHED, _LISTENS = "01", "0A"
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid (unix(7), SO_PEERCRED)
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a program is reached that listens everywhere


class Listening(NamedTuple):
    """A TCP socket of this node that accepts connections."""

    address: str  # at which this node reaches it
    uid: int  # of the account whose it is
    inode: str  # no other socket has it
    is_open: bool  # whether other machines may reach it: it does not listen on loopback alone


def pass_on(one: socket.socket, other: socket.socket) -> None:
    """Pass on what two sockets say until both have ended."""
    back = threading.Thread(target=_copy, args=(other, one), daemon=True)
    back.start()
    _copy(one, other)
    back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes until one side has closed; then close the other for writing."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def owner(client: tuple[str, int], server: tuple[Any, ...], table: Path = _CONNECTIONS) -> int | None:
    """Return the uid of the program at the other end of a connection of 127.0.0.1, None where the system does not say.

    -1 where the system lists its connections and this one is not among them, or no program has it any more.
    """
    wanted = [
        f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}" for host, port in (client, server[:2])
    ]
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return None
    for fields in (line.split() for line in lines):
        if fields[1:3] == wanted:
            return int(fields[_OWNER]) if fields[_STATE] == _ESTABLISHED or fields[_INODE] != "0" else -1
    return -1


def peer(connection: socket.socket) -> int:
    """Return the uid of who listens at, or connected from, the other end of a unix socket, as the kernel names it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def listeners(port: int, folder: Path = _CONNECTIONS.parent) -> list[Listening]:
    """Return who listens at a port of this node, on any address; OSError where the system does not say."""
    tables = [(folder / "tcp").read_text()]
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        tables.append((folder / "tcp6").read_text())
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    found = []
    for row in rows:
        digits, _, number = row[_LOCAL].partition(":")
        if row[_STATE] == _LISTENS and int(number, 16) == port:
            address = _address(digits)
            is_open = not ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
            found.append(Listening(_LOOPBACK.get(address, address), int(row[_OWNER]), row[_INODE], is_open))
    return found


def _address(digits: str) -> str:
    """Return an address of the list, whose words of 32 bits are in the order of the machine's bytes."""
    raw = bytes.fromhex(digits)
    whole = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, whole)
