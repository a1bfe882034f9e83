"""Notice in a process of the script that MPI or JAX started as a world of one, where the run has more to offer.

A rank whose world has one process computes what all others compute too: it ends at once. Without ranks the supervisor
decides at the run's end (see ``world_of_one`` of hpcml/node/tasks/process.py). This module imports nothing that a
script could hide by a module of its own, and nothing of MPI or JAX before the script does.
"""

from __future__ import annotations

import os
import sys

from hpcml.node.script.after_import import AfterImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

RECORD = "HPCML_WORLD"  # the variable that names the file for the first world of one
RANKS = "HPCML_RANKS"  # the variable with the number of ranks; not set without ranks
_STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is not loaded before a script
_formed: list[str] = []  # the libraries by which this process has joined a world of several ranks
_OTHERS = ("torch", "jax", "tensorflow")  # libraries whose ranks find each other without MPI


def install() -> None:
    """Watch what this process imports from now on, if the run asks for it."""
    if os.environ.get(RECORD):
        sys.meta_path.insert(0, AfterImport(_LOOKS, lambda name, module: _LOOKS[name](module)))
    if os.environ.get(RANKS):
        import atexit

        atexit.register(look_at_end)


def look_at_end() -> None:
    """At the end of a rank's process, notice MPI that was started without mpi4py, as by petsc4py or ctypes.

    Nothing connects the ranks without Slurm's variables for MPI: then its world has one process.
    """
    by_slurm = any(name.startswith("PMI") and not name.startswith("PMIX_MCA_") for name in os.environ)
    if by_slurm or "mpi4py.MPI" in sys.modules or any(name in sys.modules for name in _OTHERS):
        return
    import contextlib

    with contextlib.suppress(OSError, AttributeError, ImportError), open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line}
        for path in paths:
            if os.path.basename(path).startswith(("libmpi.so", "libmpich.so")) and _is_started(path):
                _write("MPI", ("", 0))


def _is_started(library: str) -> bool:
    """Whether MPI_Init was called in this process, by a library that it has mapped."""
    import ctypes

    flag = ctypes.c_int(0)
    ctypes.CDLL(library).MPI_Initialized(ctypes.byref(flag))
    return bool(flag.value)


def _look_at_mpi(module: Any) -> None:
    """Look at MPI, which mpi4py has started, or will start when the script calls ``Init``."""
    frame = _importer(module)
    for name in ("Init", "Init_thread"):
        if original := getattr(module, name, None):
            setattr(module, name, _followed_by(original, lambda: _judge_mpi(module, frame)))
    _judge_mpi(module, frame)


def _judge_mpi(module: Any, frame: tuple[str, int]) -> None:
    try:
        alone = module.Is_initialized() and not module.Is_finalized() and module.COMM_WORLD.Get_size() == 1
    except (AttributeError, TypeError):  # another module of this name
        return
    if alone:
        _tell("MPI", frame, sure=_is_own(frame[0]) and not any(name in sys.modules for name in _OTHERS))


def _look_at_jax(module: Any) -> None:
    """Have ``jax.distributed.initialize()`` followed by a look at the number of processes."""

    def judge() -> None:
        state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
        count = getattr(state, "num_processes", None)
        if count is None and (jax := sys.modules.get("jax")):
            count = jax.process_count()
        if count == 1:
            _tell("JAX", _importer(module), sure=True)
        elif count:
            _formed.append("JAX")

    if original := getattr(module, "initialize", None):
        module.initialize = _followed_by(original, judge)


def _look_at_torch(module: Any) -> None:
    """Remember that ``init_process_group()`` made a world of several ranks, which needs no MPI."""

    def remember() -> None:
        if module.get_world_size() > 1:
            _formed.append("torch")

    if original := getattr(module, "init_process_group", None):
        module.init_process_group = _followed_by(original, remember)


_LOOKS = {
    "mpi4py.MPI": _look_at_mpi,
    "jax.distributed": _look_at_jax,
    "torch.distributed.distributed_c10d": _look_at_torch,
}


def _followed_by(original: Any, look: Any) -> Any:
    """Return a function that calls another and then looks; functools is not loaded before a script."""

    def function(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        look()
        return result

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(original, name):
            setattr(function, name, getattr(original, name))
    function.__wrapped__ = original  # type: ignore[attr-defined]
    return function


def _tell(library: str, frame: tuple[str, int], *, sure: bool) -> None:
    """Write a world of one down; in a rank end the process, or look again at its end where it may be right.

    A library that was built with MPI (h5py) starts it in ranks of torch too, which find each other in another way.
    """
    ranks = os.environ.get(RANKS)
    if not ranks:
        if _is_own(frame[0]):
            _write(library, frame)
        return
    if not sure:
        import atexit

        atexit.register(lambda: None if _is_replaced(frame) else _write(library, frame))
        return
    _write(library, frame)
    sys.stdout.flush()
    message = f"hpcml: {library} started with one process in rank {os.environ.get('RANK')} of {ranks} ranks."
    raise SystemExit(message)


def _is_replaced(frame: tuple[str, int]) -> bool:
    """Whether the rank needs no MPI: it has joined another world, or only a library started MPI and it may have."""
    return bool(_formed) or (not _is_own(frame[0]) and any(name in sys.modules for name in _OTHERS))


def _write(library: str, frame: tuple[str, int]) -> None:
    """Write the first world of one of the script's processes into the run's file."""
    import json

    text = json.dumps({"library": library, "file": frame[0], "line": frame[1]})
    try:
        descriptor = os.open(os.environ[RECORD], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    except OSError as error:  # the run's folder is full, or gone
        print(f"hpcml: {os.environ[RECORD]} cannot be written: {error.strerror}", file=sys.stderr)
        return
    with open(descriptor, "w") as file:
        file.write(text)


def _importer(module: Any) -> tuple[str, int]:
    """Return the file and the line that imports or calls a module: the first that is not of its package or Python."""
    looking = (install.__code__.co_filename, AfterImport.find_spec.__code__.co_filename)
    own = os.path.dirname(getattr(module, "__file__", None) or "") or "?"  # noqa: PTH120 - pathlib is not loaded
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect is not loaded before a script
    while frame:
        file = frame.f_code.co_filename
        of_python = file.startswith((f"{_STANDARD}/", "<")) and "-packages/" not in file
        if file not in looking and not file.startswith(f"{own}/") and not of_python:
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _is_own(file: str) -> bool:
    """Whether a file is the user's code, not that of an installed package."""
    return bool(file) and "/site-packages/" not in file and "/dist-packages/" not in file
