"""Keep a run's cluster open for another process, until it says that it is done: the script of python_api.py."""

import sys

from dask.distributed import Client, Event

import hpcml

client = Client()
client.wait_for_workers(int(sys.argv[1]))
if not Event("done").wait(float(sys.argv[2])):
    sys.exit(3)
(hpcml.run.out / "done.txt").write_text("asked to end\n")
