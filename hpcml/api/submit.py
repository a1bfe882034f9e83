"""The login node's side in Python: ``hpcml.submit()``, ``hpcml.find_run()`` and ``hpcml.list_runs()``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcml.errors import UsageError
from hpcml.options import parser
from hpcml.options.reading import as_texts, given_by_keywords
from hpcml.options.table import of
from hpcml.runs import directories, gpus_chosen, notes
from hpcml.runs import submit as submission
from hpcml.runs.handle import RunHandle
from hpcml.sites import settings_layers


def submit(script: str | os.PathLike[str], *arguments: object, **options: Any) -> RunHandle:
    """Submit a script as ``hpcml submit`` does, and return the run without waiting for it.

    Parameters
    ----------
    script
        The script's path; a relative one begins at the present folder.
    arguments
        The script's own arguments, each given to it as text.
    options
        Those of ``hpcml submit`` that describe the run (docs/reference-commands.md), with ``_`` for ``-`` and the same
        defaults: ``nodes=4, time="2h", gpus_per_node=4, site="leonardo", image="cpu.sif", …``. A flag is ``True``; an
        option that can be repeated takes a list, and one of ``KEY=VALUE`` a mapping: ``set={"workers.per_node": 4}``.
        None is the same as to leave the option out.

    Returns
    -------
    RunHandle
        The run, which Slurm has taken; with ``prepare=True`` its ``line`` submits it. Notes go to standard error.

    Raises
    ------
    HpcmlError
        With the message, place, hint and ``exit_status`` of the command, if nothing was submitted; with status
        ``ANSWER_LOST`` if it is not known whether the job exists.
    """
    if host := settings_layers.process_environment().get("HPCML_HOST", ""):
        hint = f"Call hpcml.submit() on the login node, or use the command: hpcml --host {host} submit."
        raise UsageError(
            "hpcml.submit() submits on this machine, but HPCML_HOST names another host", place=host, hint=hint
        )
    keywords = {name: _word(value) for name, value in options.items()}
    given = given_by_keywords(keywords, of("python"), "hpcml.submit()")
    command = [os.fspath(script), *(["--"] if arguments else []), *map(str, arguments)]  # all of them are the script's
    with settings_layers.narrowed_umask():
        spec = submission.script_request(given, command, parser.of("submit"))
        by_hand = bool(given.get("prepare"))
        prepared = submission.prepare_request(spec, by_hand=by_hand, may_choose_gpus=True)
        on_gpus = [text for _, text in gpus_chosen.lines(prepared.plan.gpus_because)]
        notes.show([*prepared.notes, *on_gpus], [*prepared.always, *on_gpus], prepared.project_notes)
        run = submission.submit(prepared, by_hand=by_hand)
    notes.show_submitted(run.submission)
    return RunHandle(run)


def _word(value: object) -> object:
    """Return a run as the word that names it, also in a list; any other value as it is."""
    if isinstance(value, (list, tuple)):
        return [_word(part) for part in value]
    return value.id if isinstance(value, RunHandle) else value


def find_run(word: str = "last", *, site: str = "", set: Mapping[str, Any] | None = None) -> RunHandle:  # noqa: A002
    """Return the run that a word means: a run's id or its beginning, its name, its Slurm job id, or ``last``.

    Parameters
    ----------
    site, set
        Whose runs folder to look in, as for ``hpcml status``: a site's name, and values of its profile.

    Raises
    ------
    NotFoundError
        If there is none, or several begin so.
    """
    return RunHandle(directories.find(_folder(site, set), word))


def list_runs(
    last: int | None = 20,
    *,
    site: str = "",
    set: Mapping[str, Any] | None = None,  # noqa: A002
) -> list[RunHandle]:
    """Return this user's newest runs, newest last; all of them with ``last=None``. See :func:`find_run`."""
    folder = _folder(site, set)
    return [
        RunHandle(directories.load(folder / name)) for name in directories.newest(folder, directories.ids(folder), last)
    ]


def _folder(site: str, values: Mapping[str, Any] | None) -> Path:
    return directories.runs_folder_of(site, as_texts(values or {}))
