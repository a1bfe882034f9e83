"""``hpcml --host HOST …`` on a laptop, and ``hpcml fetch`` at both ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hpcml import subprocesses
from hpcml.cli import common, misplaced
from hpcml.cli.meter import metered
from hpcml.errors import StorageError, UsageError
from hpcml.remote import channel
from hpcml.remote.protocol import (
    LONGEST_LINE,
    MOST_FILES,
    CutShortError,
    Entry,
    Offer,
    files,
    listing,
    offer_of,
    receive,
    send,
    too_many,
)
from hpcml.remote.ssh.connection import Connection
from hpcml.remote.ssh.login import login_of
from hpcml.runs import programs, script_checks, snapshot
from hpcml.sites.schema import Login
from hpcml.terminal import Raw, note, say
from hpcml.units import counted, format_bytes

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.remote.server import RemoteSession
    from hpcml.runs import directories

_CHOICES = ("wait", "detach", "json", "dry_run", "prepare", "check")  # who gives one of these has said whether to wait


def run_on_host(host: str, named_by: str, command: str, options: Namespace, own: list[str], script: list[str]) -> int:
    """Run a command of the login node's hpcml as if it were typed there; its output and exit status are passed on.

    Parameters
    ----------
    named_by
        Where the host was named, for errors.
    options
        The command's own words, parsed.
    own, script
        The command's own words, and the script with its arguments.
    """
    common.end_by_signals()
    here = [word for word in getattr(options, "set", None) or () if word.startswith("login.")]
    if command == "sweep" and script:
        hint = "Log in there and type it; sweep status, table, plot and cancel work from here."
        raise UsageError("A sweep is begun on the login node", place=f"--host {host}", hint=hint)
    login = login_of(host, here, place=named_by, load=common.load_site)
    if command in ("submit", "plan"):
        return _submit(login, command, options, own, script)
    if command == "fetch":
        return _fetch(login, options)
    if command == "doctor":
        from hpcml.cli import doctor

        tell = _Guard(sys.stderr)
        return doctor.from_laptop(login, lambda: _connect(login), own, typed=host, as_json=options.json, pass_on=tell)
    if command in ("pack", "wheelhouse"):
        from hpcml.cli import pack, wheelhouse

        send_there = pack.send if command == "pack" else wheelhouse.send
        return send_there(lambda: _connect(login), options)
    if command == "top" or (command == "status" and options.follow):
        from hpcml.cli.top import host as top_host

        if top_host.draws_here(command, options):
            return top_host.watch(_connect(login), options)
    return _pass_on(_connect(login), [command, *_waiting(command, options, own)])


def _connect(login: Login) -> Connection:
    connection = Connection(login)
    connection.open(ask=sys.stdin.isatty() and sys.stderr.isatty())
    return connection


class _Guard:
    """Passes on what the other machine says; on a terminal, with escape sequences made visible."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.raw = stream, Raw(stream)

    def __call__(self, data: bytes) -> None:
        # Not through the stream itself, whose lock a thread may not hold while the interpreter ends.
        data = self.raw.visible(data)
        self.stream.flush()
        while data:
            data = data[os.write(self.stream.fileno(), data) :]


def _waiting(command: str, options: Namespace, own: list[str]) -> list[str]:
    """Return a command's own words with --wait where this end's terminal decides: the other end has none."""
    chosen = any(getattr(options, name, False) for name in _CHOICES)
    if command not in ("submit", "rerun", "jupyter") or chosen or not (sys.stderr.isatty() and sys.stdout.isatty()):
        return own
    return ["--wait", *own]


def _pass_on(connection: Connection, words: list[str], upload: channel.Upload | None = None) -> int:
    call = channel.Call(connection, words, _Guard(sys.stderr), upload=upload, out=subprocesses.PIPE)
    reader = threading.Thread(target=call.pass_on, args=(call.child.out, _Guard(sys.stdout)), daemon=True)
    reader.start()
    try:
        call.begin()
        status = call.end()
        reader.join()
    except KeyboardInterrupt:
        if not upload:
            raise
        run_id = call.facts.get("run")
        what = f"to find out: hpcml --host {connection.host} status {run_id}" if run_id else "nothing was submitted"
        say("", sys.stderr)
        say(f"Interrupted; {what}.", sys.stderr)
        return 130
    finally:
        call.stop()
    if status == 130 and "submitted" in call.facts:
        say(f"From here: hpcml --host {connection.host} logs -f {call.facts['run']}", sys.stderr)
    elif status == 130 and upload:
        say("Nothing was submitted.", sys.stderr)
    return status


