"""The files of figures in docs/benchmarks, as the pages show them, and the digests of the code that they measured."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import tokenize
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Folders of benchmarks in commands that were recorded before they had their present names.
FORMER = {"tests/bench/": "bench/", "tests/gpu/": "bench/gpu/"}


def read_figures(path: Path) -> Any:
    """Return the content of a file, with the folders in its recorded commands as they are now."""
    text = path.read_text(encoding="utf-8")
    for former, now in FORMER.items():
        text = text.replace(former, now)
    return json.loads(text)


def measured(*places: str) -> dict[str, str]:
    """Return the digests of what a benchmark measures, by place, for its file of figures.

    Parameters
    ----------
    places
        Each the path of a Python file in the checkout, or PATH:NAME for one function or class of it.
    """
    return {place: digest((ROOT / place.partition(":")[0]).read_text(encoding="utf-8"), place) for place in places}


def digest(source: str, place: str) -> str:
    """Return the digest of a file's code, or of one name's, without docstrings, comments and white space.

    Raises
    ------
    ValueError
        If the file does not define the name.
    """
    tree: ast.AST = ast.parse(source)
    lines = source.splitlines(keepends=True)
    if name := place.partition(":")[2]:
        found = [node for node in ast.walk(tree) if getattr(node, "name", "") == name and hasattr(node, "body")]
        if not found:
            raise ValueError(f"{place}: the file does not define {name}")
        tree = found[0]
    without = [node.body[0] for node in ast.walk(tree) if has_docstring(node)]  # type: ignore[attr-defined]
    first, last = getattr(tree, "lineno", 1), getattr(tree, "end_lineno", len(lines))
    skipped = {number for node in without for number in range(node.lineno, node.end_lineno + 1)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column]
    code = "".join(lines[number - 1] for number in range(first, last + 1) if number not in skipped)
    return hashlib.sha256("".join(code.split()).encode()).hexdigest()[:16]


def has_docstring(node: ast.AST) -> bool:
    """Return true if a module, class or function begins with a docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None
