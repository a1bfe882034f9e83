#!/usr/bin/env python3
"""Work that exchanges much data, with workers on TLS, on authenticated TCP and on Dask's plain TCP, in turns.

    .venv/bin/python bench/data_protocols.py --pairs 9 --json docs/benchmarks/data-protocols.json

For a machine with 16 cores of its own. Each round starts a cluster of each kind, one after another, the first of them in
turn. All have the same processes: a scheduler and workers of Dask's, without Nanny. ``tls`` and ``hpcml-tcp`` have the
certificate, the key and the limits of a run; of ``hpcml-tcp`` only the workers' addresses are TCP, as in a run. ``tcp``
is what a job of dask-jobqueue has. A cluster does each work once before it is timed. Each ratio is of two figures of one
round; the goal is a median of 1.05 of plain TCP. Beside them is the processor time of all processes, which means more on
a machine that others use.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import multiprocessing
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import distributed
import psutil
from distributed import Client, Scheduler, Worker

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from hpcml.kinds.dask.node.security import connection_limits, tcp_auth, tls  # noqa: E402

GOAL = 1.05  # of plain TCP, the median
PLAIN, KEYED, TLS = "tcp", tcp_auth.SCHEME, "tls"
KINDS = (PLAIN, KEYED, TLS)
os.environ["DASK_LOGGING__DISTRIBUTED"] = "error"  # of the clusters' processes
SPAWN = multiprocessing.get_context("spawn")
DEADLINE = 120  # seconds for the start of a cluster


def paths_in(folder: Path) -> Any:
    """Return where a run's keys would be."""
    secret = folder / "secret"
    return SimpleNamespace(certificate=secret / "cert.pem", key=secret / "key.pem", data_key=secret / "data.key")


def arguments_of(kind: str, folder: Path, protocol: str) -> dict[str, Any]:
    """Return what a process of a cluster needs, for its own protocol."""
    if kind == PLAIN:
        return {"protocol": PLAIN}
    connection_limits.guard()
    if kind == KEYED:
        tcp_auth.install(paths_in(folder).data_key)
    return {"protocol": protocol, "security": tls.security(paths_in(folder))}


def scheduler(kind: str, folder: Path, pipe: Any) -> None:
    """Be the scheduler, until it is closed."""

    async def main() -> None:
        common = {"host": "127.0.0.1", "port": 0, "dashboard": False}
        async with Scheduler(**common, **arguments_of(kind, folder, PLAIN if kind == PLAIN else TLS)) as one:
            pipe.send(one.address)
            await one.finished()

    asyncio.run(main())


def worker(kind: str, folder: Path, address: str, threads: int) -> None:
    """Be a worker, until its scheduler is closed."""

    async def main() -> None:
        common = {"host": "127.0.0.1", "nthreads": threads, "local_directory": str(folder), "dashboard": False}
        async with Worker(address, **common, **arguments_of(kind, folder, kind)) as one:
            await one.finished()

    asyncio.run(main())


