"""A script that changes what its workers inherit, at its top and below its guard, and tells what a task finds: JSON.

The same file is run by plain Python, where a LocalCluster's workers inherit it, and in a run.
"""

import decimal
import json
import logging
import os
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from dask.distributed import Client, LocalCluster

from surroundings import collect

os.environ["SCALE"] = "10"
warnings.simplefilter("error", RuntimeWarning)
np.seterr(all="raise")
np.random.seed(5)
pd.set_option("display.max_rows", 7)
sys.setrecursionlimit(3456)
sys.setswitchinterval(0.02)
decimal.getcontext().prec = 9
logging.getLogger("mine").setLevel(logging.ERROR)


TABLE = {"of the script": max([1, 2])}


class Model:
    factor = 3

    def predict(self, x: int) -> int:
        return self.factor * x * len(TABLE)


def scaled(x: int) -> int:
    return x * int(os.environ.get("SCALE", "1"))


def predicted(path: str, x: int) -> int:
    return pickle.loads(Path(path).read_bytes()).predict(x)  # type: ignore[no-any-return]  # noqa: S301


def drawn() -> float:
    return float(np.random.rand())


def library(x: int) -> int:
    import mine_of_lib  # type: ignore[import-not-found]

    return int(mine_of_lib.double(x))


def flat(settings: dict[str, Any], above: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in settings.items():
        found |= (
            flat(value, f"{above}.{name}")
            if isinstance(value, dict)
            else {f"{above}.{name}".replace("_", "-"): str(value)}
        )
    return found


def probe() -> dict[str, object]:
    import multiprocessing
    import resource
    import signal
    import time

    import threadpoolctl

    main = sys.modules["__main__"]

    facts = collect() | {"dask": {f"dask.config{name}": value for name, value in flat(dask.config.config).items()}}
    ignored = [one.name for one in signal.Signals if signal.getsignal(one) is signal.SIG_IGN]
    return facts | {
        "sys.argv": sys.argv[1:],
        "np.geterr": np.geterr(),
        "pandas option": pd.get_option("display.max_rows"),
        "decimal of new threads": decimal.DefaultContext.prec,
        "logging": [logging.getLogger("mine").level, logging.getLogger("distributed").level],
        "names of main": [main.TABLE, hasattr(main, "BELOW"), main.scaled(2)],
        "start method chosen": multiprocessing.get_start_method(allow_none=True),
        "authkey": bytes(multiprocessing.current_process().authkey) == KEY,
        "open files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "ignored": ignored,
        "clock": time.strftime("%Z", time.localtime(0)),
        "threads of BLAS": sorted((one["user_api"], one["num_threads"]) for one in threadpoolctl.threadpool_info()),
        "cores": len(os.sched_getaffinity(0)),
        "GONE": os.environ.get("GONE"),
    }


if __name__ == "__main__":
    import multiprocessing
    import multiprocessing.managers
    import resource

    BELOW = 1
    KEY = bytes(multiprocessing.current_process().authkey)
    os.makedirs("work/lib", exist_ok=True)
    os.chdir("work")
    Path("lib/mine_of_lib.py").write_text("def double(x): return 2 * x\n")
    sys.path.insert(0, str(Path("lib").resolve()))
    sys.argv.append("more")
    os.environ.update({"TZ": "Asia/Tokyo", "OPENBLAS_NUM_THREADS": "2", "LC_TIME": "C", "TMPDIR": str(Path.cwd())})
    del os.environ["GONE"]
    os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 2000))
    os.nice(1)
    multiprocessing.set_start_method("spawn")
    dask.config.set({"my.key": 7, "distributed.worker.memory.spill": False, "distributed.nanny.environ.OF_NANNY": "9",
                     "array.chunk-size": "3MiB"})  # fmt: skip
    Path("model.pkl").write_bytes(pickle.dumps(Model()))
    with LocalCluster(n_workers=2, threads_per_worker=1, env={"TOKEN_X": "abc"}, dashboard_address=":0") as cluster:
        os.environ["LATER"] = "no worker has it"
        with Client(cluster) as client:
            told = {
                "tasks": client.submit(probe).result(),
                "random": len(set(client.run(drawn).values())) == len(client.nthreads()),
                "functions": client.gather(client.map(scaled, [1, 2])),
                "modules": client.gather(client.map(library, [1, 2])),
                "pickled": client.gather(client.map(predicted, ["model.pkl"] * 2, [1, 2])),
            }
            print(json.dumps(told))
