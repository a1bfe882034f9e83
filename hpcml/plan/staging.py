"""Whether and how the image is copied to the nodes' own disks; decided before the job runs."""

from __future__ import annotations

import re
from typing import NamedTuple

from hpcml.errors import ConfigError
from hpcml.sites.schema import Site

_FOLDER = re.compile(r"(/|\$\{?[A-Za-z_])[^\n]*")


class Stage(NamedTuple):
    """A copy of the image on each node.

    ``mode`` is sbcast (one stream through Slurm's tree of nodes) or copy (each node reads the file). ``folder`` is
    empty for TMPDIR or /tmp, and may hold variables of the first node. ``launcher`` is srun and its options, none on
    the local site. ``deadline`` is in seconds.
    """

    mode: str
    folder: str
    image: str
    deadline: int
    launcher: tuple[str, ...] = ()


def stage(site: Site, image: str) -> Stage | None:
    """Return how the image is copied, None where the roles enter it where it lies.

    Raises
    ------
    ConfigError
        If the profile asks for what the site has not, or names a folder that is none.
    """
    runtime = site.runtime
    if not image or runtime.stage == "none":
        return None
    place = f"profile {site.name}: runtime"
    if runtime.stage == "sbcast" and site.scheduler != "slurm":
        raise ConfigError(
            "sbcast is Slurm's, and this site has none", place=f"{place}.stage", hint="Set it to 'copy' or 'none'."
        )
    folder = runtime.stage_to or site.paths.scratch
    if folder and not _FOLDER.fullmatch(folder):
        raise ConfigError(
            f"{folder!a} is not an absolute path",
            place=f"{place}.stage_to",
            hint="Write the path that it has on the nodes, or $VARIABLE.",
        )
    return Stage(runtime.stage, folder.rstrip("/"), image, round(site.deadlines.stage))
