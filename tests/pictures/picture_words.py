"""The words of the documentation's pictures: those that are hpcml's own must be in this version of it.

Pairs of neighbours are looked for among the texts of hpcml's source. Which pairs of a picture are not its own (names, values,
words of Slurm, places where hpcml joins two texts) is recorded when the picture is made; later any other pair must be there.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs/pictures/words.json"
_WORD = re.compile(r"[A-Za-z]{2,}(?:['-][a-z]+)*")
_JOINT = re.compile(r"[^\sA-Za-z'`{}()-]+|[(){}]")  # what ends a sentence or a cell: no pair goes over it


def pairs(lines: Iterable[str]) -> set[str]:
    """Return each two neighbouring words of lines, and each word that stands alone."""
    found = set()
    for line in lines:
        for part in itertools.chain.from_iterable(re.split(r"\s{2,}", piece) for piece in _JOINT.split(line)):
            words = _WORD.findall(part)
            found |= {" ".join(two) for two in itertools.pairwise(words)} or set(words)
    return found


@functools.cache
def of_source() -> frozenset[str]:
    """Return the pairs of all texts of hpcml, and all its words."""
    texts: list[str] = []
    for path in (ROOT / "hpcml").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts += [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    lines = [line for text in texts for line in re.sub(r"<[^<>]*>|{[{%].*?[}%]}", "  ", text).splitlines()]
    return frozenset({*pairs(lines), *(word for line in lines for word in _WORD.findall(line))})


def record(name: str, lines: Iterable[str]) -> None:
    """Write the lines of a picture, and which of their pairs are not hpcml's."""
    table = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    shown = [line for line in lines if line.strip()]
    table[name] = {"lines": shown, "others": sorted(pairs(shown) - of_source())}
    RECORD.write_text(json.dumps(dict(sorted(table.items())), indent=1, ensure_ascii=False) + "\n")


def outdated(name: str) -> set[str]:
    """Return the pairs of a picture that hpcml no longer has."""
    table = json.loads(RECORD.read_text())[name]
    return pairs(table["lines"]) - set(table["others"]) - of_source()
