#!/usr/bin/env python3
"""Two published workloads on 1, 8 and 16 cores: CSV files aggregated by group, and the sum of a large random array.

    .venv/bin/python bench/cpu_rows.py --rounds 3 --out docs/benchmarks/cpu_rows.json

For a machine with 16 cores of its own; it needs neither Slurm nor a network. The data grows with the cores, so that every
count takes about as long, and rates are compared. The contenders take turns, each bound to its cores: an hpcml run on the
local site, a LocalCluster by hand with the same workers of one thread, and on one core pandas and NumPy without Dask.
Each does a small part of the work before the clock starts. All contenders must have the same answer.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench")]
FIGURES = ROOT / "docs" / "benchmarks" / "cpu_rows.json"
HPCML, BY_HAND, PLAIN = "hpcml", "LocalCluster", "without Dask"
CSV, ARRAY = "csv", "array"
COUNTS = (1, 8, 16)  # cores
FILE_BYTES, FILE_ROWS = 25_000_000, 20_000  # of a CSV file: its size, and the rows that it repeats
FILES, SIDE, CHUNKS = (
    8,
    2_000,
    32,
)  # files for each core; of the array: a chunk's rows and columns, and chunks for each core
SPREAD = 2e-3  # how far the answers may be apart; the array's are means of random numbers
MEASURED = ("csv_by_dask", "csv_by_pandas", "array_by_dask", "array_by_numpy", "contend", "trip")
DEADLINE = 300  # seconds for one contender
# Bytes, and seconds by cores (Dask's blog: "Dask, Pandas, and GPUs: first steps", "GPU Dask Arrays, first steps", 2019).
PUBLISHED: dict[str, tuple[float, dict[int, float]]] = {
    CSV: (10e9, {1: 194, 8: 58, 40: 35}),
    ARRAY: (2e12, {1: 9_540, 40: 690}),
}


def write_csv(folder: Path, files: int) -> list[str]:
    """Write CSV files of taxi trips, all with the same rows, and return their paths."""
    header = "pickup,dropoff,passenger_count,trip_distance,pickup_zone,dropoff_zone,payment,fare,tip,total\n"
    block = "".join(map(trip, range(FILE_ROWS)))
    text = header + block * (FILE_BYTES // len(block))
    paths = [folder / f"part-{number:05d}.csv" for number in range(files)]
    for path in paths:
        path.write_text(text, encoding="ascii")
    return list(map(str, paths))


def trip(row: int) -> str:
    """Return a line of a CSV file."""
    day = f"2019-01-{row % 28 + 1:02d} {row % 23:02d}"
    times = f"{day}:{row % 30:02d}:00,{day}:{row % 30 + 29:02d}:30"
    what = f"{row % 6 + 1},{row % 997 / 50:.2f},{row % 263 + 1},{row % 257 + 1},{'card' if row % 3 else 'cash'}"
    return f"{times},{what},{row % 991 / 10:.2f},{row % 89 / 10:.2f},{row % 99}\n"


def csv_by_dask(files: list[str]) -> float:
    """Return the sum of the groups' means; Dask reads only the two columns."""
    import dask.dataframe as dd

    means = dd.read_csv(files, blocksize=None).groupby("passenger_count").trip_distance.mean().compute()
    return float(means.sum())


def csv_by_pandas(files: list[str]) -> float:
    """Return the same as csv_by_dask, file after file."""
    import pandas as pd

    columns = ["passenger_count", "trip_distance"]
    parts = [pd.read_csv(name, usecols=columns).groupby(columns[0])[columns[1]].agg(["sum", "count"]) for name in files]
    whole = pd.concat(parts).groupby(level=0).sum()
    return float((whole["sum"] / whole["count"]).sum())