def _submit(login: Login, command: str, options: Namespace, own: list[str], script: list[str]) -> int:
    here = Path.cwd()
    misplaced.check(script, here, f"hpcml {command}")
    path, (_, *arguments), form = programs.named(script, here)
    if form == "program" and (here / path).is_file():
        path = here / path  # what PATH leads to on this laptop does not count
    if form == "program" and programs.is_python(path):
        hint = f"Send the script itself: hpcml --host … {command} SCRIPT; runtime.python names its Python."
        raise UsageError(f"The Python '{path}' of this laptop is not sent", place="--", hint=hint)
    if not path.is_absolute() or (form == "program" and programs.stays(path, here)):
        hint = f"Send a script of yours that starts it (hpcml --host … {command} -- ./script.sh), or submit it there."
        raise UsageError(f"There is no file '{path}' here that could be sent", place="--", hint=hint)
    if form == "notebook":
        script_checks.check_notebook(path, arguments)
    elif form == "program":
        script_checks.check_program(path, None, prepared=True)
    elif not form:
        script_checks.check_file(path)
    # The limits of the copy are this end's; the login node's count once more when the run takes its own.
    limits = [word for word in options.set or () if word.startswith("code.")]
    code = common.load_site("", here, limits).site.code
    if code.snapshot == "none":
        hint = "Leave it out, or copy the code there and submit it there."
        raise UsageError("A script of this laptop cannot run where it lies", place="code.snapshot = 'none'", hint=hint)
    with tempfile.TemporaryDirectory(prefix="hpcml-upload-") as folder:  # 0700
        upload = channel.Upload(path, Path(folder), code, module=form == "module")
        _check_upload(upload)
        if missing := channel.unsent(arguments, here, upload.entries):
            verb = "names a file of this laptop that is" if len(missing) == 1 else "name files of this laptop that are"
            note(f"{', '.join(map(repr, missing))} {verb} not sent; paths are the cluster's")
        connection = _connect(login)
        many = counted(len(upload.entries), "file")
        say(f"  sending    {many}, {format_bytes(upload.size)} to {connection.host}", sys.stderr)
        what = {"module": ["-m", upload.script], "program": ["--", f"./{upload.script}"]}
        words = [command, *_waiting(command, options, own), *what.get(form, [f"./{upload.script}"]), *arguments]
        return _pass_on(connection, words, upload)


def _check_upload(upload: channel.Upload) -> None:
    """Say what is not sent, and refuse to send code without the modules that it imports."""
    if needed := snapshot.needed(upload.taken, upload.folder):
        hint = "Raise that limit (--set code.…=…), or put the script into a folder with less beside it."
        raise UsageError("The code needs what would not be sent", place=snapshot.listed(needed), hint=hint)
    if upload.taken.missing:
        note(f"not sent: {snapshot.listed(upload.taken.missing)}")
    if above := upload.taken.above:
        note(f"{', '.join(above[:3])} leads above the script's folder, where nothing is sent")


# -- fetch -------------------------------------------------------------------------------------------------------------


def add_options(parser: ArgumentParser) -> None:
    """Add what this verb takes."""
    parser.epilog = "On a laptop: hpcml --host HOST fetch RUN. What is here already is not sent twice."
    common.add_run(parser, default=None)
    common.add_site(parser)
    common.add_json(parser, "print facts as JSON: the folder, how many files and bytes came, how many were here")
    parser.add_argument(
        "dest", metavar="DEST", nargs="?", default="", help="folder here (default: ./ and the run's id)"
    )


