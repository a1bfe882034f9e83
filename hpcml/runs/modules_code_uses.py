"""The parsed texts of a script and of its project's modules that it reaches by imports, without running any of them."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files
from hpcml.request.record import Code
from hpcml.workload_forms import Form

MOST_FILES = 200  # modules that are looked into
_MOST_ENTRIES = 20_000  # files and folders of a package that are passed
_LARGEST = 4 << 20  # bytes of a module that nothing imports
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OSError)


class Module(NamedTuple):
    """A file of the project, its tree and its text; ``always`` if the script imports it whatever happens."""

    path: Path
    tree: ast.Module
    text: str
    always: bool = True


def reached(script: Path, folder: Path) -> Iterator[Module]:
    """Yield the script and the modules that it imports from a folder, those that it always imports first.

    A package's ``__init__`` is reached with each of its modules. A module that only a function or a branch imports is
    reached, but not always. What only ``importlib`` finds, or only type checkers import, is not.

    Parameters
    ----------
    folder
        The first folder on the script's path of modules.

    Raises
    ------
    SyntaxError
        If the script, or a module that it always imports, cannot be parsed.
    """
    waiting, perhaps = deque([script]), deque[Path]()
    seen = {script}
    waiting += [file for file in _files_of(folder, _package(script, folder)) if file not in seen]
    seen |= {*waiting}
    looked_at = 0
    while (waiting or perhaps) and looked_at < MOST_FILES:
        looked_at += 1
        always = bool(waiting)
        path = waiting.popleft() if always else perhaps.popleft()
        if not always and path in seen:
            continue
        seen.add(path)
        try:
            module = _module(path, always=always)
        except _UNREADABLE:
            if always:
                raise
            continue
        yield module
        package = _package(path, folder)
        top_level = {*map(id, module.tree.body)} if always else set()
        for node in imports(module.tree):
            for name in dotted_names(node, package):
                files = [file for file in _files_of(folder, name) if file not in seen]
                if id(node) in top_level:
                    waiting += files
                    seen |= {*files}
                else:
                    perhaps += files


def readable(script: Path, folder: Path) -> Iterator[Module]:
    """Yield those of :func:`reached`, as far as they can be parsed; nothing of what is not Python."""
    if script.suffix != ".ipynb":
        with contextlib.suppress(*_UNREADABLE):  # reported where the script is checked
            yield from reached(script, folder)


def reached_and_packages(script: Path, folder: Path) -> Iterator[Module]:
    """Yield those of :func:`readable` and then the other modules of its packages."""
    seen: list[Path] = []
    for module in readable(script, folder):
        seen.append(module.path)
        yield module
    tops = dict.fromkeys(folder / path.relative_to(folder).parts[0] for path in seen[1:] if path.parent != folder)
    for top in tops:
        for other in [path for path in sorted(_python_files(top)) if path not in seen][:MOST_FILES]:
            with contextlib.suppress(*_UNREADABLE):
                yield _module(other, always=False)


def _python_files(top: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, which may be a link to any tree: of the first folders, and no devices."""
    looked_at = 0
    for above, folders, names in os.walk(top):
        folders.sort()
        looked_at += len(folders) + len(names)
        if looked_at > _MOST_ENTRIES:
            return
        for path in (Path(above) / name for name in names if name.endswith(".py")):
            if os.path.isfile(path) and path.stat().st_size <= _LARGEST:  # noqa: PTH113
                yield path


class Names:
    """The functions and classes of a project by the names that its modules call them."""

    def __init__(self, folder: Path, modules: Iterable[Module]) -> None:
        self.folder = folder
        self.by_file = {module.path: self._bound(module) for module in modules}

    def _bound(self, module: Module) -> dict[str, tuple[Path, str]]:
        """Return the names that imports bind in a module: the file, and the name there; none for a module itself."""
        bound: dict[str, tuple[Path, str]] = {}
        for node in imports(module.tree):
            names = dotted_names(node, _package(module.path, self.folder))
            for alias, name in zip(node.names, names, strict=True):
                if file := _file_of(self.folder, name):
                    bound[alias.asname or alias.name] = (file, "")
                elif isinstance(node, ast.ImportFrom) and (file := _file_of(self.folder, name[:-1])):
                    bound[alias.asname or alias.name] = (file, alias.name)
        return bound

    def target(self, file: Path, expression: ast.expr) -> tuple[Path, str] | None:
        """Return the file and the name there of what an expression in a file names; None if it is not imported."""
        bound = self.by_file.get(file, {})
        target = bound.get(ast.unparse(expression))
        if target is None and isinstance(expression, ast.Attribute):
            owner = bound.get(ast.unparse(expression.value))
            target = (owner[0], expression.attr) if owner and not owner[1] else None
        for _ in range(len(self.by_file)):  # a package hands on the names of its modules
            if target is None or target[1] not in (further := self.by_file.get(target[0], {})):
                break
            target = further[target[1]]
        return target


