"""What images and their definitions are: facts, what speaks against using one, and the program that runs them."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import assets, files, subprocesses
from hpcml.errors import ImageError, NotFoundError
from hpcml.images import sif
from hpcml.sites import layers
from hpcml.sites.layers import user_path

PREFIX = "org.hpcml."  # of the labels
VERSIONED = ("python", "rapids", "dask", "distributed", "dask-cuda", "ucxx", "dask-ml")  # labels that say versions
TIMEOUT = 60.0  # seconds for one question to the program; its start from a shared file system may take some
_PROGRAMS = ("apptainer", "singularity")
_SAYS = re.compile(r"(?:(apptainer|singularity-ce|singularity) version )?v?(\d+)\.(\d+)(?:\.(\d+))?")
_NAMES = {"apptainer": "Apptainer", "singularity-ce": "SingularityCE", "singularity": "Singularity"}
# The first version of each that knows the section %arguments and the option --build-arg.
_ARGUMENTS_SINCE = {"apptainer": (1, 2), "singularity-ce": (4, 0)}
_USED = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Problem(NamedTuple):
    """What speaks against an image: a clause, what to do, and whether it cannot be used at all."""

    what: str
    hint: str
    fatal: bool = True


class Program(NamedTuple):
    """The program that builds and runs images; ``kind`` is apptainer, singularity-ce or singularity."""

    path: str
    kind: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{_NAMES[self.kind]} {'.'.join(map(str, self.version))}"

    @property
    def takes_arguments(self) -> bool:
        """Whether it knows ``%arguments`` and ``--build-arg``."""
        return self.kind in _ARGUMENTS_SINCE and self.version >= _ARGUMENTS_SINCE[self.kind]


def tell_program(path: str, said: str) -> Program:
    """Return which program answers ``--version`` with these words.

    Raises
    ------
    ImageError
        If it is none of Apptainer, SingularityCE and Singularity, or older than the SIF format.
    """
    hint = "Install Apptainer 1.2 or newer, load the site's module, or name another with --program."
    match = next((found for line in said.splitlines() if (found := _SAYS.match(line.strip()))), None)
    if match is None:
        quote = tuple(line for line in said.splitlines() if line.strip())[-3:]
        raise ImageError("This program is neither Apptainer nor Singularity", place=path, hint=hint, quote=quote)
    version = tuple(int(number) for number in match.groups()[1:] if number is not None)
    if match[1] != "apptainer" and version < (3,):
        raise ImageError(
            f"Singularity {'.'.join(map(str, version))} is too old: it knows no SIF images", place=path, hint=hint
        )
    return Program(path, match[1] or "singularity", version)


def find_program(wanted: str, environment: Mapping[str, str], first: str = "") -> Program:
    """Return the program for images.

    Parameters
    ----------
    wanted
        Its name or path, if the user gave one; no other is taken then.
    first
        What to look for before ``apptainer`` and ``singularity``: the profile's ``runtime.container``.

    Raises
    ------
    ImageError
        If there is none, or it cannot be started, or is not one of them.
    """
    names = (wanted,) if wanted else tuple(dict.fromkeys(name for name in (first, *_PROGRAMS) if name))
    path = next((found for name in names if (found := shutil.which(name, path=environment.get("PATH")))), None)
    if path is None:
        hint = "Load the site's module or install Apptainer 1.2 or newer; images can be built on another machine."
        raise ImageError(f"There is no {' and no '.join(names)} here", place="PATH", hint=hint)
    answer = ask([path, "--version"], environment, TIMEOUT)
    if answer.code != 0:
        late = answer.code is None
        raise ImageError(
            f"It {'does not answer' if late else 'fails'} when asked for its version",
            place=path,
            hint="Try it yourself: is its module loaded, and its file system there?",
            quote=last_lines(answer.text),
        )
    return tell_program(path, answer.text)


def ask(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> subprocesses.Answer:
    """Run the program; what cannot be started is an error about images.

    Raises
    ------
    ImageError
        If it cannot be started.
    """
    try:
        return subprocesses.run(command, environment, timeout)
    except subprocesses.CommandMissingError as error:
        raise ImageError(
            f"The program for images cannot be started: {error}",
            place=command[0],
            hint="Try it yourself, or name another with --program.",
        ) from error


def last_lines(text: str, count: int = 8) -> tuple[str, ...]:
    """Return the last lines of a program's words, without empty ones and colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "\n")
    return tuple(line.rstrip()[:300] for line in plain.splitlines() if line.strip())[-count:]


