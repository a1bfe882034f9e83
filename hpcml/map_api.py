"""``hpcml.map()``: call a function once for each of many points, each call a job of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml import schedulers
from hpcml.errors import NotFoundError, SiteError, UsageError
from hpcml.repairs import file_names
from hpcml.request.record import Code
from hpcml.runs import job_request
from hpcml.sites import layers
from hpcml.terminal import note

if TYPE_CHECKING:
    from submitit import Job

    from hpcml.plan.plan import Plan

_FOLDER = ".maps"  # below the folder of runs


def map(  # noqa: A001 - as every library calls it
    function: Callable[[Any], Any], points: Iterable[object], *, at_once: int | None = None, **options: Any
) -> list[Job[Any]]:
    """Call a function for each point in a job of its own, and return submitit's jobs in the order of the points.

    Parameters
    ----------
    function
        What is called with one point. One that was defined in the program itself travels with the job; another is
        imported there from its module.
    points
        The points, each of which can be pickled.
    at_once
        How many points run at once: on Slurm all that it starts, on the local site as many as the CPUs allow, one with
        GPUs. There the call returns when the last point has started.
    options
        Those of ``hpcml submit`` that describe a job: ``site``, ``time``, ``gpus_per_node``, ``cpus_per_node``,
        ``memory_per_node``, ``partition``, ``account``, ``env``, …; they hold for each point. With ``nodes`` the
        function is called on each node.

    Returns
    -------
    list of submitit.Job
        ``result()`` waits and returns what the function returned, or raises an error with the function's traceback;
        with several nodes ``results()`` is the list of what each returned, first node first.

    Raises
    ------
    HpcmlError
        If nothing was submitted: a wrong option, a function that cannot be pickled, Slurm's refusal.
    """
    if importlib.util.find_spec("submitit") is None:
        hint = "Install it: pip install 'hpcml[sweep]'."
        raise NotFoundError("hpcml.map needs submitit", place="submitit", hint=hint)
    from hpcml import map_jobs

    given = list(points)
    _check(function, given, at_once)
    name = getattr(function, "__name__", "") or type(function).__name__
    code = Code(Path(name), cwd=layers.here(), service="map")
    loaded, spec = job_request.parse("hpcml.map", "map", code, {"nodes": 1, **options})
    if not given:
        return []
    top = job_request.place(loaded, _FOLDER, spec.name)
    if "%" in str(top):
        hint = "Choose another folder for runs with set={'paths.runs': …}."
        raise UsageError("The folder for runs holds '%', which begins submitit's patterns", place=str(top), hint=hint)
    made = job_request.plan_at(loaded, spec, top / f"{top.name}.0")
    if made.inside.image:
        hint = "Leave the image out (set={'runtime.kind': 'python'}), or use hpcml.submit() with a script."
        raise SiteError("hpcml.map cannot run inside an image", place=made.inside.image, hint=hint)
    for text in made.notices:
        note(text)
    if loaded.site.repairs:
        file_names.keep()
    job_request.make(top, loaded)
    enter = map_jobs.enter(made, job_request.program_folder(), spec.environment)
    with layers.narrowed_umask():
        if schedulers.get(loaded.site.scheduler).ONE_MACHINE:
            cpus = max(1, spec.size.cpus_per_node)
            return map_jobs.start_here(made, enter, function, given, at_once=at_once or 0, cpus=cpus)

        def plan_of(number: int) -> Plan:
            return job_request.plan_at(loaded, spec, top / f"{top.name}.{number}")

        return map_jobs.submit(loaded.site, plan_of, enter, function, given, at_once or 0)


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
