"""``hpcml status``: the state of a run."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING

from hpcml import features_by_point
from hpcml.cli import commands, common
from hpcml.errors import MEANING, STOPPED, UNREACHABLE, UsageError, did_you_mean, nearest
from hpcml.states import Phase
from hpcml.terminal import columns, fitted, json_text, say, say_fitted, say_state
from hpcml.units import first_of_many

_NAMED = 3  # files that were brought
_ABOVE_QUOTE = ("run", "site", "state", "cause")  # which lines are above what shows the cause

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence
    from typing import Any

    from hpcml.attempt_history import Attempt
    from hpcml.runs import directories
    from hpcml.runs import status as run_status


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser)
    parser.add_argument(
        "--notes", action="store_true", help="show the notes: hpcml's remarks and warnings at the submission"
    )
    text = "print only this value of the JSON record, e.g. directory, state, exit_status or asked.nodes"
    parser.add_argument("--field", metavar="NAME", help=text)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="update the display until the run ends, like hpcml top"
    )


def run(options: Namespace) -> int:
    """Show what is known of a run; UsageError for --field with -f, --json or --notes."""
    if options.field is not None and (options.follow or options.json or options.notes):
        raise UsageError(
            "--field cannot be combined with -f, --json or --notes", place="--field", hint="Use one of them."
        )
    if options.follow:
        options.once, options.interval = False, None
        return commands.run("top", options)
    run, host = common.find_run(options), common.host_of(options)
    if options.field is not None:
        return _show_value(run, options.field)
    return show(run, as_json=options.json, all_notes=options.notes, host=host)


def show(run: directories.Run, *, as_json: bool, all_notes: bool, host: str) -> int:
    """Print what is known of a run; ``host`` is how the laptop that asks names this machine, if one asks."""
    from hpcml import attempt_history
    from hpcml.run_files import Recorded
    from hpcml.runs import request_cost
    from hpcml.runs import status as run_status

    run, status = run_status.now(run)
    code = _code(status)
    request = request_cost.described(run, status)
    if as_json:
        common.print_json(request)
        return code
    if host:  # as the laptop names this machine, which its command is for
        place = re.compile("(?<=hpcml --host ).*(?= tunnel )")
        named = (
            service._replace(command=place.sub(lambda _: shlex.quote(host), service.command))
            for service in status.progress.services
        )
        status = status.changed(services=tuple(named))
    before = attempt_history.earlier(Recorded(run.paths), status.progress.attempt)
    lines = _lines(status, features_by_point.only("cause of a state")(run, status), before, request["asked"])
    lines += [("results", common.typed(request["results"], sys.stdout))] if request["results"] else []
    notes = request["notes"]
    if notes and not all_notes:
        lines.append(("notes", f"{len(notes)}: hpcml status --notes {run.id}"))
    head = next((place for place, (key, _) in enumerate(lines) if key not in _ABOVE_QUOTE), len(lines))
    _say_lines(lines[:head])
    for line in status.ending.quote:
        say(f"  | {line}")
    _say_lines(lines[head:] + [("note", str(text)) for text in notes if all_notes])
    if status.over:
        files = features_by_point.collected("files of an end", run)
        _say_lines([(title, common.typed(path, sys.stdout)) for title, path in files])
        for title, command in features_by_point.collected("commands of an end", run):
            say(f"{title:<10} {common.from_host(host, command)}")  # whole: it is to be copied
    if status.phase == Phase.PREPARED and run.submission:
        say("Submit the run with:")
        say(run.submission.line)  # whole, also on a narrow terminal: it is to be copied
    elif status.hint:
        say_fitted(status.hint, sys.stdout)
    return code


def _code(status: run_status.Status) -> int:
    return UNREACHABLE if status.allocation.silent and status.phase == Phase.UNKNOWN else 0


def _show_value(run: directories.Run, field: str) -> int:
    """Print a value of a run's record by its name; a dot is before the name of a value within it."""
    from hpcml.runs import request_cost
    from hpcml.runs import status as run_status

    run, status = run_status.now(run)
    value: Any = request_cost.described(run, status)
    for name in field.split("."):
        names = list(value) if isinstance(value, dict) else []
        if name not in names:
            hint = did_you_mean(nearest(name, names), "To see all values: hpcml status --json.")
            raise UsageError(f"The record has no value '{field}'", place="--field", hint=hint)
        value = value[name]
    say(value if isinstance(value, str) else json_text(value))
    return _code(status)


