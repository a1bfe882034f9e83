"""Find the folders above the script's own that its code reaches: by ``__file__``, by ``sys.path``, by a marker.

Nothing is executed. Paths are followed as expressions, through the modules that the script imports from its own
folders, so that a constant of a sibling ``config.py`` counts like one of the script.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MARKERS = (".git", "pyproject.toml", "hpcml.toml", "setup.py", "setup.cfg", ".project-root")  # of a project's root

_MOST_MODULES = 500
_LARGEST = 1 << 20  # bytes of a module
_MOST_BYTES = 8 << 20  # of all modules
_TWICE = 4  # functions within one another that are looked at twice each; with all of them it would never end
_LONGEST = 4096  # characters of a path or a dotted name, as Linux has it
_SAME = {
    "Path", "PurePath", "PosixPath", "PurePosixPath", "resolve", "absolute", "abspath", "realpath", "normpath", "str",
    "fspath", "expanduser", "as_posix", "fsdecode", "join", "joinpath",
}  # fmt: skip
_FILE_OF = {"getfile", "getsourcefile"}  # of inspect: the module's own file, as it is called
_EXTENDS = ("append", "insert", "extend", "addsitedir")  # sys.path
_CONFIGURED = {"main", "initialize"}  # of hydra: config_path is relative to the file
_SHELL_OWN = re.compile(r"\$\{?(?:0|BASH_SOURCE)\b")
_SHELL_NAME = re.compile(r"^\s*(?:export |readonly |local )?(\w+)=")


class Reach(NamedTuple):
    """What the code of a script reaches."""

    top: Path  # the folder that holds all folders which paths in the code lead to; the script's own if none is above
    places: tuple[str, ...] = ()  # the lines that lead above the script's folder, as ``train.py:2``
    modules: tuple[Path, ...] = ()  # the script and the modules that it imports from these folders
    searches: bool = False  # whether the code looks upwards for a root that only the running program knows


def of_python(file: Path, folder: Path) -> Reach:
    """Return the reach of a Python file and the modules that it imports; ``folder`` is the first of their ``sys.path``.

    Both are paths without links.
    """
    code = _Code(str(folder))
    code.module(str(file))
    return code.reach()


def of_shell(file: Path, folder: Path) -> Reach:
    """Return the paths that a shell script reaches by its own name: ``$(dirname "$0")/..``."""
    top, places, names = folder, [], set[str]()
    for number, line in enumerate(_text(str(file)).splitlines(), 1):
        own = bool(_SHELL_OWN.search(line))
        if not own and not any(re.search(rf"\$\{{?{name}\b", line) for name in names):
            continue
        up = line.count("dirname") - 1 if own else 0
        up += len(re.findall(r"(?<![.\w])\.\.(?![.\w])", line))
        if own and "dirname" in line and (named := _SHELL_NAME.match(line)):
            names.add(named.group(1))
        if up > 0:
            places.append(f"{file.name}:{number}")
            top = min(top, Path(os.path.normpath(folder.joinpath(*[".."] * up))), key=lambda path: len(path.parts))
    return Reach(top, tuple(places), (file,))


def marked(folder: Path) -> list[Path]:
    """Return the folders with a project's marker, from a folder upwards."""
    return [place for place in (folder, *folder.parents) if any(os.path.lexists(place / name) for name in MARKERS)]


class _Names(NamedTuple):
    """The names of a module: those that are paths, and those that are modules."""

    paths: dict[str, str]
    modules: dict[str, _Names]


class _Code:
    """The modules that are reached, with one ``sys.path`` for all."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = [folder]
        self.names: dict[str, _Names] = {}  # by file
        self.attributes: dict[str, str] = {}  # of whichever class or object: the last value counts
        self.above: dict[str, str] = {}  # the folder above by the line that leads there
        self.searches = False
        self.bytes = 0

    def reach(self) -> Reach:
        places = [self.folder, *self.above.values(), *(os.path.dirname(file) for file in self.names)]  # noqa: PTH120
        return Reach(Path(os.path.commonpath(places)), tuple(self.above), tuple(map(Path, self.names)), self.searches)

    def module(self, file: str) -> _Names:
        if (names := self.names.get(file)) is None:
            names = self.names[file] = _Names({}, {})
            text = _text(file)
            self.bytes += len(text)
            if self.bytes > _MOST_BYTES:
                return names
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return names
            try:
                _Look(self, file, names).block(tree.body)
            except RecursionError:
                return names
        return names

    def found(self, name: str, places: Iterable[str]) -> list[str]:
        """Return the files that the import of a dotted name runs, packages first."""
        if len(name) > _LONGEST:
            return []
        words = name.split(".")
        for place in places:
            stems = ["/".join((place, *words[:count])) for count in range(1, len(words) + 1)]
            names = [*(f"{stem}/__init__.py" for stem in stems), f"{stems[-1]}.py"]
            if files := [name for name in names if os.path.isfile(name)]:  # noqa: PTH113 - a name that is too long is none
                return files
        return []

    def climbed(self, path: str, place: str) -> None:
        """Note a folder that a path leads through, if it is above the script's; of a line the highest."""
        if path != self.folder and f"{self.folder}/".startswith(f"{path.rstrip('/')}/"):
            self.above[place] = min(path, self.above.get(place, path), key=len)


