"""The documentation is true: links resolve, commands parse, tables equal the code, and what is marked runnable runs."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gallery import job as gallery_job
from hpcml import errors, script_api
from hpcml.cli import main
from hpcml.paths import AttemptPaths, Below, RunPaths
from hpcml.plan import batch_script, plan
from hpcml.schedulers import request
from hpcml.sites import lookup, schema
from tests.doc_blocks import BLOCKS, DOCS, OWN, OWN_BLOCKS, PAGES, ROOT, RUNNABLE, SHELL, Block, split
from tests.site import reference

OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
WRONG = "# wrong on purpose"


def of(language: str, *, kind: str = "") -> list[Any]:
    return [
        pytest.param(block, id=block.place) for block in OWN_BLOCKS if (block.language, block.kind) == (language, kind)
    ]


def prose(name: str) -> str:
    return split(DOCS / name)[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows; a bar behind a backslash divides nothing."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def codes(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


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


def test_every_page_is_reached_from_the_readme() -> None:
    linked = re.findall(r"\]\(([^)#\s]+)", split(ROOT / "README.md")[1])
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= set(linked)


def test_every_page_is_in_the_site_s_navigation() -> None:
    def pages(part: Any) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else []:
            yield from pages(inner)

    named = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert len(named) == len(set(named))
    assert not [name for name in named if not (ROOT / name).is_file()]
    assert {page.relative_to(ROOT).as_posix() for page in PAGES if DOCS in page.parents} <= set(named)


def test_no_page_holds_a_placeholder(subtests: pytest.Subtests) -> None:
    for page in OWN:
        with subtests.test(page=page.name):
            assert not re.search(r"@@|TODO|FIXME|XXX", page.read_text(encoding="utf-8"))


def test_pictures_are_small_and_shown() -> None:
    """``make pictures`` makes them; a page is quick to load, and no picture is left behind."""
    shown = {
        target for page in PAGES for target in re.findall(r"!\[[^\]]+\]\((?:docs/)?pictures/([^)]+)\)", split(page)[1])
    }
    assert {path.name for path in (DOCS / "pictures").iterdir()} == shown
    assert all(path.stat().st_size <= 150_000 for path in (DOCS / "pictures").iterdir())
    assert not [
        path.name for path in (DOCS / "pictures").glob("*.svg") if re.search(r"/(tmp|root|work)/", path.read_text())
    ]


def test_the_readme_s_fabric_lines_were_recorded() -> None:
    text = next(block.text for block in BLOCKS if block.page == ROOT / "README.md" and " fabric " in block.text)
    told = [" ".join(line.split()) for line in re.split(r"^[✓✗] fabric ", text, flags=re.MULTILINE)[1:]]
    recorded = (DOCS / "benchmarks/gpu-2-verdict.json").read_text()
    assert len(told) == 2
    assert all(f'"line": {json.dumps(line)}' in recorded for line in told)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = "\n".join(line for block in SHELL for line in block.commands())
    named = [code for page in OWN for code in codes(split(page)[1]) if code.startswith("make ")]
    found = set(re.findall(r"^make ([a-z-]+)", "\n".join([typed, *named]), re.MULTILINE))
    assert {"demo", "test", "lab", "lab-shell", "lab-down", "bench"} <= found <= targets


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
    _, words = main.split_host(words)
    if words[0] in ("--help", "--version", "help"):
        return
    submits = words[0] in ("submit", "plan")
    own, script = main.split_script(words[0], words[1:])
    options = main.build_parser(words[0]).parse_args(own)
    assert script or not submits, "SCRIPT is missing"
    known = {"HOME": "/nowhere", "HPCML_SYSTEM_CONFIG": "/nowhere"}
    if words[0] in ("completion", "new", "pack", "wheelhouse"):  # of no site
        return
    name = ("".join(options.names[:1]) if words[0] == "site" else options.site) or "local"
    lookup.load(name if name in lookup.profile_files(known) else "local", known, Path("/"), options.set or ())


def test_command_lines_parse(subtests: pytest.Subtests) -> None:
    for block in SHELL:
        with subtests.test(block=block.place):
            for line in block.commands():
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
                words = [*words[:1], *main.split_host(words[1:])[1]]
                if words[0] != "hpcml" or len(words) == 1 or words[1] in ("COMMAND", "help", "--help", "--version"):
                    continue
                assert words[1] in main.COMMANDS, code
                used, _ = main.split_script(words[1], words[2:])
                known = {option for action in actions(main.build_parser(words[1])) for option in action.option_strings}
                assert {word for word in used if OPTION.fullmatch(word)} <= known, code


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what a parser takes, and what those of its own verbs take."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from actions(verb)


def test_each_command_has_a_section() -> None:
    sections = re.findall(r"^## hpcml (\w+)$", prose("commands.md"), re.MULTILINE)
    assert sections == list(main.COMMANDS)


def test_the_reference_is_what_parsers_and_schema_say(subtests: pytest.Subtests) -> None:
    for name, text in reference.pages().items():
        with subtests.test(page=name):
            assert (DOCS / name).read_text(encoding="utf-8") == text, "write it again: make reference"
            assert max(map(len, text.splitlines())) <= reference.WIDTH


# -- tables that equal the code -----------------------------------------------------------------------------------


def meanings(text: str) -> dict[int, str]:
    return {int(cells[0]): cells[1] for cells in rows(text) if len(cells) == 3 and cells[0].isdecimal()}


def test_exit_statuses() -> None:
    text = prose("exit-status.md")
    of_jobs = re.findall(r"^## A job of the gallery.*?(?=^## )", text, re.MULTILINE | re.DOTALL)[0]
    assert meanings(text.replace(of_jobs, "")) == errors.MEANING
    assert meanings(of_jobs) == gallery_job.MEANING


def test_jobs_that_go_on_are_named() -> None:
    """Status 92 is of those that :func:`gallery.job.run` is told of."""
    jobs = (ROOT / "jobs/workloads").glob("*.py")
    going_on = {path.stem for path in jobs if "resumes=True" in path.read_text()}
    row = next(line for line in prose("exit-status.md").splitlines() if line.startswith("| 92 "))
    said = re.findall(r"A job ends with.*?when it does", prose("gallery/README.md"), re.DOTALL)[0]
    assert set(re.findall(r"\(gallery/(\w+)\.md\)", row)) == going_on
    assert set(re.findall(r"\((\w+)\.md\)", said)) == going_on


def test_statuses_named_in_the_text_exist(subtests: pytest.Subtests) -> None:
    for page in OWN:
        with subtests.test(page=page.name):
            named = {int(number) for number in re.findall(r"status(?:es)? (\d\d)\b", split(page)[1])}
            assert {number for number in named if 64 <= number <= 95} <= errors.MEANING.keys() | {95}


def test_shipped_profiles() -> None:
    told = {codes(cells[0])[0] for cells in rows(prose("sites.md").split("## The profiles")[1]) if codes(cells[0])}
    assert told == set(lookup.profile_files({"HPCML_SYSTEM_CONFIG": "/nowhere"}))


def test_files_and_events_of_a_run() -> None:
    text = prose("run-directory.md")
    places = [place.parts for place in vars(RunPaths).values() if isinstance(place, Below)]
    places += [place.parts for place in vars(AttemptPaths).values() if isinstance(place, Below) and not place.parts[1:]]
    assert len(places) > 40
    assert not [parts[-1] for parts in places if parts[-1] not in text]
    source = "".join(path.read_text() for path in (ROOT / "hpcml/node").rglob("*.py"))
    events = set(re.findall(r"""(?:events\.write\(\s*|event=)"([a-z-]+)\"""", source))
    events |= set(re.findall(r"note_event ([a-z-]+)", (ROOT / "templates/stage.sh").read_text()))
    told = next(cells[2] for cells in rows(text) if cells[0] == "`events.jsonl`")
    assert events - {"alive"} == set(codes(told))  # that one passes between the roles only


