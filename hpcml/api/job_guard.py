"""Cancel a cluster's jobs when the program that asked for them has ended in whatever way, by SIGKILL too.

``python -m hpcml.api.job_guard FOLDER SCHEDULER`` has the end of a pipe as its input. When the pipe ends, or its
parent is gone, it removes the cluster's keys, without which no worker starts, and cancels what is left of its jobs.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from hpcml import schedulers
from hpcml.errors import HpcmlError
from hpcml.terminal import say_message

LOOK = 5.0  # seconds between looks at the parent: another child of its may hold the pipe open
_PATIENCE = 900.0  # seconds for a controller that does not answer
_PAUSE = 5.0  # seconds between two looks at the queue: what was just being submitted may still come


def main() -> int:
    """Wait for the end of the parent, or of the pipe; return 0 if no job is left."""
    folder, parent = Path(sys.argv[1]), os.getppid()
    while os.getppid() == parent:
        if select.select([0], [], [], LOOK)[0]:
            break
    return clean(folder, sys.argv[2])


def clean(folder: Path, scheduler: str) -> int:
    """Remove a cluster's keys, and cancel its jobs until two looks find none; return 0 then."""
    for key in folder.glob("secret/*"):
        key.unlink(missing_ok=True)
    deadline = time.monotonic() + _PATIENCE
    looks = 0
    while time.monotonic() < deadline:
        try:
            left = schedulers.other_jobs(scheduler).jobs_of_clusters().get(folder.name, [])
            for job in left:
                schedulers.get(scheduler).cancel(job)
                print(f"job {job} is cancelled", flush=True)  # noqa: T201 - into the cluster's logs
        except HpcmlError as error:
            say_message(f"hpcml: {error}")
        else:
            looks = 0 if left else looks + 1
            if looks == 2:
                return 0
        time.sleep(_PAUSE)
    return 1


if __name__ == "__main__":
    sys.exit(main())
