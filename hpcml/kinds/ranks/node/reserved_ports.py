"""The ports of the first node that rank 0 is to listen on: reserved, and looked after until it does.

Linux lets every account bind beside a socket that is bound and does not listen, as hpcml's is: rank 0 can, and so can
another user of the node. The kernel names the account of each socket that listens, and of no other.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
from typing import NamedTuple

from hpcml import listeners

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
VARIABLES = {listeners.MASTER_PORT: "MASTER_PORT", listeners.JAX_PORT: "JAX_COORDINATOR_ADDRESS"}
IN_USE = re.compile(r"(?i)address already in use|EADDRINUSE")  # of a rank that cannot listen
_LISTENS = "0A"
_TRIES = 8  # ports, of which another account has each
HINT = "To use nodes without other users, add --exclusive. Report the account to the site's support."


class Taken(NamedTuple):
    """A port that another program has: of an account that listens there, or that the kernel does not name."""

    variable: str  # by which the ranks know it
    port: int
    node: str
    account: str

    @property
    def clause(self) -> str:
        """Who has which port."""
        port = f"port {self.port} of {self.node}, the run's {self.variable}"
        if self.account:
            return f"account {self.account} listens on {port}"
        return f"another program holds {port}, and does not listen, so that the kernel does not name its account"


def accounts_that_listen(ports: set[int]) -> dict[int, set[int]]:
    """Return by port the ids of the accounts that listen there on this node; of a port without any nothing."""
    users: dict[int, set[int]] = {}
    for table in TABLES:
        with contextlib.suppress(OSError), open(table) as lines:  # a kernel without IPv6
            for line in lines:
                fields = line.split()
                if (
                    len(fields) > 7
                    and fields[3] == _LISTENS
                    and (port := int(fields[1].rpartition(":")[2], 16)) in ports
                ):
                    users.setdefault(port, set()).add(int(fields[7]))
    return users


def name_of(user: int) -> str:
    """Return the name of an account, its number if it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"number {user}"


class Ports:
    """The ports that no other program is given by chance, by their rows of the table of listeners."""

    def __init__(self, folders: contextlib.ExitStack, node: str) -> None:
        self.folders, self.node = folders, node
        self.numbers: dict[listeners.Listener, int] = {}

    def reserve(self, row: listeners.Listener) -> int:
        """Return a port that is bound here until the run's end, at all addresses: rank 0 may choose any."""
        holder: socket.socket = self.folders.enter_context(contextlib.closing(listeners.reserve_tcp(row)))
        self.numbers[row] = int(holder.getsockname()[1])
        return self.numbers[row]

    def reserve_again(self) -> Taken | None:
        """Reserve others instead of ports that another program has; return the last if it has them all."""
        for _ in range(_TRIES):
            if not (taken := self.taken()):
                return None
            for row in [row for row, port in self.numbers.items() if port == taken.port]:
                self.reserve(row)
        return self.taken()

    def taken(self) -> Taken | None:
        """Return a port on which rank 0 could not listen now for another program, None if there is none."""
        users = accounts_that_listen({*self.numbers.values()})
        for row, port in self.numbers.items():
            listen = users.get(port, set())
            if os.environ.get(VARIABLES[row]):  # the user's own choice
                continue
            if others := listen - {os.geteuid()}:
                return Taken(VARIABLES[row], port, self.node, name_of(min(others)))
            if not (listen or _is_free(port)):
                return Taken(VARIABLES[row], port, self.node, "")
        return None


def _is_free(port: int) -> bool:
    """Whether a program could listen at all addresses: another may have bound one, and not let it be shared."""
    try:
        listeners.try_tcp(listeners.EVERYWHERE, port)
    except OSError:
        return False
    return True
