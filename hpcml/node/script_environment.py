"""What the user's code finds in a role, as the script finds it: the path of modules, the folder, PYTHONPATH.

A role starts without the working directory on its path (``-P``, and step.sh takes it out of PYTHONPATH) and imports
what it needs itself; then :func:`take_up` gives it what the script has. So the script, its tasks and the scheduler
import the same files in the same order, and a file named ``queue.py`` beside the script ends no role.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import MutableMapping
from pathlib import Path

from hpcml.node import job, shared_files
from hpcml.node.context import Context
from hpcml.paths import LIBRARY
from hpcml.workload_forms import Form

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_mask = threading.local()  # of the thread that forks
_OWN = "HPCML_PYTHONPATH"  # PYTHONPATH as the user has it


def take_up(context: Context, *, say: bool = True) -> None:
    """Give this process, which has imported what it needs, the surroundings of the script.

    Parameters
    ----------
    say
        Whether to name the user's modules that tasks cannot import, because others of their names are loaded.

    Raises
    ------
    OSError
        If the folder that the script runs in is not there.
    """
    os.chdir(context.settings.code.cwd)
    traits = context.settings.code.form.traits
    without = not traits.has_code or (os.environ.get("PYTHONSAFEPATH") and traits.is_script)
    first = [] if without else [folder(context)]
    run_entries = os.environ.get(_OWN, "")
    entries = [os.path.abspath(entry) for entry in run_entries.split(":") if run_entries]  # noqa: PTH100 - as Python's site has them
    wanted = [*first, str(context.run.library), *entries]
    for place in _hidden(first[0]) if first and say else ():
        print(f"hpcml: tasks do not import {place}: another module with the same name is loaded.", file=sys.stderr)
    sys.path[:] = dict.fromkeys([*wanted, *sys.path])
    restore(os.environ)
    as_in_batch_script = job.of_batch_script(os.environ)
    for name in os.environ.keys() - as_in_batch_script.keys():
        del os.environ[name]
    os.environ.update(as_in_batch_script)
    _draw_anew()


def answer_no_signals() -> None:
    """Let the signals pass that Slurm sends to every process when a job is cancelled or out of time.

    The supervisor answers, and closes scheduler and workers. They are caught, not ignored: what is ignored is so in
    every process that a task starts too, which then cannot be terminated (``Popen.terminate``, ``Pool.terminate``).
    """
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(before=_hold_back, after_in_parent=_let_in, after_in_child=_answer_again)


def _hold_back() -> None:
    """Have signals wait: what a fork is sent before it answers again would be lost, and ``Pool.join`` hang."""
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _answer_again() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _let_in()


def _draw_anew() -> None:
    """Give this process random numbers of its own: a fork copies NumPy's global state to all of a node's workers.

    Python's own ``random`` and OpenSSL see to it themselves; NumPy's generators (``default_rng``) are new anyway.
    """
    if random := sys.modules.get("numpy.random"):
        random.seed()


def folder(context: Context) -> str:
    """Return the folder that comes first on the script's path: its own, as Python resolves it."""
    settings = context.settings
    in_place = settings.code.form is Form.PROGRAM and not settings.code.copy_of  # its own folder holds other programs
    if in_place or not settings.code.form.traits.is_script:
        return settings.code.cwd
    return str(Path(settings.code.script).resolve().parent)


def restore(environment: MutableMapping[str, str]) -> None:
    """Put the user's PYTHONPATH behind the run's library, as processes of the user's find it."""
    run_entries = environment.pop(_OWN, "")
    library = f"{environment['HPCML_RUN_DIR']}/{LIBRARY}"
    environment["PYTHONPATH"] = f"{library}:{run_entries}" if run_entries else library


def _hidden(place: str) -> list[str]:
    """Return the modules in a folder whose names this process has loaded from elsewhere."""
    hidden = []
    for name in sorted(shared_files.listed(Path(place))):
        module = name.removesuffix(".py")
        if module in sys.modules and (module != name or Path(place, name, "__init__.py").is_file()):
            hidden.append(f"{place}/{name}")
    return hidden
