"""Cancel a cluster's jobs when the program that asked for them has ended in whatever way, by SIGKILL too.

``python -m hpcml.elastic.guard FOLDER`` has the end of a pipe as its input. It ends quietly when it reads a word there:
the cluster has been closed. Where the pipe ends without one, or its parent is gone, it does what was left to do.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from hpcml.elastic import records
from hpcml.errors import HpcmlError
from hpcml.schedulers import slurm
from hpcml.terminal import say_message

LOOK = 5.0  # seconds between looks at the parent: another child of its may hold the pipe open
_PATIENCE = 900.0  # seconds for a controller that does not answer
_PAUSE = 5.0  # seconds between two looks at the queue: what was just being submitted may still come


def main() -> int:
    """Wait for the end of the parent; return 0 if nothing is left."""
    folder, parent = Path(sys.argv[1]), os.getppid()
    while os.getppid() == parent:
        if select.select([0], [], [], LOOK)[0]:
            if os.read(0, 16):
                return 0
            break
    return clean(folder)


def clean(folder: Path) -> int:
    """Cancel all jobs of a cluster until none is left, and write down what was done; return 0 if none is left."""
    records.close(folder, "guard", [], [])  # what starts now ends at once
    deadline = time.monotonic() + _PATIENCE
    cancelled: list[str] = []
    left: list[str] = []
    looks = 0
    while time.monotonic() < deadline:
        try:
            left = slurm.jobs_of_clusters().get(folder.name, [])
            for job in left:
                slurm.cancel(job)
        except HpcmlError as error:
            say_message(f"hpcml: {error}")
        else:
            cancelled += [job for job in left if job not in cancelled]
            looks = 0 if left else looks + 1
            if looks == 2:
                break
        time.sleep(_PAUSE)
    records.close(folder, "guard", cancelled, left)
    for key in folder.glob("secret/*"):
        key.unlink(missing_ok=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
