"""The command line: argv to one call per command to a printed result; the only place that prints errors and exits."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from hpcml import errors
from hpcml.terminal import json_text, say, say_lines

if TYPE_CHECKING:
    import argparse

    from hpcml.remote.server import Caller

TEXT = """hpcml runs a plain Python script on N nodes of a Slurm machine: a Dask scheduler, workers and the script
in one allocation, closed to everybody else. Without Slurm it runs the same script on this machine."""

# What each command is called with and does.
COMMANDS = {
    "submit": ("[OPTIONS] SCRIPT [ARGS…]", "run a script"),
    "plan": ("[OPTIONS] SCRIPT [ARGS…]", "show the plan of a submission as JSON"),
    "fabric": ("[OPTIONS] [RUN]", "measure the wire between the nodes, or show what a run measured"),
    "jupyter": ("[OPTIONS]", "run JupyterLab on the first node, with a cluster of its own"),
    "ls": ("", "list the runs"),
    "status": ("[RUN]", "how a run stands"),
    "logs": ("[-f] [RUN] [ROLE]", "show a run's logs"),
    "cancel": ("RUN", "cancel a run"),
    "fetch": ("RUN [DEST]", "bring a run's results home to your laptop"),
    "tunnel": ("[OPTIONS] [RUN]", "open a run's dashboard on your laptop"),
    "site": ("ls | show [SITE]", "list and show site profiles"),
    "image": ("build | show | check | ls", "build, show, check and list images"),
}
# Options of `submit` by group; those that take a value are followed by it or by `=VALUE`.
SUBMIT_VALUES = {
    "where": {
        "--site": "the machine's profile (hpcml site ls); found by itself otherwise",
        "--account": "Slurm account to charge",
        "--partition": "Slurm partition",
        "--qos": "Slurm quality of service",
        "--dependency": "Slurm dependency, e.g. afterok:123",
    },
    "how much": {
        "--nodes": "how many nodes",
        "--time": "time limit: 30 (minutes), 2:00:00, 1-12:00:00 or 90m",
        "--gpus-per-node": "GPUs on each node",
        "--cpus-per-node": "CPUs on each node",
        "--memory-per-node": "memory on each node, e.g. 120G",
    },
    "how": {
        "--name": "the run's name (default: the script's)",
        "--set": "KEY=VALUE of the profile, e.g. workers.per_node=4 (repeatable)",
        "--protocol": "Dask's protocol: auto, ucx or tcp (always with TLS)",
        "--image": "run all roles inside this Apptainer image",
    },
}
SUBMIT_FLAGS = {
    "--dry-run": "print the batch script and submit nothing",
    "--check": "ask Slurm whether it would take the job; submit nothing",
    "--wait": "wait, pass on the script's output and exit with its status (on a terminal: the default)",
    "--detach": "do not wait (elsewhere: the default)",
    "--json": "print facts as JSON",
}
MODULES = {
    "fabric": "fabric",
    "fetch": "fetch",
    "image": "image",
    "plan": "submit",
    "submit": "submit",
    "jupyter": "jupyter",
    "tunnel": "tunnel",
}
_WITH_VALUE = {option for group in SUBMIT_VALUES.values() for option in group}


def overview() -> str:
    """Return what ``hpcml --help`` prints, without argparse, whose import would double the time."""
    width = max(len(f"{name} {words}") for name, (words, _) in COMMANDS.items())
    rows = [f"  {f'{name} {words}':<{width}}  {does}" for name, (words, does) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: hpcml [--host HOST] COMMAND …",
            "",
            TEXT,
            "",
            "commands:",
            *rows,
            "",
            "RUN is a run's id or its beginning, its name, its Slurm job id, or 'last'.",
            "On a laptop, --host HOST (or HPCML_HOST) runs the command on that login node, by ssh.",
            "hpcml COMMAND --help says more; hpcml --version says which hpcml this is.",
        ]
    )


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    import argparse

    class Parser(argparse.ArgumentParser):
        """argparse with hpcml's way of failing: one sentence, a next step, status 64."""

        def error(self, message: str) -> NoReturn:
            """Raise instead of exiting, so that every error is printed in one place."""
            raise errors.UsageError(message[:1].upper() + message[1:], place=self.prog, hint=f"Try {self.prog} --help.")

    words, does = COMMANDS[command]
    parser = Parser(
        prog=f"hpcml {command}",
        description=f"{does[:1].upper()}{does[1:]}.",
        usage=f"hpcml {command} {words}".strip() if command != "ls" else "hpcml ls [OPTIONS]",
        allow_abbrev=False,
    )
    if command in ("submit", "plan", "fabric", "jupyter"):
        _add_submit_options(parser, command)
    else:
        _add_other_options(parser, command)
    if command in _ADD:
        _ADD[command](parser)
    return parser