def test_folders_and_modules() -> None:
    """The table has each folder, and each module that lies beside folders; modules named elsewhere are there."""
    package = ROOT / "hpcml"
    folders = {path.parent.relative_to(package).as_posix() for path in package.rglob("__init__.py")} - {"."}
    within = {f"{name}" for name in folders if name.count("/") and name.startswith("remote/")}  # named in their row
    beside = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    text = prose("architecture.md")
    told = {code for cells in rows(text.split("## One run")[0]) for code in codes(cells[0])}
    assert told == (folders - within) | beside
    assert all(f"`{name}`" in text for name in within)
    for path in re.findall(r"`([a-z]+/[a-z_/]+\.py)`", text):
        assert (package / path).is_file(), path


def test_names_of_the_script_s_side() -> None:
    told = {name for page in OWN for name in re.findall(r"hpcml\.run\.(\w+)", page.read_text())}
    assert told == {name for name in dir(script_api.Run) if not name.startswith("_")}


def test_template_blocks_and_filters() -> None:
    source = (ROOT / "templates/batch.sh.j2").read_text()
    told = {codes(cells[0])[0] for cells in rows(prose("templates.md")) if codes(cells[0])}
    assert told == set(re.findall(r"{% block (\w+)", source)) | {"sh", "argv", "directive", "comment"}
    fields = set(re.findall(r"`plan\.(\w+)`", prose("templates.md")))
    assert fields == set(re.findall(r"plan\.(\w+)", source)) | {"name"}


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


@pytest.mark.parametrize("block", of("toml", kind="profile"))
def test_profiles_load(block: Block, tmp_path: Path) -> None:
    name = "mycluster" if "extends" in block.text else "leonardo"
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / f"{name}.toml").write_text(block.text)
    loaded = lookup.load(name, {"HPCML_SYSTEM_CONFIG": str(tmp_path)}, tmp_path)
    assert make(loaded.site, "--account").directives


def make(site: schema.Site, account: str = "") -> plan.Plan:
    spec = request.JobSpec(Path("/home/ada/first.py"), (), Path("/home/ada"), account=account.strip("-"))
    return plan.plan(
        site, spec, plan.RunLocation(Path("/home/ada/runs/first-20261121-083633-0865"), "/opt/python", "0")
    )


@pytest.mark.parametrize("block", of("jinja"))
def test_templates_render(block: Block, tmp_path: Path) -> None:
    (tmp_path / "batch.sh.j2").write_text(block.text)
    made = make(lookup.load("slurm", {"HPCML_SYSTEM_CONFIG": "/nowhere"}, tmp_path).site)
    text = batch_script.render(made, [tmp_path])
    assert text != batch_script.render(made)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


# -- what is marked to be run (test_docs_run.py runs it) ----------------------------------------------------------


def test_each_block_is_run_or_says_why_not(subtests: pytest.Subtests) -> None:
    """``text`` is output, and settings, profiles and templates are loaded above."""
    for block in (block for block in OWN_BLOCKS if block.language != "text"):
        with subtests.test(block=block.place):
            loaded = block.language in ("toml", "jinja")
            assert loaded or (block.run is not None) != block.excused, (
                "write <!-- run --> or <!-- not run: WHY --> above it"
            )


def test_the_first_pages_are_run() -> None:
    assert {ROOT / "README.md", DOCS / "tutorial.md"} <= set(RUNNABLE)
