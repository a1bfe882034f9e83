"""What messages advise exists: options of the commands that they name, and keys of a profile."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import typing
from collections.abc import Iterator
from pathlib import Path

import hpcml
from hpcml.cli import commands
from hpcml.errors import UsageError
from hpcml.plan import make_plan
from hpcml.request.record import RunRequest
from hpcml.sites import lookup
from hpcml.sites.schema import Site
from tests.doc_blocks import OWN, split

PACKAGE = Path(hpcml.__file__).parent
OPTION = r"(?<![\w-])--[a-z][a-z-]+"
KEY = re.compile(r"(?<![\w./-])([a-z]+)\.([a-z_]+)(?![\w.(/*-])")
COMMAND = re.compile(r"hpcml ([a-z]+)((?: (?!hpcml )[^\s.;,:()'\"]+)*)")
# Options of other programs, and a script's own in examples.
FOREIGN = {
    "--array", "--bind", "--contain", "--export", "--containall", "--cpus-per-task", "--encrypt", "--epochs",
    "--format", "--gpus", "--gpu-bind", "--gpus-per-task", "--gres", "--ipc", "--licenses", "--lr", "--me", "--mem", "--mksquashfs-args", "--mem-per-cpu", "--nnodes", "--no-index", "--no-requeue", "--nv",
    "--overlap", "--parsable", "--password-stdin", "--pid", "--project", "--requeue", "--rdzv-endpoint", "--require-hashes", "--script", "--target", "--test-only", "--version",
}  # fmt: skip
FILES = {"json", "conf"}  # what follows the dot in a file's name
PROSE = {"sets", "starts"}  # words behind hpcml that are none of its commands
LEFT_OUT = re.compile("(?:is|are) missing|^Argument --.*: expected|^'X' is not one of")
NOT_SAID = {"report/page.py", "report/page_template.py", "api/elastic.py"}


def texts() -> Iterator[tuple[str, str]]:
    """Yield the package's strings that are sentences, with their places; what is filled in is an X."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        if place in NOT_SAID or place.startswith("_assets/"):
            continue
        tree = [*ast.walk(ast.parse(path.read_text()))]
        parts = {id(part) for node in tree if isinstance(node, ast.JoinedStr) for part in node.values}
        parts |= {id(node.value) for node in tree if isinstance(node, ast.Expr)}  # docstrings
        for node in tree:
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            else:
                continue
            if " " in text and "\\w" not in text:  # no word, and no pattern
                yield f"{place}:{node.lineno}", text


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from options(verb)


def test_advice_names_options_and_keys_that_exist() -> None:
    by_verb = {verb: {*options(commands.build_parser(verb))} for verb in commands.COMMANDS}
    known = {"--host", *FOREIGN}.union(*by_verb.values())
    tables = typing.get_type_hints(Site)
    wrong, seen = [], 0
    for place, text in texts():
        seen += 1
        wrong += [(place, option, text) for option in re.findall(OPTION, text) if option not in known]
        for verb, rest in COMMAND.findall(text):
            allowed = by_verb.get(verb, known) | FOREIGN
            wrong += [
                (place, verb, text) for option in re.findall(OPTION, rest.partition(" -- ")[0]) if option not in allowed
            ]
        for table, key in KEY.findall(text):
            fields = getattr(tables.get(table), "_fields", ())
            wrong += [(place, key, text)] if fields and key not in {*fields, *FILES} else []
    assert wrong == []
    assert seen > 100  # or nothing is looked at


def printed() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands that messages and pages print, with their places; a sentence may go on behind a name."""
    for place, text in texts():
        for command in re.findall(r"hpcml (?:--host \S+ )?[a-z-]+(?: (?!hpcml )[^\s.;:,()'\"`<>|]+)*", text):
            _, (verb, *words) = commands.split_host([*command.split()[1:], ""])
            prose = next((at for at, word in enumerate(words) if re.fullmatch(r"[a-z]*", word)), len(words))
            if verb not in PROSE and any(word[:1] == "-" for word in words[:prose]):
                yield place, [verb, *words[:prose]]
    for page in OWN:
        for code in re.findall(r"`(hpcml [^`\n|>]+?)`", split(page)[1]):
            _, words = commands.split_host(shlex.split(code)[1:])
            yield page.name, words or [""]
    site = lookup.load("leonardo", {"HPCML_SYSTEM_CONFIG": "/nowhere"}, Path("/")).site
    note = next(text for text in make_plan._notices(site, RunRequest()) if "unconfirmed" in text)
    yield note, note.partition("(hpcml ")[2].rstrip(")").split()


def test_printed_commands_parse() -> None:
    """Each word is one that its command takes there; a word or a value that the text leaves out is no fault."""
    wrong, seen = [], 0
    for place, (verb, *words) in printed():
        if verb not in commands.COMMANDS or {"--help", "--help-all"} & {*words}:
            continue
        seen += 1
        try:
            commands.build_parser(verb).parse_args(commands.split_script(verb, words)[0])
        except UsageError as error:
            wrong += [(place, verb, words, error.message)] if not LEFT_OUT.search(error.message) else []
    assert wrong == []
    assert seen > 200  # or nothing is looked at