def _add_other_options(parser: argparse.ArgumentParser, command: str) -> None:
    import argparse

    if command not in ("image", "site", "ls"):
        optional = {"nargs": "?", "default": "last"} if command not in ("cancel", "fetch") else {}
        text = "run id, its beginning, name, Slurm job id, or 'last'"
        parser.add_argument("run", metavar="RUN", help=text, **optional)  # type: ignore[arg-type]
    if command != "site":
        whose = "program and folder for images" if command == "image" else "folder for runs to look in"
        parser.add_argument("--site", metavar="SITE", help=f"whose {whose} (default: the site found here)")
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="of the profile, e.g. paths.runs=/scratch/runs"
    )
    parser.add_argument(
        "--json", action="store_true", help=argparse.SUPPRESS if command == "logs" else "print facts as JSON"
    )


def _add_fabric_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Without RUN it takes nodes and measures each against each; it waits unless told otherwise."
    parser.add_argument("run", metavar="RUN", nargs="?", default="", help="show what this run measured")


def _add_ls_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", default="20", metavar="N", help="how many runs, newest last (default 20)")
    parser.add_argument("--all", action="store_true", help="all of them")


def _add_site_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="ls|show", choices=("ls", "show"), help="list the profiles, or show one in force"
    )
    parser.add_argument("name", nargs="?", default="", metavar="SITE", help="default: the site found here")
    parser.add_argument("--origin", action="store_true", help="say where each value comes from")


def _add_fetch_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "On a laptop: hpcml --host HOST fetch RUN. What is here already is not sent twice."
    parser.add_argument(
        "dest", metavar="DEST", nargs="?", default="", help="folder here (default: ./ and the run's id)"
    )


def _add_logs_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("role", metavar="ROLE", nargs="?", help="driver (default), scheduler, worker or job")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")


def _add_tunnel_options(parser: argparse.ArgumentParser) -> None:
    import argparse

    parser.epilog = "On a login node, without --host, it prints the ssh commands for a laptop without hpcml."
    parser.add_argument(
        "--host", metavar="HOST", default="", help="on a laptop: the login node as ssh knows it, or a site"
    )
    parser.add_argument(
        "--service", metavar="NAME", default="dashboard", help="which of the run's services (default: dashboard)"
    )
    parser.add_argument("--open", action="store_true", help="open the browser")
    parser.add_argument(
        "--port", metavar="PORT", default="", help="this laptop's port (default: the same for the same run)"
    )
    parser.add_argument(
        "--route", metavar="ROUTE", default="", help="direct, twohop or srun (default: what the site allows)"
    )
    parser.add_argument(
        "--patience", metavar="TIME", default="10m", help="how long a lost cluster is tried again (default 10m)"
    )
    for hidden in ("--serve", "--relay"):  # what the laptop's hpcml says to the login node's
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)


def _add_image_options(parser: argparse.ArgumentParser) -> None:
    import argparse

    parser.usage = "hpcml image build [OPTIONS] DEFINITION [OUT.sif] | show IMAGE | check [--gpu] IMAGE | ls [FOLDER…]"
    parser.epilog = "DEFINITION is a .def file or one that ships with hpcml: cpu, lab, rapids-cu12, rapids-cu13."
    parser.add_argument("what", metavar="build|show|check|ls", choices=("build", "show", "check", "ls"))
    parser.add_argument("names", metavar="NAME", nargs="*", help="definition and image to be, an image, or folders")
    parser.add_argument("--program", metavar="PROGRAM", help="apptainer or singularity (default: the one that is here)")
    parser.add_argument("--gpu", action="store_true", help="check: also on one GPU of this machine")
    parser.add_argument(
        "--fakeroot",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="build: as root of a namespace of your own (default: unless you are root)",
    )
    parser.add_argument("--build-arg", action="append", metavar="KEY=VALUE", help="build: of the definition")
    parser.add_argument("--force", action="store_true", help="build: replace an image that is there")
    # An option may stand before the names: argparse's usual way would then miss them.
    parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]


def _add_jupyter_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Reach it from your laptop with hpcml tunnel --service jupyter RUN."
    group = parser.add_argument_group("the session")
    group.add_argument("--idle", metavar="TIME", default="1h", help="end after so long without use (1h), or 'off'")
    group.add_argument("--notebook-dir", metavar="FOLDER", default="", help="where notebooks are (here)")


def _add_submit_options(parser: argparse.ArgumentParser, command: str) -> None:
    parser.epilog = "All that follows SCRIPT belongs to the script, dashes included."
    for title, options in SUBMIT_VALUES.items():
        group = parser.add_argument_group(title)
        for option, text in options.items():
            many = "append" if option == "--set" else "store"
            group.add_argument(option, action=many, help=text, metavar=option.lstrip("-").upper().replace("-", "_"))
    group = parser.add_argument_group("what to do")
    for option, text in SUBMIT_FLAGS.items():
        if command != "plan" or option == "--json":
            group.add_argument(option, action="store_true", help=text)


_ADD = {
    "fabric": _add_fabric_options,
    "fetch": _add_fetch_options,
    "image": _add_image_options,
    "jupyter": _add_jupyter_options,
    "logs": _add_logs_options,
    "ls": _add_ls_options,
    "site": _add_site_options,
    "tunnel": _add_tunnel_options,
}


