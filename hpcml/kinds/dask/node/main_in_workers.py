"""The script's own module in workers and scheduler: ``__main__``, as the processes of a LocalCluster have it.

multiprocessing's spawn imports the script as ``__mp_main__`` there, without what is below its main guard. Here that is
done for a cluster that was opened below the guard. For other scripts an import would run them once more: of those, the
definitions alone are executed. Both wait until a task asks for a name of ``__main__``.
"""

from __future__ import annotations

import ast
import importlib.util
import runpy
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hpcml.settings import Settings
from hpcml.workload_forms import Form

# Calls that make a value and do nothing else: by the last name of what is called.
_PURE = {
    "namedtuple", "NamedTuple", "NewType", "TypeVar", "Path", "set", "dict", "list", "tuple", "frozenset", "range",
    "float", "int", "str", "bool", "len", "min", "max", "sum", "sorted", "getLogger", "getenv", "resolve", "absolute",
    "join", "dirname", "abspath", "expanduser", "with_name", "dtype", "partial", "compile", "timedelta",
}  # fmt: skip
# Calls on a line of their own that a worker need not repeat: what they change is handed over, on disk, or only shown.
_QUIET = {"print", "chdir", "makedirs", "mkdir", "set_start_method", "freeze_support", "tzset", "umask", "setrlimit"}
_OF_LISTS = {"insert", "append", "extend", "add", "update", "setdefault"}  # a module's own list, set or dictionary
_FOR_THE_SCRIPT = ("dask_jobqueue", "dask_mpi", "dask_cuda", "mpi4py")
_BLOCKS = ("body", "orelse", "handlers", "finalbody")
_kept: list[types.ModuleType] = []  # the role's own module, whose functions run


class ScriptModule(types.ModuleType):
    """``__main__`` of a worker: names of the script's module appear when they are asked for."""

    def __init__(self, path: str, module: str) -> None:
        """Stand for the script at ``path``, or for a module of that name."""
        super().__init__("__mp_main__")
        self.__dict__["_hpcml"] = _Source(path, module)

    def __getattr__(self, name: str) -> Any:
        self.__dict__["_hpcml"].load_for(self, name)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module '__main__' has no attribute {name!r}", name=name, obj=self) from None


class _Source:
    """Where a script's module is, and whether it has been loaded; tasks ask from several threads."""

    def __init__(self, path: str, module: str) -> None:
        self.path, self.module = path, module
        self.whole = self.done = False
        self.problem = ""
        self.lock = threading.RLock()

    def load_for(self, module: ScriptModule, name: str) -> None:
        """Load the script's names into a module, if ``name`` is one of them."""
        with self.lock:
            if not self.done and not name.startswith("__") and self._file() and name in names(read(self._file())):
                self.load(module)

    def load(self, module: ScriptModule) -> None:
        """Load the script's names into a module."""
        with self.lock:
            if not self.done:
                self.done = True  # a class of the script may ask for others of it
                try:
                    attributes = (self.whole and self._import()) or definitions(self._file())
                except BaseException:
                    self.done = False
                    raise
                module.__dict__.update(attributes)

    def _import(self) -> dict[str, Any]:
        """Import the script as spawn does; nothing if that fails. NumPy's random numbers go on, as Dask has it."""
        numpy = sys.modules.get("numpy.random")
        state = numpy.get_state() if numpy else None
        try:
            if self.module:
                return dict(runpy.run_module(self.module, run_name="__mp_main__", alter_sys=True))
            return dict(runpy.run_path(self.path, run_name="__mp_main__"))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a script may raise anything
            self.problem = f"the script as a module: {type(error).__name__}: {error}"
            print(f"hpcml: a worker cannot import {self.problem}.", file=sys.stderr, flush=True)
            return {}
        finally:
            if numpy:
                numpy.set_state(state)
            elif random := sys.modules.get("numpy.random"):
                random.seed()

    def _file(self) -> str:
        if not self.module:
            return self.path
        spec = importlib.util.find_spec(self.module)
        if spec and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{self.module}.__main__")
        return (spec and spec.origin) or ""


def install(settings: Settings) -> None:
    """Put the script's module and its arguments into the place of the role's own."""
    if not settings.code.form.traits.is_main:
        main = sys.modules["__main__"]
        main.__spec__ = None  # or processes that a task starts (multiprocessing's spawn) would import the role
        vars(main).pop("__file__", None)
        return
    module = Path(settings.code.script).name if settings.code.form is Form.MODULE else ""
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = sys.modules["__mp_main__"] = ScriptModule(settings.code.script, module)
    sys.argv[:] = [settings.code.script, *settings.code.arguments]


