"""Start one role of the run on this node: the supervisor, or a role of the run's kind."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcml.failures.end import Reason
from hpcml.kind import Kind
from hpcml.node import full_disk, prestarted_role, process_helpers
from hpcml.node.context import Context, load
from hpcml.node.events_and_end import leave_note
from hpcml.node.process_helpers import long_import
from hpcml.paths import SUPERVISOR
from hpcml.repairs import finder


def main(arguments: list[str], kinds: Mapping[str, Kind]) -> int:
    """Run the role named on the command line, of a run of one of these kinds, and return its exit status."""
    context = load()
    kind = kinds[context.settings.kind]
    names = [role.name for role in kind.roles]
    if len(arguments) != 1 or arguments[0] not in (*names, SUPERVISOR):
        print(
            f"hpcml.kinds needs one of these roles: {', '.join((*names, SUPERVISOR))}. "
            "Do not start hpcml.kinds yourself: the batch script starts it.",
            file=sys.stderr,
        )
        return 64
    finder.install()
    sys.stdout, sys.stderr = full_disk.patient(1), full_disk.patient(2)
    role = kind.role(arguments[0])
    if role is None:
        with long_import():
            supervisor = importlib.import_module("hpcml.node.supervisor")
        _wait_for_run(kind, SUPERVISOR, context)
        return int(supervisor.main(kind))
    if role.every_node:
        process_helpers.killed_before_others(process_helpers.KILLED_NEXT)
    try:
        with long_import():
            run = kind.main_of(role.name)
        _wait_for_run(kind, role.name, context)
        return run()
    except ModuleNotFoundError as error:
        if not (sentence := shadowed(error.name or "", os.environ.get("HPCML_PYTHONPATH", ""))):
            raise
        leave_note(context, arguments[0], sentence, Reason.SHADOWED)
        return 1


def _wait_for_run(kind: Kind, role: str, context: Context) -> None:
    """In a role that starts before its run: import what the role needs, and wait; nothing in all others."""
    if os.environ.get(prestarted_role.VARIABLE):
        settings_files: Sequence[Path] = ()
        with long_import(), contextlib.suppress(Exception):  # the role itself will say it, of its run
            settings_files = kind.import_ahead(role, context)
        prestarted_role.wait(settings_files)


def shadowed(name: str, python_path: str) -> str:
    """Return a sentence if a folder of PYTHONPATH has another module of a package's name, else nothing."""
    package, _, part = name.rpartition(".")
    module = sys.modules.get(package)
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
    for entry in filter(None, python_path.split(":")):
        if place := next((inside for inside in places if inside.startswith(f"{entry.rstrip('/')}/")), ""):
            return f"the module {package} comes from {place}, by PYTHONPATH, and has no {part}"
    return ""
