"""What an image says of itself, and what speaks against running in it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hpcml import assets, files
from hpcml.errors import ImageError, NotFoundError
from hpcml.images import sif
from hpcml.images.program import TIMEOUT, Program, ask, last_lines
from hpcml.images.sif import ImageFacts
from hpcml.sites import layers


class Problem(NamedTuple):
    """What speaks against an image: a clause, what to do, and whether it cannot be used at all."""

    what: str
    hint: str
    fatal: bool = True


def machine() -> str:
    """Return this machine's architecture by the kernel's name on Linux (``x86_64``, ``aarch64``)."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def pins() -> dict[str, str]:
    """Return the versions that belong together, from containers/versions.toml."""
    return {key: str(value) for key, value in layers.read_toml(assets.folder("containers") / "versions.toml").items()}


def inspect(image: Path, program: Program | None = None) -> ImageFacts:
    """Return what an image says of itself; NotFoundError if it cannot be read, ImageError if it is none or damaged.

    ``program`` is asked for the labels of an image that keeps them inside its file system; without it there are none.
    """
    try:
        if image.is_dir():
            hint = f"Make an image of a sandbox: apptainer build {image.name}.sif {image.name}."
            raise ImageError("This is a folder, not an image file", place=str(image), hint=hint)
        facts = sif.read(image)
        if facts.labels_inside and program:
            return facts._replace(labels=_ask_for_labels(image, program))
    except files.ForeignError as error:
        raise ImageError("This is not a regular file", place=str(image), hint="Name a .sif file.") from error
    except OSError as error:
        hint = "Check the spelling and the permissions; hpcml image ls lists images."
        raise NotFoundError(f"The image cannot be read: {error.strerror}", place=str(image), hint=hint) from error
    except sif.SifError as error:
        hint = "Build it with hpcml image build, or copy it again: was the copy interrupted?"
        raise ImageError(f"The file is {error}", place=str(image), hint=hint) from error
    return facts


def _ask_for_labels(image: Path, program: Program) -> dict[str, str]:
    answer = ask([program.path, "inspect", "--json", "--labels", str(image)], TIMEOUT)
    try:
        facts = files.parsed(json.loads, answer.out) if answer.code == 0 else None
    except ValueError:
        facts = None  # told below, with what it said instead
    if isinstance(facts, dict):
        return sif.texts(sif.attributes(facts).get("labels") or {})
    hint = "Build it anew with this program."
    raise ImageError(f"{program} cannot read the image", place=str(image), hint=hint, quote=last_lines(answer.text))


def known_digest(facts: ImageFacts) -> str:
    """Return the digest that ``hpcml image build`` has written beside an image, empty if there is none of this file.

    Reading many gigabytes for it at every submission would cost more than it says. A record that is neither yours nor
    of the image's owner says nothing of it.
    """
    path = facts.path.with_name(f"{facts.path.name}.json")
    try:
        record = files.read_json(path, files.SETTINGS, ours=False)
        about = path.lstat()
        owners = (os.geteuid(), 0, facts.path.stat().st_uid)
    except (OSError, ValueError):
        return ""
    right = isinstance(record, dict) and record.get("size") == facts.size and about.st_uid in owners
    return str(record.get("digest", "")) if right and about.st_mtime >= facts.modified - 1 else ""


def problems(facts: ImageFacts, *, cuda: str, gpus: int, machine: str) -> list[Problem]:
    """Return what speaks against running in an image, the fatal first.

    ``cuda`` is what the site's driver can run (``12``, ``13``, or ``any``), ``gpus`` how many on each node the run asks
    for, and ``machine`` the architecture of the nodes, as the kernel names it.
    """
    found = [*_problems(facts, cuda, gpus, machine), *_version_problems(facts.versions, pins())]
    return sorted(found, key=lambda problem: not problem.fatal)


def _problems(facts: ImageFacts, cuda: str, gpus: int, machine: str) -> Iterator[Problem]:
    if facts.architecture and facts.architecture != machine:
        yield Problem(
            f"it is built for {facts.architecture}, and this machine is {machine}",
            f"Build it on a machine that is {machine}.",
        )
    if facts.encrypted:
        yield Problem("it is encrypted, and a batch job has no key for it", "Build it without --encrypt.")
    if not facts.kind:
        what = "it has no labels of hpcml, so what it holds is not known before it runs"
        yield Problem(what, "hpcml image check looks inside; hpcml image build makes one with labels.", fatal=False)
    if gpus and facts.kind and not facts.cuda:
        what = f"it holds nothing for GPUs (its kind is {facts.kind})"
        yield Problem(what, "Use an image of rapids-cu12 or rapids-cu13, or ask for no GPUs.")
    elif facts.cuda and cuda in ("12", "13") and facts.cuda != cuda:
        what = f"it is built for CUDA {facts.cuda}, and gpu.cuda of the site is {cuda}"
        yield Problem(what, f"Use an image of rapids-cu{cuda}, or correct gpu.cuda.", fatal=bool(gpus))


def _version_problems(versions: Mapping[str, str], pinned: Mapping[str, str]) -> Iterator[Problem]:
    """Yield at most one: of versions that do not belong together, else of versions that are not this hpcml's."""
    rebuild = "Build it anew with hpcml image build: these versions belong together (containers/versions.toml)."
    other = {name: value for name, value in versions.items() if value != pinned.get(name, value) and name != "python"}
    mixed = [name for name in ("dask", "distributed", "dask-cuda", "ucxx") if name in other]
    dask, distributed = versions.get("dask"), versions.get("distributed")
    if dask and distributed and dask != distributed:
        yield Problem(f"it mixes dask {dask} and distributed {distributed}", rebuild)
    elif mixed and "rapids" in versions and versions["rapids"] == pinned.get("rapids"):
        has = ", ".join(f"{name} {versions[name]}" for name in mixed)
        wants = ", ".join(f"{name} {pinned[name]}" for name in mixed)
        yield Problem(f"it mixes RAPIDS {versions['rapids']} with {has}, and that RAPIDS wants {wants}", rebuild)
    elif other:
        named = ", ".join(f"{name} {value} (here {pinned[name]})" for name, value in other.items())
        hint = "It may serve well; hpcml image build makes one of this version."
        yield Problem(f"its versions are not those of this hpcml: {named}", hint, fatal=False)
