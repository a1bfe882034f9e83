"""``make reference``: the pages of all options and of all keys of a profile, made from the parsers and from the schema.

It also writes the tables of hpcml/listeners.py into the pages on security, and the project's addresses
(addresses.py).
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from hpcml import listeners as listening
from hpcml import site_records, typed_json, units
from hpcml.cli import commands
from hpcml.sites import schema
from hpcml.terminal import folded
from tests.site import addresses

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHARED = ("submit", "ls", "status")  # whose words and options other commands have too
WIDTH = 60  # columns: these pages are read in a terminal too
COMMANDS = """\
# Options of the commands

This page lists all arguments and options of each command.
[Commands](commands.md) describes the commands.
[Exit status](exit-status.md) lists the exit statuses of all
commands. Each command also accepts `-h` and `--help`. If
`--help` shows only common options, `--help-all` shows all
options. Defaults are in brackets. A default with a dot is
[a key of the profile](reference-profile.md).

`make reference` writes this page from the parsers.
"""
PROFILE = """\
# Keys of a profile

This page lists all keys of
[a profile and of settings](sites.md). Each entry shows the
kind of value, the default and the meaning. A key without a
named default is empty by default. You can set the key
`workers.per_node` in three ways:

* In a file, write `per_node` below `[workers]`.
* Set the variable `HPCML_WORKERS__PER_NODE`.
* Use the option `--set workers.per_node=4`.

The kinds of value are:

* A *time limit* is `30` (minutes), `MM:SS`, `HH:MM:SS`,
  `D-HH:MM:SS`, `90m`, `2h` or `1d12h`.
* A *duration* is `20` (seconds), `1.5s`, `2m` or `1h30m`.
* A *memory* value is `4000M`, `120G` or `0.5T` in powers of
  1024. A number without a unit is in MiB.

`make reference` writes this page from the schema.
"""
KINDS = {
    bool: "true or false", int: "number", units.Seconds: "duration", units.TimeLimit: "time limit",
    units.Memory: "memory", str: "text", tuple: "list of strings", dict: "table of texts",
}  # fmt: skip
# What the tables of a section describe, by section.
ENTRIES = {
    "partitions": "partition", "partitions.NAME.nodes": "kind of nodes", "qos": "QoS", "report.advice": "rule", "facts": "fact",
}  # fmt: skip
# What explains the keys of a section.
MORE = {
    "identify": "[how the site is found](sites.md#how-the-site-is-found)",
    "slurm": "[nodes that failed](commands.md#nodes-that-failed)",
    "qos": "[facts](sites.md#facts)",
    "runtime": "[packages that Python needs](sites.md#runtime), [copies of the image](images.md#staging)",
    "gpu": "[memory](interconnect.md#memory), [spilling](choosing.md#spilling)",
    "interconnect": "[the interconnect check](interconnect.md#the-interconnect-check)",
    "deadlines": "[what hangs](how-it-works.md#what-hangs)",
    "report": "[samples](run-directory.md#samples), [advice](report.md#advice)",
    "paths": "[folders for runs](security.md#folders-for-runs)",
    "code": "[what is copied](sites.md#code)",
    "cost": "[before the submission](commands.md#before-the-submission)",
    "login": "[tunnels](tunnels.md)",
    "facts": "[facts](sites.md#facts)",
}


# The columns of the table of listeners on each page, and the fields that fill them.
COLUMNS = {
    "what": "what", "where": "where", "who gets in": "access", "what another account gets": "stranger",
    "opened by": "opener",
}  # fmt: skip
LISTENERS = {
    "security.md": ["what", "where", "who gets in", "what another account gets"],
    "security-for-administrators.md": ["what", "opened by", "where", "who gets in"],
}
BEGIN = "<!-- `make reference` writes this table from hpcml/listeners.py -->"
END = "<!-- end of the table -->"


def pages() -> dict[str, str]:
    """Return the pages by their names."""
    return {
        "reference-commands.md": "\n".join([COMMANDS, *_commands()]),
        "reference-profile.md": "\n".join([PROFILE, *_sections()]),
    }


def listeners() -> dict[str, str]:
    """Return the pages on security by their names, with the table of listeners as it is in the code."""
    found = {}
    for name, columns in LISTENERS.items():
        rows = [[getattr(row, COLUMNS[one]) for one in columns] for row in listening.TABLE]
        lines = [f"| {' | '.join(row)} |" for row in [columns, *rows]]
        table = "\n".join([lines[0], f"|{'---|' * len(columns)}", *lines[1:]])
        text = (DOCS / name).read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        assert min(begin, end), f"docs/{name} lacks the comments round the table of listeners"
        found[name] = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return found


def _paragraph(text: str, *, item: bool = False) -> list[str]:
    lines = _folded(text, WIDTH, first="* " if item else "", rest="  " if item else "")
    assert not [line for line in lines[1:] if re.match(r"\s*([#*+>-]|\d+[.)])\s", line)], f"another list begins: {text}"
    return lines


def _folded(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Return a text in lines in which what is written as code stays whole."""
    whole = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)
    lines = folded(whole, width, first=first, rest=rest)
    return [line.replace("\0", " ") for line in lines]


# -- commands -----------------------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    for command in commands.COMMANDS:
        more = f"[More](commands.md#hpcml-{command})."
        yield from _command(commands.build_parser(command), "##", more)


@functools.cache
def _of(command: str) -> frozenset[str]:
    return frozenset(_said(action) for action in commands.build_parser(command)._actions if action.dest != "help")


