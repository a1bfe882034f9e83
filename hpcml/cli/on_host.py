"""``hpcml --host HOST …`` on a laptop: which part of a command is this end's; the rest is the login node's."""

from __future__ import annotations

import functools
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcml import earlier_names, safe_files
from hpcml.cli import commands, common, misplaced
from hpcml.errors import UsageError
from hpcml.remote import login_call
from hpcml.remote.ssh import login_of
from hpcml.remote.upload import Upload, unsent
from hpcml.request.record import Code, RunRequest
from hpcml.runs import copied_project, script_or_program, snapshot, uv_environments
from hpcml.runs.checks import script_checks
from hpcml.terminal import note, say
from hpcml.units import counted, format_bytes
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.remote.ssh import Connection
    from hpcml.sites.schema import Login

# What these say has no end of its own: it is passed on as long as it comes, until Ctrl-C.
_STREAMS = ("submit", "run", "rerun", "jupyter", "interconnect", "logs", "top", "wait", "shell", "image")
_CHOICES = ("wait", "detach", "json", "dry_run", "prepare", "check")  # who gives one of these has said whether to wait


class Laptop(NamedTuple):
    """A command that needs both ends: the host as the user named it, the login, the command's options and own words."""

    host: str
    login: Login
    connect: Callable[[], Connection]
    options: Namespace
    arguments: list[str]


def run(host: str, named_by: str, command: str, options: Namespace, given: list[str], script: list[str]) -> int:
    """Run a command of the login node's hpcml as if typed there, with its output and status; UsageError for a sweep.

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
        hint = "Log in to the cluster, and start the sweep on the login node. "
        hint += "With --host, only hpcml sweep status, table, plot, cancel and rm work."
        raise UsageError("A laptop cannot start a sweep", place=f"--host {host}", hint=hint)
    login = login_of(host, here, place=named_by, load=common.load_site)
    connect = functools.partial(login_call.connect, login)
    if command == "submit" or (command == "run" and getattr(options, "in") is not None):
        return _submit(connect, command, options, given, script)
    if command in ("doctor", "fetch", "pack"):
        return int(commands.module_of(command).from_laptop(Laptop(host, login, connect, options, given)))
    if command == "top" or (command == "status" and options.follow):
        from hpcml.cli.top import from_laptop as top_host

        if top_host.draws_here(command, options):
            return top_host.watch(connect(), options)
    arguments = script if command == "rerun" else []
    streams = command in _STREAMS or getattr(options, "follow", False)
    most = math.inf if streams else login_call.MOST_SAID
    word = earlier_names.earlier(command)  # which an older hpcml on the host knows too
    return login_call.run(connect(), [word, *_waiting(command, options, given), *arguments], most=most)


def _waiting(command: str, options: Namespace, given: list[str]) -> list[str]:
    """Return a command's own words with --wait where this end's terminal decides: the other end has none."""
    chosen = any(getattr(options, name, False) for name in _CHOICES)
    if command not in ("submit", "rerun", "jupyter") or chosen or not (sys.stderr.isatty() and sys.stdout.isatty()):
        return given
    return ["--wait", *given]


def _submit(
    connect: Callable[[], Connection], command: str, options: Namespace, given: list[str], script: list[str]
) -> int:
    here = Path.cwd()
    misplaced.check(script, here, f"hpcml {command}")
    path, (_, *arguments), form = script_or_program.named(script, here)
    path, form = _to_send(path, form, here, options)
    if form is Form.PROGRAM and script_or_program.is_python(path):
        hint = f"Send the script itself: hpcml --host … {command} SCRIPT. "
        hint += "Choose the Python on HOST: --python PATH."
        raise UsageError(f"hpcml cannot send this laptop's Python interpreter '{path}' to HOST", place="--", hint=hint)
    if not path.is_absolute() or (form is Form.PROGRAM and script_or_program.stays(path, here)):
        hint = f"Send a script that starts the program (hpcml --host … {command} -- ./script.sh), or submit on HOST."
        raise UsageError(f"There is no file '{path}' on this laptop to send", place="--", hint=hint)
    if form is Form.NOTEBOOK:
        script_checks.check_notebook(path, arguments)
    elif form is Form.PROGRAM:
        script_checks.check_program(path, None, prepared=True)
    elif form is Form.SCRIPT:
        script_checks.check_file(path)
    # The limits of the copy are this end's; the login node's count once more when the run takes its own.
    limits = [word for word in options.set or () if word.startswith("code.")]
    code = common.load_site("", here, limits).site.code
    if code.snapshot == "none":
        hint = "Remove the setting code.snapshot, or copy the code to the cluster and submit there."
        raise UsageError(
            "hpcml must copy a laptop's script to the cluster, but code.snapshot = 'none' forbids copies",
            place="code.snapshot = 'none'",
            hint=hint,
        )
    described = uv_environments.project_of(Code(path, cwd=here, form=form))
    with tempfile.TemporaryDirectory(prefix="hpcml-upload-") as folder:  # 0700
        wanted = None if options.python else described
        decision = copied_project.decide(Code(path, form=form), code, Path(folder), Path.cwd(), wanted)
        if text := decision.note_on_sending:
            note(text)
        path = decision.applied(RunRequest.of(path)).code.script
        upload = Upload(path, Path(folder), code, module=form is Form.MODULE, root=decision.root)
        _check_upload(upload, described)
        if missing := unsent(arguments, here, upload.entries):
            note(f"hpcml does not send {', '.join(map(repr, missing))}: paths in arguments are paths on the cluster")
        connection = connect()
        many = counted(len(upload.entries), "file")
        say(f"  sending    {many}, {format_bytes(upload.size)} to {connection.host}", sys.stderr)
        program = {Form.MODULE: ["-m", upload.script], Form.PROGRAM: ["--", f"./{upload.script}"]}
        command_line = [
            command,
            *_waiting(command, options, given),
            *program.get(form, [f"./{upload.script}"]),
            *arguments,
        ]
        return login_call.run(connection, command_line, upload, most=math.inf)


def _to_send(path: Path, form: Form, here: Path, options: Namespace) -> tuple[Path, Form]:
    """Return the file on this laptop that is meant, and its form."""
    if form is Form.SCRIPT and not options.ranks:
        form = script_or_program.as_batch_script(Code(path)).form
    if form is Form.PROGRAM and safe_files.is_file(here / path):
        path = here / path  # what PATH leads to on this laptop does not count
    return path, form


def _check_upload(upload: Upload, project: Path | None) -> None:
    """Say what is not sent, also of the script's uv ``project``; refuse to send code without the modules it imports."""
    if project and not any(Path(entry.name).name == uv_environments.LOCK for entry in upload.entries):
        lock = project / uv_environments.LOCK
        note(f"hpcml does not send {lock}: to use the project's packages, put the script beside it, or add --python")
    if needed := snapshot.needed(upload.taken, upload.folder):
        hint = (
            "Raise the limit that the message shows in brackets, for example --set code.max_file=10M, "
            "or move the script and its modules to a folder with fewer files."
        )
        raise UsageError("hpcml would not send files that the code needs", place=snapshot.listed(needed), hint=hint)
    if upload.taken.missing:
        note(f"hpcml does not send {snapshot.listed(upload.taken.missing)}")