def beside(folder: Path, name: str) -> Path | None:
    """Return the file of a module in a folder: its source, or another file or folder that Python would import."""
    for candidate in (folder / name / "__init__.py", folder / f"{name}.py"):
        if os.path.isfile(candidate):  # noqa: PTH113 - a name that is too long is none
            return candidate
    others = [folder / name] if os.path.isdir(folder / name) else list(folder.glob(f"{name}.*.so"))  # noqa: PTH112
    return others[0] if others else None


def nearby(folder: Path, name: str) -> Path | None:
    """Return the file of a module in a folder below or beside a script's; of the folder above, only if it is ours."""
    above = folder.resolve().parent
    is_ours = os.access(above, os.R_OK | os.X_OK) and above.stat().st_uid == os.getuid()
    places = [folder, above] if is_ours else [folder]
    inner = [place / entry for place in places for entry in os.listdir(place)[:MOST_FILES]]
    files = (place / file for place in (*places, *inner) for file in (f"{name}.py", f"{name}/__init__.py"))
    return next((file for file in files if os.path.isfile(file)), None)  # noqa: PTH113 - a name may be too long


def imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield a file's import statements, but not those for type checkers alone."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse
        else:
            waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def _module(path: Path, *, always: bool) -> Module:
    source = path.read_bytes()
    return Module(path, _parsed(source, str(path)), source.decode(errors="replace"), always)


@functools.lru_cache(maxsize=MOST_FILES)
def _parsed(source: bytes, path: str) -> ast.Module:
    """Return a file's tree; the same for all who look at it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python says them when it runs
        return ast.parse(source, path)


def _package(path: Path, folder: Path) -> tuple[str, ...]:
    """Return the name of the package that a file of a folder belongs to; nothing of a file from elsewhere."""
    return path.parent.relative_to(folder).parts if path.is_relative_to(folder) else ()


def dotted_names(node: ast.Import | ast.ImportFrom, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the dotted names that a statement in a module of a package may import."""
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    above = package[: len(package) - node.level + 1] if node.level else ()
    inside = tuple(node.module.split(".")) if node.module else ()
    return [(*above, *inside, alias.name) for alias in node.names]


def _file_of(folder: Path, name: tuple[str, ...]) -> Path | None:
    """Return the source of the module with a dotted name, None if there is none."""
    place = folder.joinpath(*name[:-1])
    file = beside(place, name[-1]) if name else None
    return file if file and file.suffix == ".py" else None


def _files_of(folder: Path, name: tuple[str, ...]) -> Iterator[Path]:
    """Yield the sources that Python loads for a dotted name, its packages first."""
    place = folder
    for part in name:
        file = beside(place, part)
        if file is None:
            return
        if file.suffix == ".py":
            yield file
        if file != place / part and file.name != "__init__.py":
            return
        place /= part


# -- what a text tells -----------------------------------------------------------------------------------------------


def module_file(module: Path) -> Path | None:
    """Return the file of a module by its folder and its dotted name, None if it is not in that folder."""
    stem = module.parent.joinpath(*module.name.split("."))
    files = (stem / "__main__.py", stem.with_name(f"{stem.name}.py"))
    return next(filter(safe_files.is_file, files), None)


def place(base: Path, file: object, line: int | None = None) -> str:
    """Return a file as a user would name it from a folder, with a line."""
    path = str(file)
    path = path.removeprefix(f"{base}/")
    return f"{path}:{line}" if line else path


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


def needed(code: Code) -> list[str]:
    """Return the top-level modules that a script, and the modules it always imports, import from elsewhere."""
    file = module_file(code.script) if code.form is Form.MODULE else code.script
    names: list[str] = []
    if file is None or file.suffix != ".py" or code.form is Form.PROGRAM:
        return names
    folder = code.script.parent if code.form is Form.MODULE else file.resolve().parent
    with contextlib.suppress(*_UNREADABLE):  # reported where the script is checked
        for module in reached(file, folder):
            if not module.always:
                break
            names += [name for name, _ in top_level(module.tree) if beside(folder, name) is None]
    return names


def top_level(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the top-level names that a module imports whatever happens, with their lines."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0], node.lineno


def imported(tree: ast.Module) -> set[str]:
    """Return the top-level names of all that a file imports, wherever it does, but not for type checkers alone."""
    names: set[str] = set()
    for node in imports(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
