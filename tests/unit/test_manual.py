"""The manual page, made from the parser: roff takes it, and nothing of the commands is missing."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess

import pytest

from hpcml.cli import main, manual


def test_roff_takes_it_and_nothing_is_missing() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed here (apt-get install groff-base)")
    text = "\n".join(manual.page()) + "\n"
    words = [groff, "-man", "-Tutf8", "-Kutf8", "-ww", "-P-cbou", "-rLL=200n"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    sections = dict(
        re.findall(r"^   hpcml (\w+)\n(.*?)(?=^   hpcml \w+$|^[A-Z])", done.stdout, re.MULTILINE | re.DOTALL)
    )
    assert list(sections) == list(main.COMMANDS)
    for command, section in sections.items():
        for action in main.build_parser(command)._actions:
            if action.help != argparse.SUPPRESS and action.dest != "help":
                assert all(option in section for option in action.option_strings), (command, action.dest)
                assert " ".join(str(action.help).split()[:4]) in " ".join(section.split()) or not action.help, (
                    command,
                    action.help,
                )
    assert "\\" not in done.stdout


@pytest.mark.parametrize("text", [".so /etc/passwd", "'quoted", "a\\b", "--x-y", "100%%"])
def test_text_stays_text(text: str) -> None:
    line = manual._text(text)
    assert not line.startswith((".", "'"))
    assert "%%" not in line
    assert not re.search(r"(?<!\\)-", line)
