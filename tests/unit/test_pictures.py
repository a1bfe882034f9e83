"""The pictures of the documentation show the commands and the words of this version."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape

import make
import picture_words
import pytest

from hpcml.cli import commands

PICTURES = picture_words.RECORD.parent
RECORDED = json.loads(picture_words.RECORD.read_text())
OTHERS = {
    "shape.svg",
    "hardware-limits.svg",
    "dashboard.png",
}  # of benchmarks, and Dask's page


def lines_of(name: str) -> list[str]:
    """Return the texts of a terminal's picture, row by row."""
    rows: dict[str, str] = {}
    for row, text in re.findall(r'<text x="[^"]*" y="([^"]*)"[^>]*>([^<]*)</text>', (PICTURES / name).read_text()):
        rows[row] = rows.get(row, "") + unescape(text)
    return list(rows.values())


@pytest.mark.parametrize("name", RECORDED)
def test_a_picture_has_the_words_of_this_version(name: str) -> None:
    older = picture_words.outdated(name)
    assert not older, f"docs/pictures/{name} shows words that hpcml no longer has ({sorted(older)}): sudo make pictures"


@pytest.mark.parametrize("name", RECORDED)
def test_a_picture_s_commands_are_those_of_this_version(name: str) -> None:
    """The parser accepts them."""
    for line in RECORDED[name]["lines"]:
        if line.startswith("$ hpcml "):
            _, _, verb, *words = shlex.split(line)
            commands.build_parser(verb).parse_args(commands.split_script(verb, words)[0])


def test_each_picture_is_recorded_as_it_is() -> None:
    assert {path.name for path in PICTURES.iterdir() if path.suffix in (".svg", ".png")} - OTHERS == {
        f"{name}.{'png' if (PICTURES / f'{name}.png').exists() else 'svg'}" for name in RECORDED
    }
    for name in ("submit", "runs", "why", "top"):
        recorded = [line.split() for line in RECORDED[name]["lines"]]
        assert [line.split() for line in lines_of(f"{name}.svg")] == [words for words in recorded if words]
        assert RECORDED[name]["lines"][0].startswith("$ hpcml ")


def test_the_notebook_of_the_picture_is_that_of_make_py() -> None:
    """And its kernel has the name that hpcml gives kernels."""
    lines = RECORDED["jupyter"]["lines"]
    assert [line for cell in make.CELLS for line in cell.splitlines() if line and line not in lines] == []
    assert "hpcml (this run)" in lines


def test_an_older_word_is_noticed() -> None:
    """A pair of words that no text of hpcml has; not across the end of a sentence."""
    assert picture_words.pairs(["  data (wire net) 3.2 GiB"]) == {"data", "wire net", "GiB"}
    assert "wire net" not in picture_words.of_source()
    assert picture_words.pairs(["exited with status 0"]) <= picture_words.of_source()
