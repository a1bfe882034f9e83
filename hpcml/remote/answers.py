"""What laptop and login node say to each other, and the check of each fact before anything is done with it.

The words of a command travel by standard input, so that no shell sees them and no list of processes shows them. The
facts travel on standard error, each on a line that begins with a mark that only these two know, because standard
output belongs to the command. The rest of standard input is the laptop's sign of life.

The other machine may be broken, run another hpcml, or be in somebody else's hands. What it names becomes part of
commands, paths and addresses here, so each fact has a form, and what has not is an error with status 78.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypedDict, cast, get_type_hints

from hpcml import safe_files, typed_json
from hpcml.errors import ConfigError
from hpcml.failures.end import End
from hpcml.runs import status as run_status
from hpcml.runs import top_view as views
from hpcml.states import OPEN

PROTOCOL = 2
SERVE = "--serve-laptop"  # what the login node's hpcml is called with
GO = b"go\n"  # the laptop knows the run's id: hand it over now
LONGEST = 1 << 20  # bytes of one fact
LONGEST_LINE = 32 << 20  # bytes of a line of words or of a listing
LONGEST_VIEW = 16 << 20  # bytes of a view of a run, which has all its nodes
_TEXT = 16384  # characters of a text
_MOST_TEXTS = 100  # of a list of texts
_MOST_RECORDS = 20_000  # of a list, as nodes of a run

Check = Callable[[Any], Any]  # returns a value of the right form, raises ValueError for another


def _form(pattern: str) -> Check:
    compiled = re.compile(pattern)

    def check(value: Any) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise ValueError("has another form")
        return value

    return check


def _number(least: int, most: int) -> Check:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError("is not such a number")
        return value

    return check


def _or_empty(check: Check) -> Check:
    return lambda value: check(value) if value else ""


def _moment(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= 1e11:
        raise ValueError("is not a time")
    return float(value)


_node = _form(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_service = _form(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,300}")
_path = _form(r"/[^\x00-\x1f\x7f:]{0,4095}")  # a colon would divide the parts of a forward
_page = _form(r"/[A-Za-z0-9._~/%?&=+,;!$*()@:-]{0,2000}")
_SECRETS = r"/[^\x00-\x1f\x7f]*/attempts/\d{1,9}/secret/"
_token_file = _form(_SECRETS + "[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_relay_folder = _form(_SECRETS + "relay-[A-Za-z0-9_]{1,64}")
_host_key = _form(r"[a-z0-9@.-]{4,64} [A-Za-z0-9+/]{16,8192}={0,3}( [^\x00-\x1f\x7f]{0,200})?")
_run = _form(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}-\d{8}-\d{6}-[0-9a-f]{4}")
_job = _form(r"(\d{1,20}([_+.]\d{1,10})?)?")
_state = _form("[A-Z_]{1,30}")
_version = _form(r"[A-Za-z0-9.+!-]{1,64}")
_token = _form(r"[A-Za-z0-9_.~-]{8,512}")
_exit_status = _number(-255, 255)
_some_text = _form(r"(?s).+")


def _services(value: Any) -> dict[str, Service]:
    if not isinstance(value, dict) or len(value) > 20:
        raise ValueError("is not a table of services")
    return {_service(name): typed_json.read(Service, service) for name, service in value.items()}


class Service(NamedTuple):
    """A web service of a run."""

    node: Annotated[str, _node]  # that it is on
    socket: Annotated[str, _path]  # of unix, there
    path: Annotated[str, _page]  # the page to open
    identity: Annotated[str, _some_text]  # what answers on the page ``probe``
    probe: Annotated[str, _or_empty(_page)] = ""  # may be empty
    token_file: Annotated[str, _or_empty(_token_file)] = ""  # path of its token on the cluster, may be empty
    note: str = ""  # who else reaches it, in sentences


class RunFacts(NamedTuple):
    """A run's state and its services, as far as a tunnel has to know."""

    run: Annotated[str, _run]  # its id
    job: Annotated[str, _job]  # Slurm's id, empty without one
    state: Annotated[str, _state]  # Slurm's word
    message: str  # a clause
    estimate: str  # Slurm's, of its start
    services: Annotated[Mapping[str, Service], _services]  # by name
    ends: Annotated[float, _moment] | None  # when its time limit ends it, in seconds since 1970
    exit_status: Annotated[int, _exit_status] | None
    hint: str  # the next step
    quote: tuple[str, ...]  # lines that show why it ended
    service: Annotated[str, _or_empty(_service)] = (
        ""  # the one that the tunnel leads to; an older hpcml does not say so
    )
    stuck: bool = False  # it waits, and will not start by itself; an older hpcml does not say so

    @property
    def over(self) -> bool:
        """Whether nothing of the run can come any more."""
        return self.state not in OPEN

    def as_table(self) -> dict[str, Any]:
        """Return the facts as they travel; :func:`of_call` reads them."""
        table: dict[str, Any] = typed_json.plain(self)
        return table


