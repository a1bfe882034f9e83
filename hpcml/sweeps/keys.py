"""What makes two points the same: the values, the script with the modules beside it, its arguments, the image."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcml.sweeps.points import Point

_LENGTH = 16  # hexadecimal digits


def key(point: Point, code: str, arguments: Sequence[str], image: str) -> str:
    """Return a point's key; the order of its names does not count."""
    values = sorted((value.name, value.text) for value in point)
    facts = json.dumps([values, code, list(arguments), image])
    return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:_LENGTH]


def of_code(script: Path) -> str:
    """Return a digest of a script and of all modules beside it that it or they import, wherever the import stands.

    Raises
    ------
    OSError
        If one of them cannot be read.
    """
    folder = script.parent
    digest = hashlib.sha256()
    waiting, seen = [script], {script}
    while waiting:
        path = waiting.pop(0)
        source = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name} {len(source)}\n".encode("utf-8", "surrogatepass") + source)
        for found in _beside(folder, source):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    return digest.hexdigest()


def _beside(folder: Path, source: bytes) -> Iterator[Path]:
    """Yield the files of the modules beside the script that a source names; of a package all its sources."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # whoever runs it says so
    for name in sorted({name for node in ast.walk(tree) for name in _names(node)}):
        if (file := folder / f"{name}.py").is_file():
            yield file
        elif (folder / name / "__init__.py").is_file():
            yield from sorted((folder / name).rglob("*.py"))


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name.partition(".")[0] for one in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []
