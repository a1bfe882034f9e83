"""Whether what a run starts names Dask: the words of its command, and the texts of its scripts and their modules."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpcml import safe_files
from hpcml.request.record import RunRequest
from hpcml.runs import modules_code_uses
from hpcml.workload_forms import Form

_DASK = re.compile(r"dask|coiled", re.IGNORECASE)
_DISTRIBUTED = re.compile(r"distributed(\..*)?")  # Dask's; torch.distributed is another
_IN_TEXT = re.compile(r"(import|from) distributed\b|hpcml\.(connect|polars_engine)")
_OF_HPCML = ("connect", "polars_engine")  # what opens a client
_NOTEBOOKS = re.compile(r"jupyter|papermill|ipython|marimo|\.ipynb$")
_MOST_SCRIPTS = 50  # that the command, and the shell scripts in it, name
_LARGEST = 1 << 20  # bytes of a script that are read


def names_dask(spec: RunRequest) -> bool:
    """Whether the command, a variable of the run, a script or a module that a script reaches names Dask.

    What does not may still open a client, by a package that is installed: then the cluster starts at the client. So
    does a script that cannot be parsed here count as one that names Dask.
    """
    code = spec.code
    words = [str(code.script), *code.arguments, *code.interpreter]
    if any(name.startswith("DASK_") for name, _ in spec.environment) or _in_words([code.script.name, *words[1:]]):
        return True
    if code.form is Form.MODULE:
        file = modules_code_uses.module_file(code.script)
        return file is not None and _in_python(file, code.script.parent)
    if code.form is Form.SCRIPT and _in_python(code.script, code.script.resolve().parent):
        return True
    return _in_files(words, code.cwd)


def _in_words(words: Iterable[str]) -> bool:
    return any(_DASK.search(word) or _NOTEBOOKS.search(word) for word in words)


def _in_files(words: Iterable[str], folder: Path) -> bool:
    """Whether a script that some words of a command name, or a shell script that they are, names Dask."""
    waiting, seen = [*words], set[Path]()
    while waiting and len(seen) < _MOST_SCRIPTS:
        word = waiting.pop(0)
        if ("\n" in word or " " in word) and not safe_files.is_file(folder / word):  # as behind bash -c
            if _in_text(word):
                return True
            waiting += _words(word)
        for path, top in _paths(word, folder):
            if path in seen:
                continue
            seen.add(path)
            if path.suffix == ".py":
                if _in_python(path, top):
                    return True
            elif text := _shell_text(path):
                if _in_text(text):
                    return True
                waiting += [each for line in text.splitlines() for each in _words(line)]
    return False


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that another line closes
        return line.split()


def _paths(word: str, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the files that a word may name, a file or a module as for ``python -m``, with its folder of modules."""
    name = word.rpartition("=")[2]
    path = folder / os.path.expandvars(name)
    if name and safe_files.is_file(path):
        yield path, path.resolve().parent
    elif name.replace(".", "").isidentifier() and (module := modules_code_uses.module_file(folder / name)):
        yield module, folder


def _shell_text(path: Path) -> str:
    """Return the text of a script with a first line for an interpreter, or of a shell script; empty for other files."""
    try:
        with path.open("rb") as file:
            start = file.read(_LARGEST)
    except OSError:
        return ""
    is_script = start.startswith(b"#!") or path.suffix in (".sh", ".bash", ".sbatch", ".slurm")
    return start.decode(errors="replace") if is_script and b"\0" not in start else ""


def _in_text(text: str) -> bool:
    """Whether a text that is not parsed names Dask."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(pattern.search(line) for line in lines for pattern in (_DASK, _NOTEBOOKS, _IN_TEXT))


def _in_python(script: Path, folder: Path) -> bool:
    """Whether a Python script, or a module of its project that it reaches, names Dask; True if it cannot be parsed."""
    modules = list(modules_code_uses.reached_and_packages(script, folder))
    return not modules or any(_in_tree(module.tree) for module in modules)


def _in_tree(tree: ast.Module) -> bool:
    """Whether a file imports Dask or what is built on it, has its name in a text, or opens a client by hpcml."""
    names, attributes = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom() if not node.level:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            case ast.Attribute():
                attributes.add(node.attr)
            case ast.alias():
                attributes.add(node.name)
    of_hpcml = any(name.partition(".")[0] == "hpcml" for name in names)
    if of_hpcml and (attributes & {*_OF_HPCML} or names & {f"hpcml.{name}" for name in (*_OF_HPCML, "*")}):
        return True
    texts = [*modules_code_uses.texts(tree)]
    return any(map(_DASK.search, (*names, *attributes, *texts))) or any(map(_DISTRIBUTED.fullmatch, names))
