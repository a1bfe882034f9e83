"""An image as its file describes it, read without any program."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hpcml import safe_files
from hpcml.errors import ImageError, NotFoundError

PREFIX = "org.hpcml."  # of the labels
VERSIONED = ("python", "rapids", "dask", "distributed", "dask-cuda", "ucxx", "dask-ml")  # labels that say versions

# The layout is that of SIF 1 (github.com/sylabs/sif, pkg/sif): little-endian, without padding. `apptainer inspect` is
# not asked: it takes a half-copied image for whole, and is not on every login node.
_HEADER = struct.Struct("<32x10s3x2sx16xq16xqq24x")  # magic, architecture, created, number and place of descriptors
_DESCRIPTOR = struct.Struct("<i?12xqq40x128si380x")  # kind, in use, offset, size, name, type of file system
_MAGIC = b"SIF_MAGIC\0"
_PARTITION, _JSON = 0x4004, 0x4006  # kinds
_METADATA = b"inspect-metadata.json"  # where Apptainer and SingularityCE keep labels, help and the definition
_ENCRYPTED = 5  # a type of file system
_NAMES = ("i386", "x86_64", "arm", "aarch64", "ppc64", "ppc64le", "mips", "mipsle", "mips64", "mips64le", "s390x")
_ARCHITECTURES = {b"%02d" % number: name for number, name in enumerate(_NAMES, 1)}
_MOST_DESCRIPTORS = 4096
_LARGEST_TEXT = 16 * 1024**2  # bytes; metadata is kilobytes


class Image(NamedTuple):
    """An image as its file describes it.

    ``size`` is in bytes, ``modified`` and ``created`` in seconds since 1970. ``architecture`` is the kernel's name of
    it (``x86_64``), empty if the image does not say.
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


class _DamagedError(Exception):
    """The file is not a SIF image, or a damaged one; the text says which, as the end of a sentence."""


def inspect(image: Path) -> Image:
    """Return the labels of an image; NotFoundError if it cannot be read, ImageError if it is no image or damaged."""
    try:
        if image.is_dir():
            hint = f"Build an image from a sandbox: apptainer build {image.name}.sif {image.name}."
            raise ImageError("The path is a folder, not an image file", place=str(image), hint=hint)
        with open(safe_files.open_regular(image, ours=False, follow=True), "rb") as file:
            return _read(file, image)
    except safe_files.ForeignError as error:
        raise ImageError("The path is not a regular file", place=str(image), hint="Name a .sif file.") from error
    except OSError as error:
        hint = "Check the spelling and the permissions; hpcml image ls lists images."
        raise NotFoundError(f"The image cannot be read: {error.strerror}", place=str(image), hint=hint) from error
    except _DamagedError as error:
        hint = "Build the image with hpcml image build, or copy the file again."
        raise ImageError(f"The file is {error}", place=str(image), hint=hint) from error


def _read(file: BinaryIO, path: Path) -> Image:
    about, metadata, encrypted = os.fstat(file.fileno()), b"", False
    head = file.read(_HEADER.size)
    if head[32:42] != _MAGIC:
        raise _DamagedError("not an image (SIF)" if head else "empty")
    if len(head) < _HEADER.size:
        raise _DamagedError("truncated within its header")
    _, architecture, created, count, start = _HEADER.unpack(head)
    if not (0 < count <= _MOST_DESCRIPTORS and start > 0):
        raise _DamagedError("damaged: its header is invalid")
    file.seek(start)
    table = file.read(count * _DESCRIPTOR.size)
    if len(table) < count * _DESCRIPTOR.size:
        raise _DamagedError("truncated within its SIF descriptor table")
    for kind, used, offset, size, name, file_system in _DESCRIPTOR.iter_unpack(table):
        if not used:
            continue
        if offset < 0 or size < 0 or offset + size > about.st_size:
            raise _DamagedError(f"truncated: it has {about.st_size} bytes instead of {offset + size}")
        if kind == _JSON and name.rstrip(b"\0") == _METADATA:
            if size > _LARGEST_TEXT:
                raise _DamagedError(f"damaged: its metadata has {size} bytes, more than {_LARGEST_TEXT}")
            file.seek(offset)
            metadata = file.read(size)
        encrypted = encrypted or (kind == _PARTITION and file_system == _ENCRYPTED)
    labels, definition, text = _parsed(metadata or b"{}")
    built_for = _ARCHITECTURES.get(architecture, "")
    return Image(path, about.st_size, about.st_mtime, built_for, labels, definition, text, encrypted, created)


def _parsed(metadata: bytes) -> tuple[dict[str, str], str, str]:
    """Return an image's labels, definition and help."""
    try:
        table: Any = safe_files.parsed(json.loads, metadata.decode(errors="replace"))
    except ValueError as error:
        raise _DamagedError(f"damaged: its metadata is not JSON ({error})") from error
    for name in ("data", "attributes"):
        table = table.get(name, {}) if isinstance(table, dict) else None
    labels = table.get("labels") or {} if isinstance(table, dict) else None
    if not isinstance(labels, dict):
        raise _DamagedError("damaged: its metadata is not a JSON object")
    if wrong := [key for key, value in labels.items() if isinstance(value, (dict, list))]:  # no program writes such
        raise _DamagedError(f"damaged: its label {wrong[0][:100]!a} is not text")
    definition, text = (str(table.get(name) or "").strip() for name in ("deffile", "helpfile"))
    return {key: str(value) for key, value in labels.items()}, definition, text


def known_digest(image: Image) -> str:
    """Return the digest that ``hpcml image build`` has written beside an image, empty if there is none of this file.

    Reading many gigabytes for it at every submission would cost more than it says. A record that is neither yours nor
    of the image's owner says nothing of it.
    """
    path = image.path.with_name(f"{image.path.name}.json")
    try:
        record = safe_files.read_json(path, safe_files.SETTINGS, ours=False)
        about = path.lstat()
        owners = (os.geteuid(), 0, image.path.stat().st_uid)
    except (OSError, ValueError):
        return ""
    right = isinstance(record, dict) and record.get("size") == image.size and about.st_uid in owners
    return str(record.get("digest", "")) if right and about.st_mtime >= image.modified - 1 else ""