def machine() -> str:
    """Return this machine's architecture by the kernel's name on Linux (``x86_64``, ``aarch64``)."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def pins() -> dict[str, str]:
    """Return the versions that belong together, from containers/versions.toml."""
    return {key: str(value) for key, value in layers.read_toml(assets.folder("containers") / "versions.toml").items()}


# -- definitions ----------------------------------------------------------------------------------------------------


class Definition(NamedTuple):
    """A definition file; ``name`` is what an image of it is called when the user does not say."""

    name: str
    path: Path
    text: str

    @property
    def used(self) -> set[str]:
        """The build arguments that stand in it (a comment's are not replaced)."""
        lines = (line for line in self.text.splitlines() if not line.lstrip().startswith("#"))
        return {name for line in lines for name in _USED.findall(line)}

    @property
    def defaults(self) -> dict[str, str]:
        """The build arguments that it gives a value itself, in ``%arguments``."""
        found = re.search(r"^%arguments\b[^\n]*\n(.*?)(?=^%|\Z)", self.text, re.MULTILINE | re.DOTALL)
        lines = [line.strip() for line in (found[1] if found else "").splitlines()]
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    def header(self, key: str) -> str:
        """Return a line of its head, as ``Bootstrap`` or ``OSVersion``; nothing if there is none."""
        found = re.search(rf"^{key}[ \t]*:[ \t]*(.*?)[ \t]*$", self.text, re.MULTILINE | re.IGNORECASE)
        return found[1] if found else ""

    def label(self, key: str) -> str:
        """Return the value of one of hpcml's labels, as it stands there; nothing if there is none."""
        found = re.search(rf"^[ \t]*{re.escape(PREFIX + key)}[ \t]+(\S+)", self.text, re.MULTILINE)
        return found[1] if found else ""


def definitions() -> dict[str, Path]:
    """Return the definitions that ship with hpcml, by name."""
    return {path.stem: path for path in sorted(assets.folder("containers").glob("*.def"))}


def find_definition(word: str, folder: Path) -> Definition:
    """Return the definition that the user means: a file, or the name of one that ships with hpcml.

    Raises
    ------
    NotFoundError
        If there is none, or it cannot be read.
    """
    known = definitions()
    path = known[word] if word in known else folder / user_path(word)
    try:
        return Definition(path.stem, path, files.read(path, files.SETTINGS, ours=False, follow=True).decode())
    except OSError as error:
        near = layers.nearest(word, list(known))
        hint = f"Did you mean {near}?" if near else f"Name a .def file, or one of: {', '.join(known)}."
        raise NotFoundError(f"The definition cannot be read: {error.strerror}", place=str(path), hint=hint) from error
    except UnicodeDecodeError as error:
        raise NotFoundError("The definition is not a text", place=str(path), hint="Name a .def file.") from error


# -- images ---------------------------------------------------------------------------------------------------------


class ImageFacts(NamedTuple):
    """An image as its file describes it.

    ``size`` is in bytes, ``modified`` and ``created`` in seconds since 1970. ``architecture`` is empty if the image
    does not say.
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


def inspect(image: Path, program: Program | None = None, environment: Mapping[str, str] | None = None) -> ImageFacts:
    """Return what an image says of itself, read from its file.

    Parameters
    ----------
    program, environment
        What to ask for the labels of an image that keeps them inside its file system (before Singularity 3.6). Without
        them such an image has no labels.

    Raises
    ------
    NotFoundError
        If there is no such file, or it may not be read.
    ImageError
        If it is not an image, or a damaged one, or the program cannot read it.
    """
    try:
        stat = image.stat()
        if image.is_dir():
            hint = f"Make an image of a sandbox: apptainer build {image.name}.sif {image.name}."
            raise ImageError("This is a folder, not an image file", place=str(image), hint=hint)
        found = sif.read(image)
    except files.ForeignError as error:
        raise ImageError("This is not a regular file", place=str(image), hint="Name a .sif file.") from error
    except OSError as error:
        hint = "Check the spelling and the permissions; hpcml image ls lists images."
        raise NotFoundError(f"The image cannot be read: {error.strerror}", place=str(image), hint=hint) from error
    except sif.SifError as error:
        hint = "Build it with hpcml image build, or copy it again: was the copy interrupted?"
        raise ImageError(f"The file is {error}", place=str(image), hint=hint) from error
    labels = found.labels
    if labels is None:
        labels = _ask_for_labels(image, program, environment or {}) if program else {}
    return ImageFacts(
        image,
        stat.st_size,
        stat.st_mtime,
        found.architecture,
        labels,
        found.definition.strip(),
        found.help.strip(),
        found.encrypted,
        found.created,
    )


def _ask_for_labels(image: Path, program: Program, environment: Mapping[str, str]) -> dict[str, str]:
    answer = ask([program.path, "inspect", "--json", "--labels", str(image)], environment, TIMEOUT)
    try:
        facts = files.parsed(json.loads, answer.out) if answer.code == 0 else None
    except ValueError:
        facts = None  # told below, with what it said instead
    if not isinstance(facts, dict):
        raise ImageError(
            f"{program} cannot read the image",
            place=str(image),
            hint="Build it anew with this program.",
            quote=last_lines(answer.text),
        )
    try:
        return sif.texts(sif.attributes(facts).get("labels") or {})
    except sif.SifError as error:
        raise ImageError(f"The file is {error}", place=str(image), hint="Build it with hpcml image build.") from error


def known_digest(facts: ImageFacts) -> str:
    """Return the digest that ``hpcml image build`` has written beside an image, empty if there is none of this file.

    Reading many gigabytes for it at every submission would cost more than it says. A record that is neither yours nor
    of the image's owner says nothing of it.
    """
    record = facts.path.with_name(f"{facts.path.name}.json")
    try:
        found = files.read_json(record, files.SETTINGS, ours=False)
        about = record.lstat()
        whose = (os.geteuid(), 0, facts.path.stat().st_uid)
    except (OSError, ValueError):
        return ""
    right = isinstance(found, dict) and found.get("size") == facts.size and about.st_uid in whose
    return str(found.get("digest", "")) if right and about.st_mtime >= facts.modified - 1 else ""


def problems(
    facts: ImageFacts, *, cuda: str, gpus: int, machine: str, pinned: Mapping[str, str] | None = None
) -> list[Problem]:
    """Return what speaks against running in an image, the fatal first; decides by its arguments alone.

    Parameters
    ----------
    cuda
        The CUDA that the site's driver can run: ``12``, ``13``, or ``any``.
    gpus
        GPUs on each node that the run asks for.
    machine
        The architecture of the nodes, as the kernel names it.
    pinned
        The versions that belong together (:func:`pins`); they are not compared without it.
    """
    found: list[Problem] = []
    if facts.architecture and facts.architecture != machine:
        found.append(
            Problem(
                f"it is built for {facts.architecture}, and this machine is {machine}",
                f"Build it on a machine that is {machine}.",
            )
        )
    if facts.encrypted:
        found.append(Problem("it is encrypted, and a batch job has no key for it", "Build it without --encrypt."))
    if not facts.kind:
        found.append(
            Problem(
                "it has no labels of hpcml, so what it holds is not known before it runs",
                "Try hpcml image check, or build one with hpcml image build.",
                fatal=False,
            )
        )
    found += _cuda_problems(facts, cuda, gpus)
    found += _version_problems(facts.versions, pinned or {})
    return sorted(found, key=lambda problem: not problem.fatal)


def _cuda_problems(facts: ImageFacts, cuda: str, gpus: int) -> list[Problem]:
    if gpus and facts.kind and not facts.cuda:
        return [
            Problem(
                f"it holds nothing for GPUs (its kind is {facts.kind})",
                "Use an image of rapids-cu12 or rapids-cu13, or ask for no GPUs.",
            )
        ]
    if facts.cuda and cuda in ("12", "13") and facts.cuda != cuda:
        return [
            Problem(
                f"it is built for CUDA {facts.cuda}, and gpu.cuda of the site is {cuda}",
                f"Use an image of rapids-cu{cuda}, or correct gpu.cuda.",
                fatal=bool(gpus),
            )
        ]
    return []


def _version_problems(versions: Mapping[str, str], pinned: Mapping[str, str]) -> list[Problem]:
    rebuild = "Build it anew with hpcml image build: these versions belong together (containers/versions.toml)."
    dask, distributed = versions.get("dask"), versions.get("distributed")
    if dask and distributed and dask != distributed:
        return [Problem(f"it mixes dask {dask} and distributed {distributed}", rebuild)]
    if "rapids" in versions and versions["rapids"] == pinned.get("rapids"):
        mixed = ("dask", "distributed", "dask-cuda", "ucxx")
        skewed = [name for name in mixed if name in versions and name in pinned and versions[name] != pinned[name]]
        if skewed:
            has = ", ".join(f"{name} {versions[name]}" for name in skewed)
            wants = ", ".join(f"{name} {pinned[name]}" for name in skewed)
            return [Problem(f"it mixes RAPIDS {versions['rapids']} with {has}, and that RAPIDS wants {wants}", rebuild)]
    other = [
        name
        for name in VERSIONED
        if name in versions and name in pinned and name != "python" and versions[name] != pinned[name]
    ]
    if not other:
        return []
    words = ", ".join(f"{name} {versions[name]} (here {pinned[name]})" for name in other)
    return [
        Problem(
            f"its versions are not those of this hpcml: {words}",
            "It may serve well; hpcml image build makes one of this version.",
            fatal=False,
        )
    ]


def list_images(folder: Path) -> list[ImageFacts | ImageError | NotFoundError]:
    """Return the images of a folder by name; what cannot be read is its error.

    Raises
    ------
    NotFoundError
        If the folder is not there or cannot be listed.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".sif" and not path.name.startswith("."))
    except OSError as error:
        raise NotFoundError(
            f"The folder cannot be listed: {error.strerror}", place=str(folder), hint="Name the folder of your images."
        ) from error
    found: list[ImageFacts | ImageError | NotFoundError] = []
    for path in paths:
        try:
            found.append(inspect(path))
        except (ImageError, NotFoundError) as error:
            found.append(error)
    return found
