"""An image as its file describes it, read without any program; what can keep a run from using it; and definitions."""

from __future__ import annotations

import json
import os
import platform
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hpcml import assets, files
from hpcml.errors import ImageError, NotFoundError, did_you_mean, nearest
from hpcml.sites import settings_layers

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


class Problem(NamedTuple):
    """A problem of an image: a clause, what to do, and whether it cannot be used at all."""

    what: str
    hint: str
    fatal: bool = True


class _DamagedError(Exception):
    """The file is not a SIF image, or a damaged one; the text says which, as the end of a sentence."""


def machine() -> str:
    """Return this machine's architecture by the kernel's name on Linux (``x86_64``, ``aarch64``)."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def pins() -> dict[str, str]:
    """Return the versions that belong together, from containers/versions.toml."""
    return {
        key: str(value)
        for key, value in settings_layers.read_toml(assets.folder("containers") / "versions.toml").items()
    }


def inspect(image: Path) -> Image:
    """Return the labels of an image; NotFoundError if it cannot be read, ImageError if it is no image or damaged."""
    try:
        if image.is_dir():
            hint = f"Build an image from a sandbox: apptainer build {image.name}.sif {image.name}."
            raise ImageError("The path is a folder, not an image file", place=str(image), hint=hint)
        with open(files.open_regular(image, ours=False, follow=True), "rb") as file:
            return _read(file, image)
    except files.ForeignError as error:
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
        table: Any = files.parsed(json.loads, metadata.decode(errors="replace"))
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
        record = files.read_json(path, files.SETTINGS, ours=False)
        about = path.lstat()
        owners = (os.geteuid(), 0, image.path.stat().st_uid)
    except (OSError, ValueError):
        return ""
    right = isinstance(record, dict) and record.get("size") == image.size and about.st_uid in owners
    return str(record.get("digest", "")) if right and about.st_mtime >= image.modified - 1 else ""


def check(path: Path, *, cuda: str, gpus: int) -> dict[str, object]:
    """Refuse an image in which a run could not work, before nodes are asked for; return its facts.

    Raises
    ------
    ImageError, NotFoundError
        If it is missing, unreadable, no image, of another architecture, or does not fit the run.
    """
    image = inspect(path)
    found = problems(image, cuda=cuda, gpus=gpus, machine=machine())
    if fatal := [problem for problem in found if problem.fatal]:
        raise ImageError(f"The image cannot be used: {fatal[0].what}", place=str(image.path), hint=fatal[0].hint)
    facts = {"path": str(image.path), "size": image.size, "modified": image.modified, "labels": image.labels}
    return {**facts, "digest": known_digest(image), "notes": [problem.what for problem in found]}


def problems(image: Image, *, cuda: str, gpus: int, machine: str) -> list[Problem]:
    """Return the problems of running in an image, the fatal first.

    ``cuda`` is what the site's driver can run (``12``, ``13``, or ``any``), ``gpus`` how many on each node the run asks
    for, and ``machine`` the architecture of the nodes, as the kernel names it.
    """
    every = [*_problems(image, cuda, gpus, machine), *_version_problems(image.versions, pins())]
    return sorted(every, key=lambda problem: not problem.fatal)


def _problems(image: Image, cuda: str, gpus: int, machine: str) -> Iterator[Problem]:
    if image.architecture and image.architecture != machine:
        yield Problem(
            f"the image is built for {image.architecture}, but this machine is {machine}",
            f"Build the image on a {machine} machine.",
        )
    if image.encrypted:
        yield Problem("the image is encrypted, but a batch job has no key for it", "Build the image without --encrypt.")
    if not image.kind:
        clause = "the image has no labels of hpcml, so hpcml does not know the image's contents"
        yield Problem(
            clause,
            "Check the image with hpcml image check, or build an image with labels (hpcml image build).",
            fatal=False,
        )
    if gpus and image.kind and not image.cuda:
        clause = f"the image has no GPU packages (its kind is {image.kind})"
        yield Problem(clause, "Use an image from the definition rapids-cu12 or rapids-cu13, or request no GPUs.")
    elif image.cuda and cuda in ("12", "13") and image.cuda != cuda:
        clause = f"the image is built for CUDA {image.cuda}, but gpu.cuda of the site is {cuda}"
        yield Problem(
            clause, f"Use an image from the definition rapids-cu{cuda}, or correct gpu.cuda.", fatal=bool(gpus)
        )


def _version_problems(versions: Mapping[str, str], pinned: Mapping[str, str]) -> Iterator[Problem]:
    """Yield at most one: of versions that do not belong together, else of versions that are not this hpcml's."""
    rebuild = "Build the image again with hpcml image build, which uses matching versions (containers/versions.toml)."
    other = {name: value for name, value in versions.items() if value != pinned.get(name, value) and name != "python"}
    mixed = [name for name in ("dask", "distributed", "dask-cuda", "ucxx") if name in other]
    dask, distributed = versions.get("dask"), versions.get("distributed")
    if dask and distributed and dask != distributed:
        yield Problem(
            f"the image contains dask {dask} and distributed {distributed}, but both need the same version", rebuild
        )
    elif mixed and "rapids" in versions and versions["rapids"] == pinned.get("rapids"):
        has = ", ".join(f"{name} {versions[name]}" for name in mixed)
        wants = ", ".join(f"{name} {pinned[name]}" for name in mixed)
        yield Problem(f"the image's RAPIDS {versions['rapids']} needs {wants}, not {has}", rebuild)
    elif other:
        named = ", ".join(f"{name} {value} (not {pinned[name]})" for name, value in other.items())
        hint = "The image may work. To get the tested versions, build the image again with hpcml image build."
        clause = f"the image has other package versions than hpcml image build installs: {named}"
        yield Problem(clause, hint, fatal=False)


