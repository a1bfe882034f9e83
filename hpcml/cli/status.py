"""``hpcml status``: how a run stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import MEANING, UNREACHABLE, SlurmUnreachableError
from hpcml.terminal import say

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.runs import status as run_status


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Show what is known of a run."""
    from hpcml.runs import status as run_status
    from hpcml.runs import submit as submission

    run, silent = common.find_run(options), ""
    try:
        run = submission.adopt(run)
    except SlurmUnreachableError as error:
        silent = error.message
    found = run_status.status(run)
    found = found._replace(silent=found.silent or silent)
    code = UNREACHABLE if found.silent and found.phase == "unknown" else 0
    if options.json:
        common.print_json(found.as_json())
        return code
    for key, value in _lines(found):
        say(f"{key:<10} {value}")
    for line in found.quote:
        say(f"  | {line}")
    if found.hint:
        say(found.hint)
    return code


def _lines(found: run_status.Status) -> list[tuple[str, str]]:
    """Return what is known of a run, each fact under its key."""
    from hpcml.cli.progress import phases

    lines = [("run", found.run), ("site", found.site), ("state", f"{found.state}: {found.message}")]
    if found.job:
        lines.append(("job", f"{found.job} {found.job_state}".strip()))
    if found.silent:
        lines.append(("slurm", f"{found.silent} (all this is from the run's own files)"))
    if found.estimate:
        lines.append(("estimate", f"Slurm expects a start at {found.estimate}"))
    if found.nodes:
        lines.append(("nodes", ", ".join(found.nodes)))
    if found.phase in ("starting", "running"):
        lines.append(("workers", f"{found.workers}/{found.expected}"))
    lines += [
        (key, value)
        for key in ("jupyter", "versions", "protocol", "security", "fabric")
        if (value := getattr(found, key))
    ]
    lines += [("differ", difference) for difference in found.differences]
    lines += [("warning", warning) for warning in found.warnings]
    lines += phases(found)
    if found.exit_status is not None:
        meaning = MEANING.get(found.exit_status, "") if found.by != "script" else "the script's own"
        lines.append(("exit", f"{found.exit_status} ({meaning})" if meaning else str(found.exit_status)))
    return [*lines, ("directory", found.directory)]
