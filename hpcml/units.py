"""Durations, memory sizes, numbers of things and host lists as Slurm and people write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Self

# Nine digits at most: beyond that no number is meant, and Python refuses to convert some thousands.
_LIMIT = re.compile(r"(?:(?P<days>[0-9]{1,9})-)?(?P<a>[0-9]{1,9})(?::(?P<b>[0-9]{1,2}))?(?::(?P<c>[0-9]{1,2}))?")
_WORDED_TIME = re.compile(
    r"(?:([0-9]{1,9})w)?(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m(?:in)?)?(?:([0-9]{1,9})s)?"
)
_UNITS = (7 * 86400, 86400, 3600, 60, 1)  # seconds, in the order of _WORDED_TIME
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?s?")
_MEMORY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?:([KMGT])i?B?|(B))?", re.IGNORECASE)
MEMORY_EXPONENT = {"": 2, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4}  # powers of 1024; without a unit it is MiB
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MOST_HOSTS = 100_000
RDMA = re.compile(r"(rc|dc|ud|gga|srd)(_\w+)?")  # UCX's transports over InfiniBand, RoCE and EFA: rc_mlx5, srd


def parse_time_limit(text: str) -> int:
    """Return a time limit in seconds from Slurm's notation or from words.

    Slurm's forms are ``MINUTES``, ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM`` and ``D-HH:MM:SS`` (sbatch(1),
    ``--time``); ``90m``, ``2h``, ``1d12h`` and ``1w`` are accepted beside them.

    Raises
    ------
    ValueError
        If the text is none of these, or is zero.
    """
    text = text.strip()
    seconds = 0
    if match := _LIMIT.fullmatch(text):
        first, second, third = int(match["a"]), int(match["b"] or 0), int(match["c"] or 0)
        if match["days"] is not None:
            seconds = int(match["days"]) * 86400 + first * 3600 + second * 60 + third
        elif match["c"] is not None:
            seconds = first * 3600 + second * 60 + third
        else:
            seconds = first * 60 + second
        if second > 59 or third > 59:
            raise ValueError(f"'{text}' has more than 59 minutes or seconds")
    elif text and (match := _WORDED_TIME.fullmatch(text)):
        seconds = _worded_seconds(match)
    else:
        raise ValueError(f"'{text}' is not a time limit; write 30 (minutes), 2:00:00, 1-12:00:00, 90m or 2h")
    if seconds == 0:
        raise ValueError(f"the time limit '{text}' is zero")
    return seconds


def format_time_limit(seconds: int) -> str:
    """Return ``[D-]HH:MM:SS``; Slurm itself rounds up to whole minutes."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_seconds(text: str) -> float:
    """Return a duration in seconds from ``20``, ``1.5s``, ``2m``, ``1h30m`` or ``1w`` (a bare number is seconds).

    Raises
    ------
    ValueError
        If the text is not a duration.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text.rstrip("s"))
    match = _WORDED_TIME.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"'{text}' is not a duration; write 20s, 2m, 1h30m, 7d or 1w")
    return float(_worded_seconds(match))


def _worded_seconds(match: re.Match[str]) -> int:
    return sum(int(part or 0) * unit for part, unit in zip(match.groups(), _UNITS, strict=True))


def format_seconds(seconds: float) -> str:
    """Return a duration as a person reads it: ``0.8 s``, ``12 s``, ``3:05``, ``1:02:05``, ``2-01:00:00``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return format_time_limit(whole).lstrip("0") if whole < 86400 else format_time_limit(whole)


def format_deadline(seconds: float) -> str:
    """Return a setting's duration in a sentence: ``25 s``, ``10 min``."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:g} s"


def format_age(seconds: float) -> str:
    """Return an age in its largest unit: ``12s``, ``5m``, ``3h``, ``40d``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds) // size}{unit}"
    return f"{max(0, int(seconds))}s"


def parse_memory(text: str) -> int:
    """Return a memory size in bytes; units are powers of 1024 and a bare number is MiB, as in Slurm's ``--mem``.

    Raises
    ------
    ValueError
        If the text is not a size.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a memory size; write 4000M, 120G or 0.5T")
    return int(float(match[1]) * 1024 ** MEMORY_EXPONENT[(match[2] or match[3] or "").upper()])


class _Written:
    """A number that keeps the words it was written in; without words it is none (0)."""

    text: str
    parse: Callable[[str], float]

    def __new__(cls, text: str | None = None) -> Self:
        value = super().__new__(cls, 0 if text is None else cls.parse(text))  # type: ignore[call-arg]
        value.text = text or ""
        return value


class Seconds(_Written, float):
    """A duration in seconds."""

    parse = staticmethod(parse_seconds)


class TimeLimit(_Written, int):
    """A time limit in seconds."""

    parse = staticmethod(parse_time_limit)


class Memory(_Written, int):
    """A size in bytes."""

    parse = staticmethod(parse_memory)


def in_mib(size: int) -> str:
    """Return bytes as people compare them: ``27 MiB``, and a tenth of one where that would be nothing."""
    return f"{size / 1024**2:.0f} MiB" if size >= 1024**2 else f"{size / 1024**2:.1f} MiB"


def format_memory_for_slurm(size: int) -> str:
    """Return a size in bytes as Slurm's ``--mem`` takes it, in whole MiB."""
    return f"{size // 1024**2}M"


def format_bytes(size: float) -> str:
    """Return a size as a person reads it, in binary units: ``512 B``, ``1.5 KiB``, ``20 GiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" or size >= 9.95 else f"{size:.1f} {units[0]}"


def counted(number: int, noun: str) -> str:
    """Return a number of things: ``1 run``, ``3 runs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 1000) -> str:
    """Return names as a person lists them: ``n1, n2 and n3``, or ``n1, n2, n3 and 7 more`` with ``most=3``."""
    if len(names) > most + 1:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def first_of_many(names: Sequence[str], most: int, separator: str = ", ", more: str = " and {} more") -> str:
    """Return the first names, and how many more there are: ``n1, n2 and 7 more`` with ``most=2``."""
    return separator.join(names[:most]) + (more.format(len(names) - most) if len(names) > most else "")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names in a Slurm host list, in order.

    ``n[1-3,7],login`` gives ``n1 n2 n3 n7 login``; numbers keep their leading zeros and several brackets in one name
    multiply (``r[1-2]n[1-2]``). The notation is that of ``scontrol show hostnames``, which is not called because the
    inside of an image has no Slurm command.

    Raises
    ------
    ValueError
        If a bracket is not closed or holds no range, or the list is beyond any machine.
    """
    names: list[str] = []
    for part in _split_outside_brackets(text):
        names.extend(_expand_one(part))
    return tuple(names)


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise ValueError(f"'{text}' is not a host list: unbalanced brackets")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth:
        raise ValueError(f"'{text}' is not a host list: a bracket is not closed")
    return [part for part in [*parts, text[start:]] if part]


def _expand_one(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inner, _, after = rest.partition("]")
    tails, names = _expand_one(after) if after else [""], []
    for piece in inner.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(f"'{piece}' is not a range of host numbers (in '{part}')")
        low, high = match[1], match[2] or match[1]
        if not 0 <= int(high) - int(low) < _MOST_HOSTS:
            raise ValueError(f"'{piece}' is not a range of host numbers (in '{part}')")
        for number in range(int(low), int(high) + 1):
            names += [f"{before}{number:0{len(low)}d}{tail}" for tail in tails]
    return names
