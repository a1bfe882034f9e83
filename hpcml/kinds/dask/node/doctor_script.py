"""The program of ``hpcml doctor --node``: the workers of a run probe their nodes; the login node judges the probes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

from hpcml.node.context import load

_PATIENCE = 120.0  # seconds for a probe


def look(program: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the probe of the node whose worker calls it; ``program`` is the one for images.

    A process of its own makes the probe: a worker has threads, and may not fork.
    """
    context = load()
    command = [sys.executable, "-P", "-m", "hpcml.node.hardware.probe", "--thorough"]
    command += ["--program", program, "--scratch", context.scratch()]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=_PATIENCE, check=True, stdin=subprocess.DEVNULL)
    return context.node, json.loads(done.stdout)


def main() -> int:
    """Ask the worker of each node, and write their answers into the run's out/; return the exit status."""
    import dask.config
    from distributed import Client

    from hpcml.kinds.dask.node.security import client_preload  # noqa: F401 - authenticates connections here

    module = importlib.import_module("hpcml.kinds.dask.node.doctor_script")  # __main__ would be sent as code
    with dask.config.set({"distributed.client.preload": []}), Client() as client:
        answers = client.run(module.look, *sys.argv[1:2])
    (load().run.out / "doctor.json").write_text(json.dumps(dict(answers.values()), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