def split_script(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the words behind ``submit`` into hpcml's own and the script with all that follows it."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            return list(arguments[:position]), list(arguments[position + 1 :])
        if not word.startswith("-") or word == "-":
            return list(arguments[:position]), list(arguments[position:])
        position += 2 if word in _WITH_VALUE else 1
    return list(arguments), []


def split_host(words: list[str]) -> tuple[str | None, list[str]]:
    """Divide a command line into the host before the command, None if none is named, and the rest."""
    if words[:1] == ["--host"] and len(words) > 1:
        return words[1], words[2:]
    if words and words[0].startswith("--host="):
        return words[0].removeprefix("--host="), words[1:]
    return None, words


def main(argv: Sequence[str] | None = None, caller: Caller | None = None) -> int:
    """Run the command line and return its exit status; ``caller`` is the laptop that sent it, if one did."""
    from hpcml.sites.layers import narrow_umask

    narrow_umask()
    host, words = split_host(list(sys.argv[1:] if argv is None else argv))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # paths may hold anything
    own, script = split_script(words[1:]) if words[:1] in (["submit"], ["plan"]) else (words[1:], [])
    as_json = "--json" in own
    try:
        status = _dispatch(words[0] if words else "", own, script, host, caller)
        sys.stdout.flush()
    except errors.HpcmlError as error:
        return _fail(error, as_json)
    except KeyboardInterrupt:
        say_lines("\nInterrupted.", sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (hpcml ls | head). Python would complain once more at exit: let it write
        # to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:  # noqa: BLE001 - a defect, told as one; a traceback is for who asks for it
        return _fail(_defect(error), as_json)
    return status


def _dispatch(command: str, own: list[str], script: list[str], host: str | None, caller: Caller | None) -> int:
    if command in ("", "-h", "--help", "help"):
        say_lines(overview())
        return 0 if command else errors.USAGE
    if command == "--version":
        from hpcml import __version__

        say(f"hpcml {__version__}")
        return 0
    if command == "--serve-laptop" and caller is None:
        from hpcml.remote import server
        from hpcml.sites import layers

        return server.serve(main, layers.process_environment())
    if command not in COMMANDS:
        raise _no_command(command)
    try:
        options = build_parser(command).parse_args(own)
    except SystemExit as end:  # argparse has printed its help
        return int(end.code or 0)
    if command in ("submit", "plan") and not script:
        raise errors.UsageError("SCRIPT is missing", place=f"hpcml {command}", hint="Name a Python file.")
    return _call(command, options, own, script, _host(host) if caller is None else None, caller)


def _call(
    command: str,
    options: argparse.Namespace,
    own: list[str],
    script: list[str],
    there: tuple[str, str] | None,
    caller: Caller | None,
) -> int:
    if command == "tunnel" and options.serve:
        there = None  # a laptop asks, whatever this machine's HPCML_HOST says
    elif there and command == "tunnel":
        options.host = options.host or there[0]
    elif there is not None:
        from hpcml.cli import fetch

        return fetch.run(*there, command, options, own, script)
    if caller is not None:
        options.caller = caller
        script = caller.stage(script) if command in ("submit", "plan") else script
    module = importlib.import_module(f"hpcml.cli.{MODULES.get(command, 'runs')}")
    if command in ("submit", "plan"):
        return int(module.submit(options, script, only_plan=command == "plan"))
    return int(getattr(module, command)(options))


def _host(given: str | None) -> tuple[str, str] | None:
    """Return the host that runs the command and where it was named, None for this machine (also by an empty name)."""
    from hpcml.sites.layers import process_environment

    host, named_by = (process_environment().get("HPCML_HOST", ""), "HPCML_HOST") if given is None else (given, "--host")
    return (host, named_by) if host else None


def _no_command(word: str) -> errors.UsageError:
    from hpcml.sites.layers import nearest

    if word.startswith("-"):
        return errors.UsageError(f"There is no option '{word}'", place="hpcml", hint="Try hpcml --help.")
    near = nearest(word, list(COMMANDS))
    is_file = os.path.exists(word)
    hint = (
        f"Did you mean hpcml submit {word}?"
        if is_file
        else f"Did you mean hpcml {near}?"
        if near
        else "Try hpcml --help."
    )
    return errors.UsageError(f"There is no command '{word}'", place="hpcml", hint=hint)


def _defect(error: Exception) -> errors.HpcmlError:
    """Return an unexpected exception as a defect of hpcml, with the place in the code."""
    import traceback

    from hpcml.sites.layers import process_environment

    if process_environment().get("HPCML_TRACEBACK"):
        for part in traceback.format_exception(error):
            say_lines(part.rstrip("\n"), sys.stderr)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    hint = "Please report it, with what HPCML_TRACEBACK=1 shows."
    return errors.HpcmlError(f"This is a defect in hpcml: {type(error).__name__}: {error}", place=place, hint=hint)


def _fail(error: errors.HpcmlError, as_json: bool) -> int:
    if as_json:
        say(json_text(error.as_json()))
    say_lines(f"hpcml: {error}", sys.stderr)
    return error.status
