"""Slurm's generic resources (GRES), as its files, commands and options write them: one grammar for all.

``NAME[:TYPE][:no_consume][:COUNT][(WHERE)]``, several with commas: slurm.conf(5), gres.conf(5), ``scontrol show``
node, job and config, ``sinfo %G`` and GresUsed, sbatch's ``--gres``. Of a last field that is a number Slurm reads a
count, of any other a type: a type may begin with a digit (``gpu:4090:2``, ``gpu:1g.10gb:7``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_COMMA = re.compile(r",(?![^()]*\))")  # not those of (S:0,2) and (IDX:0,3)
_FIELDS = r"(?::(?:\(null\)|[^:(),\s]*))*"
_ITEM = re.compile(rf"(?:gres[:/])?(?P<name>[A-Za-z][\w-]*)(?P<fields>{_FIELDS})(?:\((?P<note>.*)\))?")
_COUNT = re.compile(r"(\d{1,15})([KMGTP]?)", re.IGNORECASE)
_EXPONENT = {unit: power for power, unit in enumerate(["", "K", "M", "G", "T", "P"])}
_SLICE = re.compile(r"(?:^|[^0-9A-Za-z])\d+g\.\d+gb", re.IGNORECASE)


class Resource(NamedTuple):
    """A kind of resource: ``gpu``, its type if it has one, and how many there are; without a name it is unreadable."""

    name: str = ""
    type: str = ""
    number: int = 0
    text: str = ""  # as it was written


def is_slice(gpu_type: str) -> bool:
    """Return True if GPUs of a type are parts of a GPU (MIG)."""
    return bool(_SLICE.search(gpu_type))


def read(text: str) -> tuple[Resource, ...]:
    """Return the resources that a text lists; none of ``(null)``, ``N/A`` and an empty text."""
    text = text.strip()
    return tuple(map(_read, _COMMA.split(text))) if text not in ("", "(null)", "N/A", "none") else ()


def _read(item: str) -> Resource:
    text = item.strip()
    match = _ITEM.fullmatch(text)
    if match is None:
        return Resource(text=text)
    fields = [field for field in match["fields"].split(":") if field not in ("", "(null)", "no_consume")]
    number = _COUNT.fullmatch(fields[-1]) if fields else None
    if number:
        fields.pop()
    else:  # as in gpu(CNT:2)
        number = re.fullmatch(r"CNT:(\d{1,15})()", match["note"] or "")
    count = int(number[1]) * 1024 ** _EXPONENT[number[2].upper()] if number else 1
    return Resource(match["name"], ":".join(fields), count, text)


def gpus(text: str) -> tuple[Resource, ...]:
    """Return the GPUs among the resources of a text, each type once."""
    by_type: dict[str, Resource] = {}
    for resource in read(text):
        if resource.name.lower() == "gpu":
            by_type[resource.type] = resource._replace(
                number=resource.number + (by_type[resource.type].number if resource.type in by_type else 0)
            )
    return tuple(by_type.values())


def total(resources: Iterable[Resource]) -> int:
    """Return the number of all of them."""
    return sum(resource.number for resource in resources)
