"""The words that run a role inside an image, by Apptainer or SingularityCE; decided before the job runs.

What the inside gets is said here and in ``templates/image.sh``, which adds what only the node knows: the run's
variables, the node-local scratch, and the folders that the copy of the code has links to, where the node has them. All
else of the host stays out: its variables, its Python's packages, the home directory.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from hpcml.errors import ConfigError
from hpcml.gpu_vendor import VENDOR
from hpcml.paths import RunPaths, sweep_folder
from hpcml.request.record import RunRequest
from hpcml.schedulers import JobLayout, Launcher
from hpcml.sites.schema import Site
from hpcml.sites.settings_layers import user_path

PYTHON = "python3"  # found by the image's own PATH
_DIVIDERS = (":", ",", "\\")  # those of --bind, which knows no quotes
_FOLDER = re.compile(r"(/|\$\{?[A-Za-z_])[^\n]*")


class Stage(NamedTuple):
    """A copy of the image on each node's own disk.

    ``mode`` is sbcast (one stream through Slurm's tree of nodes) or copy (each node reads the file). ``folder`` is
    empty for TMPDIR or /tmp, and may hold variables of the first node. ``nodes_word`` is the number of nodes as bash
    reads it. ``deadline`` is in seconds.
    """

    mode: str
    folder: str
    deadline: int
    nodes_word: str
    launcher: Launcher | None


def image_of(site: Site, spec: RunRequest) -> str:
    """Return the absolute path of the image that a request runs in, empty if it runs in a Python environment.

    Raises
    ------
    ConfigError
        If the profile wants an image and names none, or names one by a relative path.
    """
    if spec.image:
        return str(spec.code.cwd / user_path(spec.image))
    if site.runtime.kind != "image":
        return ""
    place = f"profile {site.name}: runtime.image"
    if not site.runtime.image:
        raise ConfigError(
            "The profile requires an image, but runtime.image is not set",
            place=place,
            hint="Add --image, or set runtime.image.",
        )
    if not site.runtime.image.startswith("/"):
        hint = "Use the image's absolute path on the compute nodes."
        raise ConfigError(f"{site.runtime.image!a} is not an absolute path", place=place, hint=hint)
    return site.runtime.image


def interpreter(site: Site) -> str:
    """Return the Python inside the image; ``runtime.python`` of a profile without one is the host's."""
    return site.runtime.python if site.runtime.kind == "image" and site.runtime.python else PYTHON


def entry(site: Site, spec: RunRequest, paths: RunPaths) -> tuple[str, ...]:
    """Return the words before a role's interpreter: ``/bin/sh image.sh apptainer exec …``, without the image.

    ``--cleanenv`` keeps the host's variables out; no ``--contain``, ``--ipc`` or ``--pid``, because workers open each
    other's memory (cuda_ipc, CMA) and find each other's processes, and because /dev and /sys show the adapters.

    Raises
    ------
    ConfigError
        If a path cannot be bound.
    """
    binds = [f"{path}:{path}{mode}" for path, mode in _own_binds(site, spec, paths)]
    binds += [_bind(text, f"profile {site.name}: runtime.binds") for text in site.runtime.binds]
    return (
        "/bin/sh",
        str(paths.image),
        site.runtime.container,
        "exec",
        "--cleanenv",
        *((VENDOR.image_option,) if spec.size.gpus_per_node else ()),
        "--no-mount",
        "cwd",
        "--home",
        str(paths.home),
        "--pwd",
        str(paths.directory),
        *(word for bind in binds for word in ("--bind", bind)),
        *site.runtime.options,
    )


def kernels(image: str) -> str:
    """Return the name of the folder beside the runs that keeps an image's compiled GPU kernels (``image.sh`` makes it).

    One for each image: what one leaves behind is no other's to load.
    """
    import hashlib  # with OpenSSL behind it some milliseconds, which only runs inside images need

    return hashlib.sha256(image.encode(errors="surrogatepass")).hexdigest()[:16]


def _own_binds(site: Site, spec: RunRequest, paths: RunPaths) -> list[tuple[str, str]]:
    """Return the run's directory, hpcml's modules in it for reading only, the user's folder, and scratch."""
    scratch = site.paths.scratch if site.paths.scratch.startswith("/") and "$" not in site.paths.scratch else ""
    sources = [str(folder) for folder in spec.code.sources if folder != spec.code.cwd]
    run_folders = (
        (str(paths.directory), "paths.runs"),
        (str(spec.code.cwd), "the folder from which you submitted"),
        *((folder, "the script's folder") for folder in sources),
        (scratch, "paths.scratch"),
    )
    for path, place in run_folders:
        if any(divider in path for divider in _DIVIDERS) or path != path.rstrip():
            hint = "Choose a path without ':', ',' and '\\', and without a space at its end."
            raise ConfigError("This path cannot be bound into an image", place=f"{place}: {path}", hint=hint)
    shared = [str(sweep_folder(paths.directory.parent, spec.points.sweep))] if spec.points.sweep else []
    users = [str(spec.code.cwd), *([scratch] if scratch else []), *shared]
    return [(str(paths.directory), ""), (str(paths.library), ":ro"), *((folder, "") for folder in users)]


def _bind(text: str, place: str) -> str:
    """Return a bind of the profile (``SOURCE``, ``SOURCE:INSIDE``, ``SOURCE:INSIDE:ro``) as it is, if it is one."""
    source, *rest = text.split(":")
    paths, mode = (source, *rest[:1]), rest[1] if len(rest) > 1 else "rw"
    right = len(rest) < 3 and mode in ("ro", "rw") and all(PurePosixPath(path).is_absolute() for path in paths)
    # Apptainer 1.4 cuts blanks off the end, and would bind another folder.
    if not right or any(path != path.rstrip() or divider in path for path in paths for divider in _DIVIDERS[1:]):
        hint = "Write /path, /path:/inside or /path:/inside:ro, without ',' and '\\', and without a space at the end."
        raise ConfigError(f"{text!a} is not a valid bind path", place=place, hint=hint)
    return text


def stage(site: Site, image: str, layout: JobLayout) -> Stage | None:
    """Return the stage that copies the image, None where the roles enter it in its place.

    Raises
    ------
    ConfigError
        If the profile asks for what the site has not, or names a folder that is none.
    """
    runtime = site.runtime
    if not image or runtime.stage == "none":
        return None
    place = f"profile {site.name}: runtime"
    if runtime.stage not in layout.stage_modes:
        raise ConfigError(
            "sbcast needs Slurm, which this site does not have",
            place=f"{place}.stage",
            hint="Set runtime.stage to 'copy' or 'none'.",
        )
    folder = runtime.stage_to or site.paths.scratch
    if folder and not _FOLDER.fullmatch(folder):
        raise ConfigError(
            f"{folder!a} is not an absolute path",
            place=f"{place}.stage_to",
            hint="Use the folder's absolute path on the nodes, or begin the path with $VARIABLE.",
        )
    return Stage(
        mode=runtime.stage,
        folder=folder.rstrip("/"),
        deadline=round(site.deadlines.stage),
        nodes_word=layout.nodes_word,
        launcher=layout.launchers.get("stage"),
    )
