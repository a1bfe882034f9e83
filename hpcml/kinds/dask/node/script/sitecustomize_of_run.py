"""The ``sitecustomize`` of a run: processes that the script starts open the run's cluster, as the script does.

The run's library has this module under that name, so each Python that inherits PYTHONPATH imports it at its start. It
waits for the first import of Dask, and imports nothing of hpcml before. Any Python reads it, an old one too. Each also
writes its stacks when ``hpcml stacks`` asks (hpcml/node/stacks.py).
"""

import os
import sys

_LIBRARY = os.path.dirname(__file__)  # noqa: PTH120 - pathlib is not loaded before a script
_WATCHED = ("dask", "distributed", "cloudpickle")  # how the names of the packages begin that hpcml changes


class _OnDask:
    """Finds nothing itself: at the first import of Dask it puts the replacements in its own place."""

    def __init__(self):
        # type: () -> None
        self.used = False
        self.path = list(sys.path)  # without the folder of what this process will run

    def find_spec(self, name, *_):
        # type: (str, *object) -> object
        """Return the replacements' spec of the module, None for a module that they do not change."""
        if self.used or not name.startswith(_WATCHED):
            return None
        self.used = True
        try:
            installed = _install(self.path)
        except (ImportError, OSError):  # the run has ended, and its folder was removed: there is no cluster
            installed = False
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        return sys.meta_path[0].find_spec(name, None) if installed else None


def _install(path):
    # type: (list[str]) -> bool
    from importlib.util import find_spec

    spec = find_spec("hpcml")
    if spec is None or not str(spec.origin).startswith(_LIBRARY):
        sentence = "Python did not find the run's copy of the module hpcml"
        sys.stderr.write("hpcml: " + sentence + ": this process cannot use the run's Dask cluster.\n")
        return False
    from hpcml.kinds.dask.node.script import replacements

    return replacements.install_in_child(path)


class _OnWorlds:
    """Finds nothing: the first import of MPI, JAX or torch has it watched (hpcml/node/script/worlds_of_one.py)."""

    def find_spec(self, name, *_):
        # type: (str, *object) -> None
        """Install the watch, which then finds the module."""
        if name not in ("mpi4py", "jax", "torch"):
            return
        sys.meta_path.remove(self)
        _with_worlds("install")


def _with_worlds(function):
    # type: (str) -> None
    """Call a function of node/script/worlds_of_one.py, unless the run has ended or ``hpcml`` is another module."""
    from importlib.util import find_spec

    try:
        if str(getattr(find_spec("hpcml"), "origin", "")).startswith(_LIBRARY):
            from hpcml.node.script import worlds_of_one

            getattr(worlds_of_one, function)()
    except (ImportError, OSError):
        return


def _is_child(variable):
    # type: (str) -> bool
    """Whether the script, or a process of the script, started this process with a variable of the run.

    hpcml's own processes have another environment.
    """
    if sys.version_info < (3, 11) or variable not in os.environ or "HPCML_PYTHONPATH" in os.environ:
        return False
    return not any("hpcml.node." in word or "hpcml.kinds." in word for word in sys.orig_argv[:5])


def _answer_stacks():
    # type: () -> None
    """Have a signal write this process's stacks into a file that never has a name; so in each fork.

    Nobody can take a name that is not there. The first line says whose file it is: a fork has its parent's open too.
    """
    import _signal  # type: ignore[import-not-found] # the module signal would be imported for its number alone
    import faulthandler

    # Python builds of conda and uv, made for an old glibc, have neither os.memfd_create nor this name.
    nameless = getattr(os, "O_TMPFILE", 0o20000000 | os.O_DIRECTORY)
    try:
        file = os.open("/dev/shm", nameless | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(file, b"hpcml-stacks %d\n" % os.getpid())
    except OSError:  # this machine has no such folder, or no room: hpcml stacks shows what the kernel knows
        return
    faulthandler.register(_signal.SIGRTMIN + 5, file)


def _import_next():
    # type: () -> None
    """Import the environment's own sitecustomize, which this module hides; an error is that of the import."""
    this = sys.modules.pop(__name__)
    place = sys.path.index(_LIBRARY)
    del sys.path[place]
    try:
        __import__(this.__name__)
    finally:
        sys.path.insert(place, _LIBRARY)


if _is_child("HPCML_WORLD"):
    sys.meta_path.insert(0, _OnWorlds())
    if "HPCML_RANKS" in os.environ:
        import atexit

        atexit.register(_with_worlds, "look_at_end")
if _is_child("DASK_SCHEDULER_ADDRESS"):
    sys.meta_path.insert(0, _OnDask())  # type: ignore[arg-type]
if sys.version_info >= (3, 11) and "HPCML_RUN_DIR" in os.environ:
    _answer_stacks()
    os.register_at_fork(after_in_child=_answer_stacks)
_import_next()
