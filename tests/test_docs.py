"""The documentation is true: links resolve, commands parse, settings load, and templates render."""

from __future__ import annotations

import argparse
import ast
import json
import re
import runpy
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import newcomer
from hpcml import errors
from hpcml.cli import commands
from hpcml.plan import batch_script, make_plan
from hpcml.request import record as request
from hpcml.sites import lookup, schema
from tests.doc_blocks import DOCS, OWN, OWN_BLOCKS, PAGES, ROOT, SHELL, Block, split
from tests.site import addresses, reference

OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
WRONG = "# wrong on purpose"


def of(language: str, *, kind: str = "") -> list[Any]:
    return [
        pytest.param(block, id=block.place) for block in OWN_BLOCKS if (block.language, block.kind) == (language, kind)
    ]


def codes(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def test_the_picture_of_a_run_is_what_its_program_draws() -> None:
    program = ROOT / "tests/pictures/shape.py"
    assert runpy.run_path(str(program))["draw"]() == (ROOT / "docs/pictures/shape.svg").read_text(encoding="utf-8")


def test_the_timed_path_has_the_commands_of_its_page() -> None:
    measured = json.loads(newcomer.FIGURES.read_text(encoding="utf-8"))["steps"]
    assert [(step["node"], step["command"]) for step in measured] == newcomer.steps()


# -- links --------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", split(page)[1], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_anchors_resolve(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=str(page.relative_to(ROOT))):
            for target in re.findall(r"\]\(([^)\s]+)\)", split(page)[1]):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                found = (page.parent / name).resolve() if name else page
                assert found.exists(), target
                assert not anchor or anchor in anchors(found), target


def test_each_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert {str(page.relative_to(ROOT)) for page in OWN} <= set(named)


# -- commands -----------------------------------------------------------------------------------------------------


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command on a line, as bash would divide them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def parse(words: list[str]) -> None:
    """Parse one command line of hpcml as cli.main does, without running it."""
    _, words = commands.split_host(words)
    if words[0] in ("--help", "--version", "help"):
        return
    submits = words[0] == "submit"
    own, script = commands.split_script(words[0], words[1:])
    options = commands.build_parser(words[0]).parse_args(own)
    assert script or not submits, "SCRIPT is missing"
    known = {"HOME": "/nowhere", "HPCML_SYSTEM_CONFIG": "/nowhere"}
    if words[0] in ("completion", "new", "pack"):  # of no site
        return
    name = ("".join(options.names[:1]) if words[0] == "site" else options.site) or "local"
    lookup.load(name if name in lookup.profile_files(known) else "local", known, Path("/"), options.set or ())


def test_command_lines_parse(subtests: pytest.Subtests) -> None:
    """Those of the examples and their page too, without the words behind them."""
    typed = {block.place: block.commands() for block in SHELL}
    for path in (ROOT / "jobs").glob("*.*"):
        typed[path.name] = re.findall(r"^    (hpcml submit .*?)(?:   .*)?$", path.read_text(), re.MULTILINE)
    assert typed["README.md"]
    for place, lines in typed.items():
        with subtests.test(place=place):
            for line in lines:
                for words in simple_commands(line):
                    set_here = [word for word in words if re.match(r"HPCML_\w+=", word)]
                    for name, value in (word.split("=", 1) for word in set_here):
                        lookup.load("local", {"HPCML_SYSTEM_CONFIG": "/nowhere", name: value}, Path("/"))
                    rest = [word for word in words if word not in (*set_here, "export")]
                    if rest[:1] == ["hpcml"] and WRONG not in line:
                        parse(rest[1:])


def test_commands_named_in_the_text_exist(subtests: pytest.Subtests) -> None:
    for page in OWN:
        with subtests.test(page=page.name):
            for code in codes(split(page)[1]):
                words = code.replace("\\|", "|").split(" | ")[0].split()
                words = [*words[:1], *commands.split_host(words[1:])[1]]
                if words[0] != "hpcml" or len(words) == 1 or words[1] in ("COMMAND", "help", "--help", "--version"):
                    continue
                assert words[1] in commands.COMMANDS, code
                used, _ = commands.split_script(words[1], words[2:])
                known = {
                    option for action in actions(commands.build_parser(words[1])) for option in action.option_strings
                }
                assert {word for word in used if OPTION.fullmatch(word)} <= known, code


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what a parser takes, and what those of its own verbs take."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from actions(verb)


def test_the_reference_is_what_parsers_and_schema_say(subtests: pytest.Subtests) -> None:
    for name, text in reference.pages().items():
        with subtests.test(page=name):
            assert (DOCS / name).read_text(encoding="utf-8") == text, "write it again: make reference"
            assert max(map(len, text.splitlines())) <= reference.WIDTH


def test_files_name_the_addresses_that_the_project_does(subtests: pytest.Subtests) -> None:
    for place in addresses.PLACES:
        with subtests.test(file=place.file, field=place.field):
            text = (ROOT / place.file).read_text(encoding="utf-8")
            assert addresses.with_address(text, place, addresses.address(place.field)) == text, (
                "write it: make reference"
            )


def test_an_address_replaces_what_to_do_without_one(subtests: pytest.Subtests) -> None:
    where = "https://code.example.org/team/hpcml"
    for place in addresses.PLACES:
        with subtests.test(file=place.file, field=place.field):
            text = (ROOT / place.file).read_text(encoding="utf-8")
            named, unnamed = addresses.with_address(text, place, where), addresses.with_address(text, place, "")
            assert where in named
            assert where not in unnamed
            assert place.without in unnamed
            assert not place.without or place.without not in named
            assert addresses.with_address(named, place, "") == unnamed
            if place.file == "pyproject.toml":
                assert tomllib.loads(named)["project"]["urls"] == {"Repository": where}
            with pytest.raises(ValueError, match="0 places"):
                addresses.with_address("# A page without a place\n", place, "")
    for wrong in ("code.example.org/hpcml", "git@code.example.org:hpcml", "https://code.example.org", f"{where}/"):
        with subtests.test(wrong=wrong), pytest.raises(ValueError, match="public-address"):
            addresses.with_address("", addresses.PLACES[2], wrong)


def test_pip_and_uv_accept_the_line_with_an_address() -> None:
    given = addresses.PLACES[2].given.replace("{}", "https://code.example.org/team/hpcml")
    requirement = Requirement(codes(given)[0])
    assert (requirement.name, requirement.extras) == ("hpcml", {"array"})
    assert requirement.url == "git+https://code.example.org/team/hpcml"


def test_the_tables_of_listeners_are_those_of_the_code(subtests: pytest.Subtests) -> None:
    for name, text in reference.listeners().items():
        with subtests.test(page=name):
            assert (DOCS / name).read_text(encoding="utf-8") == text, "write it again: make reference"


def meanings(text: str) -> dict[int, str]:
    """Return the meaning of each status in the tables: a bar behind a backslash divides no cells."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| ")]
    return {int(cells[0]): cells[1].strip() for cells in rows if len(cells) == 3 and cells[0].strip().isdecimal()}


def test_exit_statuses() -> None:
    text = split(DOCS / "exit-status.md")[1]
    assert meanings(text) == errors.MEANING


# -- blocks in other languages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", of("python"))
def test_python_blocks_compile(block: Block) -> None:
    ast.parse(block.text, block.place)


@pytest.mark.parametrize("block", of("toml"))
@pytest.mark.parametrize("site", ["local", "slurm", "leonardo", "lab"])
def test_settings_load(block: Block, site: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(block.text)
    if site == "lab":  # a profile of a site's own
        shutil.copytree(ROOT / "tests/lab/site/profiles", tmp_path / "profiles")
    lookup.load(site, {"HPCML_SYSTEM_CONFIG": str(tmp_path)}, None)


def make(site: schema.Site, account: str = "") -> make_plan.Plan:
    spec = request.RunRequest.of(Path("/home/ada/first.py"), (), Path("/home/ada"), account=account)
    place = make_plan.RunLocation(Path("/home/ada/runs/first-20261121-083633-0865"), "/opt/python", "0")
    return make_plan.plan(site, spec, place)


@pytest.mark.parametrize("block", of("toml", kind="profile"))
def test_profiles_load(block: Block, tmp_path: Path) -> None:
    name = "mycluster" if "extends" in block.text else "leonardo"
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / f"{name}.toml").write_text(block.text)
    loaded = lookup.load(name, {"HPCML_SYSTEM_CONFIG": str(tmp_path)}, tmp_path)
    assert make(loaded.site, "account").directives


@pytest.mark.parametrize("block", of("jinja"))
def test_templates_render(block: Block, tmp_path: Path) -> None:
    (tmp_path / "batch.sh.j2").write_text(block.text)
    made = make(lookup.load("slurm", {"HPCML_SYSTEM_CONFIG": "/nowhere"}, tmp_path).site)
    text = batch_script.render(made, [tmp_path])
    assert text != batch_script.render(made)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_each_block_is_run_or_says_why_not(subtests: pytest.Subtests) -> None:
    """``text`` is output, and settings, profiles and templates are loaded above."""
    for block in (block for block in OWN_BLOCKS if block.language not in ("text", "toml", "jinja")):
        with subtests.test(block=block.place):
            assert (block.run is not None) != block.excused, "write <!-- run --> or <!-- not run: WHY --> above it"
