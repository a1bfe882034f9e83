"""``hpcml fetch`` at both ends: the login node offers a run's files, the laptop takes those that it has not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml import outputs_brought_back, subprocesses
from hpcml.cli import common
from hpcml.cli.common import metered
from hpcml.errors import NotFoundError, StorageError, UsageError
from hpcml.remote import answers, fetched, login_call, transfer
from hpcml.remote.transfer import Entry, Offer
from hpcml.runs import files_of_killed_runs, record
from hpcml.safe_files import parsed
from hpcml.terminal import note, say
from hpcml.units import counted, format_bytes

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.cli.on_host import Laptop
    from hpcml.paths import RunPaths
    from hpcml.remote.server import RemoteSession
    from hpcml.runs import directories


_CODE = "code/"  # the folder for files that the script wrote beside its code


def add_options(parser: ArgumentParser) -> None:
    """Add what this verb takes."""
    parser.epilog = "Use fetch on a laptop: hpcml --host HOST fetch RUN. hpcml skips files that the laptop already has."
    common.add_run(parser, default=None)
    common.add_site(parser)
    common.add_json(
        parser,
        "print JSON: the local folder, the numbers of copied files and bytes, and the number of skipped files",
    )
    parser.add_argument("dest", metavar="DEST", nargs="?", default="", help="local folder (default: ./RUN)")


def run(options: Namespace) -> int:
    """``hpcml fetch RUN``: on the login node, for the laptop that called; elsewhere UsageError: nothing to fetch."""
    session: RemoteSession | None = options.caller
    try:
        run = common.find_run(options)
    except NotFoundError as error:
        if session is not None:
            raise
        hint = f"To copy a run of the cluster to this laptop: hpcml --host HOST fetch {options.run}."
        raise NotFoundError(error.message, place=error.place, hint=hint) from error
    if session is None:
        results = run.paths.out.is_dir() and any(run.paths.out.iterdir())
        message = "The run's results are already on this machine" if results else "The run wrote no results"
        raise UsageError(
            message,
            place=str(run.paths.out),
            hint="To copy results to a laptop: hpcml --host HOST fetch RUN. To share results: hpcml help colleague.",
        )
    entries, others = transfer.listing(run.paths.out)
    if len(entries) > transfer.MOST_FILES:
        raise transfer.too_many(len(entries), str(run.paths.out))
    taken = {entry.name.partition("/")[0] for entry in entries}
    holder = record.code_holder(run.paths)
    reports, beside = _reports(run, taken), _beside(run, holder, taken)
    entries += [*reports, *beside]
    offer = json.dumps({"run": run.id, "files": entries, "others": others, "ended": _is_over(run)}).encode()
    out = sys.stdout.buffer
    out.write(session.header["nonce"].encode() + b" " + offer + b"\n")
    out.flush()
    for entry in _wanted(session, entries):
        of_results = run.paths.directory if entry in reports else run.paths.out
        transfer.send((holder or run.paths).directory if entry in beside else of_results, [entry], out.write)
    out.flush()
    if beside:
        with transfer.files(run.paths.directory):
            stamps = {e.name.removeprefix(_CODE): outputs_brought_back.stamp(e.size, e.changed) for e in beside}
            outputs_brought_back.note_fetched(holder or run.paths, stamps)
    record.check_code_holder(holder)  # the task's other files are sent nevertheless
    return 0


def _wanted(session: RemoteSession, entries: list[Entry]) -> list[Entry]:
    """Return the files that the laptop wants; none if it has gone.

    Raises
    ------
    UsageError
        If it wants what is not on the list.
    """
    text = session.line()
    session.watch()
    try:
        return [entries[index] for index in parsed(json.loads, text.decode() or "[]") if index >= 0]
    except (ValueError, TypeError, IndexError) as error:
        hint = "Use the same version of hpcml on the laptop and on the cluster."
        raise UsageError("The laptop sent an invalid request for files", place="hpcml fetch", hint=hint) from error


def _reports(run: directories.Run, taken: set[str]) -> list[Entry]:
    """Return the run's report; what has that name among the script's results counts instead."""
    names = [path.name for path in (run.paths.report, run.paths.report_facts) if path.name not in taken]
    return _entries(run.paths, names)


def _beside(run: directories.Run, holder: RunPaths | None, taken: set[str]) -> list[Entry]:
    """Return the files that the script wrote beside its code and that only the run has, as ``code/NAME``.

    ``holder``: the task of an array in whose copy of the code all its tasks write.
    """
    if _CODE.rstrip("/") in taken:  # among the script's results
        return []
    paths = holder or run.paths
    if holder or (outputs_brought_back.of(paths) is None and _is_over(run)):
        with transfer.files(paths.directory):
            files_of_killed_runs.settle(paths, 0)
    return _entries(paths, [f"{_CODE}{name}" for name in outputs_brought_back.to_fetch(paths)])


def _entries(run: RunPaths, names: Sequence[str]) -> list[Entry]:
    entries, top = [], os.path.realpath(run.directory)
    for name in names:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is none
            path = run.directory / name
            status = path.lstat()
            is_below = os.path.realpath(path.parent) == str(Path(top, name).parent)  # by no link, and by no `..`
            if stat.S_ISREG(status.st_mode) and is_below:
                entries.append(Entry(name, status.st_size, status.st_mtime_ns, status.st_mode & 0o777))
    return entries


def _is_over(run: directories.Run) -> bool:
    """Whether no result or report can follow; a run whose processes are being ended has no report yet."""
    try:
        end = record.Record(run.paths).end
    except StorageError:  # its results are brought all the same
        return False
    return end is not None and end.over


def from_laptop(laptop: Laptop) -> int:
    """Bring a run's files into a folder of this laptop."""
    connection, options = laptop.connect(), laptop.options
    arguments = ["fetch", *([f"--site={options.site}"] if options.site else [])]
    arguments += [f"--set={value}" for value in options.set or ()]
    # `--` so that no name is taken for an option
    call = login_call.Call(
        connection, [*arguments, "--", options.run], login_call.Guard(sys.stderr), out=subprocesses.PIPE
    )
    try:
        call.begin(reads=True)
        with login_call.patience(call.child, connection.host) as heard:
            assert call.child.out is not None
            mark = call.nonce.encode() + b" "
            line = login_call.marked_line(call.child.out, mark, answers.LONGEST_LINE, connection.host)
            received = (
                _take(call, transfer.offer_of(line, connection.host), options, heard) if line is not None else None
            )
        status = call.end()
    except transfer.CutShortError:
        if (status := call.end()) == 0:
            raise
        return status  # the other end has said why
    finally:
        call.stop()
    if status == 0 and received is not None and options.json:
        common.print_json(received)
    return status


