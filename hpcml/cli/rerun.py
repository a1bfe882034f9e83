"""``hpcml rerun``: submit a run again, from its recorded request."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml import outputs_brought_back, safe_files
from hpcml.cli import common, submit
from hpcml.errors import HpcmlError, StorageError, UsageError
from hpcml.options.reading import request_of
from hpcml.options.table import OPTIONS
from hpcml.request.option import flag
from hpcml.runs import directories, pythons, script_or_program
from hpcml.runs.directories import complete
from hpcml.sites import key_permissions
from hpcml.terminal import note
from hpcml.typed_json import DamagedError

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.options.parser import Parser
    from hpcml.request.record import RunRequest
    from hpcml.run_files import RecordedRequest, RecordedSpec


def add_options(parser: Parser) -> None:
    """Add a submission's options, and the run whose request it is."""
    submit.add_options(parser, "rerun")
    parser.epilog = (
        "Omitted options keep the values of RUN, except --after. "
        "The options --set and --env replace values of the same name, and add all others. "
        "The current version of the script runs in the folder from which RUN was submitted. "
        "ARGS replace all arguments of RUN. -- alone removes all arguments. "
        "hpcml status RUN shows the arguments of RUN."
    )
    parser.suggest = _suggest_arguments
    common.add_run(parser, default=None)


def _suggest_arguments(given: Namespace, known: list[str], unknown: list[str]) -> str:
    """Return the command with the arguments that were typed, or the run's old ones with other values of options."""
    from hpcml.runs.record import Record

    try:
        request = None if given.parser.host else Record(common.find_run(given).paths).request
    except HpcmlError:  # there is no such run, which is not what this error is about
        request = None
    if request is None:
        return "To change the script's arguments, write all of them after --: hpcml rerun RUN -- ARGS…."
    arguments = _changed(list(request.spec.arguments), unknown) if unknown[0].startswith("-") else unknown
    return f"To change the script's arguments, type: hpcml rerun {shlex.join([*known, '--', *arguments])}."


def _changed(arguments: list[str], options: list[str]) -> list[str]:
    """Return a script's arguments with other values of options; an option that is new comes last."""
    starts = [i for i, word in enumerate(options) if word.startswith("-") or i == 0]
    for start, end in zip(starts, [*starts[1:], len(options)], strict=True):
        option = options[start:end]
        name, _, value = option[0].partition("=")
        at = next((i for i, word in enumerate(arguments) if word.partition("=")[0] == name), len(arguments))
        after = at + 1
        if "=" not in "".join(arguments[at:after]):  # as many of the old values go as there are new ones
            count = len(option) - 1 + bool(value)
            values = itertools.takewhile(lambda word: not word.startswith("-"), arguments[after : after + count])
            after += len(list(values))
        arguments[at:after] = option
    return arguments


def run(options: Namespace) -> int:
    """Submit a run's request again, with the options and arguments given now; UsageError for a run of a sweep."""
    from hpcml.runs.record import Record, code_holder

    run = common.find_run(options)
    record = Record(run.paths)
    request = record.request
    if request is None or not run.paths.plan.exists():
        hint = "Submit the script again: hpcml submit SCRIPT."
        raise StorageError(
            "request.json or plan.json is missing in the run's folder", place=str(run.paths.directory), hint=hint
        )
    spec, options.site = request.spec, options.site or record.plan.site
    if not options.site:
        record.refuse(run.paths.plan, DamagedError("site is missing"))
    if spec.sweep:
        hint = "Run the sweep's command again: it runs the missing points or, with --only-failed, the failed points."
        hint += f" To repeat another run of this name, use that run's id. List the ids: hpcml ls --name {run.name}."
        raise UsageError(f"The run belongs to the sweep '{spec.sweep}'", place=run.id, hint=hint)
    with complete(run.paths.directory):
        _take_over(options, request)
    if spec.environment:
        options.env = [*_variables(run.paths.variables), *(options.env or ())]
    with complete(run.paths.directory):
        options.line_set = _settings(request.site)
        again = _recorded_spec(options, spec, run)
    if options.run != run.id:
        note(f"this run repeats {run.id}")
    file, holder = again.code.script, code_holder(run.paths) or run.paths
    if not again.code.staged and (copy := outputs_brought_back.earlier(holder, file)):
        note(f"{file} has changed since {run.id}. To run the earlier file: hpcml submit {shlex.quote(str(copy))}")
    return submit.start(options, again)


