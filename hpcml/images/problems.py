"""What can keep a run from using an image, by the image's file and the site's profile."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hpcml import assets
from hpcml.errors import ImageError
from hpcml.images.sif import Image, inspect, known_digest
from hpcml.sites import settings_layers


class Problem(NamedTuple):
    """A problem of an image: a clause, what to do, and whether it cannot be used at all."""

    what: str
    hint: str
    fatal: bool = True


def machine() -> str:
    """Return this machine's architecture by the kernel's name on Linux (``x86_64``, ``aarch64``)."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


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
    table = settings_layers.read_toml(assets.folder("containers") / "versions.toml")
    pins = {key: str(value) for key, value in table.items()}  # the versions that belong together
    every = [*_problems(image, cuda, gpus, machine), *_version_problems(image.versions, pins)]
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
