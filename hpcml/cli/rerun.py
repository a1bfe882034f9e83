"""``hpcml rerun``: submit a run's request again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml import files
from hpcml.cli import common, submit
from hpcml.errors import StorageError, UsageError
from hpcml.request.options import OPTIONS
from hpcml.request.reading import request_of
from hpcml.runs import directories, programs
from hpcml.runs import submit as submission
from hpcml.runs.directories import Table, complete

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.request.record import RunRequest


def add_options(parser: ArgumentParser) -> None:
    """Add a submission's options, and the run whose request it is."""
    submit.add_options(parser, "rerun")
    parser.epilog = "The script is taken as it is now, in the folder from which the run was submitted."
    common.add_run(parser, default=None)


def run(options: Namespace) -> int:
    """Submit the request of a run again; options given now win over those that it was submitted with."""
    run = common.find_run(options)
    request = directories.read_json(run.paths.request)
    plan = directories.read_json(run.paths.plan)
    if request is None or plan is None:
        hint = "Submit it anew: hpcml submit SCRIPT."
        raise StorageError("The run's record holds no request", place=str(run.paths.request), hint=hint)
    with complete(run.paths.directory):
        recorded = Table(request.get("spec", dict))
        options.site = options.site or plan.get("site", str)
        if name := recorded.get("sweep", str, ""):
            hint = "Type the command of the sweep again: it runs what is missing, with --only-failed what failed."
            raise UsageError(f"The run is one of the sweep '{name}'", place=run.id, hint=hint)
        _take_over(options, recorded)
        if recorded.facts.get("environment"):
            options.env = [*_variables(run.paths.variables), *(options.env or ())]
        options.set = [*_settings(request.get("site", dict)), *(options.set or ())]
        spec = _spec(options, recorded, run)
    return submit.start(options, spec)


def _take_over(options: Namespace, recorded: Table) -> None:
    """Put the recorded request where the command line says nothing; the runs that it waited for have had their time."""
    for name in vars(options).keys() - {"after"}:
        value = recorded.facts.get(name)
        if name == "sbatch":  # what was given now stands last, so that it counts
            then = {
                str(given).partition(" ")[0]
                for given, origin in recorded.get("origins", list, [])
                if origin == submission.EXCLUDE_FAILED
            }
            recorded_words = [
                f"{option}={text}" if text else str(option)
                for option, text in recorded.get(name, list, [])
                if option not in then  # the nodes that had failed when it was submitted are asked for anew
            ]
            options.sbatch = [*recorded_words, *(options.sbatch or ())] or None
        elif name == "gpus_per_node" and value is not None and options.gpus_per_node is None:
            options.gpus_per_node = ":".join(filter(None, (recorded.get("gpu_type", str, ""), str(value))))
        elif value not in (None, False) and not getattr(options, name):
            text = value if isinstance(value, bool) else str(value)
            setattr(options, name, [text] if name in OPTIONS and OPTIONS[name].several else text)


def _variables(path: Path) -> list[str]:
    """Return the variables of a run as ``--env`` takes them."""
    try:
        return [word for word in shlex.split(files.read(path).decode()) if word != "export"]
    except OSError as error:
        hint = "Submit it anew: hpcml submit --env … SCRIPT."
        raise StorageError(
            f"The run's variables cannot be read: {error.strerror}", place=str(path), hint=hint
        ) from error


def _settings(site: dict[str, Any]) -> list[str]:
    """Return what was given with ``--set``."""
    return [
        f"{key}={json.dumps(entry['value'])}"
        for key, entry in site.items()
        if isinstance(entry, dict) and entry.get("origin") == "--set"
    ]


def _spec(options: Namespace, recorded: Table, run: directories.Run) -> RunRequest:
    """Return the request; of a script that a laptop sent, the run's own copy is all there is."""
    staged, service = recorded.get("staged", bool, False), recorded.get("service", str, "")
    script, folder = Path(recorded.get("script", str)), Path(recorded.get("cwd", str))
    if staged:
        script, folder = run.paths.code / script.name, run.paths.code
    words = [service or str(script), *recorded.texts("arguments")]
    spec = request_of(vars(options), programs.code(words, common.here()))
    spec = spec.changed(cwd=folder, staged=staged, service=service, idle=recorded.number("idle"))
    spec = spec.changed(script=script, form=recorded.get("form", str, ""))
    spec = spec.changed(interpreter=recorded.texts("interpreter"), in_place=recorded.get("in_place", bool, False))
    return spec.changed(sources=()) if staged or not script.is_absolute() else spec