def _say_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Print facts behind their keys, the state in its colour."""
    for key, value in lines:
        folded = fitted(value, columns(sys.stdout), first=f"{key:<10} ", rest=" " * 11)
        for number, line in enumerate(folded):
            is_state = key == "state" and number == 0
            say_state(line, 11, common.state_colours() if is_state else {})


def _lines(
    status: run_status.Status, cause: str, before: Sequence[Attempt], asked: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the known facts of a run under their keys, of the attempts ``before`` and of what was ``asked`` for."""
    from hpcml.attempt_history import sentence
    from hpcml.cli.waiting_display import phases
    from hpcml.runs import request_cost

    progress = status.progress
    lines = [("run", status.run), ("site", status.planned.site), ("state", f"{status.state}: {status.message}")]
    rows = [("cause", cause), ("command", status.planned.command), ("asked", request_cost.sentence(asked))]
    rows += [("idle", status.idling.removeprefix("idle for ")), ("hold", status.planned.hold)]
    lines += [(key, text) for key, text in rows if text]
    if progress.attempt:
        lines.append(("attempt", f"{progress.attempt} of this run (the first is 0)"))
    lines += [("also", other.sentence) for other in status.ending.others]
    lines += [("before", sentence(attempt)) for attempt in before]
    lines += _of_allocation(status.allocation)
    if status.alone:
        lines.append(("cluster", status.no_cluster))
    elif status.planned.expected and status.phase in (Phase.STARTING, Phase.RUNNING):
        lines.append((f"{status.noun}s", f"{status.cluster.workers}/{status.planned.expected}"))
    values = status.fields()
    lines += [("service", line.sentence) for line in progress.services]
    keys = ("versions", "protocol", "address", "security", "interconnect")
    lines += [(key, values[key]) for key in keys if values[key]]
    lines += [("differ", difference) for difference in progress.differences]
    lines += [("repair", text) for text in _of_repairs(progress.repairs)]
    lines += [("warning", warning) for warning in (*progress.warnings, *status.silences())]
    if names := status.written.brought:
        place = common.typed(status.written.original, sys.stdout)
        lines.append(("brought", f"to {place}: {first_of_many(names, _NAMED)}"))
    lines += phases(status)
    if (exit_status := status.exit_status) is not None:
        by_script = status.ending.by == "script" and exit_status != STOPPED
        meaning = "from the script" if by_script else MEANING.get(exit_status, "")
        lines.append(("exit", f"{exit_status} ({meaning})" if meaning else str(exit_status)))
    return [*lines, ("directory", common.typed(status.directory, sys.stdout))]


def _of_repairs(rows: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a sentence for each repair that is not applied."""
    if not rows:
        return []
    from hpcml import repairs

    decisions = {name: repairs.Decision(**row) for name, row in rows.items()}
    return [one.sentence(name) for name, one in decisions.items() if one.state != repairs.APPLIED]


def _of_allocation(allocation: run_status.Allocation) -> list[tuple[str, str]]:
    """Return the known facts of a run's job under its keys."""
    rows = (
        ("job", allocation.job and f"{allocation.job} {allocation.job_state}".strip()),
        ("slurm", allocation.silent and f"{allocation.silent} (all other lines come from the run's own files)"),
        ("estimate", allocation.estimate and f"Slurm expects a start at {allocation.estimate}"),
        ("nodes", ", ".join(allocation.nodes)),
    )
    return [(key, text) for key, text in rows if text]
