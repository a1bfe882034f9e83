"""The login node's side in Python: ``hpcml.submit()``, ``hpcml.find_run()`` and ``hpcml.list_runs()``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcml.cli import common, main
from hpcml.cli import submit as submit_verb
from hpcml.errors import UsageError, did_you_mean, nearest
from hpcml.runs import directories
from hpcml.runs import submit as submission
from hpcml.runs.handle import RunHandle
from hpcml.sites import layers
from hpcml.terminal import json_text, note

# what becomes of the request, and the answer
_OF_THE_COMMAND = ("help", "dry_run", "check", "wait", "detach", "json", "parser")


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
    if host := layers.process_environment().get("HPCML_HOST", ""):
        hint = f"Call it on the login node, or use the command: hpcml --host {host} submit."
        raise UsageError("hpcml.submit() submits on this machine, and HPCML_HOST names another", place=host, hint=hint)
    parser = main.build_parser("submit")
    request = parser.parse_args(words_of(parser, options))
    request.caller, request.script_words = (
        None,
        [os.fspath(script), *(["--"] if arguments else []), *map(str, arguments)],
    )
    with layers.narrowed_umask():
        prepared = submit_verb.prepare_to_submit(request, submit_verb.script_spec(request))
        run = submission.submit(prepared, by_hand=request.prepare)
    for text in run.submission.notes if run.submission else ():
        note(text)
    return RunHandle(run)


def words_of(parser: argparse.ArgumentParser, options: Mapping[str, Any], caller: str = "hpcml.submit()") -> list[str]:
    """Return keywords as the words of a command line; UsageError if there is no such option."""
    options_there = parser._option_string_actions  # noqa: SLF001 - argparse tells them nowhere else
    names = [word[2:].replace("-", "_") for word in options_there if word.startswith("--")]
    names = [name for name in names if name not in _OF_THE_COMMAND]
    words = []
    for name, value in options.items():
        if name not in names:
            hint = did_you_mean(nearest(name, names), "hpcml submit --help lists them; what waits is run.wait().")
            raise UsageError(f"{caller} has no option '{name}'", place=f"{name}={value!r}", hint=hint)
        if value is None or value is False:
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            values: list[object] = [f"{key}={_text(one)}" for key, one in value.items()]
        else:
            values = list(value) if isinstance(value, (list, tuple)) else [value]
        words += [option if one is True else f"{option}={_text(one)}" for one in values]
    return words


def _text(value: object) -> str:
    if isinstance(value, RunHandle):
        return value.id
    return json_text(value) if isinstance(value, (bool, list, tuple, dict)) else str(value)


def find_run(word: str = "last", *, site: str = "", set: Mapping[str, Any] | None = None) -> RunHandle:  # noqa: A002
    """Return the run that a word means: a run's id or its beginning, its name, its Slurm job id, or ``last``.

    Parameters
    ----------
    site, set
        Whose folder for runs to look in, as for ``hpcml status``: a site's name, and values of its profile.

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
    assignments = [f"{key}={_text(value)}" for key, value in (values or {}).items()]
    return common.runs_folder(argparse.Namespace(site=site, set=assignments))
