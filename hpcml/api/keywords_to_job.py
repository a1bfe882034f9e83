"""A job that a Python program asks for: the keywords of ``hpcml.map`` and ``hpcml.ElasticCluster`` as a request."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcml import __version__, schedulers
from hpcml.errors import UsageError
from hpcml.options.reading import given_by_keywords, request_of
from hpcml.options.table import of
from hpcml.plan.batch_script import quote
from hpcml.plan.make_plan import Plan, RunLocation, plan
from hpcml.request.record import Code, RunRequest, job_name
from hpcml.runs import directories, notes
from hpcml.sites import settings_layers
from hpcml.sites.lookup import LoadedSite, load_here
from hpcml.terminal import note


def parse(caller: str, taker: str, code: Code, options: Mapping[str, Any]) -> tuple[LoadedSite, RunRequest]:
    """Return the site, and the request that the keywords make.

    Parameters
    ----------
    caller
        What the user called, for errors.
    taker
        Its name in the table of options.

    Raises
    ------
    HpcmlError
        If a keyword or its value is wrong, or the site cannot be read.
    """
    if host := settings_layers.process_environment().get("HPCML_HOST", ""):
        raise UsageError(f"{caller} submits on this machine, but HPCML_HOST names another host", place=host)
    spec = request_of(given_by_keywords(options, of(taker), caller), code)
    loaded = load_here(spec.place.site, spec.code.cwd, spec.place.settings)
    project_notes = notes.of_project(loaded.project)
    notes.show([note.text for note in project_notes], project_notes=project_notes)
    spec = schedulers.with_variables(loaded.site.scheduler, spec, loaded.is_from_this_call)
    return loaded, spec.changed(name=job_name(spec))


def place(loaded: LoadedSite, below: str, name: str) -> Path:
    """Return a new folder's path beside the runs, in their folder ``below``; nothing is written.

    Raises
    ------
    StorageError
        If somebody else could replace what is there.
    """
    runs = directories.runs_folder(loaded.site.paths.runs, settings_layers.process_environment())
    for text in directories.check_folder(runs, loaded.site.paths.trust):
        note(text)
    return runs / below / directories.new_id(name)


def make(folder: Path, loaded: LoadedSite) -> None:
    """Make that folder, for this user alone (0700)."""
    with directories.storage(folder), settings_layers.narrowed_umask():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directories.check_folder(folder.parent, loaded.site.paths.trust)
        folder.mkdir(mode=0o700)


def plan_at(loaded: LoadedSite, spec: RunRequest, directory: Path) -> Plan:
    """Return the plan of one job whose files are in a folder."""
    return plan(loaded.site, spec, RunLocation(directory, sys.executable, __version__, settings_layers.user_umask()))


def environment(made: Plan, *variables: tuple[str, str]) -> list[str]:
    """Return the shell lines of a job's environment: the site's setup, its modules, its variables and some more."""
    modules = [f"module load {quote(module)} || exit 80" for module in made.modules]
    return [
        *made.setup,
        *modules,
        *(f"export {name}={quote(value)}" for name, value in (*made.environment, *variables)),
    ]


def program_folder() -> str:
    """Return the folder from which this program imports its own modules."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(program).resolve().parent if program else Path.cwd())
