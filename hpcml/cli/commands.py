"""The commands, in one table: overview, help, completion and the reference page read it."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as typing's, whose import would be most of what --help takes
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

    from hpcml.options.parser import Parser

SCRIPT, SCRIPT_OR_WORDS, ARGUMENTS = "script", "script or words", "arguments"


class Command:
    """One command."""

    def __init__(
        self,
        does: str,  # what it does, in the overview and in its help
        usage: str,  # what it is called with
        *examples: str,  # at the end of its help: the words after the command
        module: str = "",  # below hpcml.cli; empty: the command's name
        # SCRIPT: hpcml's own words end with a script; SCRIPT_OR_WORDS: or the command has such words; ARGUMENTS: the
        # words after `--` are the arguments of a script
        takes: str = "",
        stays_here: bool = False,  # never run on a login node: --host does not count
        values: dict[str, dict[str, str] | str] | None = None,  # what completion offers: see below
    ) -> None:
        self.does, self.usage, self.examples = does, usage, examples
        self.module, self.takes, self.stays_here = module, takes, stays_here
        # By the metavar: words, each with what it is, or the name of a source of completion.py.
        self.values = values or {}


# fmt: off
GROUPS = {
    "Run": {
        "submit": Command(
            "run a script", "[OPTIONS] SCRIPT [ARGS…]",
            "--nodes 4 --time 2h train.py --epochs 10", "--nodes 2 --gpus-per-node 4 --dry-run a.py", takes=SCRIPT),
        "run": Command(
            "run a script inside an existing allocation (hpcml hold, salloc or sbatch)", "[OPTIONS] SCRIPT [ARGS…]",
            "train.py --epochs 10", "--in last train.py --epochs 10", takes=SCRIPT),
        "hold": Command(
            "keep an allocation, in which hpcml run --in starts one run after another", "[OPTIONS]",
            "--nodes 2 --time 4h --idle 10m"),
        "sweep": Command(
            "run a script once for each combination of option values (grid or search)",
            "SCRIPT --grid … [OPTIONS] | status | table | plot | rm",
            "train.py --grid k=8,16 -- --epochs 10", "a.py --search 50 'k=randint(1,9)' --metric m",
            "table train --csv", takes=SCRIPT_OR_WORDS,
            values={"SCRIPT": {"status": "the state of sweeps", "table": "a sweep's points", "rm": "delete a sweep"},
                    "SAMPLER": {"tpe": "", "cmaes": ""},
                    "PRUNER": {"asha": "", "median": "", "hyperband": ""}}),
        "jupyter": Command(
            "run JupyterLab in a job, with a Dask cluster on the job's nodes", "[OPTIONS]",
            "--nodes 2 --time 4h"),
        "new": Command(
            "create an example script in the current folder, or list the examples", "[NAME [EXAMPLE]]",
            "train", "groups kmeans", stays_here=True, values={"NAME": "EXAMPLE"}),
    },
    "Look": {
        "ls": Command("list your runs", "[OPTIONS]", "", "--failed --since 7d"),
        "status": Command("show the state of a run", "[-f] [RUN]", "", "train --json"),
        "top": Command("watch a run live: nodes, GPUs, Dask tasks, output", "[OPTIONS] [RUN]", "", "--once train"),
        "why": Command("explain why a run failed, and what to do", "[RUN]", "", "train --json"),
        "stacks": Command("show the Python stacks of all processes of a run", "[RUN]", "", "train --json"),
        "report": Command(
            "write the report of a run: how the run used its node-hours", "[RUN] [--open]", "", "train --open"),
        "logs": Command("show a run's logs", "[-f] [-n N] [RUN] [LOG]", "", "-f -n 20 last worker"),
        "wait": Command("wait until runs end", "[OPTIONS] [RUN…]", "last", "prepare train"),
        "shell": Command("open a shell on a node of a run", "RUN [NODE]", "last", "train n2"),
    },
    "Change": {
        "cancel": Command("cancel a run, or all runs", "RUN | --all", "last", "--all --yes", module="cancel_rm"),
        "rerun": Command(
            "submit a run again, with the same or other options", "RUN [OPTIONS] [-- ARGS…]",
            "last", "train --nodes 8 --time 4h", "train -- --epochs 20", takes=ARGUMENTS),
        "rm": Command(
            "delete ended runs with all their files", "RUN… | [--older-than TIME] [--failed]",
            "train-20261121-074500-1a2b", "--failed --older-than 30d", "--older-than 30d --keep 20",
            module="cancel_rm"),
    },
    "Laptop": {
        "fetch": Command("copy a run's results to your laptop", "RUN [DEST]", "last results"),
        "tunnel": Command(
            "open a run's dashboard, its JupyterLab or any port on your laptop", "[OPTIONS] [RUN]",
            "last", "--open last", "--to 6006 last", "--to 6006@n2 last",
            values={"NAME": "SERVICE",
                    "ROUTE": {"direct": "", "twohop": "", "srun": ""}}),
        "ssh-config": Command(
            "let ssh, editors and rsync connect to the nodes of a run", "[OPTIONS] [RUN]", "last"),
    },
    "Machine": {
        "doctor": Command("check this machine for problems", "[OPTIONS]", "", "--node --account astro"),
        "site": Command(
            "list, show, compare and write site profiles", "ls | show [SITE] | diff A B | init NAME",
            "ls", "show leonardo --facts", "diff leonardo juwels", "init mycluster --probe"),
        "image": Command(
            "build, show, check and list images", "build | show | check | ls",
            "build cpu", "check --gpu rapids-cu12.sif", values={"PROGRAM": {"apptainer": "", "singularity": ""}}),
        "interconnect": Command(
            "measure the interconnect between nodes, or show a run's measurement", "[OPTIONS] [RUN]",
            "--nodes 2 --gpus-per-node 4", "last"),
    },
    "Install": {
        "completion": Command(
            "print the tab-completion script for your shell", "bash | zsh | fish", "bash", stays_here=True),
        "pack": Command(
            "pack hpcml into one file, for login nodes where you cannot install hpcml", "[-o FILE]",
            "", "-o bin/hpcml.pyz --force"),
    },
}
# fmt: on
COMMANDS = {verb: command for group in GROUPS.values() for verb, command in group.items()}
# Words of other tools, and the command that does it here.
MEANT = {
    "clean": "rm --failed, or hpcml rm --older-than 30d",
    "dashboard": "tunnel",
    "delete": "rm",
    "download": "fetch",
    "editor": "ssh-config",
    "example": "new",
    "examples": "new",
    "find": "ls",
    "kill": "cancel",
    "list": "ls",
    "notebook": "jupyter",
    "ps": "ls",
    "queue": "ls",
    "remove": "rm",
    "repeat": "rerun",
    "rsync": "ssh-config",
    "share": "help colleague",
    "ssh": "shell",
    "start": "submit",
    "stop": "cancel",
    "tail": "logs -f",
    "vscode": "ssh-config",
}


def module_of(verb: str) -> ModuleType:
    """Return the module of a command, or of help."""
    module = COMMANDS[verb].module if verb in COMMANDS else ""
    return importlib.import_module(f"hpcml.cli.{(module or verb).replace('-', '_')}")


def run(verb: str, options: argparse.Namespace) -> int:
    """Run a command with its options, and return its exit status."""
    return int(_function(verb, "run", "run_{}")(options))


def _function(verb: str, alone: str, among: str) -> Any:
    """Return a function of a command's module; in a module of several commands its name has the command's."""
    return getattr(module_of(verb), among.format(verb) if COMMANDS[verb].module else alone)


def build_parser(verb: str) -> Parser:
    """Return the parser of one command."""
    from hpcml.options import parser as parsers

    command = COMMANDS[verb]
    parser = parsers.Parser(
        prog=f"hpcml {verb}",
        description=f"{command.does[:1].upper()}{command.does[1:]}.",
        usage=f"hpcml {verb} {command.usage}",
        allow_abbrev=False,
    )
    parser.examples = _examples(verb)
    _function(verb, "add_options", "add_{}_options")(parser)
    if command.stays_here:
        parser.set_defaults(host=None)
    parser.set_defaults(parser=parser)  # which reads the options in a script too
    return parser


def _examples(verb: str) -> str:
    host = "--host me@login.example.org " if verb in GROUPS["Laptop"] else ""
    lines = [f"  hpcml {host}{verb} {example}".rstrip() for example in COMMANDS[verb].examples]
    return "\n".join(["", f"example{'s' if len(lines) > 1 else ''}:", *lines, ""])


def split_script(verb: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the words after a verb into hpcml's own and, where it takes a script, that with all that follows."""
    if not COMMANDS[verb].takes:
        return list(arguments), []
    if COMMANDS[verb].takes == ARGUMENTS:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        return list(arguments[:end]), list(arguments[end:])
    module = module_of("submit" if COMMANDS[verb].takes == SCRIPT else verb)
    options, script = module.split_script(arguments)
    return options, script


def split_host(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Divide a command line into the host before the command, None if none is named, and the rest."""
    if arguments[:1] == ["--host"] and len(arguments) > 1:
        return arguments[1], arguments[2:]
    if arguments and arguments[0].startswith("--host="):
        return arguments[0].removeprefix("--host="), arguments[1:]
    return None, arguments