@contextlib.contextmanager
def cluster(kind: str, workers: int, threads: int) -> Iterator[Callable[[], float]]:
    """Have a new cluster, and yield what returns the processor seconds of its processes and this one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls.make_certificate(paths_in(folder), 86400)
        tls.make_data_key(paths_in(folder))
        here, there = SPAWN.Pipe()
        processes = [SPAWN.Process(target=scheduler, args=(kind, folder, there))]
        processes[0].start()
        if not here.poll(DEADLINE):
            sys.exit(f"{kind}: the scheduler did not start")
        address = here.recv()
        processes += [SPAWN.Process(target=worker, args=(kind, folder, address, threads)) for _ in range(workers)]
        for process in processes[1:]:
            process.start()
        security = arguments_of(kind, folder, TLS).get("security")
        with Client(address, security=security) as client:
            client.wait_for_workers(workers, timeout=DEADLINE)
            used = {one.partition("://")[0] for one in client.scheduler_info(n_workers=-1)["workers"]}
            if used != {kind}:
                sys.exit(f"the workers use {used}, not {kind}")
            everyone = [psutil.Process(pid) for pid in (os.getpid(), *(process.pid for process in processes))]
            yield lambda: sum(sum(process.cpu_times()[:2]) for process in everyone)
            client.shutdown()
        for process in processes:
            process.join(DEADLINE)
        distributed.comm.registry.backends.pop(KEYED, None)  # each cluster has a key of its own


def rechunk(scale: float) -> None:
    """Turn chunks of rows into chunks of columns."""
    side = int(8000 * scale)
    rows = da.random.default_rng(1).random((side, side), chunks=(side // 16, side))
    rows.rechunk((side, side // 16)).sum().compute()


def table(scale: float, seed: int) -> Any:
    days = max(2, int(30 * scale))
    end = str(datetime.date(2000, 1, 1) + datetime.timedelta(days=days))
    return dask.datasets.timeseries("2000-01-01", end, freq="1s", partition_freq="1D", seed=seed)


def merge(scale: float) -> None:
    """Join two tables whose rows are on all workers."""
    left, right = table(scale, 1), table(scale / 4, 2)
    left = left.assign(key=left.x.mul(1e6).astype("int64"))
    right = right.assign(key=right.x.mul(1e6).astype("int64"))[["key", "y"]]
    len(left.merge(right, on="key", how="inner"))


def shuffle(scale: float) -> None:
    """Send each row to the partition of its id."""
    len(table(2 * scale, 3).shuffle("id", force=True))


WORK: dict[str, Callable[[float], None]] = {"rechunk": rechunk, "merge": merge, "shuffle": shuffle}


def measure(kind: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the seconds of each work on a new cluster, on the clock and of processors."""
    found = {}
    p2p = dask.config.set({"dataframe.shuffle.method": "p2p"})
    with p2p, cluster(kind, options.workers, options.threads) as processor:
        for name, work in WORK.items():
            work(options.scale)
            begin, used = time.perf_counter(), processor()
            work(options.scale)
            found[name] = {"clock": round(time.perf_counter() - begin, 4), "processor": round(processor() - used, 3)}
    return found


def ratios(document: dict[str, Any], kind: str, name: str, figure: str) -> list[float]:
    """Return a figure of a work as multiples of plain TCP's, round by round, in order of size."""
    return sorted(one[kind][name][figure] / one[PLAIN][name][figure] for one in document["rounds"])


def text(document: dict[str, Any]) -> str:
    """Return the figures as a table in Markdown."""
    lines = ["| work | plain TCP, s | authenticated | its processor time | TLS | its processor time |"]
    lines.append("|---|---|---|---|---|---|")
    for name in WORK:
        cells = [f"{statistics.median(one[PLAIN][name]['clock'] for one in document['rounds']):.2f}"]
        for kind in (KEYED, TLS):
            for figure in ("clock", "processor"):
                found = ratios(document, kind, name, figure)
                cells.append(f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    told = f"Multiples of plain TCP, medians of {len(document['rounds'])} rounds; {document['date']}, {document['machine']}"
    return "\n".join([*lines, "", f"{told}; `{document['command']}`"])


def main() -> int:
    """Measure, and show the table; 1 if a median is above the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9, metavar="N", help="rounds")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2, help="of each worker")
    parser.add_argument("--scale", type=float, default=1.0, help="of the data")
    parser.add_argument("--budget", type=float, default=3600, help="seconds after which no round begins")
    parser.add_argument("--json", type=Path, help="also write all figures to this file, after each round")
    options = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    versions = f"Python {platform.python_version()}, Dask {dask.__version__}"
    document = {
        "command": f"python3 {shlex.join(['bench/data_protocols.py', *sys.argv[1:]])}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {versions}",
        "workers": options.workers,
        "threads": options.threads,
        "rounds": rounds,
    }
    ends = time.monotonic() + options.budget
    for number in range(options.pairs):
        if time.monotonic() > ends:
            break
        turn = number % len(KINDS)
        rounds.append({kind: measure(kind, options) for kind in (*KINDS[turn:], *KINDS[:turn])})
        print(f"round {number}: {rounds[-1]}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(text(document))
    return int(any(statistics.median(ratios(document, KEYED, name, "clock")) > GOAL for name in WORK))


if __name__ == "__main__":
    sys.exit(main())