class RunNode(NamedTuple):
    """A node of a run."""

    name: Annotated[str, _node]


class Relay(NamedTuple):
    """An sshd that the login node prepared for this laptop."""

    folder: Annotated[str, _relay_folder]  # of its files there
    host_key: Annotated[str, _host_key]  # as in known_hosts
    run: Annotated[str, _or_empty(_run)] = ""  # the id of its run; this one and the next two are ssh-config's
    nodes: tuple[RunNode, ...] = ()  # of the run, the first one first
    ends: Annotated[float, _moment] | None = None  # when the run's time limit ends it, in seconds since 1970


class CallFacts(TypedDict, total=False):
    """What the login node says of a command that it runs for a laptop, one or some facts at a time."""

    hello: Annotated[int, _number(0, 10**6)]  # its PROTOCOL
    version: Annotated[str, _version]  # of its hpcml
    marked: bool  # whether its standard output begins with :func:`output_mark`
    run: Annotated[str, _run]  # the id that the run will have
    submitted: Annotated[str, _run]  # the id of a run that Slurm has taken
    exit_status: Annotated[int, _number(0, 255)]  # of the command
    standing: RunFacts
    socket: Annotated[str, _path]  # of a tunnel's second hop
    relay: Relay


@functools.cache
def _kinds_of_view() -> dict[str, Any]:
    """Return the type of each value that a view prints."""
    holders = [run_status.Status, *map(type, run_status.Status._field_defaults.values()), End, views.View]
    kinds = {name: kind for holder in holders for name, kind in get_type_hints(holder).items()}
    kinds |= {"state": str, "over": bool, "limit": int, "exit_status": Annotated[int, _exit_status] | None}
    return {name: kinds[name] for name in views.PRINTED}


def _bounded(value: Any, least: float = -math.inf) -> Any:
    """Return a value of JSON with its texts cut; ValueError for a list that is too long, or a number that is less."""
    if isinstance(value, str):
        return value[:_TEXT]
    if isinstance(value, dict):
        return {name: _bounded(part, least) for name, part in value.items()}
    if isinstance(value, list):
        if len(value) > (_MOST_TEXTS if all(isinstance(part, str) for part in value) else _MOST_RECORDS):
            raise ValueError("is too long")
        return [_bounded(part, least) for part in value]
    if isinstance(value, (int, float)) and value < least:
        raise ValueError("is less than that")
    return value


@functools.cache
def _record_of(fields: tuple[tuple[str, Any], ...]) -> Any:
    return NamedTuple("Facts", fields)


def wrong(host: str, problem: str) -> ConfigError:
    """Return the error for an answer that cannot be used."""
    hint = (
        f"Update hpcml on this machine or on {host}, whichever is older. "
        f"If the versions are equal, {host} may be compromised: ask the site's support."
    )
    return ConfigError(f"hpcml on {host} sent an invalid message: {problem}", place=host, hint=hint)


def _parsed(line: str | bytes, host: str, longest: float = LONGEST) -> dict[str, Any]:
    if len(line) > longest:
        raise wrong(host, f"the line is too long ({len(line)} bytes)")
    try:
        content = safe_files.parsed(json.loads, line if isinstance(line, str) else line.decode())
    except ValueError as error:
        raise wrong(host, f"the line is not JSON ({str(error)[:100]})") from error
    if not isinstance(content, dict):
        raise wrong(host, "the line is not a JSON object")
    return content


def _checked(
    table: dict[str, Any], host: str, kinds: Mapping[str, Any], *, part: bool = False, least: float = -math.inf
) -> dict[str, Any]:
    """Return the facts that have a type, all of them unless a ``part`` is enough; others are left out."""
    fields = tuple((name, kind) for name, kind in kinds.items() if name in table or not part)
    facts: dict[str, Any] = {}
    for name, _ in fields:
        with contextlib.suppress(KeyError, ValueError):  # then it is missing
            facts[name] = _bounded(table[name], -math.inf if name == "exit_status" else least)
    try:
        return dict(typed_json.read(_record_of(fields), facts)._asdict())
    except typed_json.DamagedError as error:
        raise wrong(host, f"its '{error.key}' is malformed") from error