def array_by_dask(chunks: int) -> float:
    """Return the mean of (x + 1)[::2, ::2] of an array of random numbers with so many chunks, by its sum."""
    import dask.array as da

    x = da.random.default_rng(0).standard_normal((SIDE, SIDE * chunks), chunks=SIDE)
    return float((x + 1)[::2, ::2].sum().compute()) / float(x.size // 4)


def array_by_numpy(chunks: int) -> float:
    """Return the same as array_by_dask, of other random numbers, chunk after chunk."""
    import numpy as np

    rng = np.random.default_rng(0)
    total = sum(float((rng.standard_normal((SIDE, SIDE)) + 1)[::2, ::2].sum()) for _ in range(chunks))
    return total / (chunks * SIDE**2 // 4)


@contextlib.contextmanager
def client_of(contender: str, cores: int) -> Iterator[None]:
    """Connect to the contender's cluster, which has a worker of one thread for each core."""
    if contender == PLAIN:
        yield
        return
    from distributed import Client, LocalCluster

    import hpcml

    with contextlib.ExitStack() as stack:
        if contender == HPCML:
            client = stack.enter_context(hpcml.connect())
        else:
            cluster = LocalCluster(n_workers=cores, threads_per_worker=1, dashboard_address=None)
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        client.wait_for_workers(cores, timeout=DEADLINE)
        if set(client.nthreads().values()) != {1} or len(client.nthreads()) != cores:
            sys.exit(f"{contender}: {cores} workers of one thread are expected, not {client.nthreads()}")
        yield


def contend(contender: str, cores: int, result: Path, files: list[str], chunks: int) -> None:
    """Do both works, each first on a small part, and write their seconds, bytes and answers."""
    by_dask = contender != PLAIN
    csv: Callable[[list[str]], float] = csv_by_dask if by_dask else csv_by_pandas
    array: Callable[[int], float] = array_by_dask if by_dask else array_by_numpy
    figures = {}
    with client_of(contender, cores):
        csv(files[:cores]), array(cores)
        start = time.perf_counter()
        answers = {CSV: csv(files)}
        middle = time.perf_counter()
        answers[ARRAY] = array(chunks)
        seconds = {CSV: middle - start, ARRAY: time.perf_counter() - middle}
    sizes = {CSV: sum(Path(name).stat().st_size for name in files), ARRAY: chunks * SIDE**2 * 8}
    for work, took in seconds.items():
        figures[work] = {"seconds": round(took, 4), "bytes": sizes[work], "answer": answers[work]}
    result.write_text(json.dumps(figures))


def run(contender: str, cores: int, files: int, chunks: int, folder: Path) -> dict[str, dict[str, float]]:
    """Start a contender on the first so many cores of this machine and return its figures."""
    words = ["--files", str(files), "--chunks", str(chunks), "--folder", str(folder)]
    return started(__file__, contender, cores, words, folder)


def started(
    script: str, contender: str, cores: int, words: list[str], folder: Path, deadline: float = DEADLINE
) -> dict[str, Any]:
    """Start a script as a contender on the first so many cores of this machine and return what it writes to --out."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    words = [script, "--contend", contender, "--cores", str(cores), *words, "--out", str(result)]
    before = [sys.executable]
    if contender == HPCML:
        settings = {"workers.per_node": cores, "workers.threads": 1, "paths.runs": folder / "runs"}
        before += ["-m", "hpcml", "submit", "--site", "local", "--wait"]
        before += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))
    own = {key: value for key, value in os.environ.items() if not key.startswith(("HPCML_", "SLURM_"))}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**own, **threads, "PYTHONPATH": f"{ROOT}:{own.get('PYTHONPATH', '')}", "HOME": str(folder)}
    command = ["taskset", "--cpu-list", allowed, *before, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=deadline
    )
    if done.returncode or not result.exists():
        sys.exit(f"{shlex.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
    return dict(json.loads(result.read_text()))


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of all rounds; the order of the contenders is turned each round."""
    start = time.perf_counter()
    write_csv(folder, options.files * max(options.counts))
    found: list[dict[str, Any]] = []
    for number in range(options.rounds):
        took = time.perf_counter() - start
        if number and took * (number + 1) / number > options.budget:
            print(f"{number} of {options.rounds} rounds took {took:.0f} s: no more are begun", file=sys.stderr)
            break
        for cores in options.counts:
            contenders = [HPCML, BY_HAND, *[PLAIN] * (cores == 1)]
            turn = number % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                works = run(contender, cores, options.files * cores, options.chunks * cores, folder)
                for work, figures in works.items():
                    found.append({"round": number, "cores": cores, "contender": contender, "work": work, **figures})
                    print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    for work in (CSV, ARRAY):
        answers = [one["answer"] for one in found if one["work"] == work]
        if max(answers) - min(answers) > SPREAD * max(map(abs, answers)):
            sys.exit(f"{work}: the answers are {answers}; all are expected to be equal")
    return found


def rates(document: dict[str, Any], work: str, cores: int, contender: str) -> list[float]:
    """Return the megabytes per second of each round."""
    return [one["bytes"] / 1e6 / one["seconds"] for one in document["runs"]
            if (one["work"], one["cores"], one["contender"]) == (work, cores, contender)]  # fmt: skip


def ratios(document: dict[str, Any], work: str, cores: int) -> list[float]:
    """Return hpcml's rate over that of the cluster by hand, round by round, in order of size."""
    pairs = zip(rates(document, work, cores, HPCML), rates(document, work, cores, BY_HAND), strict=True)
    return sorted(own / other for own, other in pairs)


def table(document: dict[str, Any]) -> str:
    """Return the medians as a table in Markdown."""
    contenders = " | ".join(f"{contender}, MB/s" for contender in (HPCML, BY_HAND, PLAIN))
    lines = [f"| work | cores | {contenders} | hpcml / LocalCluster | at the published size | published |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    counts = sorted({one["cores"] for one in document["runs"]})
    for work, (size, published) in PUBLISHED.items():
        for cores in counts:
            cells = [rates(document, work, cores, contender) for contender in (HPCML, BY_HAND, PLAIN)]
            shown = [f"{statistics.median(each):,.0f}" if each else "" for each in cells]
            found = ratios(document, work, cores)
            ratio = f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"
            whole = f"{size / 1e6 / statistics.median(cells[0]):,.0f} s"
            # No 16 cores were published: beside them are the 40.
            at = cores if cores in published else 40
            old = f"{published[at]:,.0f} s" + (f" on {at} cores" if at != cores else "")
            lines.append(f"| {work} | {cores} | {' | '.join(shown)} | {ratio} | {whole} | {old} |")
    facts = f"Medians of {document['rounds']} rounds; {document['date']}, {document['machine']}"
    return "\n".join([*lines, "", f"{facts}; `{document['command']}`"])


def machine() -> str:
    """Return the processor, the cores and the versions."""
    text = Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    import dask
    import numpy
    import pandas

    versions = f"Dask {dask.__version__}, pandas {pandas.__version__}, NumPy {numpy.__version__}"
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores ({names[0] if names else platform.machine()}), Python {platform.python_version()}, {versions}"
    )


def main() -> int:
    """Measure and show the table, or be a contender."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--counts", type=lambda text: [int(word) for word in text.split(",")], default=list(COUNTS),
                        help="numbers of cores (default 1,8,16)")  # fmt: skip
    parser.add_argument("--files", type=int, default=FILES, help="CSV files of 25 MB for each core (default 8)")
    parser.add_argument(
        "--chunks", type=int, default=CHUNKS, help="of the array for each core, 32 MB each (default 32)"
    )
    parser.add_argument(
        "--budget", type=float, default=280, help="begin no round that would end later, s (default 280)"
    )
    parser.add_argument("--folder", type=Path, help="for data and runs (default: for temporary files)")
    parser.add_argument("--out", type=Path, help="also write all figures to this file")
    parser.add_argument("--contend", choices=(HPCML, BY_HAND, PLAIN), help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        files = sorted(map(str, options.folder.glob("*.csv")))[: options.files]
        contend(options.contend, options.cores, options.out, files, options.chunks)
        return 0
    if max(options.counts) > len(os.sched_getaffinity(0)):
        parser.error(f"this machine has {len(os.sched_getaffinity(0))} cores. Give --counts fewer.")
    from figures import measured  # not at the top: a run has a copy of this file

    load = os.getloadavg()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hpcml-cpu-rows-", dir=options.folder) as name:
        runs = measure(options, Path(name))
    document = {
        "command": f"python3 {shlex.join(['bench/cpu_rows.py', *sys.argv[1:]])}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "measured": measured(*(f"bench/cpu_rows.py:{name}" for name in MEASURED)),
        "load_before": load,
        "rounds": 1 + max(one["round"] for one in runs),
        "seconds": round(time.perf_counter() - start, 1),
        "runs": runs,
    }
    print(table(document))
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
