"""``hpcml sweep``: its words, for a sweep that begins or one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcml.cli import common, submit
from hpcml.errors import NotFoundError, UsageError, nearest
from hpcml.request.options import TAKES_VALUE

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

VERBS = ("status", "table", "plot", "cancel")
_VALUES = (
    "--grid",
    "--points",
    "--seed",
    "--max-fails",
    "--metric",
    "--halving",
    "--eta",
    "--halving-min-steps",
    "--at-once",
    "--jobs",
)
_LISTS = ("--zip", "--random")


def add_options(parser: ArgumentParser) -> None:
    """Add a submission's options, the points, and what is to be done with them."""
    parser.usage = (
        "hpcml sweep [OPTIONS] SCRIPT --grid NAME=VALUES… [-- ARGS…]\n"
        "hpcml sweep status [NAME]\n"
        "hpcml sweep table NAME [--csv [FILE] | --parquet FILE | --json]\n"
        "hpcml sweep plot NAME [-o FILE.svg]\n"
        "hpcml sweep cancel NAME"
    )
    submit.add_options(parser, "sweep")
    parser._option_string_actions["--profile"].help = "refused: profile one point, with submit"  # noqa: SLF001
    parser.epilog = "Each point's values follow the script's own arguments as options: SCRIPT ARGS… --lr 0.1 --k 16."
    parser.set_defaults(prepare=False, check=False)
    group = parser.add_argument_group("the points, each row of one option with each of the others")
    add = group.add_argument
    add("--grid", action="append", metavar="NAME=VALUES", help="k=8,16,32 or k=range(1,4) (repeatable: each with each)")
    add("--zip", action="append", nargs="+", metavar="NAME=VALUES", help="values in pairs: a=1,2 b=3,4 (repeatable)")
    text = "a row a point: .csv, .jsonl; or a sweep file: .yaml (repeatable)"
    add("--points", action="append", metavar="FILE", help=text)
    text = "N draws: 50 x=uniform(0,1) k=randint(1,9) c=choice(a,b) r=loguniform(1e-4,1) (repeatable)"
    add("--random", action="append", nargs="+", metavar="N NAME=…", help=text)
    add("--seed", metavar="SEED", default="0", help="of --random (0)")
    group = parser.add_argument_group("the sweep")
    add = group.add_argument
    add("--dry-run", action="store_true", help="say which points are missing and what they cost; submit nothing")
    text = (
        "run again what failed, and nothing else; or by some causes alone, as --only-failed=oom,node: "
        "oom, timeout, node, error, unknown"
    )
    add("--only-failed", nargs="?", const="all", default="", metavar="CAUSE,…", help=text)
    add(
        "--at-once",
        metavar="N",
        default="1",
        help="points beside each other in an allocation, each on a share of the workers (1)",
    )
    add("--jobs", metavar="J", help="allocations that take points of the sweep, each point by one of them (1)")
    add("--gang", action="store_true", help="an allocation for each point; --jobs are how many run at once")
    add("--max-fails", metavar="N", help="begin no more points when more than N have failed (all are run)")
    text = "stop points by this metric that they report: successive halving"
    add("--halving", metavar="METRIC", help=text)
    add("--eta", metavar="N", help="of --halving: at each step where points are compared one of N goes on (3)")
    add("--halving-min-steps", metavar="STEP", help="of --halving: the first step at which points are compared (1)")
    add("--metric", metavar="NAME", default="", help="what sorts the table (default: the first that is reported)")
    add("--maximize", action="store_true", help="the largest is the best")
    add("--yes", action="store_true", help="run points again that another script, image or arguments made")
    add("--csv", nargs="?", const="-", metavar="FILE", help="of table: as CSV, into a file or printed")
    add("--parquet", metavar="FILE", help="of table: as a Parquet file (needs pyarrow)")
    add("--output", "-o", metavar="FILE", help="of plot: where the picture goes (NAME.svg, printed for -)")
    text = "look at a sweep that is there, or end it"
    parser.add_argument("words", nargs="*", metavar="status|table|plot|cancel NAME", help=text)


def split_script(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the words behind the verb into hpcml's own and the script with what follows ``--``."""
    end = words.index("--") if "--" in words else len(words)
    own, arguments = list(words[:end]), list(words[end + 1 :])
    with_value = {word for word, takes in TAKES_VALUE.items() if takes} | set(_VALUES)
    position = 0
    while position < len(own):
        word = own[position]
        if word in VERBS:
            return list(words), []
        if not word.startswith("-") or word == "-":
            rest = ["--", *arguments] if arguments else []
            return [*own[:position], *own[position + 1 :]], [word, *rest]
        position += 2 if word in with_value else 1
        if word in _LISTS:
            position += word == "--random"
            while position < len(own) and "=" in own[position] and not own[position].startswith("-"):
                position += 1
    return own, []


def run(options: Namespace) -> int:
    """Look at a sweep, or submit what is missing of it."""
    verb, *rest = options.words or [""]
    if verb in VERBS and not options.script_words:
        from hpcml.cli import sweep_views

        return sweep_views.look(options, verb, rest)
    script = (options.script_words or [""])[0]
    if (near := nearest(script, VERBS)) and not (common.here() / script).exists():
        hint = f"Did you mean hpcml sweep {near}?"
        raise NotFoundError(f"There is no script '{script}'", place="hpcml sweep", hint=hint)
    if options.words:
        hint = "The script's own arguments go behind --, at the end."
        if "=" in verb:
            hint = f"A parameter of the grid has an option of its own: --grid {verb}. {hint}"
        raise UsageError(f"'{verb}' is no option", place="hpcml sweep", hint=hint)
    if not options.script_words:
        raise UsageError("SCRIPT is missing", place="hpcml sweep", hint="Name a Python file.")
    from hpcml.cli import sweep_submission

    return sweep_submission.begin(options)
