"""Start one role on this node: scheduler, worker or driver."""

from __future__ import annotations

import importlib
import sys

from hpcml.node import storage, versions
from hpcml.node.processes import long_import
from hpcml.node.settings import load
from hpcml.paths import ROLES
from hpcml.repairs import finder


def main(arguments: list[str]) -> int:
    """Run the role named on the command line and return its exit status."""
    if len(arguments) != 1 or arguments[0] not in ROLES:
        print(f"hpcml.node takes one role of {', '.join(ROLES)}; the batch script starts it.", file=sys.stderr)
        return 64
    finder.install()
    sys.stdout, sys.stderr = storage.patient(1), storage.patient(2)
    # The driver compares them with its own.
    note = versions.tell(load(), arguments[0]) if arguments[0] != "driver" else None
    module = {"driver": "supervisor", "worker": "worker_parent"}.get(arguments[0], arguments[0])
    with long_import():
        role = importlib.import_module(f"hpcml.node.roles.{module}")
    status: int = role.main()
    if note and arguments[0] == "worker" and status == 0:
        versions.forget(note)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