def _take(call: login_call.Call, offer: Offer, options: Namespace, heard: Callable[[], None]) -> dict[str, Any]:
    """Bring the files that are not here yet; return the result."""
    assert call.child.out is not None
    folder = Path.cwd() / (options.dest or offer.run)
    fetched.remember(folder)
    with transfer.files(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if parts := transfer.remove_parts(folder, offer.files):
        note(f"removed {counted(parts, 'part')} of files that earlier fetches left")
    wanted = [index for index, entry in enumerate(offer.files) if not _here(folder, entry)]
    size = sum(offer.files[index].size for index in wanted)
    here = len(offer.files) - len(wanted)
    also = (f"; {here} already here" if here else "") + (
        f"; {offer.others} links and special files are not copied" if offer.others else ""
    )
    say(f"{offer.run}: {len(wanted)} files, {format_bytes(size)} to {folder}{also}.", sys.stderr)
    if not offer.ended:
        note("the run has not ended; fetch the results again later")
    if shutil.disk_usage(folder).free < size:
        hint = "Free disk space, or name another folder: hpcml --host HOST fetch RUN DEST."
        raise StorageError(
            f"This laptop has not enough disk space for {format_bytes(size)}", place=str(folder), hint=hint
        )
    call.write(json.dumps(wanted).encode() + b"\n")
    with metered(size) as received:

        def took(count: int) -> None:
            received(count)
            heard()

        for index in wanted:
            transfer.receive(folder, offer.files[index], call.child.out.read1, took)
            heard()
    return {"run": offer.run, "folder": str(folder), "fetched": len(wanted), "bytes": size, "here_already": here}


def _here(folder: Path, entry: Entry) -> bool:
    """Whether a file of that size and time is here; no link is followed for the file itself."""
    try:
        stat_result = (folder / entry.name).lstat()
    except (OSError, ValueError):
        return False
    return (stat_result.st_size, stat_result.st_mtime_ns) == (entry.size, entry.changed)
