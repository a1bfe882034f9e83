"""The sum (x + 1)[::2, ::2].sum() of a matrix of standard normal numbers that is larger than all memory.

Every chunk is drawn, added to, thinned out and summed by one task, which then forgets it. Sum and variance are compared
with theory. The same seed, shape and chunks give the same numbers on CPUs; CuPy draws others.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import dask
import dask.array as da

from gallery import backend, memory, partitions
from gallery import job as jobs
from gallery.job import Job

ITEM = 8  # bytes of a float64
SIGMAS = 5.0  # a right sum is farther off once in two million runs
FEWEST = 8  # chunks for each thread, where they are larger than partitions
CHECKED = 64  # chunks, at most, whose spread is looked at


def chunk_bytes(job: Job, total: int) -> int:
    """Return the size of a chunk that suits the workers, for an array of ``total`` bytes.

    Chunks are forgotten at once, so on GPUs they may be larger than partitions are, where there are enough of them: one
    scheduler serves all GPUs, and takes as long for a small task as for a large one.
    """
    wanted, enough = partitions.wanted(job.client), total // (FEWEST * max(job.threads, 1))
    return max(wanted, min(partitions.share_of_gpu(job.client), enough)) if backend.on_gpu() else wanted


def chunks_of(shape: tuple[int, int], size: int) -> tuple[int, int]:
    """Return rows and columns of a chunk of this many bytes, as square as can be: even, so that [::2] divides them."""
    items = max(size // ITEM, 4)
    rows = _even(min(shape[0], items // min(shape[1], math.isqrt(items))))
    return rows, _even(min(shape[1], items // rows))


def _even(number: int) -> int:
    return max(number + number % 2, 2)


def work(job: Job) -> None:
    options, known = job.options, job.result
    shape = (job.rows, options.columns)
    with job.phase("plan"):
        size = chunk_bytes(job, math.prod(shape) * ITEM)
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
    with job.phase("sum"):
        total = float(y.sum().compute())
    with job.phase("check"):
        known |= check(total, y)
    with job.phase("write"):
        known["peak_memory"] = max(job.client.run(peak).values())
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


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = jobs.Parser("arrays", __doc__, rows=15_811, data=False)
    add = parser.add_argument
    add("--columns", type=int, default=15_811, help="default 15,811")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    with dask.config.set({"array.slicing.split-large-chunks": False}):
        return jobs.run("arrays", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
