"""What the hpcml on another machine says, checked in one place before anything is done with it.

The machine may be broken, run another hpcml, or be in somebody else's hands. What it names becomes part of commands,
paths and addresses here, so each fact has a form, and what has not is an error with status 78.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from hpcml import files
from hpcml.errors import ConfigError

LONGEST = 1 << 20  # bytes of one fact
_TEXT = 16384  # characters of a text

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}-\d{8}-\d{6}-[0-9a-f]{4}")
_JOB = re.compile(r"(\d{1,20}([_+.]\d{1,10})?)?")
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_PATH = re.compile(r"/[^\x00-\x1f\x7f:]{0,4095}")  # a colon would divide a forward's words
_PAGE = re.compile(r"/[A-Za-z0-9._~/%?&=+,;!$*()@:-]{0,2000}")
_TOKEN_FILE = re.compile(r"/[^\x00-\x1f\x7f]*/attempts/\d{1,9}/secret/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TOKEN = re.compile(r"[A-Za-z0-9_.~-]{8,512}")
_RELAY = re.compile(r"/[^\x00-\x1f\x7f]*/attempts/\d{1,9}/secret/relay-[A-Za-z0-9_]{1,64}")
_HOST_KEY = re.compile(r"[a-z0-9@.-]{4,64} [A-Za-z0-9+/]{16,8192}={0,3}( [^\x00-\x1f\x7f]{0,200})?")
_VERSION = re.compile(r"[A-Za-z0-9.+!-]{1,64}")
_STATES = ("refused", "unknown", "queued", "starting", "running", "ending", "ended")


class _WrongError(Exception):
    """A fact has not its form."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongError
    return value[:_TEXT]


def _form(pattern: re.Pattern[str]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _WrongError
        return value

    return check


def _number(least: int, most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _WrongError
        return value

    return check


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _state(value: Any) -> str:
    if value not in _STATES:
        raise _WrongError
    return str(value)


def _moment(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or abs(value) > 1e11:
        raise _WrongError
    return float(value)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > 100:
        raise _WrongError
    return [_text(item) for item in value]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError
    return value


_SERVICE: dict[str, Callable[[Any], Any]] = {
    "node": _form(_NODE),
    "socket": _form(_PATH),
    "path": _form(_PAGE),
    "identity": _text,
}
_SERVICE_MAY: dict[str, Callable[[Any], Any]] = {"probe": _form(_PAGE), "token_file": _form(_TOKEN_FILE)}


def _services(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or len(value) > 20:
        raise _WrongError
    found = {}
    for name, facts in value.items():
        if not _NODE.fullmatch(name) or not isinstance(facts, dict):
            raise _WrongError
        service = _table(facts, _SERVICE)
        service |= _table({key: facts[key] for key in _SERVICE_MAY if facts.get(key)}, _SERVICE_MAY, part=True)
        if not service["identity"]:
            raise _WrongError
        found[name] = service
    return found


_RUN_FACTS: dict[str, Callable[[Any], Any]] = {
    "run": _form(_RUN),
    "job": _form(_JOB),
    "state": _state,
    "words": _text,
    "estimate": _text,
    "attempt": _or_none(_number(0, 10**9)),
    "services": _services,
    "ends": _or_none(_moment),
    "exit_status": _or_none(_number(-255, 255)),
    "by": _text,
    "hint": _text,
    "quote": _texts,
    "host": _text,
}
_CALL_FACTS: dict[str, Callable[[Any], Any]] = {
    "hello": _number(0, 10**6),
    "version": _form(_VERSION),
    "run": _form(_RUN),
    "submitted": _form(_RUN),
    "status": _number(0, 255),
}


def _table(facts: dict[str, Any], forms: dict[str, Callable[[Any], Any]], *, part: bool = False) -> dict[str, Any]:
    """Return the facts that have a form; a fact without one is not known here and left out."""
    found = {}
    for name, check in forms.items():
        if name not in facts and part:
            continue
        try:
            found[name] = check(facts[name])
        except (_WrongError, KeyError) as error:
            raise _WrongError(name) from error
    return found


def wrong(host: str, what: str) -> ConfigError:
    """Return the error for an answer that is none."""
    hint = "Is it the same hpcml? Update the older. If it is, tell the site's support: was the machine tampered with?"
    return ConfigError(f"What the hpcml on {host} says cannot be used: {what}", place=host, hint=hint)


def _read(
    line: str | bytes, host: str, forms: dict[str, Callable[[Any], Any]], *, part: bool = False
) -> dict[str, Any]:
    if len(line) > LONGEST:
        raise wrong(host, f"a fact of {len(line)} bytes")
    try:
        facts = files.parsed(json.loads, line if isinstance(line, str) else line.decode())
    except ValueError as error:
        raise wrong(host, f"no JSON ({str(error)[:100]})") from error
    if not isinstance(facts, dict):
        raise wrong(host, "no table")
    try:
        return _table(facts, forms, part=part)
    except _WrongError as error:
        raise wrong(host, f"its '{error}' has not the form of one") from error


def of_run(line: str | bytes, host: str) -> dict[str, Any]:
    """Return all that the other end of a tunnel says of a run.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    return _read(line, host, _RUN_FACTS)


def of_call(line: str | bytes, host: str) -> dict[str, Any]:
    """Return what the login node says of a command that it runs for a laptop; its greeting comes with a version."""
    found = _read(line, host, _CALL_FACTS, part=True)
    if "hello" in found and "version" not in found:
        raise wrong(host, "a greeting without a version")
    return found


def of_hop(line: str | bytes, host: str) -> str:
    """Return the socket on the login node that leads on to the service."""
    return str(_read(line, host, {"socket": _form(_PATH), "answers": _flag})["socket"])


def of_relay(line: str | bytes, host: str) -> tuple[str, str]:
    """Return the folder and the host key of an sshd that was prepared for this laptop."""
    found = _read(line, host, {"folder": _form(_RELAY), "host_key": _form(_HOST_KEY)})
    return str(found["folder"]), str(found["host_key"])


def of_token(text: str, host: str) -> str:
    """Return a service's token; nothing else goes into an address and a request's head."""
    if not _TOKEN.fullmatch(text.strip()):
        raise wrong(host, "no token")
    return text.strip()


def of_offer(line: bytes, host: str) -> dict[str, Any]:
    """Return what a run has for :command:`hpcml fetch`; its list of files is for :func:`entries_of` to check."""
    try:
        facts = files.parsed(json.loads, line.decode())
    except ValueError as error:
        raise wrong(host, f"no JSON ({str(error)[:100]})") from error
    if not isinstance(facts, dict):
        raise wrong(host, "no table")
    try:
        found = _table(facts, {"run": _form(_RUN)})
        found |= _table(facts, {"others": _number(0, 10**9), "ended": _flag}, part=True)
    except _WrongError as error:
        raise wrong(host, f"its '{error}' has not the form of one") from error
    return {**found, "files": facts.get("files")}
