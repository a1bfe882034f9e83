"""``--after``: the runs that a run waits for, judged when it is submitted, and the wait itself on the local site."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcml import schedulers, subprocesses
from hpcml.errors import CANCELLED, HpcmlError, NotFoundError, SiteError, SlurmUnreachableError
from hpcml.request.record import Awaited
from hpcml.runs import adoption, directories
from hpcml.runs import record as records
from hpcml.runs import status as run_status
from hpcml.sites.layers import process_environment
from hpcml.sites.schema import Site

_LOOK = 1.0  # seconds between looks at a run that is waited for


def resolve(folder: Path, site: Site, asked: Sequence[Awaited]) -> tuple[tuple[Awaited, ...], list[str]]:
    """Return the runs that are still to be waited for, with their ids and jobs, and notes of those that have ended.

    Raises
    ------
    NotFoundError
        If there is no such run, or nobody has submitted it.
    SiteError
        If it ended otherwise than asked, or is none that the site's scheduler can wait for.
    SlurmUnreachableError
        If it is not known how it stands.
    """
    open_runs: dict[Awaited, None] = {}
    notes = []
    here = schedulers.get(site.scheduler).ONE_MACHINE
    for one in asked:
        run = adoption.adopt(directories.find(folder, one.run))
        known = run_status.status(run)
        found = one._replace(run=run.id, job=run.job)
        if known.phase == "refused":
            raise SiteError("The run to wait for never ran: it was refused", place=run.id, hint=_again(run))
        if known.over:
            if not found.met_by(known.exit_status):
                what = f"The run is not to start: it waits for {found.words()}, and {run_status.ended(known)}"
                raise SiteError(what, place=f"--after {one.run}:{one.when}", hint=_again(run))
            notes.append(f"{run.id} has ended as --after asks: it is not waited for")
            continue
        if not (run.submission and run.submission.key):
            raise NotFoundError("The run to wait for has no job", place=run.id, hint=known.hint or _again(run))
        if known.silent:
            raise SlurmUnreachableError(known.silent, transient=True, place=run.id, hint="Try again in some minutes.")
        if run.submission.scheduler != site.scheduler or (not here and known.site != site.name):
            where = "in an allocation" if run.submission.scheduler == "allocation" else f"on site {known.site}"
            what = f"A run on site {site.name} cannot wait for {run.id}, which is {where}"
            hint = f"Wait first: hpcml wait {run.id} && hpcml submit …"
            raise SiteError(what, place="--after", hint=hint)
        if not here and records.planned(run).until_done:
            what = f"{run.id} goes on in several jobs (--until-done), and Slurm waits for one"
            hint = f"Wait first: hpcml wait {run.id} && hpcml submit …"
            raise SiteError(what, place="--after", hint=hint)
        open_runs[found] = None
    return tuple(open_runs), notes


def _again(run: directories.Run) -> str:
    return f"See hpcml why {run.id}; hpcml rerun {run.id} runs it again."


def main(directory: Path) -> None:
    """Wait until a run on this machine may start, and become its batch script; else write that it never started."""
    run = directories.load(directory)

    def cancelled(*_: object) -> None:
        _end(run, "user", "the run was cancelled before it started")

    signal.signal(signal.SIGTERM, cancelled)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    for one in records.planned(run).after:
        while not (known := _look(directory.with_name(one.run))).over:
            time.sleep(_LOOK)
        if not one.met_by(known.exit_status):
            message, hint = run_status.never_started(one, known)
            _end(run, "hpcml", message, hint)
    subprocesses.become(["bash", str(run.paths.script)], process_environment())


def _look(directory: Path) -> run_status.Status:
    """Return how a run stands; one whose record is gone or cannot be read has ended in a way that nobody knows."""
    try:
        return run_status.status(directories.load(directory))
    except HpcmlError as error:
        return run_status.Status(directory.name, "", phase="ended", message=error.message)


def _end(run: directories.Run, by: str, message: str, hint: str = "") -> None:
    """Write that a run ended before it started, and end."""
    directories.write_json(run.paths.status, records.cancelled(by, message, hint).as_json())
    sys.exit(CANCELLED)