def run(options: Namespace) -> int:
    """``hpcml fetch RUN``: on the login node, for the laptop that called; elsewhere there is nothing to fetch."""
    session: RemoteSession | None = options.caller
    run = common.find_run(options)
    if session is None:
        message = "The run's results are on this machine already"
        raise UsageError(message, place=str(run.paths.out), hint="On a laptop: hpcml --host HOST fetch RUN.")
    from hpcml.remote.server import read_wanted

    entries, others = listing(run.paths.out)
    if len(entries) > MOST_FILES:
        raise too_many(len(entries), str(run.paths.out))
    own = _reports(run, {entry.name for entry in entries})
    entries += own
    ended = run.paths.status.exists()
    offer = json.dumps({"run": run.id, "files": entries, "others": others, "ended": ended}).encode()
    out = sys.stdout.buffer
    out.write(session.header["nonce"].encode() + b" " + offer + b"\n")
    out.flush()
    for entry in read_wanted(session, entries):
        send(run.paths.directory if entry in own else run.paths.out, [entry], out.write)
    out.flush()
    return 0


def _reports(run: directories.Run, taken: set[str]) -> list[Entry]:
    """Return the run's report; a file of that name among the script's results counts instead."""
    found = []
    for path in (run.paths.report, run.paths.report_facts):
        with contextlib.suppress(OSError):  # there is none, or it is none
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode) and path.name not in taken:
                found.append(Entry(path.name, facts.st_size, facts.st_mtime_ns, facts.st_mode & 0o777))
    return found


def _fetch(login: Login, options: Namespace) -> int:
    words = ["fetch", *([f"--site={options.site}"] if options.site else [])]
    words += [f"--set={value}" for value in options.set or ()]
    # `--` so that no name is taken for an option
    call = channel.Call(_connect(login), [*words, "--", options.run], _Guard(sys.stderr), out=subprocesses.PIPE)
    try:
        call.begin()
        with channel.patience(call.child, call.connection.host) as heard:
            offer = _offer(call)
            facts = None if offer is None else _take(call, offer, options, heard)
        status = call.end()
    except CutShortError:
        if (status := call.end()) == 0:
            raise
        return status  # the other end has said why
    finally:
        call.stop()
    if status == 0 and facts is not None and options.json:
        common.print_json(facts)
    return status


def _offer(call: channel.Call) -> Offer | None:
    """Return what the run has, None if the other side ended without an offer; a shell's greeting is skipped."""
    assert call.child.out is not None
    start, before = call.nonce.encode() + b" ", 0
    while line := call.child.out.readline(LONGEST_LINE):
        if line.startswith(start):
            return offer_of(line[len(start) :], call.connection.host)
        before += len(line)
        if before > channel.MOST_BEFORE:
            raise channel.talks_on(call.connection.host)
    return None


def _take(call: channel.Call, offer: Offer, options: Namespace, heard: Callable[[], None]) -> dict[str, Any]:
    """Bring the files that are not here yet; return what was done."""
    assert call.child.out is not None
    folder = Path.cwd() / (options.dest or offer.run)
    with files(folder):
        folder.mkdir(parents=True, exist_ok=True)
    wanted = [index for index, entry in enumerate(offer.files) if not _here(folder, entry)]
    size = sum(offer.files[index].size for index in wanted)
    here = len(offer.files) - len(wanted)
    also = (f"; {here} here already" if here else "") + (
        f"; {offer.others} links or special files are not sent" if offer.others else ""
    )
    say(f"{offer.run}: {len(wanted)} files, {format_bytes(size)} to {folder}{also}.", sys.stderr)
    if not offer.ended:
        note("the run has not ended; fetch again for what comes later")
    if shutil.disk_usage(folder).free < size:
        hint = "Free some, or name another folder: hpcml --host HOST fetch RUN DEST."
        raise StorageError(f"There is no room for {format_bytes(size)}", place=str(folder), hint=hint)
    call.write(json.dumps(wanted).encode() + b"\n")
    with metered(size) as received:

        def took(count: int) -> None:
            received(count)
            heard()

        for index in wanted:
            receive(folder, offer.files[index], call.child.out.read1, took)
            heard()
    return {"run": offer.run, "folder": str(folder), "fetched": len(wanted), "bytes": size, "here_already": here}


def _here(folder: Path, entry: Entry) -> bool:
    """Whether a file of that size and time is here; no link is followed for the file itself."""
    try:
        facts = (folder / entry.name).lstat()
    except (OSError, ValueError):
        return False
    return (facts.st_size, facts.st_mtime_ns) == (entry.size, entry.changed)
