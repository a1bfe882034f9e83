"""Read what a SIF image says of itself, from its header and descriptors, without any program."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hpcml import files

# The layout is that of SIF 1 (github.com/sylabs/sif, pkg/sif): little-endian, without padding.
_HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_PARTITION = struct.Struct("<ii3s")
_MAGIC = b"SIF_MAGIC\0"
_DEFINITION, _LABELS, _PARTITIONS, _JSON = 0x4001, 0x4003, 0x4004, 0x4006
_METADATA = "inspect-metadata.json"  # where Apptainer and SingularityCE keep labels, help and scripts
_ENCRYPTED, _PRIMARY = 5, 2
_ARCHITECTURES = {
    "01": "i386",
    "02": "x86_64",
    "03": "arm",
    "04": "aarch64",
    "05": "ppc64",
    "06": "ppc64le",
    "07": "mips",
    "08": "mipsle",
    "09": "mips64",
    "10": "mips64le",
    "11": "s390x",
}
_MOST_DESCRIPTORS = 4096
_LARGEST_TEXT = 16 * 1024**2  # bytes; labels and definitions are kilobytes


class SifError(Exception):
    """The file is not a SIF image, or a damaged one; the text says which, as the end of a sentence."""


class Sif(NamedTuple):
    """What an image says of itself.

    ``architecture`` is the kernel's name of it (``x86_64``, ``aarch64``), empty if the image does not say. ``labels``
    is None where the image keeps them inside its file system, which only a program can read. ``created`` is in seconds
    since 1970.
    """

    architecture: str
    labels: dict[str, str] | None
    definition: str
    help: str
    encrypted: bool
    created: int


class _Part(NamedTuple):
    kind: int
    offset: int
    size: int
    name: str
    extra: bytes


def read(path: Path) -> Sif:
    """Return what an image says of itself.

    Raises
    ------
    SifError
        If it is no SIF image, or a part that its header promises is not there.
    OSError
        If the file cannot be read.
    """
    with open(files.open_regular(path, ours=False, follow=True), "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        return _read(file, size)


def _read(file: BinaryIO, size: int) -> Sif:
    head = file.read(_HEADER.size)
    if len(head) < 42 or head[32:42] != _MAGIC:
        raise SifError("not an image (SIF)" if size else "empty")
    if len(head) < _HEADER.size:
        raise SifError("cut off within its header")
    _, _, _, arch, _, created, _, _, total, offset, _, _, _ = _HEADER.unpack(head)
    parts = _parts(file, total, offset)
    for part in parts:
        if part.offset < 0 or part.size < 0 or part.offset + part.size > size:
            raise SifError(f"cut off: {size} bytes are there, and a part of it ends at {part.offset + part.size}")
    metadata = _metadata(file, parts)
    labels = metadata.get("labels")
    if labels is None:
        labels = _table(file, next((part for part in parts if part.kind == _LABELS), None))
    definition = next((_text(file, part) for part in parts if part.kind == _DEFINITION), "")
    partitions = [_PARTITION.unpack_from(part.extra) for part in parts if part.kind == _PARTITIONS]
    primary = next((fields for fields in partitions if fields[1] == _PRIMARY), None)
    code = (primary[2] if primary else arch).rstrip(b"\0").decode("ascii", "replace")
    return Sif(
        architecture=_ARCHITECTURES.get(code, ""),
        labels=None if labels is None else texts(labels),
        definition=definition or str(metadata.get("deffile") or ""),
        help=str(metadata.get("helpfile") or ""),
        encrypted=any(fields[0] == _ENCRYPTED for fields in partitions),
        created=created,
    )


def _parts(file: BinaryIO, total: int, offset: int) -> list[_Part]:
    """Return the descriptors in use."""
    if not (0 < total <= _MOST_DESCRIPTORS and offset > 0):
        raise SifError("damaged: its header makes no sense")
    file.seek(offset)
    table = file.read(total * _DESCRIPTOR.size)
    if len(table) < total * _DESCRIPTOR.size:
        raise SifError("cut off within its table of parts")
    parts = []
    for kind, used, _, _, _, start, size, _, _, _, _, _, name, extra in _DESCRIPTOR.iter_unpack(table):
        if used:
            parts.append(_Part(kind, start, size, name.rstrip(b"\0").decode(errors="replace"), extra))
    return parts


def _text(file: BinaryIO, part: _Part) -> str:
    if part.size > _LARGEST_TEXT:
        raise SifError(f"damaged: a text in it is {part.size} bytes long")
    file.seek(part.offset)
    return file.read(part.size).decode(errors="replace")


def _table(file: BinaryIO, part: _Part | None) -> dict[str, Any] | None:
    if part is None:
        return None
    try:
        facts = files.parsed(json.loads, _text(file, part))
    except ValueError as error:
        raise SifError(f"damaged: its metadata is not JSON ({error})") from error
    if not isinstance(facts, dict):
        raise SifError("damaged: its metadata is no table")
    return facts


def texts(labels: dict[str, Any]) -> dict[str, str]:
    """Return labels as texts.

    Raises
    ------
    SifError
        If one is a list or a table, which no program writes.
    """
    if wrong := [key for key, value in labels.items() if isinstance(value, (dict, list))]:
        raise SifError(f"damaged: its label {wrong[0][:100]!a} is no text")
    return {key: str(value) for key, value in labels.items()}


def _metadata(file: BinaryIO, parts: list[_Part]) -> dict[str, Any]:
    """Return the attributes that ``inspect`` would show; nothing in images older than Singularity 3.6."""
    part = next((part for part in parts if part.kind == _JSON and part.name == _METADATA), None)
    return attributes(_table(file, part) or {})


def attributes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes in what ``inspect --json`` prints, which an image's own metadata equals in form."""
    data = facts.get("data")
    table = data.get("attributes") if isinstance(data, dict) else None
    if not isinstance(table, dict):
        return {}
    return table if isinstance(table.get("labels", {}), dict) else {**table, "labels": None}
