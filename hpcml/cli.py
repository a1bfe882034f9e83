"""The command line: argv to one call per command to a printed result; the only place that prints errors and exits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from hpcml import errors

TEXT = """hpcml runs a plain Python script on N nodes of a Slurm machine: a Dask scheduler, workers and the script
in one allocation, closed to everybody else. Without Slurm it runs the same script on this machine."""

# Options of `submit` that take a value; all that follows SCRIPT belongs to the script.
SUBMIT_VALUES = {
    "--site": "the machine's profile (hpcml site ls); found by itself otherwise",
    "--nodes": "how many nodes",
    "--gpus-per-node": "GPUs on each node",
    "--cpus-per-node": "CPUs on each node",
    "--memory-per-node": "memory on each node, e.g. 120G",
    "--time": "time limit: 30 (minutes), 2:00:00, 1-12:00:00 or 90m",
    "--account": "Slurm account to charge",
    "--partition": "Slurm partition",
    "--qos": "Slurm quality of service",
    "--image": "Apptainer image to run in",
    "--protocol": "Dask's protocol: auto or tcp (always with TLS)",
    "--name": "the run's name (default: the script's)",
    "--dependency": "Slurm dependency, e.g. afterok:123",
    "--set": "KEY=VALUE of the profile, e.g. workers.per_node=4 (repeatable)",
}
SUBMIT_FLAGS = {
    "--dry-run": "print the batch script and submit nothing",
    "--check": "ask Slurm whether it would take the job; submit nothing",
    "--wait": "wait, pass on the script's output and exit with its status",
    "--detach": "do not wait",
    "--json": "print facts as JSON",
}


class Parser(argparse.ArgumentParser):
    """argparse with hpcml's way of failing: one sentence, a next step, status 64."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting, so that every error is printed in one place."""
        raise errors.UsageError(message[:1].upper() + message[1:], place=self.prog, hint=f"Try {self.prog} --help.")


def build_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(prog="hpcml", description=TEXT, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, words in (("submit", "run a script"), ("plan", "show the plan of a submission as JSON")):
        sub = commands.add_parser(name, help=words, allow_abbrev=False, usage=f"hpcml {name} [OPTIONS] SCRIPT [ARGS…]",
                                  epilog="All that follows SCRIPT belongs to the script, dashes included.")  # fmt: skip
        for option, text in SUBMIT_VALUES.items():
            many = "append" if option == "--set" else "store"
            sub.add_argument(option, action=many, help=text, metavar=option.lstrip("-").upper().replace("-", "_"))
        for option, text in SUBMIT_FLAGS.items():
            sub.add_argument(option, action="store_true", help=text)
    run_words = "run id, its beginning, name, Slurm job id, or 'last'"
    for name, words in (("ls", "list the runs"), ("status", "how a run stands"), ("logs", "show a run's logs"),
                        ("cancel", "cancel a run")):  # fmt: skip
        sub = commands.add_parser(name, help=words, allow_abbrev=False)
        if name != "ls":
            sub.add_argument("run", metavar="RUN", nargs="?" if name != "cancel" else None, default="last", help=run_words)
        if name == "logs":
            sub.add_argument("role", metavar="ROLE", nargs="?", default="driver", help="driver (default), scheduler, worker or job")
            sub.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
        else:
            sub.add_argument("--json", action="store_true", help="print facts as JSON")
        sub.add_argument("--set", action="append", help="KEY=VALUE of the profile, e.g. paths.runs=/scratch/runs")
    site = commands.add_parser("site", help="list and show site profiles", allow_abbrev=False)
    site_commands = site.add_subparsers(dest="site_command", metavar="ls|show", parser_class=Parser)
    listing = site_commands.add_parser("ls", help="list the profiles", allow_abbrev=False)
    showing = site_commands.add_parser("show", help="show a profile as it is in force", allow_abbrev=False)
    showing.add_argument("name", nargs="?", default="", metavar="SITE")
    showing.add_argument("--origin", action="store_true", help="say where each value comes from")
    showing.add_argument("--set", action="append", help="KEY=VALUE of the profile")
    for sub in (listing, showing):
        sub.add_argument("--json", action="store_true", help="print facts as JSON")
    return parser


def split_script(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the words behind ``submit`` into hpcml's own and the script with all that follows it."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            return list(arguments[:position]), list(arguments[position + 1 :])
        if not word.startswith("-") or word == "-":
            return list(arguments[:position]), list(arguments[position:])
        position += 2 if word in SUBMIT_VALUES else 1
    return list(arguments), []


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    try:
        return _dispatch(words)
    except errors.HpcmlError as error:
        return _fail(error, as_json)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone (hpcml ls | head): nothing to say to anybody
        return 141


def _dispatch(words: list[str]) -> int:
    script: list[str] = []
    if words[:1] and words[0] in ("submit", "plan"):
        own, script = split_script(words[1:])
        words = [words[0], *own]
    parser = build_parser()
    options = parser.parse_args(words)
    if options.version:
        from hpcml import __version__

        print(f"hpcml {__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return errors.USAGE
    from hpcml import commands

    if options.command in ("submit", "plan"):
        if not script:
            raise errors.UsageError("SCRIPT is missing", place=f"hpcml {options.command}", hint="Name a Python file.")
        return commands.submit(options, script)
    if options.command == "site":
        return commands.site(options)
    return int(getattr(commands, options.command)(options))


def _fail(error: errors.HpcmlError, as_json: bool) -> int:
    if as_json:
        import json

        print(json.dumps(error.as_json()))
    print(f"hpcml: {error}", file=sys.stderr)
    return error.status
