"""What a script starts opens its cluster too; but not a process whose Dask has another version than the run's."""

import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from pathlib import Path

BESIDE = """
from dask.distributed import Client
import os
client = Client(n_workers=7)
print("beside", len(client.nthreads()), client.submit(os.getenv, "SCALE").result())
"""
OTHER = "import distributed; print('other', hasattr(distributed.Client, 'of_hpcml'))"


class Sum:
    def __call__(self, numbers):
        return sum(numbers)


def child(kind):
    from dask.distributed import Client, LocalCluster

    with LocalCluster(n_workers=7) as cluster, Client(cluster) as client:
        print(kind, len(client.nthreads()), client.gather(client.map(Sum(), [[1, 2]]))[0], flush=True)
    if kind == "spawn":
        warnings.warn("mine", stacklevel=1)
        raise ValueError(kind)


if __name__ == "__main__":
    for kind in ("spawn", "forkserver", "fork"):
        process = multiprocessing.get_context(kind).Process(target=child, args=(kind,))
        process.start()
        process.join()
    os.environ["SCALE"] = "10"
    Path("beside.py").write_text(BESIDE)
    subprocess.run([sys.executable, "beside.py"], check=True)
    (link,) = Path(os.environ["HPCML_RUN_DIR"]).glob("attempts/0/link.json")
    before = link.read_text()
    others = {**json.loads(before)["versions"], "distributed": "1.2.3"}
    link.write_text(json.dumps({**json.loads(before), "versions": others}))
    subprocess.run([sys.executable, "-c", OTHER], check=False)
    link.write_text(before)
    print("result True")