def load_whole(*, now: bool) -> str:
    """Have the script imported as spawn does it, now or when a name is asked for; return the reason for a failure."""
    main = sys.modules["__main__"]
    if not isinstance(main, ScriptModule) or main.__dict__["_hpcml"].whole:
        return ""
    source = main.__dict__["_hpcml"]
    source.whole, source.done = True, False
    if not now:
        return ""
    try:
        source.load(main)
    except Exception as error:  # noqa: BLE001 - a script may raise anything
        return f"the script as a module: {type(error).__name__}: {error}"
    return str(source.problem)


def read(path: str) -> ast.Module:
    """Return a script's syntax tree; an empty one if it cannot be read."""
    try:
        return ast.parse(Path(path).read_bytes(), path)
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def names(tree: ast.Module) -> set[str]:
    """Return the names that a module has outside its main guard."""
    imported = set()
    for node in _statements(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            imported.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            imported |= {
                part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
    return imported


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if is_guard(node):
            continue
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            yield from _statements(_parts(node))


def _parts(node: ast.AST) -> list[ast.stmt]:
    parts: list[Any] = [part for name in _BLOCKS for part in getattr(node, name, ())]
    return [inner for part in parts for inner in (part.body if isinstance(part, ast.ExceptHandler) else [part])]


def is_guard(node: ast.AST) -> bool:
    """Whether a statement is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and any(isinstance(part, ast.Name) and part.id == "__name__"
                                            for part in ast.walk(node.test))  # fmt: skip


def definitions(path: str) -> dict[str, Any]:
    """Execute the definitions of a script, its imports and its constants; return the names that they make."""
    namespace = {"__name__": "__mp_main__", "__file__": path, "__builtins__": __builtins__}
    kept = [node for node in read(path).body if is_definition(node) and not _opens_clusters(node)]
    futures = [node for node in kept if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    for node in kept:
        code = compile(ast.Module([*futures, node], []), path, "exec", dont_inherit=True)
        try:
            exec(code, namespace)  # noqa: S102 - the script's own
        except Exception as error:
            # What an import lacks here, or a name that a statement made which is not repeated, a task may not need.
            if not isinstance(node, ast.Import | ast.ImportFrom) and not isinstance(error, NameError):
                raise
            line = ast.unparse(node).partition("\n")[0]
            why = f"{type(error).__name__}: {error}"
            print(f"hpcml: the script's line {line} fails in a worker ({why}).", file=sys.stderr, flush=True)
    return {name: value for name, value in namespace.items() if not name.startswith("__")}


def _opens_clusters(node: ast.stmt) -> bool:
    """Whether a statement imports a package that has no use in a worker: dask-jobqueue's sets a handler of signals."""
    names = (
        [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
    )
    return isinstance(node, ast.Import | ast.ImportFrom) and names[0].partition(".")[0] in _FOR_THE_SCRIPT


def is_definition(node: ast.stmt) -> bool:
    """Whether a statement makes a name and has no other effect."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Pass):
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [part for target in targets for part in ast.walk(target)]
        simple = all(isinstance(part, ast.Name | ast.Tuple | ast.Store) for part in parts)
        return simple and (node.value is None or is_value(node.value))
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If | ast.Try):
        return not is_guard(node) and is_value(getattr(node, "test", None)) and all(map(is_definition, _parts(node)))
    return False


def is_value(node: ast.AST | None) -> bool:
    """Whether an expression only makes a value."""
    if node is None or isinstance(node, ast.Lambda):
        return True
    if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
        return False
    if isinstance(node, ast.Call) and _called(node) not in _PURE and not _of_environment(node):
        return False
    return all(map(is_value, ast.iter_child_nodes(node)))


def _called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _of_environment(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and "environ" in ast.unparse(node.func.value)


def has_effects(node: ast.stmt) -> bool:
    """Whether a statement outside the guard changes the process: workers of a LocalCluster have that from the import.

    ``pd.set_option(…)``, ``np.seterr(…)``, ``random.seed(1)``, ``options.x = 1``, a class that a decorator registers.
    """
    if isinstance(node, ast.Expr):
        call = node.value
        return isinstance(call, ast.Call) and not _is_quiet(call)
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        written = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Attribute)]
        indexed = [target for target in targets if isinstance(target, ast.Subscript)]
        return bool(written or indexed) and "environ" not in ast.unparse(targets[0])
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return any("register" in ast.unparse(decorator) for decorator in node.decorator_list)
    return not is_guard(node) and isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While) and any(
        map(has_effects, _parts(node)))  # fmt: skip


def _is_quiet(call: ast.Call) -> bool:
    """Whether a call only sets what is handed over, or which warnings are not shown."""
    name, text = _called(call), ast.unparse(call.func)
    if name in _QUIET or text.startswith(("sys.path.", "os.environ.")) or text.endswith("config.set"):
        return True
    if name in _OF_LISTS:
        return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    return "warnings." in text and bool(call.args) and getattr(call.args[0], "value", "") == "ignore"