def _take_over(options: Namespace, request: RecordedRequest) -> None:
    """Put the recorded request where the command line says nothing; the runs that it waited for have had their time."""
    from hpcml.runs.submit import EXCLUDE_FAILED

    for name in vars(options).keys() - {"after", "python"}:  # a Python counts as it was found: runtime.python
        value, spec = request.given.get(name), request.spec
        if name == "sbatch":  # what was given now stands last, so that it counts
            then = {given.partition(" ")[0] for given, origin in spec.origins if origin == EXCLUDE_FAILED}
            recorded_words = [
                f"{option}={text}" if text else option
                for option, text in spec.sbatch
                if option not in then  # the nodes that had failed when it was submitted are asked for anew
            ]
            options.sbatch = [*recorded_words, *(options.sbatch or ())] or None
        elif name == "gpus_per_node" and spec.gpus_per_node is not None and options.gpus_per_node is None:
            options.gpus_per_node = ":".join(filter(None, (spec.gpu_type, str(spec.gpus_per_node))))
        elif value not in (None, False) and not getattr(options, name):
            if name in OPTIONS and isinstance(value, bool) != (OPTIONS[name].read is flag):
                raise DamagedError(f"spec.{name} has a value of another type")
            text = value if isinstance(value, bool) else str(value)
            setattr(options, name, [text] if name in OPTIONS and OPTIONS[name].several else text)


def _variables(path: Path) -> list[str]:
    """Return the variables of a run as ``--env`` takes them."""
    try:
        return [word for word in shlex.split(safe_files.read(path).decode()) if word != "export"]
    except OSError as error:
        hint = "Submit the script again: hpcml submit --env … SCRIPT."
        raise StorageError(
            f"The run's environment variables cannot be read: {error.strerror}", place=str(path), hint=hint
        ) from error


def _settings(site: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of options, of the script's lines, and those found for the run, each with its origin.

    A record may have come with somebody else's code, as a script may. So all of it counts as a line's, whatever the
    record says of itself: it names no program here, and what a line may not set is left out, with a note.
    """
    settings = [*pythons.kept(site)]
    refused: list[str] = []
    for key, entry in site.items():
        if key == pythons.KEY or not isinstance(entry, dict) or not pythons.is_kept(entry):
            continue
        if key_permissions.is_refused(key):
            refused.append(key)
        else:
            settings.append((f"{key}={json.dumps(entry['value'])}", str(entry.get("origin"))))
    if refused:
        note(f"hpcml does not take over {', '.join(refused)} from a run's record. To use this again, type --set")
    return settings


def _recorded_spec(options: Namespace, recorded: RecordedSpec, run: directories.Run) -> RunRequest:
    """Return the request; of a script that a laptop sent, the run's copy is all there is."""
    from hpcml.runs.record import check_code_holder, code_holder

    if not recorded.script or not recorded.cwd:
        raise DamagedError("spec.script or spec.cwd is missing")
    staged, form, root = recorded.staged, recorded.form, recorded.root if recorded.staged else ""
    script, folder = Path(recorded.script), Path(recorded.cwd)
    holder = code_holder(run.paths)
    check_code_holder(holder)
    code = (holder or run.paths).code
    if root and script.is_relative_to(root) and folder.is_relative_to(root):
        script, folder = code / script.relative_to(root), code / folder.relative_to(root)
        root = str(code)
    elif staged:
        script, folder, root = code / script.name, code, ""
    if form.service and options.script_words:
        hint = "Remove -- and the words after it."
        raise UsageError("The run has no script that takes arguments", place=run.id, hint=hint)
    arguments = options.script_words[1:] if options.script_words else recorded.arguments
    if options.script_words and (old := recorded.arguments) and list(old) != list(arguments):
        note(f"the script's arguments change from {shlex.join(old)} to {shlex.join(arguments) or 'none'}")
    command_line = [form.service or str(script), *arguments]
    spec = request_of(vars(options), script_or_program.code(command_line, common.here())._replace(form=form))
    spec = spec.changed(cwd=folder, staged=staged, sent_from=recorded.sent_from)
    spec = spec.changed(idle=recorded.idle)
    spec = spec.changed(script=script, root=root)
    spec = spec.changed(interpreter=recorded.interpreter, in_place=recorded.in_place)
    spec = spec.changed(batch_words=recorded.batch_words)
    return spec.changed(sources=()) if staged or not script.is_absolute() else spec
