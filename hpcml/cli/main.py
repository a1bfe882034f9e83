"""The command line: the overview, the verb's own module, and errors to exit statuses."""

from __future__ import annotations

import errno
import os
import sys

from hpcml import __version__, errors
from hpcml.cli import commands
from hpcml.cli.commands import COMMANDS, GROUPS
from hpcml.terminal import columns, fit, folded, json_text, note, say, say_lines, say_message

TYPE_CHECKING = False  # as typing's, whose import would be most of what --help takes
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcml.remote.server import RemoteSession

TEXT = """hpcml runs programs on many nodes of a Slurm cluster: a Dask script, ranks of PyTorch, JAX or MPI, or a batch
script. If a rank, a node or Dask's scheduler dies, the job ends, names what died, and frees its nodes. No other user
can connect to a run's Dask cluster. Without Slurm, add --site local: hpcml runs the script on this machine."""
EXAMPLES = {
    "hpcml new kmeans": "create an example",
    "hpcml submit --nodes 2 kmeans.py": "run kmeans on a Dask cluster",
    "hpcml submit --nodes 2 --ranks 4 train.py": "run 4 ranks on each node",
    "hpcml submit job.sh": "run a batch script as it is",
    "hpcml why": "explain a failed run",
}
NOTES = (
    "RUN is a run's id (or the id's first part), its name, its Slurm job id, or 'last'.",
    "On a laptop, --host HOST (or the variable HPCML_HOST) runs the command on the login node HOST, through ssh.",
    "hpcml COMMAND --help shows the options of a command; hpcml --version shows the version.",
    "hpcml help TOPIC shows a page of the documentation, e.g. hpcml help sharing. hpcml help topics lists all pages.",
)

_OF_FILES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.EROFS}  # whatever file it is


def overview() -> str:
    """Return the text of ``hpcml --help``, without argparse, whose import would double the time."""
    width = min(columns(sys.stdout, 80), 100)
    wide = max(map(len, COMMANDS)) + 4
    lines = ["usage: hpcml [--host HOST] COMMAND …", "", *folded(TEXT, width), ""]
    for command, does in EXAMPLES.items():
        lines += folded(does, width, first=f"  {command:<44}", rest=" " * 46)
    for title, group in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, verb in group.items():
            lines += folded(verb.does, width, first=f"  {name:<{wide - 2}}", rest=" " * wide)
    lines.append("")
    for text in NOTES:
        lines += folded(text, width)
    return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None, caller: RemoteSession | None = None) -> int:
    """Run the command line and return its exit status; ``caller`` is the laptop that sent it, if one did."""
    if argv is None and sys.flags.inspect:
        _start_without_inspect()
    host, arguments = commands.split_host(list(sys.argv[1:] if argv is None else argv))
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # paths may hold anything
    command, options = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "help" and options:
        is_option = not options[1:] and options[0].startswith("-")
        command, options = (options[0], ["--help"]) if is_option else ("--topic", options)
    try:
        status = _status(command, options, host, caller)
    except OSError as error:  # standard output or error does not take what is to be said
        status = 141 if isinstance(error, BrokenPipeError) else errors.STORAGE
    _untaken()
    return status


