"""``hpcml.map()``: call a function once for each of many points, each call a job of its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml import __version__, pickled_code, schedulers
from hpcml.errors import NotFoundError, SiteError, UsageError
from hpcml.plan.plan import Plan, RunLocation, plan
from hpcml.request import from_keywords
from hpcml.request.options import of
from hpcml.request.record import Code, RunRequest, job_name
from hpcml.runs import directories, maps
from hpcml.sites import layers
from hpcml.sites.lookup import LoadedSite, load_here
from hpcml.terminal import note

if TYPE_CHECKING:
    from hpcml.map_jobs.futures import PointFuture


def map(  # noqa: A001 - as every library calls it
    function: Callable[[Any], Any], points: Iterable[object], *, at_once: int | None = None, **options: Any
) -> list[PointFuture]:
    """Call a function for each point in a job of its own, and return the futures in the order of the points.

    Parameters
    ----------
    function
        What is called with one point. One that was defined in the program itself travels with the job; another is
        imported there from its module.
    points
        The points, each of which can be pickled.
    at_once
        How many points run at once: on Slurm all that it starts, on the local site as many as the CPUs allow, one with
        GPUs.
    options
        Those of ``hpcml submit`` that describe a job: ``site``, ``time``, ``gpus_per_node``, ``cpus_per_node``,
        ``memory_per_node``, ``partition``, ``account``, ``env``, …; they hold for each point. With ``nodes`` the
        function is called on each node, and the result is the list of what it returned, first node first.

    Returns
    -------
    list of PointFuture
        ``result()``, ``exception()``, ``done()`` and ``cancel()`` are those of ``concurrent.futures``, which also
        waits for them. What the function raises is raised by ``result()``.

    Raises
    ------
    HpcmlError
        If nothing was submitted: a wrong option, a function that cannot be pickled, Slurm's refusal.
    """
    if importlib.util.find_spec("submitit") is None:
        hint = "Install it: pip install 'hpcml[sweep]'."
        raise NotFoundError("hpcml.map needs submitit", place="submitit", hint=hint)
    from hpcml.map_jobs import jobs as point_jobs
    from hpcml.map_jobs.call import Call
    from hpcml.map_jobs.futures import keep
    from hpcml.schedulers import slurm_arrays

    given = list(points)
    _check(function, given, at_once)
    loaded, spec = _request(function, options)
    if not given:
        return []
    pickled_code.keep_file_names()
    with layers.narrowed_umask():
        top = _folder(loaded, spec)
        first = _plan(loaded, spec, top / "0")
        for text in first.notices:
            note(text)
        lead = point_jobs.enter(first, _code(), spec.environment)
        jobs: point_jobs.LocalJobs | point_jobs.SlurmJobs
        if loaded.site.scheduler == "local":
            (top / "0").mkdir(mode=0o700)
            jobs = point_jobs.LocalJobs(first, lead, at_once or _room(spec), max(0, spec.size.gpus_per_node))
        else:
            arrays = point_jobs.none_too_large(len(given), slurm_arrays.most_tasks())
            runs = [(_plan(loaded, spec, top / f"{top.name}.{number}"), array) for number, array in enumerate(arrays)]
            jobs = point_jobs.SlurmJobs(loaded.site, runs, lead, at_once or 0)
        jobs.submit(Call(function), given)
    return keep(jobs, given)


def _check(function: object, points: list[object], at_once: int | None) -> None:
    """Refuse what could not be called, or not be sent."""
    import cloudpickle

    if not callable(function):
        raise UsageError(f"{function!r} cannot be called", place="hpcml.map", hint="Give a function of one argument.")
    if at_once is not None and at_once < 1:
        raise UsageError(f"at_once={at_once} lets no point run", place="hpcml.map", hint="Give 1 or more.")
    for what, value in (("The function", function), ("A point", points)):
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # an object of the user's may fail in any way there
            hint = "Open files and connections in the function itself."
            raise UsageError(f"{what} cannot be pickled: {error}", place="hpcml.map", hint=hint) from error


def _request(function: Callable[[Any], Any], options: dict[str, Any]) -> tuple[LoadedSite, RunRequest]:
    """Return the site, and the request for one point."""
    if host := layers.process_environment().get("HPCML_HOST", ""):
        raise UsageError("hpcml.map submits on this machine, and HPCML_HOST names another", place=host)
    name = getattr(function, "__name__", "") or type(function).__name__
    code = Code(Path(name), cwd=layers.here(), service="map")
    spec = from_keywords({"nodes": 1, **options}, of("map"), "hpcml.map", code)
    loaded = load_here(spec.place.site, spec.code.cwd, spec.place.settings)
    spec = schedulers.get(loaded.site.scheduler).with_variables(spec, loaded.is_from_this_call)
    return loaded, spec.changed(name=job_name(spec))


def _folder(loaded: LoadedSite, spec: RunRequest) -> Path:
    """Make the folder of a map beside the runs."""
    runs = directories.runs_folder(loaded.site.paths.runs, layers.process_environment())
    for text in directories.check_folder(runs, loaded.site.paths.trust):
        note(text)
    if "%" in str(runs):
        hint = "Choose another folder for runs with set={'paths.runs': …}."
        raise UsageError("The folder for runs holds '%', which begins submitit's patterns", place=str(runs), hint=hint)
    top = runs / maps.FOLDER / directories.new_id(spec.name)
    with directories.storage(top):
        top.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directories.check_folder(top.parent, loaded.site.paths.trust)
        top.mkdir(mode=0o700)
    return top


def _plan(loaded: LoadedSite, spec: RunRequest, directory: Path) -> Plan:
    """Return the plan of one point's job, of which a map takes what it asks for and where it runs."""
    made = plan(loaded.site, spec, RunLocation(directory, sys.executable, __version__, layers.user_umask()))
    if made.inside.image:
        hint = "Leave the image out (set={'runtime.kind': 'python'}), or use hpcml.submit() with a script."
        raise SiteError("hpcml.map cannot run inside an image", place=made.inside.image, hint=hint)
    return made


def _code() -> str:
    """Return the folder from which this program imports its own modules."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(program).resolve().parent if program else Path.cwd())


def _room(spec: RunRequest) -> int:
    """Return how many points run at once on this machine."""
    if spec.size.gpus_per_node > 0:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // max(1, spec.size.cpus_per_node))