def of_call(line: str | bytes, host: str) -> CallFacts:
    """Return the facts of a command that a login node runs; ConfigError if its greeting has no version."""
    content = _checked(_parsed(line, host), host, get_type_hints(CallFacts, include_extras=True), part=True)
    if "hello" in content and "version" not in content:
        raise wrong(host, "it contains no version")
    return cast("CallFacts", content)


def mark(nonce: str, **fields: Any) -> bytes:
    """Return facts as a marked line."""
    return b"\x1e" + nonce.encode() + b" " + json.dumps(fields).encode() + b"\n"


def output_mark(nonce: str) -> bytes:
    """Return the line with which a command's standard output begins; a shell's startup files print before it."""
    return b"\x1e" + nonce.encode() + b"\n"


class StreamDemux:
    """Divides what comes on standard error into the user's part and the facts."""

    def __init__(self, nonce: str, host: str = "the other machine") -> None:
        self.start = b"\x1e" + nonce.encode() + b" "
        self.rest = b""
        self.host = host

    def feed(self, data: bytes, *, last: bool = False) -> tuple[bytes, list[CallFacts]]:
        """Return the bytes for the user and the facts that are whole; a marked line's beginning waits for its end.

        Raises
        ------
        ConfigError
            If a fact is malformed, or its end is missing.
        """
        marks: list[CallFacts] = []
        data, self.rest = self.rest + data, b""
        plain: list[bytes] = []
        done = look = 0  # what is before is in ``plain`` or a fact; what is before has no mark
        while (begin := data.find(b"\x1e", look)) >= 0:
            candidate = data[begin : begin + len(self.start)]
            if not self.start.startswith(candidate):  # a record separator of somebody else's
                look = begin + 1
                continue
            end = data.find(b"\n", begin)
            if end < 0:
                if len(data) - begin > LONGEST:
                    raise wrong(self.host, "its end is missing")
                if not last:
                    plain.append(data[done:begin])
                    self.rest, done = data[begin:], len(data)
                break
            marks.append(of_call(data[begin + len(self.start) : end], self.host))
            plain.append(data[done:begin])
            done = look = end + 1
        return b"".join((*plain, data[done:])), marks


def of_view(line: str | bytes, host: str) -> views.View:
    """Return a view of a run, for :command:`hpcml top`."""
    return views.View.of(_checked(_parsed(line, host, LONGEST_VIEW), host, _kinds_of_view(), least=0))


class _Finding(NamedTuple):
    """A finding of :command:`hpcml doctor`."""

    check: Annotated[str, _form(r"[a-z0-9-]{1,40}")]
    state: Annotated[str, _form("green|yellow|red|n/a")]
    sentence: Annotated[str, _some_text]
    remedy: str
    facts: Annotated[Any, lambda value: value if isinstance(value, dict) else _form("(?s).*")(value)]
    seconds: float


def of_findings(line: str | bytes, host: str) -> list[dict[str, Any]]:
    """Return the findings of :command:`hpcml doctor` there."""
    findings = _checked(_parsed(line, host, LONGEST_VIEW), host, {"findings": tuple[_Finding, ...]})["findings"]
    return [finding._asdict() for finding in findings]


def of_delivery(line: bytes, host: str) -> dict[str, Any]:
    """Return the facts of a file that is sent to a login node."""
    kinds = {"refused": Annotated[str, _form("[a-z]{1,20}")], "free": float, "why": str}
    return _checked(_parsed(line, host), host, kinds, part=True)


def of_token(text: str, host: str) -> str:
    """Return a service's token, which goes into an address and a request's head; ConfigError if it is none."""
    try:
        return str(_token(text.strip()))
    except ValueError as error:
        raise wrong(host, "the text is not a token") from error


def of_offer(line: bytes, host: str) -> dict[str, Any]:
    """Return the offer of a run for :command:`hpcml fetch`; its list of files is for :func:`entries_of` to check."""
    content = _parsed(line, host, math.inf)  # a list of files is long; who reads the line bounds it
    offer = _checked(content, host, {"run": Annotated[str, _run]})
    offer |= _checked(content, host, {"others": Annotated[int, _number(0, 10**9)], "ended": bool}, part=True)
    return {**offer, "files": content.get("files")}
