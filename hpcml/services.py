"""Services of a run: the ports and unix sockets to which tunnels lead, and what the agent of their node finds there."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
import json
import re
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files
from hpcml.errors import UsageError

OWN = ("dashboard", "jupyter")  # hpcml's own, whose names are taken
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_TARGET = re.compile(
    r"(?P<port>[1-9][0-9]{0,4})(@(rank:(?P<rank>[0-9]{1,6})|(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,252})))?"
)
_CLOSE = (
    "To prevent this, let the program listen on 127.0.0.1 (TensorBoard: --host localhost; MLflow and vLLM: "
    '--host 127.0.0.1; debugpy: listen(("127.0.0.1", PORT))).'
)
_PATH = re.compile(r"/[^\x00-\x1f\x7f]{0,106}")  # of a unix socket, whose path may have 107 bytes
_HTTP_PATH = re.compile(r"/[A-Za-z0-9._~/%?&=+,;!$*()@:-]{0,2000}")


class Wanted(NamedTuple):
    """A service that somebody asks for. A file of the attempt has it, and the agent of the node reads it."""

    name: str
    node: str
    port: int = 0  # 0: a unix socket
    socket: str = ""  # its path
    ready: str = ""  # the HTTP path that answers when the service is ready; empty: it is ready if a program listens

    @property
    def place(self) -> str:
        """Where it is on its node, in words."""
        return f"port {self.port}" if self.port else self.socket


class Condition(StrEnum):
    """What is at the place of a service."""

    READY = "ready"
    ABSENT = "absent"  # no program listens
    SILENT = "silent"  # a program listens, and its HTTP path does not answer, or with an error
    FOREIGN = "foreign"  # a program of another account listens


class Found(NamedTuple):
    """What the agent of a node found at the place of a service."""

    condition: Condition = Condition.READY
    account: str = ""  # whose program listens, if it is another account's; empty in an image that does not show it
    why: str = ""  # the system's reason for a connection that failed, or what the HTTP path answers
    is_open: bool = False  # other machines may reach the program without hpcml

    def clause(self, wanted: Wanted) -> str:
        """Return in words why the service is not ready, empty if it is."""
        place, why = f"{wanted.place} on {wanted.node}", f" ({self.why})" if self.why else ""
        match self.condition:
            case Condition.ABSENT:
                return f"no program listens on {place}{why}"
            case Condition.SILENT:
                return f"the program on {place} does not answer {wanted.ready}{why}"
            case Condition.FOREIGN:
                whose = f"the account {self.account}" if self.account else "another account"
                return f"a program of {whose} listens on {place}"
        return ""


class Known(NamedTuple):
    """A service as its record in the attempt's folder says, as far as a tunnel does not need it."""

    node: str
    wanted: Wanted | None = None  # None: one of hpcml's own
    found: Found = Found()
    since: float = 0.0  # when the agent found this, in seconds since 1970; 0: hpcml's own

    @property
    def clause(self) -> str:
        """Why it is not ready, in words; empty if it is."""
        return self.found.clause(self.wanted) if self.wanted else ""

    @property
    def note(self) -> str:
        """Who else reaches the program, in sentences; empty for hpcml's own services and unix sockets."""
        if not (self.wanted and self.wanted.port):
            return ""
        if not self.found.is_open:
            return f"Every account with processes on {self.node} can connect to {self.wanted.place} without hpcml."
        who = f"Everyone who reaches {self.node} over the network can connect to {self.wanted.place} without hpcml."
        return f"{who} {_CLOSE}"


class Target(NamedTuple):
    """A port of a run, as the user names it: ``6006``, ``6006@n3`` or ``6006@rank:3``. Its service has this name."""

    port: int
    node: str = ""  # empty: the first node, or that of the rank
    rank: int | None = None

    @classmethod
    def of(cls, text: str) -> "Target":
        """Read what ``--to`` got; UsageError if it is no port."""
        match = _TARGET.fullmatch(text)
        if not match or int(match["port"]) > 65535:
            hint = "Write PORT, PORT@NODE or PORT@rank:N. Ports are numbers from 1 to 65535."
            raise UsageError(f"'{text}' does not name a port of a run", place="--to", hint=hint)
        return cls(int(match["port"]), match["node"] or "", int(match["rank"]) if match["rank"] else None)

    @classmethod
    def named(cls, service: str) -> "Target | None":
        """Return the port that is the name of a service, None if the name is another; UsageError as :meth:`of`."""
        return cls.of(service) if service[:1].isdigit() else None


def check_name(name: str, place: str) -> str:
    """Return a name for a service; UsageError if it is invalid or taken."""
    if not _NAME.fullmatch(name) or name in OWN:
        hint = f"Use a letter, then letters, digits, '_' and '-'. {' and '.join(OWN)} are hpcml's own services."
        raise UsageError(f"'{name}' is not a valid name for a service", place=place, hint=hint)
    return name


def declared(text: str, place: str = "--service") -> tuple[str, int]:
    """Read ``NAME=PORT``; UsageError if the text is something else."""
    name, _, port = text.partition("=")
    check_name(name, place)
    if not _PORT.fullmatch(port) or int(port) > 65535:
        hint = f"Write {place} {name}=6006. Ports are numbers from 1 to 65535."
        raise UsageError(f"'{text}' does not name a service and its port", place=place, hint=hint)
    return name, int(port)


def checked(name: str, node: str, port: int, socket: str, ready: str) -> Wanted:
    """Return the service of a script; UsageError if the name, the port or a path is invalid."""
    check_name(name, "name")
    hint = "Example: hpcml.run.service('tensorboard', port=6006)"
    if bool(port) == bool(socket):
        raise UsageError("A service needs a port or a unix socket", place=name, hint=hint)
    if port and not (type(port) is int and 0 < port <= 65535):
        raise UsageError(f"{port!r} is not a valid port number", place=name, hint=hint)
    if not _PATH.fullmatch(str(socket) or "/") or not _HTTP_PATH.fullmatch(ready or "/"):
        message = "socket must be the absolute path of a unix socket, and ready an HTTP path"
        raise UsageError(message, place=name, hint="A path begins with '/'.")
    return Wanted(name, node, port, str(socket), ready)


def ask(folder: Path, wanted: Wanted) -> None:
    """Ask for a service, in the folder of the attempt that has such requests; OSError if it cannot be written."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    safe_files.write(folder / f"{wanted.name}.json", json.dumps(wanted._asdict()) + "\n")
