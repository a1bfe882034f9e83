"""What a script's text tells before it runs: which options it takes, and whether it expects ranks."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpcml.runs import script_checks

_MOST_FILES = 200  # of a package beside the script
# Libraries that make options of the names of functions' parameters or of fields.
_OPTIONS_BY_NAME = {
    "absl", "argh", "clize", "cyclopts", "defopt", "draccus", "fire", "jsonargparse", "pydantic_settings", "plac",
    "simple_parsing", "tap", "transformers", "typer", "tyro",
}  # fmt: skip


def options_taken(script: Path, folder: Path, options: Iterable[str]) -> set[str]:
    """Return those of some options that a script, or a module beside it, may read.

    Parameters
    ----------
    folder
        The first folder on the script's path of modules.
    """
    code = list(trees(script, folder))
    if not code and script.suffix != ".ipynb":  # perhaps of a newer Python
        text = script.read_text(encoding="utf-8", errors="replace")
        return {option for option in options if option in text}
    words = [text for tree in code for text in texts(tree)]
    names = {name for tree in code if _OPTIONS_BY_NAME & imported(tree) for name in _names(tree)}
    return {
        option
        for option in options
        if option[2:].replace("-", "_") in names
        or any(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) for text in words)
    }


def trees(script: Path, folder: Path) -> Iterator[ast.Module]:
    """Yield the script and what it imports from beside it, packages whole; nothing of a file that is not Python."""
    if script.suffix == ".ipynb":
        return
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, OSError):  # told where it is checked
        for path, tree, _ in script_checks.sources(script, folder):
            yield tree
            others = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else []
            for other in others[:_MOST_FILES]:
                with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, OSError):
                    yield ast.parse(other.read_bytes())


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts in a file, but not its docstrings, which may show how it is submitted."""
    docstrings: set[ast.AST] = set()
    if "docopt" not in imported(tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.body:
                first = node.body[0]
                docstrings |= {first.value} if isinstance(first, ast.Expr) else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of parameters and fields, and texts, which may be names of options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("-", "_")


def imported(tree: ast.Module) -> set[str]:
    """Return the top-level names of all that a file imports, wherever it does."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found
