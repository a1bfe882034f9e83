"""Every command that a page or a job's own first lines tell to type is one that hpcml and the job take."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
import shlex

import pytest

import kmeans
from hpcml.cli import main
from tests.jobs.job_list import JOBS, TOOLS

ROOT = pathlib.Path(kmeans.__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "jobs").glob("*.md")]
TYPED = re.compile(
    r"^ *(?:\$ )?((?:python|hpcml submit) .*?jobs/(?:workloads/)?\w+\.py.*?)(?:\s+#.*|\s+an? (?:laptop|cluster): .*)?$"
)
SAID = re.compile(r"  +\S.*")  # behind a command of a docstring or a table of the README
OWN_OPTIONS = sorted({*JOBS, "make_data"})


def commands() -> list[tuple[str, str]]:
    """Return all commands with the file that tells them."""
    texts = {page.relative_to(ROOT): re.sub(r"\\\n\s*", "", page.read_text()) for page in PAGES}
    for path in (ROOT / "jobs").glob("**/*.py"):
        texts[path.relative_to(ROOT)] = ast.get_docstring(ast.parse(path.read_text())) or ""
    found = [
        (str(place), SAID.sub("", typed[1].strip()))
        for place, text in texts.items()
        for line in text.splitlines()
        if (typed := TYPED.match(line))
    ]
    assert len(found) > 100
    return found


def test_a_command_can_be_typed(subtests: pytest.Subtests) -> None:
    for place, command in commands():
        with subtests.test(place=place, command=command):
            words = shlex.split(command)
            if words[0] == "hpcml":
                own, script = main.split_script("submit", words[2:])
                main.build_parser("submit").parse_args(own)
            else:
                script = words[1:]
            path = ROOT / script[0]
            name = path.stem
            assert path.is_file(), place
            if path.parent.name == "jobs":  # an example: its options are in its text
                assert all(f'"{word}"' in path.read_text() for word in script[1:] if word.startswith("--"))
                continue
            assert name in (*JOBS, *TOOLS), place
            if name in OWN_OPTIONS and "--help" not in script:
                importlib.import_module(name).parse(script[1:])  # SystemExit is an option that is not there, or wrong
