"""Read what a SIF image says of itself, from its header and descriptors, without any program."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hpcml import files

PREFIX = "org.hpcml."  # of the labels
VERSIONED = ("python", "rapids", "dask", "distributed", "dask-cuda", "ucxx", "dask-ml")  # labels that say versions

# The layout is that of SIF 1 (github.com/sylabs/sif, pkg/sif): little-endian, without padding.
_HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_PARTITION = struct.Struct("<ii3s")
_MAGIC = b"SIF_MAGIC\0"
_DEFINITION, _LABELS, _PARTITIONS, _JSON = 0x4001, 0x4003, 0x4004, 0x4006
_METADATA = b"inspect-metadata.json"  # where Apptainer and SingularityCE keep labels, help and scripts
_ENCRYPTED, _PRIMARY = 5, 2
_NAMES = ("i386", "x86_64", "arm", "aarch64", "ppc64", "ppc64le", "mips", "mipsle", "mips64", "mips64le", "s390x")
_ARCHITECTURES = {b"%02d" % number: name for number, name in enumerate(_NAMES, 1)}
_MOST_DESCRIPTORS = 4096
_LARGEST_TEXT = 16 * 1024**2  # bytes; labels and definitions are kilobytes


class SifError(Exception):
    """The file is not a SIF image, or a damaged one; the text says which, as the end of a sentence."""


class ImageFacts(NamedTuple):
    """An image as its file describes it.

    ``size`` is in bytes, ``modified`` and ``created`` in seconds since 1970. ``architecture`` is the kernel's name of
    it (``x86_64``), empty if the image does not say. With ``labels_inside`` the labels are in its file system (before
    Singularity 3.6), which only a program can read.
    """

    path: Path
    size: int
    modified: float
    architecture: str
    labels: dict[str, str]
    definition: str = ""
    help: str = ""
    encrypted: bool = False
    created: int = 0
    labels_inside: bool = False

    @property
    def kind(self) -> str:
        """Which of hpcml's definitions it is from (``rapids``, ``cpu``), empty for other images."""
        return self.labels.get(f"{PREFIX}kind", "")

    @property
    def cuda(self) -> str:
        """The major version of CUDA that it is built for, empty without one."""
        return self.labels.get(f"{PREFIX}cuda", "").partition(".")[0]

    @property
    def versions(self) -> dict[str, str]:
        """The versions that it states, by name."""
        return {name: self.labels[PREFIX + name] for name in VERSIONED if self.labels.get(PREFIX + name)}


class _Part(NamedTuple):
    kind: int
    offset: int
    size: int
    name: bytes
    extra: bytes


def read(path: Path) -> ImageFacts:
    """Return what an image says of itself; OSError if it cannot be read.

    It raises SifError if it is no SIF image, or if a part that its header promises is not there.
    """
    with open(files.open_regular(path, ours=False, follow=True), "rb") as file:
        about = os.fstat(file.fileno())
        created, arch, parts = _parts(file, about.st_size)
        metadata = attributes(_table(file, parts, _JSON, _METADATA) or {})
        labels = metadata.get("labels")
        if labels is None:
            labels = _table(file, parts, _LABELS)
        definition = next((_text(file, part) for part in parts if part.kind == _DEFINITION), "")
    partitions = [_PARTITION.unpack_from(part.extra) for part in parts if part.kind == _PARTITIONS]
    code = next((code for _, use, code in partitions if use == _PRIMARY), arch)[:2]
    return ImageFacts(
        path,
        about.st_size,
        about.st_mtime,
        _ARCHITECTURES.get(code, ""),
        texts(labels or {}),
        (definition or str(metadata.get("deffile") or "")).strip(),
        str(metadata.get("helpfile") or "").strip(),
        any(file_system == _ENCRYPTED for file_system, _, _ in partitions),
        created,
        labels is None,
    )


def _parts(file: BinaryIO, size: int) -> tuple[int, bytes, list[_Part]]:
    """Return when the image was created, its architecture's code, and the descriptors in use."""
    head = file.read(_HEADER.size)
    if len(head) < 42 or head[32:42] != _MAGIC:
        raise SifError("not an image (SIF)" if size else "empty")
    if len(head) < _HEADER.size:
        raise SifError("cut off within its header")
    _, _, _, arch, _, created, _, _, total, offset, _, _, _ = _HEADER.unpack(head)
    if not (0 < total <= _MOST_DESCRIPTORS and offset > 0):
        raise SifError("damaged: its header makes no sense")
    file.seek(offset)
    table = file.read(total * _DESCRIPTOR.size)
    if len(table) < total * _DESCRIPTOR.size:
        raise SifError("cut off within its table of parts")
    rows = _DESCRIPTOR.iter_unpack(table)
    parts = [_Part(row[0], row[5], row[6], row[12].rstrip(b"\0"), row[13]) for row in rows if row[1]]
    for part in parts:
        if part.offset < 0 or part.size < 0 or part.offset + part.size > size:
            raise SifError(f"cut off: {size} bytes are there, and a part of it ends at {part.offset + part.size}")
    return created, arch, parts


def _text(file: BinaryIO, part: _Part) -> str:
    if part.size > _LARGEST_TEXT:
        raise SifError(f"damaged: a text in it is {part.size} bytes long")
    file.seek(part.offset)
    return file.read(part.size).decode(errors="replace")


def _table(file: BinaryIO, parts: list[_Part], kind: int, name: bytes = b"") -> dict[str, Any] | None:
    """Return a part that is JSON, None if there is none of that kind and name."""
    part = next((part for part in parts if part.kind == kind and name in (b"", part.name)), None)
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
    """Return labels as texts; raise SifError if one is a list or a table, which no program writes."""
    if wrong := [key for key, value in labels.items() if isinstance(value, (dict, list))]:
        raise SifError(f"damaged: its label {wrong[0][:100]!a} is no text")
    return {key: str(value) for key, value in labels.items()}


def attributes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes in what ``inspect --json`` prints, which an image's own metadata equals in form."""
    data = facts.get("data")
    table = data.get("attributes") if isinstance(data, dict) else None
    if not isinstance(table, dict):
        return {}
    return table if isinstance(table.get("labels", {}), dict) else {**table, "labels": None}
