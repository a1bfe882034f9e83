"""Run the user's script as plain Python does, with the run's cluster behind the classes that open one.

``python -c START SCRIPT ARGUMENTS``, or ``-m FOLDER/MODULE`` in the place of SCRIPT. Only what Python itself has
loaded before a script is imported here: a file named as a module of the standard library may lie beside the script.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceback import TracebackException
    from types import CodeType, TracebackType
    from typing import Any, Self


ARGUMENTS = 4  # of the command that starts this module, before those of the script
BEGIN = "HPCML_SCRIPT_BEGIN"  # names the descriptor that says when the script may begin: its cluster starts meanwhile

_CODE_OF = os.environ.pop("HPCML_CODE_OF", "")  # the folder whose copy the script is in
_NOTE = os.environ.pop("HPCML_SCRIPT_ERROR", "")  # where an error that ends the script is written down
_MEMRAY = os.environ.pop("HPCML_MEMRAY", "")  # where memray records what the script allocates
_PROCESS = os.getpid()
_ONLY_TREE = 0x400  # ast.PyCF_ONLY_AST
_FOLDER = ""  # the script's, once it is on the path
_STOPPED = 92  # hpcml.errors.STOPPED
_REBUILT = {"__name__", "__file__", "__builtins__"}  # all globals of a frame that Dask rebuilt from another process
_LONGEST = 2000  # characters of a message that are written down


class _Nothing:
    """Record nothing; contextlib is not loaded before a script."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class _StandardLibrary:
    """While it lasts, imports find the standard library's modules, also where the script has others of these names."""

    def __init__(self) -> None:
        standard_library = f"{os.path.dirname(os.__file__)}/"  # noqa: PTH120 - pathlib is not loaded before a script
        self.path = list(sys.path)
        sys.path[:] = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
        self.theirs = {
            name: module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in sys.stdlib_module_names
            and not (getattr(module, "__file__", None) or standard_library).startswith(standard_library)
        }
        for name in self.theirs:
            del sys.modules[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.path[:] = self.path
        sys.modules.update(self.theirs)


def note_errors_in(path: str) -> None:
    """In a fork that becomes the script: say where an error that ends it is written down."""
    global _NOTE, _PROCESS
    _NOTE, _PROCESS = path, os.getpid()


def main() -> None:
    """Become the script that the command line names: ``__main__``, ``sys.argv`` and ``sys.path`` are the script's."""
    global _FOLDER  # noqa: PLW0603 - a process has one script
    from hpcml.node.script import interpreter_state, worlds_of_one
    from hpcml.repairs import finder

    finder.install()
    kind = _of_script_that_comes()
    del sys.argv[0]  # the -c
    is_module = sys.argv[0] == "-m"
    del sys.argv[: int(is_module)]
    path = sys.argv[0]
    folder = os.path.dirname(os.path.realpath(path))  # noqa: PTH120 - pathlib is not loaded before a script
    sys.excepthook = print_error
    recording: Any = _Nothing()
    tree: Any = None if is_module else _tree(path)
    worlds_of_one.install()
    interpreter_state.name_originals(_CODE_OF)
    if _MEMRAY:  # before the script's folder is on the path
        from hpcml.node import profilers

        recording = profilers.allocations(_MEMRAY)
    if any(os.path.exists(f"{folder}/{name}") for name in ("hpcml.py", "hpcml/__init__.py")):
        print("hpcml: a module named hpcml next to the script hides hpcml: the script has no hpcml.connect(), and"
              " opens its own Dask clusters. Rename the module.", file=sys.stderr)  # fmt: skip
        for name in [name for name in sys.modules if name.partition(".")[0] == "hpcml"]:
            del sys.modules[name]
    else:
        kind = kind or interpreter_state.install_kind()
    _wait(kind, tree, folder)
    if not os.environ.get("PYTHONSAFEPATH"):
        _FOLDER = folder
        sys.path.insert(0, folder)
    if is_module:
        code, module_globals = _of_module(os.path.basename(path))
        sys.argv[0] = module_globals["__file__"]
    else:
        code = compile(tree, path, "exec", dont_inherit=True)
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        module_globals = {
            "__file__": path,
            "__loader__": loader,
            "__package__": None,
            "__spec__": None,
            "__cached__": None,
        }
    namespace = vars(sys.modules["__main__"])
    builtins = namespace["__builtins__"]
    namespace.clear()
    namespace.update(module_globals, __name__="__main__", __builtins__=builtins, __doc__=None, __annotations__={})
    interpreter_state.take()
    try:
        with recording:
            exec(code, namespace)  # noqa: S102 - it is what was submitted
    except SystemExit as end:  # sys.exit("no such file"): Python prints the words, and they are the cause
        if end.code is not None and not isinstance(end.code, int):
            with _StandardLibrary() as library:
                _write_down(end, _described(SystemExit, end, end.__traceback__), library)
        if end.code not in (None, 0, _STOPPED):
            _leave_mpi(end.code if isinstance(end.code, int) else 1)
        raise


def _of_script_that_comes() -> Any:
    """In an interpreter that starts ahead of its run, wait for the script; return the kind's module, else None."""
    global _CODE_OF, _NOTE
    if "HPCML_AHEAD" not in os.environ:
        return None
    from hpcml.node.script import prestarted_script

    kind = prestarted_script.wait(BEGIN, ARGUMENTS, _tree)
    _CODE_OF, _NOTE = os.environ.pop("HPCML_CODE_OF", ""), os.environ.pop("HPCML_SCRIPT_ERROR", "")
    return kind


def _tree(path: str) -> Any:
    """Return the script's syntax tree; SyntaxError as Python has it."""
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", _ONLY_TREE, dont_inherit=True)


def _wait(kind: Any, tree: Any, folder: str) -> None:
    """Wait where the cluster still starts, and meanwhile import what makes no difference to the script."""
    if not (word := os.environ.pop(BEGIN, "")):
        return
    if kind and tree and not _MEMRAY:  # which would not record the script's own import then
        kind.import_early(tree, folder)
    if not os.read(int(word), 1):  # the supervisor has ended
        os._exit(1)
    os.close(int(word))


def _of_module(name: str) -> tuple[CodeType, dict[str, Any]]:
    """Return the code of a module, or of a package's ``__main__``, and what ``python -m`` gives it as names."""
    import importlib.util

    spec = importlib.util.find_spec(name)
    if spec and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
        if spec is None:
            raise ImportError(f"No module named {name}.__main__; '{name}' is a package without __main__", name=name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
    if code is None:
        raise ImportError(f"Module {name} has no Python code to run", name=name)
    module_globals = {"__file__": spec.origin, "__loader__": spec.loader, "__package__": spec.parent, "__spec__": spec}
    return code, {**module_globals, "__cached__": spec.cached}


def print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception as Python does, without hpcml's frames, and with the names of the original files."""
    if sys.is_finalizing():  # raised by an object that the interpreter deletes at its end: the script is over
        sys.__excepthook__(kind, error, trace)
        return
    with _StandardLibrary() as library:
        try:
            described = _described(kind, error, trace)
            _add_suggestions(described, error)
            text = "".join(described.format())
        except Exception:  # noqa: BLE001 - a module of the library has imported the script's in the place of another
            sys.__excepthook__(kind, error, trace)
            return
        print(text, file=sys.stderr, end="")
        _write_down(error, described, library)
    if issubclass(kind, KeyboardInterrupt):
        _end_by_sigint()
    else:
        _leave_mpi(1)


def _leave_mpi(status: int) -> None:
    """Have mpi4py end this rank by MPI_Abort, as ``python -m mpi4py`` does: MPI_Finalize would wait for all others."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi and os.environ.get("WORLD_SIZE", "1") != "1":
        mpi._set_abort_status(status)  # noqa: SLF001 - as mpi4py.run does


def _end_by_sigint() -> None:
    """Have Python end this process by SIGINT, as it does after an uncaught KeyboardInterrupt.

    It notes that the last code which it ran from text ended so; the imports for the traceback ran other code since.
    """
    try:
        eval("interrupt()", {"interrupt": _interrupt})  # noqa: S307 - text of this module
    except KeyboardInterrupt:
        return


def _interrupt() -> None:
    raise KeyboardInterrupt


def _add_suggestions(described: TracebackException | None, error: BaseException | None) -> None:
    """Add "Did you mean: 'x'?", which only the interpreter's own printing has in Python 3.11."""
    if described is None or error is None or sys.version_info >= (3, 12):
        return
    message = str(described)
    if isinstance(error, NameError | AttributeError) and message:
        import io

        stderr, sys.stderr = sys.stderr, io.StringIO()
        try:
            sys.__excepthook__(type(error), error, None)
            described._str += sys.stderr.getvalue().rpartition(message)[2].rstrip()  # type: ignore[attr-defined] # noqa: SLF001
        finally:
            sys.stderr = stderr
    _add_suggestions(described.__cause__, error.__cause__)
    _add_suggestions(described.__context__, error.__context__)


def _described(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> TracebackException:
    import traceback

    while trace and (trace.tb_frame.f_globals is globals() or trace.tb_frame.f_code.co_filename == "<string>"):
        trace = trace.tb_next
    described = traceback.TracebackException(kind, error, trace, compact=True)
    if _CODE_OF:
        _name_originals(described, f"{os.environ['HPCML_RUN_DIR']}/code/", f"{_CODE_OF}/")
    return described


def _write_down(error: BaseException | None, described: TracebackException, library: _StandardLibrary) -> None:
    """Write type, message, file and line of an error and of its causes, for the hint at the run's end."""
    if not _NOTE or os.getpid() != _PROCESS:  # not of a process that the script has forked
        return
    import json

    hpcml = main.__code__.co_filename.removesuffix("node/script/launcher.py")
    others = (f"{sys.prefix}/", f"{sys.base_prefix}/", hpcml, "<")
    chain: list[dict[str, object]] = []
    handled = False
    while error is not None and len(chain) < 10:
        one = {
            "type": type(error).__name__,
            "message": _shortened(_message(error)),
            "name": getattr(error, "name", None),
        }
        chain.append({**one, "handled": handled, "no_files": _without_files(error), "hides": _hides(error, library),
                      "has": _has(error, library), "loader": _in_loader(error),
                      "task": _in_task(error, others)})  # fmt: skip
        if isinstance(error, BaseExceptionGroup):  # as of asyncio.TaskGroup: it only carries the errors of its tasks
            handled, error = False, error.exceptions[0]
            continue
        handled = error.__cause__ is None  # the next was raised before, and this one while it was handled
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    script_frames = [frame for frame in described.stack if not frame.filename.startswith(others)]
    shown = script_frames or list(described.stack)
    last = shown[-1] if shown else None
    place = {"file": last.filename, "line": last.lineno, "code": last.line} if last else {"file": "", "line": None}
    record = {**place, "chain": chain}
    try:
        descriptor = os.open(_NOTE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as file:
            json.dump(record, file, default=str)
    except OSError as problem:  # the log says what happened; the disk may be full
        print(f"hpcml: {_NOTE} cannot be written: {problem.strerror}", file=sys.stderr)


def _in_task(error: BaseException, others: tuple[str, ...]) -> str:
    """Return the function and line of a Dask task that raised an error, from frames that Dask rebuilt; else empty."""
    place, of_dask, trace = "", False, error.__traceback__
    while trace:
        names, code = trace.tb_frame.f_globals, trace.tb_frame.f_code
        of_dask = of_dask or str(names.get("__name__")).startswith(("dask.", "distributed."))
        if of_dask and names.keys() <= _REBUILT and not code.co_filename.startswith(others):
            place = f"{code.co_name} at {code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _in_loader(error: BaseException) -> bool:
    """Whether an error came through PyTorch's DataLoader, which then lost one of its processes or the data of one."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_globals.get("__name__") != "torch.utils.data.dataloader":
        trace = trace.tb_next
    return trace is not None


def _message(error: BaseException) -> str:
    """Return the words of an error; those of a UnicodeError that was unpickled are in its arguments alone."""
    if isinstance(error, UnicodeError) and not str(error) and error.args:
        try:
            return str(type(error)(*error.args))
        except TypeError:  # other arguments than Python's own
            return ""
    return str(error)


def _shortened(text: str) -> str:
    """Return the beginning and the end of a long text: a message that holds a traceback ends with the error."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}\n {text[-half:]}"


def _hides(error: BaseException, library: _StandardLibrary) -> str:
    """Return the file of the script's folder that hides another module, where an error comes of that; else nothing.

    It is the module that lacks something, or one through which the import of a library went.
    """
    if isinstance(error, ImportError):
        names = [error.name or ""]
    elif isinstance(error, AttributeError) and isinstance(error.obj, type(sys)):
        names = [error.obj.__name__]
    else:
        return ""
    trace = error.__traceback__
    while trace:
        names.append(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return next((file for name in names if (file := _hidden_by(str(name).partition(".")[0], library))), "")


def _has(error: BaseException, library: _StandardLibrary) -> str:
    """Return the file of a module that is missing elsewhere, where this process has it; else nothing."""
    name = isinstance(error, ModuleNotFoundError) and error.name
    if not name:
        return ""
    spec = "." not in name and importlib.machinery.PathFinder.find_spec(name, library.path)
    file = getattr(sys.modules.get(name), "__file__", None) or (spec and spec.origin) or ""
    copy = f"{os.environ['HPCML_RUN_DIR']}/code/" if _CODE_OF else ""
    return f"{_CODE_OF}/{file[len(copy) :]}" if copy and file.startswith(copy) else file


def _hidden_by(top: str, library: _StandardLibrary) -> str:
    """Return the file of the script's folder that hides a module of this name, if one does; else nothing."""
    beside = (f"{_FOLDER}/{top}.py", f"{_FOLDER}/{top}/__init__.py")
    module = library.theirs.get(top) or sys.modules.get(top)  # none where it failed itself
    file = getattr(module, "__file__", None) if module else next(filter(os.path.exists, beside), "")
    if not _FOLDER or file not in beside:
        return ""
    elsewhere = [entry for entry in library.path if entry != _FOLDER]
    if top not in sys.stdlib_module_names and not importlib.machinery.PathFinder.find_spec(top, elsewhere):
        return ""
    copy = f"{os.environ['HPCML_RUN_DIR']}/code/" if _CODE_OF else ""
    return f"{_CODE_OF}/{file[len(copy) :]}" if copy and file.startswith(copy) else file


def _without_files(error: BaseException) -> str:
    """Return the folder of a file that could not be made without free inodes, empty if it was not that."""
    if not isinstance(error, OSError) or error.errno not in (28, 122) or not isinstance(error.filename, str):
        return ""
    folder = os.path.dirname(os.path.abspath(error.filename))  # noqa: PTH100, PTH120 - pathlib is not loaded
    try:
        room = os.statvfs(folder)
    except OSError:
        return ""
    return folder if room.f_files and not room.f_favail else ""


def _name_originals(described: TracebackException | None, copy: str, original: str) -> None:
    """Replace the folder of the run's copy in the file names of an exception and of its causes."""
    if described is None:
        return
    for frame in described.stack:
        if frame.filename.startswith(copy):
            _ = frame.line  # read from the copy, which is what ran: the original may be another by now
            frame.filename = original + frame.filename[len(copy) :]
    if (getattr(described, "filename", None) or "").startswith(copy):  # of a SyntaxError
        described.filename = original + described.filename[len(copy) :]
    for other in (described.__cause__, described.__context__, *(getattr(described, "exceptions", None) or ())):
        _name_originals(other, copy, original)
