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
        for found in _beside(folder, source, path.relative_to(folder).parent.parts):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    return digest.hexdigest()


def _beside(folder: Path, source: bytes, package: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of the modules beside the script that a source of a package imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # whoever runs it says so
    for name in sorted({name for node in ast.walk(tree) for name in _names(node, package)}):
        yield from _sources(folder, name)


def _sources(place: Path, name: Sequence[str]) -> Iterator[Path]:
    """Yield the sources of a dotted name: of a package all, of a folder without __init__.py only what is named."""
    for part in name:
        if (file := place / f"{part}.py").is_file():
            yield file
        place /= part
        if (place / "__init__.py").is_file():
            yield from sorted(place.rglob("*.py"))
            return


def _names(node: ast.AST, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    if isinstance(node, ast.Import):
        return [tuple(one.name.split(".")) for one in node.names]
    if isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else ()
        inside = tuple(node.module.split(".")) if node.module else ()
        return [(*above, *inside, one.name) for one in node.names]
    return []