class _Look:
    """One module, in the order in which Python runs it; a function's body is looked at where it is defined."""

    def __init__(self, code: _Code, file: str, names: _Names) -> None:
        self.code, self.file, self.names = code, file, names
        self.loops = self.depth = 0
        self.line = 0
        self.cwd = ""

    # -- statements --------------------------------------------------------------------------------------------------

    def block(self, body: Iterable[ast.stmt]) -> None:
        functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._expressions([*node.decorator_list, *node.args.defaults])
                self._function(node)
                functions.append(node)
            else:
                self._statement(node)
        for function in functions if self.depth < _TWICE else ():  # with the names that were made after it
            self._function(function)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = dict(self.names.paths)
        arguments = [*node.args.posonlyargs, *node.args.args]
        for argument, default in zip(reversed(arguments), reversed(node.args.defaults), strict=False):
            self._name(argument.arg, self.value(default))
        loops, self.loops = self.loops, 0
        self.depth += 1
        self.block(node.body)
        self.depth -= 1
        self.loops = loops
        returned = self.names.paths.get("return")
        self.names.paths.clear()
        self.names.paths.update(before)
        self._name(f"{node.name}()", returned)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import():
                self._import(node)
            case ast.ImportFrom():
                self._import_from(node)
            case ast.Assign():
                path = self.value(node.value)
                for target in node.targets:
                    self._assign(target, node.value, path)
            case ast.AnnAssign() if node.value:
                self._assign(node.target, node.value, self.value(node.value))
            case ast.AugAssign():
                joined = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
                self._assign(node.target, joined, self.value(joined))
                if _is_sys_path(node.target):
                    self._extend(node.value)
            case ast.Return() if node.value and (path := self.value(node.value)):
                self._name("return", path)
            case _:
                self._parts(node)

    def _parts(self, node: ast.AST) -> None:
        """Look at what a statement holds: its tests, and its blocks."""
        is_loop = isinstance(node, ast.For | ast.AsyncFor | ast.While)
        self.loops += is_loop
        for _, field in ast.iter_fields(node):
            parts = field if isinstance(field, list) else [field]
            self.block([part for part in parts if isinstance(part, ast.stmt)])
            for part in parts:
                if isinstance(part, ast.expr):
                    self.value(part)
                elif isinstance(part, ast.withitem):
                    self._assign(part.optional_vars, part.context_expr, self.value(part.context_expr))
                elif isinstance(part, ast.ExceptHandler | ast.match_case):
                    self._parts(part)
        self.loops -= is_loop

    def _assign(self, target: ast.expr | None, value: ast.expr | None, path: str | None) -> None:
        if isinstance(target, ast.Name):
            if self.loops and path and any(isinstance(node, ast.Name) and node.id == target.id
                                           for node in ast.walk(value or target)):  # fmt: skip
                self.code.searches = True  # root = root.parent, until a marker is there
            self._name(target.id, path)
        elif isinstance(target, ast.Attribute) and path:
            self.code.attributes[target.attr] = path
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, part in zip(target.elts, value.elts, strict=False):
                self._assign(one, part, self.value(part))

    def _name(self, name: str, path: str | None) -> None:
        if path is None:
            self.names.paths.pop(name, None)
        else:
            self.names.paths[name] = self.code.attributes[name] = path

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if modules := self._modules(alias.name, self.code.path):
                name = alias.asname or alias.name.partition(".")[0]
                self.names.modules[name] = modules[-1 if alias.asname else 0]

    def _import_from(self, node: ast.ImportFrom) -> None:
        places: Sequence[str] = self.code.path
        if node.level:
            places = [str(Path(self.file).parents[min(node.level, len(Path(self.file).parents)) - 1])]
        modules = self._modules(node.module, places) if node.module else []
        for alias in node.names:
            below = self._modules(".".join(filter(None, (node.module, alias.name))), places)
            name = alias.asname or alias.name
            if below and (not modules or below[-1] is not modules[-1]):
                self.names.modules[name] = below[-1]
            self._take(modules[-1].paths if modules else {}, alias.name, name)

    def _take(self, paths: Mapping[str, str], wanted: str, name: str) -> None:
        """Take a name of another module, all of them for ``*``; a function is there by what it returns."""
        if wanted == "*":
            self.names.paths.update(paths)
        for call in ("", "()"):
            if path := paths.get(f"{wanted}{call}"):
                self.names.paths[f"{name}{call}"] = path

    def _modules(self, name: str, places: Iterable[str]) -> list[_Names]:
        return [
            self.code.module(file) for file in self.code.found(name, places) if len(self.code.names) < _MOST_MODULES
        ]

    def _extend(self, node: ast.expr) -> None:
        for target in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
            if (path := self.value(target)) and path not in self.code.path:
                self.code.path.append(path)

    # -- expressions -------------------------------------------------------------------------------------------------

    def _expressions(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.expr):
                self.value(node)
            else:
                self._expressions(ast.iter_child_nodes(node))

    def value(self, node: ast.expr) -> str | None:
        """Return the path that an expression is, None if it is none or not known."""
        self.line = getattr(node, "lineno", self.line)
        match node:
            case ast.Name():
                return self.file if node.id == "__file__" else self.names.paths.get(node.id)
            case ast.Constant() if self.cwd and str(node.value).startswith(".."):
                return self._joined(self.cwd, f"/{node.value!s}")
            case ast.NamedExpr():
                self._assign(node.target, node.value, path := self.value(node.value))
                return path
            case ast.IfExp() | ast.BoolOp() | ast.Starred():
                paths = [self.value(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
                return next(filter(None, paths), None)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.BinOp():
                return self._operation(node)
            case ast.JoinedStr():
                return self._format(node)
            case ast.Call():
                return self._call(node)
        self._expressions(ast.iter_child_nodes(node))
        return None

    def _attribute(self, node: ast.Attribute) -> str | None:
        if isinstance(node.value, ast.Name) and (module := self.names.modules.get(node.value.id)):
            return module.paths.get(node.attr)
        path = self.value(node.value)
        if path is None:
            return self.code.attributes.get(node.attr)
        if node.attr == "parent":
            return self._up(path, 1)
        if node.attr == "parents":  # without a number: a loop looks for the root
            self.code.searches = True
        return path if node.attr == "parts" else None

    def _subscript(self, node: ast.Subscript) -> str | None:
        index, of = _number(node.slice), node.value
        if isinstance(of, ast.Attribute) and of.attr == "parents" and index is not None and index >= 0:
            path = self.value(of.value)
            return self._up(path, index + 1) if path else None
        if isinstance(of, ast.Attribute) and of.attr in ("argv", "path") and _is_sys(of.value) and index == 0:
            return self.file if of.attr == "argv" else self.code.folder
        if isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute) and index == 0:
            return self._first_part(of, of.func)
        path = self.value(of)
        if path and isinstance(node.slice, ast.Slice) and not node.slice.lower and node.slice.upper:
            count = _number(node.slice.upper)  # __file__.split("/")[:-2], Path(__file__).parts[:-2]
            return self._up(path, -count) if count is not None and count < 0 else None
        return None

    def _first_part(self, call: ast.Call, func: ast.Attribute) -> str | None:
        """Return the first part of a path that os.path.split, rsplit or rpartition make."""
        path, times = None, 1
        if func.attr == "split" and call.args and not _text_of(call.args[0]):
            path = self.value(call.args[0])
        elif func.attr in ("rsplit", "rpartition"):
            path = self.value(func.value)
        if func.attr == "rsplit" and len(call.args) > 1:
            times = _number(call.args[1]) or 1
        return self._up(path, times) if path else None

    def _operation(self, node: ast.BinOp) -> str | None:
        if (pattern := _text_of(node.left)) is not None and isinstance(node.op, ast.Mod):
            path = self.value(node.right)
            return self._joined(path, pattern.partition("%s")[2]) if path and pattern.startswith("%s") else None
        path, text = self.value(node.left), _text_of(node.right)
        if path is None or text is None:
            self.value(node.right)
            return f"{path}/unknown" if path and isinstance(node.op, ast.Div) else None
        if isinstance(node.op, ast.Div):
            text = f"/{text}"
        return self._joined(path, text) if isinstance(node.op, ast.Div | ast.Add) else None

    def _format(self, node: ast.JoinedStr) -> str | None:
        path = None
        for number, part in enumerate(node.values):
            if isinstance(part, ast.FormattedValue):
                inner = self.value(part.value)
                path = inner if not number else (path and f"{path}unknown")
            elif path and (text := _text_of(part)):
                path = self._joined(path, text)
        return path

    def _call(self, node: ast.Call) -> str | None:
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        of = func.value if isinstance(func, ast.Attribute) else None
        for keyword in node.keywords:
            self.value(keyword.value)
        if name in _CONFIGURED:
            self._configured(node)
        if name in _EXTENDS and _is_sys_path(of or func):
            for argument in node.args:
                self._extend(argument)
            return None
        own = self.value(of) if of is not None and not _is_os_path(of) else None
        arguments = [self.value(argument) for argument in node.args]
        if path := own or next(filter(None, arguments), None):
            return self._changed(node, name, path, is_own=own is not None)
        if name in _FILE_OF:
            return self.file
        return self.names.paths.get(f"{name}()") if of is None else self._returned(of, name)

    def _changed(self, node: ast.Call, name: str, path: str, *, is_own: bool) -> str | None:
        """Return the path that a function makes of a path: a method of it, or one with it as an argument."""
        pattern = _text_of(node.func.value) if isinstance(node.func, ast.Attribute) else None
        match name:
            case "setup_root" | "find_root" | "set_root":  # of rootutils and pyrootutils: they look for a marker
                self.code.searches = True
                self.code.path += [str(place) for place in marked(Path(self.code.folder))[:1]]
                return None
            case "dirname":
                return self._up(path, 1)
            case "with_name" | "with_suffix":
                return f"{os.path.dirname(path)}/unknown"  # noqa: PTH120
            case "format":
                return self._joined(path, pattern.partition("}")[2]) if pattern and pattern.startswith("{") else None
            case "join" if is_own:  # of a text
                return None
            case "split" | "rsplit":
                return path
            case "chdir":
                self.cwd = path
                return None
        rest = node.args[0 if is_own else 1 :]
        return self._all(path, rest) if name in _SAME else None

    def _returned(self, of: ast.expr | None, name: str) -> str | None:
        module = self.names.modules.get(of.id) if isinstance(of, ast.Name) else None
        return (module.paths if module else self.code.attributes).get(f"{name}()")

    def _configured(self, node: ast.Call) -> None:
        values = [word.value for word in node.keywords if word.arg == "config_path"] or node.args[:1]
        for value in values:
            if (text := _text_of(value)) and text.startswith(".."):
                self._joined(os.path.dirname(self.file), f"/{text}")  # noqa: PTH120

    def _all(self, path: str | None, parts: Iterable[ast.expr]) -> str | None:
        for part in parts:
            if path is None:
                return None
            text = "unknown"
            if isinstance(part, ast.Attribute) and part.attr == "pardir":
                text = ".."
            elif (found := _text_of(part)) is not None:
                text = found
            path = self._joined(path, f"/{text}") if not text.startswith("/") else None
        return path

    def _joined(self, path: str, text: str) -> str:
        """Return a path with a text behind it; each folder on the way counts."""
        if len(path) + len(text) > _LONGEST:
            return path
        first, *parts = text.split("/")
        path += first
        for part in parts:
            if part == "..":
                path = self._up(path, 1)
            elif part not in ("", "."):
                path = f"{path}/{part}"
        return path

    def _up(self, path: str, times: int) -> str:
        for _ in range(min(times, 64)):
            path = os.path.dirname(path)  # noqa: PTH120
            self.code.climbed(path, f"{os.path.relpath(self.file, self.code.folder)}:{self.line}")
        return path


def _text(file: str) -> str:
    """Return the text of a module; nothing of one that is no file, too large or not readable."""
    try:
        if not Path(file).is_file() or Path(file).stat().st_size > _LARGEST:
            return ""
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _text_of(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _number(node.operand)
        return None if number is None else -number
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _is_sys(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "sys"


def _is_sys_path(node: ast.expr) -> bool:
    """Whether an expression is ``sys.path``, or ``site``, whose function adds to it."""
    if isinstance(node, ast.Attribute):
        return node.attr == "path" and _is_sys(node.value)
    return isinstance(node, ast.Name) and node.id in ("site", "addsitedir")


def _is_os_path(node: ast.expr) -> bool:
    """Whether an expression is ``os.path``, whose functions take the path as an argument."""
    return isinstance(node, ast.Attribute) and node.attr == "path" and isinstance(node.value, ast.Name)
