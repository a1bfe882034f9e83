"""``hpcml new``: write an example script into the current folder, to be changed."""

from __future__ import annotations

import os
import re
import shlex
import sys
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import assets, safe_files
from hpcml.cli import common
from hpcml.errors import StorageError, UsageError, did_you_mean, nearest
from hpcml.terminal import say_fitted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Collection

_A_TYPO = 0.8  # how alike a name and an example are, of 1, for one to be meant as the other
DEFAULT = "minimal"  # what is written where no example is named


def examples() -> dict[str, Path]:
    """Return the examples that ship with hpcml, by name."""
    return {path.stem: path for path in sorted(assets.folder("jobs").glob("*.py"))}


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = f"EXAMPLE is one of {', '.join(examples())}. hpcml new without arguments describes each example."
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="the script to write: NAME or NAME.py")
    parser.add_argument(
        "example",
        nargs="?",
        default="",
        metavar="EXAMPLE",
        help="example to copy (default: the example called NAME; if none exists, minimal)",
    )
    common.add_json(
        parser, "print JSON: the new file's path and the example's name; without NAME, a description of each example"
    )


def run(options: Namespace) -> int:
    """Write an example, or list them all."""
    shipped = examples()
    if not options.name:
        _list(shipped, as_json=options.json)
        return 0
    path = Path(options.name if options.name.endswith(".py") else f"{options.name}.py")
    example = options.example.removesuffix(".py") or (path.stem if path.stem in shipped else DEFAULT)
    _check(options.name, path.stem, options.example and example, shipped)
    text = shipped[example].read_bytes()
    packages = _packages(text.decode(), shipped[example].parent)
    _write(path, text)
    for package in packages:
        _copy(package, path.parent / package.name)
    if options.json:
        common.print_json({"path": str(path.absolute()), "example": example})
        return 0
    say_fitted(f"Wrote {path}: {_does(text.decode())}", sys.stdout)
    for package in packages:
        say_fitted(f"Wrote the folder {package.name}: {path} imports it.", sys.stdout)
    words = f"{'--ranks 2 ' * (b'--ranks' in text)}{shlex.quote(str(path))}"
    here = f"hpcml submit --site local {words}" if b"--ranks" in text else f"python {words}"
    say_fitted(
        f"Edit the script's first lines. To run the script on this machine: {here}. "
        f"To run the script on the cluster: hpcml submit {words}, "
        f"or from a laptop: hpcml --host HOST submit {words}",
        sys.stdout,
    )
    return 0


def _check(name: str, stem: str, example: str, shipped: Collection[str]) -> None:
    """Refuse an unknown example, and a name alone that is nearly that of an example: minimal would take its place."""
    near = nearest(example or stem, shipped)
    if example and example not in shipped:
        meant = f"hpcml new {example} {stem}" if stem in shipped else near and f"hpcml new {shlex.quote(name)} {near}"
        hint = did_you_mean(meant, "hpcml new lists the examples.")
        raise UsageError(f"There is no example '{example}'", place="hpcml new", hint=hint)
    is_typo = not example and stem not in shipped and near and SequenceMatcher(None, stem, near).ratio() >= _A_TYPO
    if is_typo:
        meant = f"{name} {near}" if near in stem else near
        hint = f"Did you mean hpcml new {meant}? To copy the smallest example to {stem}.py: hpcml new {name} {DEFAULT}."
        raise UsageError(f"There is no example '{stem}'", place="hpcml new", hint=hint)


def _write(path: Path, text: bytes) -> None:
    """Write a file that is not there yet, whole or not at all."""
    try:
        descriptor = safe_files.create(path, 0o666)
    except FileExistsError:
        raise UsageError(f"{path} already exists", place="hpcml new", hint="Choose another name.") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
    except BaseException as error:
        path.unlink()
        if not isinstance(error, OSError):
            raise  # Ctrl-C
        hint = "Free disk space, or change to a folder on another disk."
        raise StorageError(f"{path} cannot be written: {error.strerror}", place="hpcml new", hint=hint) from error


def _packages(script: str, folder: Path) -> list[Path]:
    """Return the packages beside the examples that an example imports."""
    beside = sorted(path.parent for path in folder.glob("*/__init__.py"))
    return [path for path in beside if re.search(rf"^(from|import) {path.name}\b", script, re.MULTILINE)]


def _copy(package: Path, target: Path) -> None:
    """Write the files of a package that are not there yet; existing files stay as they are."""
    target.mkdir(exist_ok=True)
    for source in sorted(path for path in package.iterdir() if path.is_file()):
        if not (target / source.name).exists():
            _write(target / source.name, source.read_bytes())


def _list(shipped: dict[str, Path], *, as_json: bool) -> None:
    does = {name: _does(path.read_text()) for name, path in shipped.items()}
    if as_json:
        common.print_json(does)
        return
    wide = max(map(len, does)) + 2
    for name, sentence in does.items():
        say_fitted(sentence, sys.stdout, first=f"{name:<{wide}}", rest=" " * wide)


def _does(script: str) -> str:
    """Return the sentence that an example begins with."""
    sentence = re.match(r'"""(.+?)(?:"""|\n)', script)
    return sentence[1] if sentence else ""
