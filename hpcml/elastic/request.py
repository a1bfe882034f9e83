"""What an elastic cluster is asked for: the keywords, the site, and the plan of one of its jobs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import __version__, schedulers, units
from hpcml.errors import SiteError, SlurmUnreachableError, UsageError
from hpcml.plan.plan import Plan, RunLocation, plan
from hpcml.request import from_keywords
from hpcml.request.options import of
from hpcml.request.record import Code, RunRequest, job_name
from hpcml.runs import beside, directories
from hpcml.runs.submit import Prepared, check_image
from hpcml.sites import layers
from hpcml.sites.lookup import LoadedSite, load_here
from hpcml.terminal import note

_CALLER = "hpcml.ElasticCluster"


class Request(NamedTuple):
    """One job of an elastic cluster, as its site gives it; ``folder`` is the cluster's own, not there yet."""

    loaded: LoadedSite
    spec: RunRequest
    plan: Plan
    folder: Path


def make(options: Mapping[str, Any]) -> Request:
    """Return what the keywords ask for; nothing is written.

    Raises
    ------
    HpcmlError
        For a wrong keyword, and for all that an elastic cluster cannot do.
    """
    environment = layers.process_environment()
    if host := environment.get("HPCML_HOST", ""):
        raise UsageError(f"{_CALLER} submits on this machine, and HPCML_HOST names another", place=host)
    code = Code(Path("elastic"), cwd=layers.here(), service="elastic")
    spec = from_keywords(options, of("elastic"), _CALLER, code).changed(nodes=1)
    loaded = load_here(spec.place.site, spec.code.cwd, spec.place.settings)
    site = loaded.site._replace(network=loaded.site.network._replace(protocol="tls"))
    if loaded.site.network.protocol == "ucx" and loaded.layers.origin("network.protocol") == "--set":
        what = "UCX cannot join jobs that start apart: workers that come later could not be reached, and those that go"
        hint = "Leave it out: the workers speak TLS. For UCX and cuML's collectives submit a script: hpcml.submit()."
        raise UsageError(f"{what} would break the others", place="network.protocol=ucx", hint=hint)
    loaded = loaded._replace(site=site)
    if site.scheduler != "slurm":
        hint = "Use dask.distributed.LocalCluster() here, or name a site with Slurm."
        raise SiteError(f"{_CALLER} asks Slurm for its workers, and site {site.name} has none", hint=hint)
    if site.gpu.mode == "polars":
        hint = "Add --set gpu.mode=dask, or submit a script: hpcml.submit()."
        raise SiteError(
            f"{_CALLER} has workers that come and go, and GPU mode polars none", place="gpu.mode", hint=hint
        )
    _check_sbatch(environment)
    spec = schedulers.get(site.scheduler).with_variables(spec, loaded.is_from_this_call)
    spec = spec.changed(name=job_name(spec))
    runs = directories.runs_folder(site.paths.runs, environment)
    for text in directories.check_folder(runs, site.paths.trust):
        note(text)
    folder = runs / beside.CLUSTERS / directories.new_id(spec.name)
    made = plan(site, spec, RunLocation(folder, sys.executable, __version__, layers.user_umask()))
    check_image(Prepared(loaded, spec, made, ""))
    for text in made.notices:
        note(text)
    return Request(loaded, spec, made, folder)


def _check_sbatch(environment: Mapping[str, str]) -> None:
    """Refuse a machine that cannot submit."""
    if shutil.which("sbatch", path=environment.get("PATH", "")):
        return
    if environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER"):
        hint = "Start Python outside the image: its workers run inside, with image=… or the profile's runtime.image."
        raise SlurmUnreachableError("Inside an image there is no sbatch to ask for workers", place="sbatch", hint=hint)
    hint = "Load the site's Slurm module, or go to a login node."
    raise SlurmUnreachableError(f"{_CALLER} finds no sbatch to ask for workers", place="PATH", hint=hint)


def seconds(value: str | float, name: str) -> float:
    """Return a duration in seconds; UsageError if it is none, or negative."""
    try:
        found = float(value) if isinstance(value, (int, float)) else units.parse_seconds(value)
    except ValueError as error:
        raise UsageError(str(error), place=f"{name}={value!r}", hint=f"Write {name}='10m'.") from error
    if found < 0 or found != found:  # noqa: PLR0124 - no number
        raise UsageError(f"{value!r} is no duration", place=f"{name}={value!r}", hint=f"Write {name}='10m'.")
    return found


def make_folder(request: Request) -> None:
    """Make the cluster's folder (0700) beside the runs."""
    top, trusted = request.folder.parent, request.loaded.site.paths.trust
    with directories.storage(top):
        top.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directories.check_folder(top.parent, trusted)
        top.mkdir(mode=0o700, exist_ok=True)
    with directories.creating(request.folder, trusted) as paths:
        for folder in (paths.code, paths.out, paths.reserve):  # a run's
            shutil.rmtree(folder)


def clusters_of(site: str) -> Path:
    """Return the folder of this user's elastic clusters on a site."""
    return directories.runs_folder_of(site) / beside.CLUSTERS
