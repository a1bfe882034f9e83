"""``hpcml why``: why a run failed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.cli.ls import cut
from hpcml.errors import StorageError
from hpcml.paths import SCRIPT
from hpcml.runs import directories
from hpcml.states import Phase, State
from hpcml.terminal import say, say_facts, say_fitted, say_message
from hpcml.units import format_age

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from pathlib import Path

    from hpcml.failures.evidence import Line
    from hpcml.runs import status as run_status
    from hpcml.runs.why import Answer

_WIDEST = 240  # characters of a quoted line


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    parser.epilog = "Without RUN, hpcml explains the newest failed run."
    common.add_run(parser, default="")
    common.add_site(parser)
    common.add_json(parser)
    parser.add_argument(
        "--bundle",
        action="store_true",
        help="write RUN.tar.gz for support: the cause of the failure, settings and logs, without code and results",
    )


def run(options: Namespace) -> int:
    """Show why a run failed."""
    from hpcml.runs import bad_nodes, why

    first = ""
    if options.run:
        run = common.find_run(options)
        status, answer = why.look(run)
    else:
        run, status, answer, first = _newest_failed(common.runs_folder(options))
    bad_nodes.remember(status, answer)
    if options.bundle:
        return _bundle(run, answer, common.host_of(options), as_json=options.json)
    if options.json:
        common.print_json(answer.as_json())
        return 0
    if first:
        say_fitted(first, sys.stdout)
    _show(answer, status, common.host_of(options), named=bool(options.run))
    return 0


def _newest_failed(folder: Path) -> tuple[directories.Run, run_status.Status, Answer, str]:
    """Return the newest run that failed with its explanation, and what is to be said first if a newer one did not.

    If no run failed, it is the newest one.
    """
    from hpcml.runs import listing, why

    run_ids = directories.ids(folder)
    newest = directories.newest(folder, run_ids, 1)  # "last" may be older: it is not a refused run
    run = directories.load(folder / newest[0]) if newest else directories.find(folder, "last")
    status, answer = why.look(run)
    if answer.failed:
        return run, status, answer, ""
    failed, _ = listing.newest(folder, run_ids, 1, failed=True)
    if not failed:
        return run, status, answer, ""
    ended = "succeeded" if status.over and status.state != State.CANCELLED else f"is {status.state} ({status.message})"
    first = f"The newest run, {run.id}, {ended}. The newest run that failed is {failed[0].run}:"
    run = directories.load(folder / failed[0].run)
    return run, *why.look(run), first


def _bundle(run: directories.Run, answer: Answer, host: str, *, as_json: bool) -> int:
    """Pack the run's record and its logs, without secrets, into a file in the current folder."""
    from hpcml.runs import bundle

    target = common.here() / f"{run.id}.tar.gz"
    if target.exists():
        raise StorageError(
            "The file already exists", place=str(target), hint="Remove the file, or change to another folder."
        )
    count = bundle.write(run, answer, target)
    if as_json:
        common.print_json({"bundle": str(target), "files": count})
    else:
        say(f"{host}{':' if host else ''}{target}: {count} files.")
        if host:
            say_fitted(f"The file is on {host}. Copy the file with scp.", sys.stdout)
        taken = "The archive contains no values of environment variables, and no texts that look like secrets."
        say_fitted(f"{taken} The file may contain other secrets: check the file before you send it.", sys.stdout)
    return 0


def cause_of(run: directories.Run, status: run_status.Status) -> str:
    """Return the cause of a run's failure in one line; empty where its state tells it, or it did not fail."""
    if not (status.phase == Phase.ENDED and status.exit_status):
        return ""
    from hpcml.runs import bad_nodes, why

    answer = why.of_status(run, status)
    bad_nodes.remember(status, answer)
    return answer.sentence if answer.failed and answer.cause != status.message else ""


def tell_end(run: directories.Run, status: run_status.Status) -> None:
    """Say why a run failed that has just ended, where the line of its end has not said it, and how to run it again."""
    from hpcml.runs import bad_nodes, why

    answer = why.of_status(run, status)
    bad_nodes.remember(status, answer)
    # That the script ran when the time limit came is no news.
    in_script = answer.rule == "time-limit" and f"{SCRIPT}-started" in status.progress.times
    is_said = in_script or not answer.cause or answer.cause == status.message
    if answer.failed and answer.rule not in ("", "exit") and not is_said:
        say_message(f"hpcml: cause: {answer.sentence} More: hpcml why {run.id}.")
    if answer.again:
        say_message(f"hpcml: to run the script again: {answer.again}")


def _show(answer: Answer, status: run_status.Status, host: str, *, named: bool) -> None:
    say(f"{'run':<10} {answer.run}")
    rows = [("cause", answer.sentence) if answer.failed else ("state", f"{answer.state}. {answer.sentence}")]
    if answer.rank is not None:
        log = f"{answer.log}: {common.from_host(host, f'hpcml logs {answer.run} rank:{answer.rank}')}"
        rows.append(("rank", f"{answer.rank} on {answer.node}, {log}"))
    rows += [("also", other.sentence) for other in answer.others]
    is_refused = status.phase == Phase.REFUSED
    if when := directories.submitted_at(answer.run) if is_refused else status.end_time:
        newer = "" if named else ". If hpcml refused a newer command, this command has no run"
        rows.append(("refused" if is_refused else "ended", f"{format_age(time.time() - when)} ago{newer}"))
    say_facts([*rows, ("command", status.planned.command)] if status.planned.command else rows)
    evident = {line.text for line in answer.evidence}
    later = [line for line in answer.followed if line.text not in evident]
    for title, lines in (("evidence", answer.evidence), ("then", later), ("warning", answer.warnings)):
        for line in lines:
            if place := _place(line):
                say(f"{title:<10} {place}")
            else:
                say(title)
            say(f"  | {cut(line.text, _WIDEST)}")
    say_facts(("before", attempt) for attempt in answer.attempts)
    for look in answer.look:
        say(f"{'look':<10} {common.from_host(host, look)}")
    if answer.next_step:
        say_facts([("next", answer.next_step)])
    if answer.again:
        say(f"{'again':<10} {common.from_host(host, answer.again)}")


def _place(line: Line) -> str:
    parts = [line.file]
    if line.number:
        parts.append(f"line {line.number}")
    if line.time:
        parts.append(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time)))
    if line.node:
        parts.append(f"on {line.node}")
    return ", ".join(part for part in parts if part)