def _status(command: str, options: list[str], host: str | None, caller: RemoteSession | None) -> int:
    try:
        if command in ("", "-h", "--help", "--help-all", "help", "--version"):
            sys.stdout.write(f"hpcml {__version__}\n" if command == "--version" else overview())
            status = 0 if command else errors.USAGE
        elif command == "--complete":  # asked by a shell at TAB
            status = int(commands.module_of("completion").tell(options))
        else:
            options, script = commands.split_script(command, options) if command in COMMANDS else (options, [])
            status = _dispatch(command, options, script, host, caller)
        sys.stdout.flush()
    except errors.HpcmlError as error:
        return _fail(error, "--json" in options)
    except KeyboardInterrupt:
        say_lines("\nInterrupted.", sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone (hpcml ls | head)
        raise
    except Exception as error:  # noqa: BLE001 - told in a sentence; a traceback is for who asks for it
        return _fail(_unexpected(error), "--json" in options)
    return status


def _untaken() -> bool:
    """Write to nowhere what standard output and error do not take, if any: Python's exit status would be 120."""
    lost = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            lost = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return lost


def _start_without_inspect() -> None:
    """Start again without PYTHONINSPECT, with which Python turns each exit status into 1, or waits for commands."""
    from hpcml.sites.settings_layers import process_environment

    environment = process_environment()
    if environment.pop("PYTHONINSPECT", None):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - no shell is meant


def _open_streams() -> None:
    """Open to nowhere what of standard input, output and error is closed: the next file would take its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - as long as the process


def _dispatch(
    command: str, arguments: list[str], script: list[str], host: str | None, caller: RemoteSession | None
) -> int:
    from hpcml.sites import settings_layers

    settings_layers.narrow_umask()
    if command == "--serve-laptop" and caller is None:
        from hpcml.remote import server

        return server.serve(main)
    if command == "--topic":
        return _help(arguments, host, caller)
    if command not in COMMANDS:
        command = _renamed(command, caller)
    try:
        parser = commands.build_parser(command)
        parser.host = "" if caller else (_host(host) or ("",))[0]
        options = parser.parse_args(arguments)
    except SystemExit as end:  # argparse has printed its help
        return int(end.code or 0)
    if COMMANDS[command].takes == commands.SCRIPT and not script:
        raise errors.UsageError("SCRIPT is missing", place=f"hpcml {command}", hint="Name a Python file.")
    options.caller, options.script_words = caller, script
    if caller is None and (chosen := _host(host)):
        if not hasattr(options, "host"):
            from hpcml.cli import on_host

            if getattr(options, "env", None) or getattr(options, "env_file", None):
                from hpcml.request import variables

                arguments = variables.carried(arguments, options.env_file or (), options.env or ())
            return on_host.run(*chosen, command, options, arguments, script)
        options.host = options.host or chosen[0]  # a verb that connects by itself
    return commands.run(command, options)


def _help(arguments: list[str], host: str | None, caller: RemoteSession | None) -> int:
    """Show the help of a command and name its page, or show the page of a topic."""
    pages = commands.module_of("help")
    if arguments[1:] or arguments[0] not in COMMANDS:
        return int(pages.run(" ".join(arguments)))
    status = _dispatch(arguments[0], ["--help"], [], host, caller)
    pages.say_more(arguments[0])
    return status


def _host(given: str | None) -> tuple[str, str] | None:
    """Return the host that runs the command and where it was named, None for this machine (also by an empty name)."""
    from hpcml.sites.settings_layers import process_environment

    host, named_by = (process_environment().get("HPCML_HOST", ""), "HPCML_HOST") if given is None else (given, "--host")
    return (host, named_by) if host else None


def _renamed(word: str, caller: RemoteSession | None) -> str:
    """Return the command whose earlier name a word is, with a note for who types here: laptops send earlier names.

    Raises
    ------
    UsageError
        If no command has, or had, this name.
    """
    from hpcml import earlier_names

    if (command := earlier_names.current(word)) not in COMMANDS:
        raise _no_command(word)
    if caller is None:
        note(f"the command {word} is now called {command}; a later version will not accept the old name")
    return command


def _no_command(word: str) -> errors.UsageError:
    if word.startswith("-"):
        return errors.UsageError(f"There is no option '{word}'", place="hpcml", hint="Try hpcml --help.")
    near = f"submit {word}" if os.path.exists(word) else commands.MEANT.get(word) or errors.nearest(word, COMMANDS)
    hint = errors.did_you_mean(near and f"hpcml {near}", "Try hpcml --help.")
    return errors.UsageError(f"There is no command '{word}'", place="hpcml", hint=hint)


def _unexpected(error: Exception) -> errors.HpcmlError:
    """Return the error that no command expects: of a file that the system refuses, or a defect, with its place."""
    import traceback

    from hpcml.sites.settings_layers import process_environment

    if process_environment().get("HPCML_TRACEBACK"):
        for part in traceback.format_exception(error):
            say_lines(part.rstrip("\n"), sys.stderr)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    printed = _untaken() or place.startswith(("main.py:", "terminal.py:"))
    if isinstance(error, OSError) and error.strerror and (printed or error.filename or error.errno in _OF_FILES):
        where = "output" if printed else fit(str(error.filename or place), 200)
        advice = "Check the file's name, its permissions and the free space."
        return errors.StorageError(f"A file cannot be read or written: {error.strerror}", place=where, hint=advice)
    hint = "Set HPCML_TRACEBACK=1, run the command again, and report this defect with the output."
    return errors.HpcmlError(f"This is a defect in hpcml: {type(error).__name__}: {error}", place=place, hint=hint)


def _fail(error: errors.HpcmlError, as_json: bool) -> int:
    try:
        for text in getattr(error, "__notes__", ()):
            note(text)
        say_message(f"hpcml: {error}")
    finally:  # one of the two streams may be full
        if as_json:
            say(json_text(error.as_json()))
    return error.exit_status
