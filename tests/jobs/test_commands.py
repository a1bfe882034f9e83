"""Every command with an example, in the documentation and in the examples' first lines, is one that can be typed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from hpcml.cli.commands import build_parser, split_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "jobs").glob("*.md")]
TYPED = re.compile(r"^ *(?:\$ )?((?:python|hpcml submit) .*?jobs/\w+\.py.*?)(?:\s+#.*|\s+an? (?:laptop|cluster).*)?$")


def commands() -> list[tuple[str, str]]:
    """Return all commands, each with its file."""
    texts = {page.relative_to(ROOT): re.sub(r"\\\n\s*", "", page.read_text()) for page in PAGES}
    for path in (ROOT / "jobs").glob("*.py"):
        texts[path.relative_to(ROOT)] = ast.get_docstring(ast.parse(path.read_text())) or ""
    found = [
        (str(place), typed[1].strip())
        for place, text in texts.items()
        for line in text.splitlines()
        if (typed := TYPED.match(line))
    ]
    assert len(found) >= 2
    return found


def test_a_command_can_be_typed(subtests: pytest.Subtests) -> None:
    for place, command in commands():
        with subtests.test(place=place, command=command):
            words = shlex.split(command)
            if words[0] == "hpcml":
                own, script = split_script("submit", words[2:])
                build_parser("submit").parse_args(own)
            else:
                script = words[1:]
            path = ROOT / script[0]
            assert path.is_file(), place
            assert all(f'"{word}"' in path.read_text() for word in script[1:] if word.startswith("--"))
