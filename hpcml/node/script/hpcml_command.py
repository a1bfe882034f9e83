"""``hpcml`` called by a script: the run's library hides the installed hpcml, so Python is started again without it."""

from __future__ import annotations

import os
import sys

from hpcml.paths import LIBRARY


def main() -> None:
    """Become the same command with the user's own PYTHONPATH."""
    library = f"{os.environ.get('HPCML_RUN_DIR', '')}/{LIBRARY}"
    entries = os.environ.get("PYTHONPATH", "").split(":")
    if library not in entries:
        sys.exit(
            "hpcml: the run's copy of hpcml contains no commands. The installed hpcml cannot be started, "
            f"because {library} is not in PYTHONPATH. Keep this folder in PYTHONPATH."
        )
    others = ":".join(entry for entry in entries if entry != library)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": others} if others else {}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - no shell is meant


if __name__ == "__main__":
    main()