def _command(parser: argparse.ArgumentParser, level: str, more: str) -> Iterator[str]:
    yield from (f"{level} {parser.prog}", "", "```text")
    for usage in (parser.usage or "").splitlines():
        yield from folded(usage, WIDTH, rest="    ")
    yield from ("```", "", *_paragraph(f"{parser.description} {more}".strip()), "")
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    other, shared = _shared(parser, actions)
    for group in parser._action_groups:
        own = [action for action in actions if action in group._group_actions and action not in shared]
        if own and not isinstance(own[0], argparse._SubParsersAction):
            title = {"positional arguments": "words", "options": "options"}.get(str(group.title), str(group.title))
            yield from (f"{title[:1].upper()}{title[1:]}:", "")
            for text, of_it in itertools.groupby(own, _meaning):
                yield from _option(text, list(of_it))
            yield ""
    if shared:
        names = [f"`{action.option_strings[0] if action.option_strings else action.metavar}`" for action in shared]
        said = f"`{parser.prog}` also accepts, as in [{other}](#hpcml-{other}): {', '.join(names)}."
        yield from (*_paragraph(said), "")
    if parser.epilog and level == "##":
        yield from (*_paragraph(parser.epilog), "")
    for action in actions:
        for verb in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from _command(verb, "###", "")


def _shared(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> tuple[str, list[argparse.Action]]:
    """Return another command that has most of these words and options too, and which; none if it has but one."""
    own = parser.prog.removeprefix("hpcml ")
    others = SHARED[: SHARED.index(own)] if own in SHARED else SHARED  # no two refer to each other
    if not others:
        return "", []
    shared = {command: [action for action in actions if _said(action) in _of(command)] for command in others}
    most = max(others, key=lambda command: len(shared[command]))
    return most, shared[most] if len(shared[most]) > 1 else []


def _meaning(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split())


def _said(action: argparse.Action) -> str:
    """Return an option without its default and what else is in brackets."""
    text = (action.help or "").partition(" (")[0]
    return f"{action.option_strings} {action.metavar} {text}"


def _option(text: str, actions: list[argparse.Action]) -> Iterator[str]:
    names = []
    for action in actions:
        value = "" if action.nargs == 0 else f"`{action.metavar}`"
        names.append(f"{', '.join(f'`{name}`' for name in action.option_strings)} {value}".strip())
    lines = [*_paragraph(f"{'; '.join(names)}:", item=True), *(f"  {line}" for line in folded(text, WIDTH - 2))]
    yield from lines


# -- keys ---------------------------------------------------------------------------------------------------------


def _sections() -> Iterator[str]:
    own = [name for name, kind in schema.Site.__annotations__.items() if _record(kind) is None]
    yield from ("## The profile itself", "", *itertools.chain(*(_key(schema.Site, "", name) for name in own)))
    for name, kind in schema.Site.__annotations__.items():
        if record := _record(kind):
            yield from _section(record, name, several=record is not kind)


def _section(record: Any, name: str, *, several: bool, level: str = "##") -> Iterator[str]:
    yield from ("", f"{level} {name}", "")
    said = [" ".join(part.split()).replace("``", "`") for part in (inspect.getdoc(record) or "").split("\n\n")]
    said += [f"Write one table `[{name}.NAME]` for each {ENTRIES[name]}."] if several else []
    for part in [*said, *([f"See {MORE[name]}."] if name in MORE else [])]:
        yield from (*_paragraph(part), "")
    prefix = f"{name}.NAME." if several else f"{name}."
    nested = {field: _record(kind) for field, kind in record.__annotations__.items()}
    for field, inner in nested.items():
        if inner is None:
            yield from _key(record, prefix, field)
    for field, inner in nested.items():
        if inner is not None:
            yield from _section(
                inner, f"{prefix}{field}", several=inner is not record.__annotations__[field], level="###"
            )


def _record(kind: Any) -> Any:
    """Return the record that a field is, or that its tables are; None of a plain value."""
    inner = get_args(kind)[1] if get_origin(kind) is dict else kind
    return inner if hasattr(inner, "_fields") else None


def _key(record: Any, prefix: str, field: str) -> Iterator[str]:
    key, kind = f"{prefix}{field}", record.__annotations__[field]
    default = typed_json.plain(record._field_defaults[field])
    choices = " or ".join(f"`{choice}`" for choice in schema.CHOICES.get(key, ()))
    what = choices.replace(" or ", ", ", choices.count(" or ") - 1) or KINDS[get_origin(kind) or kind]
    if default or isinstance(default, (bool, int)):
        what += f"; default `{json.dumps(default, ensure_ascii=False)}`"
    text = MEANINGS[record.__name__][field]
    yield from (*_paragraph(f"`{key}` ({what}):", item=True), *(f"  {line}" for line in folded(text, WIDTH - 2)))


def _meanings() -> dict[str, dict[str, str]]:
    """Return the text below each field of each record of the schema."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(schema) + inspect.getsource(site_records)).body:
        for field, below in itertools.pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(node, ast.ClassDef):
                text = " ".join(ast.literal_eval(below.value).split()).replace("``", "`")
                found.setdefault(node.name, {})[ast.unparse(field.target)] = text
    return found


MEANINGS = _meanings()


if __name__ == "__main__":
    for page, content in {**pages(), **listeners()}.items():
        (DOCS / page).write_text(content, encoding="utf-8")
        print(f"docs/{page}")
    addresses.write()