# -- definitions: those that ship with hpcml and the user's own -------------------------------------------------------


_USED = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Definition(NamedTuple):
    """A definition file; ``name`` is what an image of it is called when the user does not say."""

    name: str
    path: Path
    text: str

    @property
    def used(self) -> set[str]:
        """The build arguments in it (a comment's are not replaced)."""
        lines = (line for line in self.text.splitlines() if not line.lstrip().startswith("#"))
        return {name for line in lines for name in _USED.findall(line)}

    @property
    def defaults(self) -> dict[str, str]:
        """The build arguments that it gives a value itself, in ``%arguments``."""
        section = re.search(r"^%arguments\b[^\n]*\n(.*?)(?=^%|\Z)", self.text, re.MULTILINE | re.DOTALL)
        lines = [line.strip() for line in (section[1] if section else "").splitlines()]
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    def header(self, key: str) -> str:
        """Return a line of its head, as ``Bootstrap`` or ``OSVersion``; nothing if there is none."""
        line = re.search(rf"^{key}[ \t]*:[ \t]*(.*?)[ \t]*$", self.text, re.MULTILINE | re.IGNORECASE)
        return line[1] if line else ""

    def label(self, key: str) -> str:
        """Return the value of one of hpcml's labels as it is; nothing if there is none."""
        line = re.search(rf"^[ \t]*{re.escape(PREFIX + key)}[ \t]+(\S+)", self.text, re.MULTILINE)
        return line[1] if line else ""


def shipped_definitions() -> dict[str, Path]:
    """Return the definitions that ship with hpcml, by name."""
    paths = assets.folder("containers").glob("*.def")
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def find_definition(word: str, folder: Path) -> Definition:
    """Return a definition by its file or by the name of one of hpcml's; NotFoundError if it cannot be read."""
    names = shipped_definitions()
    path = names[word] if word in names else folder / settings_layers.user_path(word)
    try:
        return Definition(path.stem, path, files.read(path, files.SETTINGS, ours=False, follow=True).decode())
    except OSError as error:
        hint = did_you_mean(nearest(word, names), f"Choose a .def file, or one of: {', '.join(names)}.")
        raise NotFoundError(f"The definition cannot be read: {error.strerror}", place=str(path), hint=hint) from error
    except UnicodeDecodeError as error:
        raise NotFoundError("The definition is not a text file", place=str(path), hint="Name a .def file.") from error
