"""An array larger than all memory on a Dask cluster: an example, an acceptance test and a benchmark in one file.

Draws a matrix of standard normal numbers, computes (x + 1)[::2, ::2].sum() of it without ever holding it, and checks
the sum and the spread against theory. Writes into --out: result.json and arrays.png (when each worker worked on what).

    python tests/bench/workloads/arrays.py                              a laptop: 2 GB, seconds
    python tests/bench/workloads/arrays.py --rows 30_000 --columns 40_000         a laptop: a shape of one's own
    hpcml submit --nodes 2 tests/bench/workloads/arrays.py --size 2TB   a cluster: 500,000 × 500,000

Every chunk is drawn, added to, thinned out and summed by one task, which then forgets it: memory holds a chunk or two
for each thread, whatever --size is, so nothing is refused for its size; time is what limits it. A --chunk that is too
large for a worker's threads is refused. The same seed, shape and --chunk give the same numbers on CPUs; CuPy draws
others.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.utils import parse_bytes
from distributed import get_task_stream

from gallery import backend, memory, partitions, picture
from gallery import job as jobs
from gallery.job import Job, RefusedError
from hpcml.units import format_bytes

ITEM = 8  # bytes of a float64
GIB = 1024**3  # bytes
SIGMAS = 5.0  # a right sum is farther off once in two million runs
FEWEST = 8  # chunks for each thread, where they are larger than partitions
COPIES = 3  # of a chunk that a thread holds at once: drawn, with 1 added, and working space of the generator
CHECKED = 64  # chunks, at most, whose spread is looked at
BINS = 60  # of the throughput over time


def shape_of(options: argparse.Namespace) -> tuple[int, int]:
    """Return rows and columns: as given, or a square of --size."""
    if options.rows and options.columns:
        return options.rows, options.columns
    side = max(math.isqrt(options.size // ITEM), 1)
    if options.rows or options.columns:
        known = options.rows or options.columns
        other = max(options.size // ITEM // known, 1)
        return (known, other) if options.rows else (other, known)
    return side, side


def chunk_bytes(job: Job, asked: int | None, total: int) -> int:
    """Return the size of a chunk that suits the workers, or the one asked for if it fits.

    Chunks are forgotten at once, so on GPUs they may be larger than partitions are, where there are enough of them: one
    scheduler serves all GPUs, and takes as long for a small task as for a large one.

    Parameters
    ----------
    total
        The bytes of the whole array.

    Raises
    ------
    RefusedError
        So many chunks as a worker has threads do not fit into its memory.
    """
    if asked is None:
        wanted, enough = partitions.wanted(job.client), total // (FEWEST * max(job.threads, 1))
        return max(wanted, min(partitions.share_of_gpu(job.client), enough)) if backend.on_gpu() else wanted
    has = memory.capacity(job.client)
    held = COPIES * asked * job.threads
    if has.memory and held > has.usable and not job.options.any_size:
        most = format_bytes(has.usable / (COPIES * job.threads))
        raise RefusedError(
            f"{job.threads} threads with chunks of {format_bytes(asked)} hold {format_bytes(held)}, the workers "
            f"{format_bytes(has.usable)}. Lower --chunk to {most}, or try it with --any-size."
        )
    return asked


def chunks_of(shape: tuple[int, int], size: int) -> tuple[int, int]:
    """Return rows and columns of a chunk of this many bytes, as square as can be: even, so that [::2] divides them."""
    items = max(size // ITEM, 4)
    rows = _even(min(shape[0], items // min(shape[1], math.isqrt(items))))
    return rows, _even(min(shape[1], items // rows))


def _even(number: int) -> int:
    return max(number + number % 2, 2)


def work(job: Job) -> None:
    options, known = job.options, job.result
    shape = shape_of(options)
    with job.phase("plan"):
        size = chunk_bytes(job, options.chunk, math.prod(shape) * ITEM)
        x = da.random.default_rng(options.seed).standard_normal(shape, chunks=chunks_of(shape, size))
        y = (x + 1)[::2, ::2]
        known |= {
            "shape": shape,
            "bytes": x.nbytes,
            "chunks": x.npartitions,
            "chunk_bytes": math.prod(x.chunksize) * ITEM,
        }
        has = memory.capacity(job.client)
        known |= {"memory": has.memory, "nodes": has.nodes}
        if has.memory:
            known["times_the_memory"] = round(x.nbytes / has.memory, 4)
        backend.import_everywhere(job.client, backend.arrays().__name__)
        x.blocks[0, 0][:2, :2].sum().compute()  # the libraries' first call is no part of what is timed
    with job.phase("sum"), get_task_stream(job.client) as stream:
        total = float(y.sum().compute())
    with job.phase("check"):
        known |= check(total, y)
    with job.phase("write", last=True):
        known["peak_memory"] = max(job.client.run(peak).values())
        draw(job, stream.data)
    known["gigabytes_per_second"] = round(x.nbytes / 1e9 / known["seconds"]["sum"], 9)
    if off := [name for name in ("sum_sigmas", "variance_sigmas") if abs(known[name]) > SIGMAS]:
        job.note(
            f"{' and '.join(off)}: farther from theory than {SIGMAS:g} sigma. Do not trust this machine's numbers."
        )


def check(total: float, y: Any) -> dict[str, float]:
    """Return the sum, and how far it and the variance are from what theory says, in their standard deviations.

    The sum of n numbers of mean 1 and variance 1 has mean n and variance n. The variance is that of the first chunks,
    drawn again: of n numbers it has the standard deviation sqrt(2 / n).
    """
    n = y.size
    some = y.blocks[: math.isqrt(CHECKED), : math.isqrt(CHECKED)]
    variance = float(some.var().compute())
    return {
        "sum": total, "mean": total / n, "sum_sigmas": (total - n) / math.sqrt(n),
        "variance": variance, "variance_of": some.size, "variance_sigmas": (variance - 1) / math.sqrt(2 / some.size),
    }  # fmt: skip


def peak() -> int:
    """Return the most memory that this worker's process had at once, in bytes (Linux counts in KiB)."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def draw(job: Job, tasks: list[dict[str, Any]]) -> None:
    """Write when each thread computed (a line per chunk), and the throughput over time."""
    known = job.result
    known |= {"tasks": len(tasks), "largest_result": max((task["nbytes"] or 0 for task in tasks), default=0)}
    computed = picture.spans(tasks)
    known["threads_used"] = len({thread for thread, *_ in computed})
    seconds = known["seconds"]["sum"]
    title = f"{format_bytes(known['bytes'])} in {seconds:.4g} s, {known['bytes'] / GIB / seconds:.4g} GiB/s"
    drawn, (times, flow) = picture.figure(title, panels=2, height=4)
    picture.timeline(times, tasks)
    edges = np.linspace(0, max((stop for *_, stop in computed), default=1.0), BINS + 1)
    busy = sum(stop - start for _, start, stop in computed) or 1.0
    done = np.zeros(BINS)
    for _, start, stop in computed:  # a task's bytes go to the bins that it spans, by its share of all time computed
        done += np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start), 0, None) / busy
    flow.stairs(done * known["bytes"] / GIB / np.diff(edges), edges, fill=True)
    flow.set(xlabel="seconds", ylabel="GiB/s", title="throughput", ylim=(0, None))
    picture.save(job, "arrays.png", drawn)


def sized(text: str) -> int:
    """Read a size as 2TB, 500MB or 64MiB.

    Raises
    ------
    argparse.ArgumentTypeError
        For anything else.
    """
    try:
        number = parse_bytes(text)
    except ValueError:
        number = 0
    if number < ITEM:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 8 bytes, as 2TB or 500MB")
    return int(number)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = jobs.Parser("arrays", __doc__, rows=15_811, data=False)
    add = parser.add_argument
    add("--columns", type=jobs.count, help="columns (default: by --size)")
    add(
        "--size",
        type=sized,
        default="2GB",
        help="bytes of the array, where --rows or --columns is not given (default 2GB)",
    )
    add("--chunk", type=sized, help="bytes of a chunk (default: as partitions, about 1 GB on a GPU)")
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    with dask.config.set({"array.slicing.split-large-chunks": False}):
        return jobs.run("arrays", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
