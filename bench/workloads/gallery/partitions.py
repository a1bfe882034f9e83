"""How large a partition is: about 1 GB in memory for a GPU, a fraction of a thread's share of memory for a CPU.

What a Parquet file calls uncompressed is still encoded (dictionaries, runs), so it is less than what lies in memory:
columns of fixed width are counted by their rows here, text by its uncompressed bytes, which is a lower bound.
Files are opened one after the other by a task, so a node has at most as many open as its workers have threads; only
cuDF opens all small files of a partition at once.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gallery import backend, memory
from gallery.inputs import Source
from gallery.job import Job
from hpcml.units import format_bytes

GPU, GPU_SHARE = 1_000_000_000, 32  # RAPIDS' advice; less where that is more than a 32nd of the GPU's memory
CPU, CPU_SHARE = 256_000_000, 40  # most for a thread, and the part of its memory: larger ones could not be spilled
LEAST = 8_000_000  # below this a task costs more than it does
TASKS = 2  # for each thread, where the data is less than partitions of full size for all
TINY = 8  # times smaller than a partition: such files are many for what they hold


def wanted(client: Any) -> int:
    """Return the bytes in memory that a partition should have on these workers, however much data there is."""
    if backend.on_gpu():
        return min(GPU, share_of_gpu(client))
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    shares = [worker["memory_limit"] // worker["nthreads"] for worker in workers if worker["memory_limit"]]
    return max(min([CPU, *(int(share) // CPU_SHARE for share in shares)]), LEAST)


def share_of_gpu(client: Any) -> int:
    """Return the bytes of a GPU's memory that one piece of data may take, however many there are."""
    has = memory.capacity(client)
    return has.memory // max(has.workers, 1) // GPU_SHARE


def size_of(job: Job, want: int, total: int) -> int:
    """Return the bytes of a partition, at most those wanted, of so many in all: enough for all threads, none tiny."""
    return max(min(want, total // (TASKS * max(job.threads, 1))), LEAST)


def in_memory(source: Source, columns: list[str]) -> int:
    """Return about how many bytes some columns take in memory; for text files what the file has."""
    if source.rows is None:
        return source.bytes
    total = 0
    for name in columns:
        kind = source.types[name]
        width = max(kind.bit_width // 8, 1) if pa.types.is_primitive(kind) else 0
        total += source.rows * (width or 8) + (0 if width else source.columns_bytes.get(name, 0))
    return total


def block(job: Job, source: Source, columns: list[str]) -> int:
    """Return the size of a partition as the readers count it: uncompressed for Parquet, else bytes of the file.

    Says in the result what it is, and why it cannot be kept where row groups are larger or files are tiny.
    """
    want, total = wanted(job.client), max(in_memory(source, list(source.types)), 1)
    size = size_of(job, want, total)
    growth = total / max(sum(source.columns_bytes.values()), 1) if source.kind == "parquet" else 1.0
    job.result["partition_bytes"] = size
    if (largest := int(source.group_bytes * growth)) > 1.5 * want:
        job.note(
            f"{source.where}: a row group of {format_bytes(largest)} is larger than the partition of "
            f"{format_bytes(want)} that suits these workers, and cannot be divided. Write smaller row groups."
        )
    files, each = len(source.files), total // len(source.files)
    if files > 4 * job.threads and each * TINY < want:
        job.note(f"{files:,} files of about {format_bytes(each)} each: several make a partition. Fewer, larger files "
                 f"of about {format_bytes(want)} read faster.")  # fmt: skip
    return max(int(size / growth / _fused(source, columns)), 1)


def _fused(source: Source, columns: list[str]) -> float:
    """Return how much too large Dask's fusion of partitions would make them.

    Where some of the columns are read, Dask puts partitions together by the share of the columns' number, cuDF by that
    of their bytes. By number goes wrong where those that are read are the wide ones.
    """
    if source.kind != "parquet" or backend.on_gpu() or not columns or len(columns) >= len(source.types):
        return 1.0
    by_number = len(columns) / len(source.types)
    return max(in_memory(source, columns) / max(in_memory(source, list(source.types)), 1) / by_number, 1.0)
