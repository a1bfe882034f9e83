"""Start the workers of an elastic cluster's job: Dask's own command, with a folder on the node that nobody else enters.

``python -m hpcml.node.elastic_job PLACE MODULE WORD…`` runs a module of Dask's with these words and that folder, which
is made in ``PLACE``, or where it is empty as Dask's temporary folder is chosen.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import threading

from hpcml.errors import STORAGE
from hpcml.node import scratch


def main() -> int:
    """Run the workers until they end; return their exit status, or 74 if somebody else could replace the folder."""
    place, module, *words = sys.argv[1:]
    place = place or scratch.for_dask(tempfile.gettempdir())
    try:
        folder = scratch.Folder(place)
    except scratch.UnsafePlaceError as error:
        print(f"hpcml: {error} (profile: paths.scratch, or TMPDIR)", file=sys.stderr)
        return STORAGE
    threading.Thread(target=scratch.sweep, args=(place,), daemon=True).start()
    with folder:
        own = str(folder.path)
        os.environ |= {"TMPDIR": own, "DASK_TEMPORARY_DIRECTORY": own}  # of what tasks start, too
        tempfile.tempdir = None
        scratch.name_semaphores(folder.path)
        sys.argv = [module, *words, "--local-directory", own]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
