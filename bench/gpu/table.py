#!/usr/bin/env python3
"""Turn docs/benchmarks/gpu-*.json into the page docs/benchmarks/gpu.md and its summary in README.md, between their markers.

python3 bench/gpu/table.py            write both pages
python3 bench/gpu/table.py --check    exit 1 if a page does not show what the files hold
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from results import SECTIONS, Document, Result, read

FOLDER = Path(__file__).resolve().parents[2] / "docs/benchmarks"
BEGIN, END = "<!-- gpu tables: begin (bench/gpu/table.py) -->", "<!-- gpu tables: end -->"
SHORT = ("<!-- gpu in short: begin (bench/gpu/table.py) -->", "<!-- gpu in short: end -->")
NOTHING = "No figures yet: nobody has run [bench/gpu](../../bench/gpu/README.md) and left its files here."
BUDGET = re.compile(r"skipped: \d+ s are left")  # not tried for lack of time: not a result
LINE = 120  # characters of a line of text
LONGEST = 160  # characters of an error in a table

# What each section shows, and how to read its table.
NOTES: dict[str, tuple[str, str]] = {
    "smoke": ("RAPIDS works: imports, a computation, UCX.", ""),
    "kernels": (
        "The first call of an operation compiles its CUDA kernel.",
        "CuPy keeps compiled kernels in a folder: the first two rows differ by that folder. "
        "Reductions that CuPy gives to CUB (*counts*) take seconds each.",
    ),
    "topology": ("What hpcml's probe reports of a node.", ""),
    "verdict": (
        "What hpcml reports of the interconnect: with NVLink, with TCP forced, and where RDMA is required and missing.",
        "",
    ),
    "kmeans": (
        "k-means gives the same clusters on CPUs and on GPUs.",
        "Four million rows are too few to compare speed: most of a first fit is compiling, loading kernels and NCCL's start.",
    ),
    "auth": (
        "Nobody connects without the run's key; what the key costs in throughput.",
        "The column *plain, without the progress thread* is UCX as Dask starts it.",
    ),
    "bringup": (
        "Time from the job's start until the script has all workers, against a batch script by hand.",
        "*usable*: the script's client has seen all workers. hpcml's time includes authentication and the check of the "
        "interconnect; *no check* and *tls, no check* show their cost. The script does not use cuDF. On two GPUs "
        "hpcml's workers therefore did not import cuDF, which the workers of dask-cuda by hand always do. *beside cuDF*: the same by a script "
        "that uses cuDF, usable when each worker has computed with it, beside one that does not. hpcml imports cuDF for the "
        "script while the workers start.",
    ),
    "merge": (
        "A merge of two tables on hpcml and on a LocalCUDACluster with the same memory pool.",
        "Over TCP hpcml encrypts and LocalCUDACluster does not: do not compare those rows.",
    ),
    "image": ("k-means inside an image and outside it.", ""),
    "gallery": (
        "Each job of the GPU tier on CPUs and on GPUs gives the same results.",
        "Both sides ran at the same time. The first run of a job loads libraries and compiles kernels. "
        "The result is the column *figures apart*, not the seconds.",
    ),
    "headlines": (
        "Published workloads on hpcml and on a LocalCUDACluster by hand.",
        "Published sizes are for eight GPUs: each GPU here has an eighth, but the join of four GPUs, and the last of two, is "
        "whole. hpcml encrypts TCP and LocalCUDACluster does not. Of the searches on one GPU and on four, the slow one "
        "started with an empty folder of compiled kernels, the quick one with a filled folder. The older CSV of one GPU has "
        "small files and a shuffle. The second table says what the workers' threads did (mean), by Dask's task stream. "
        "The array takes longer on four GPUs than on two because one scheduler starts all tasks.",
    ),
    "memory": (
        "Data larger than GPU memory spills to the host.",
        "*to the host* and *back* are dask-cuda's copies, into memory of a virtual machine that grows while it is used. "
        "*1.5 times*: first as dask-cuda spills, next to memory pinned by CUDA, then twice to memory that threads pin in "
        "large pages; these two ran on an H200 with as much memory in use as an H100 has. *passes*: passes of k-means after "
        "the first, the three ways in turns; all bytes were equal. *kinds* failed once and was repeated after a fix. "
        "*beyond memlock* ran as root, whom this limit does not bind.",
    ),
    "killed": ("A killed worker comes back with its memory pool, at rest and during a shuffle.", ""),
    "tasks": ("What the scheduler costs for each of many tiny tasks.", ""),
    "idioms": ("Scripts that open their own LocalCUDACluster, unchanged in a run and alone.", ""),
    "jobs": ("Programs that submit jobs with one GPU each.", ""),
    "examples": (
        "Each example of jobs/ on GPUs and on CPUs.",
        "On one GPU the section's deadline ended `to_torch` once; that deadline is longer now.",
    ),
    "sweep": (
        "Twelve k-means as one sweep, against runs of their own.",
        "*each* is from `hpcml submit --wait` to its end. Two of the twelve runs were made; *12 of them* is twelve times "
        "*each*. *free in the pool* is the largest block that RMM could still give when a point began.",
    ),
    "polars": (
        "Queries after TPC-H with dask_cudf and with cuDF-Polars, on Parquet files in the page cache.",
        "Seconds are those of the second time each was asked. A P2P shuffle of GPU tables goes through host memory and "
        "disks. A script pays *engine's start* once. The *example* is too small for a GPU. *pdsh* is cuDF-Polars' own "
        "benchmark: seconds of its 22 queries in a run, on a cluster that it starts itself, and by ranks.",
    ),
    "samples": (
        "hpcml's samples against those of nvidia-smi.",
        "The run with an idle GPU took a minute and was judged by the rules for five minutes.",
    ),
    "rates": (
        "What the machine can do without Dask: the limits for [the headlines](hardware-limits.md).",
        "Medians of five. Files were in the page cache. Random numbers include seeding the generator, as a task does.",
    ),
    "chunks": (
        "The headlines in larger chunks.",
        "All ways took turns in one run. *the GPU is in use*: the share of the time in which a kernel ran, by NVML.",
    ),
    "lloyd": (
        "k-means of [jobs/kmeans.py](../../jobs/README.md), beside cuML in the same run, from the same centres.",
        "*bound*: the larger of two times for all iterations in float32. Memory: each row is read once per iteration, at the rate "
        "of a copy in this run. Arithmetic: 2 × rows × features × clusters operations per iteration, at the GPU's float32 peak "
        "(multiprocessors × 128 × 2 × highest clock). Each fit also computes the inertia. *kernels* excludes Dask. *largest*: the largest distance between two centres of "
        "the same number after one iteration (scikit-learn: after all). It is that of a centre of "
        "few rows, which one row on a border moves far; cuML's own fits, of which the sums have no fixed order, differ too.",
    ),
    "estimators": (
        "The estimators of the [examples](../../jobs/README.md), beside scikit-learn or plain Dask on this host's CPUs.",
        "Both sides took turns in one run. Medians. The SVDs are beside Dask on NumPy, *TruncatedSVD* beside the exact one; the grids "
        "beside scikit-learn's GridSearchCV. *to torch and back* is beside the way through the host's memory. *on GPUs* includes *move*, the copy of the rows "
        "into GPU memory. *call*: until `predict` returns. *apart*: the largest difference of the answers, relative to the largest value.",
    ),
    "first": (
        "A short script on one GPU, from the submission to the end: in a run, and with a LocalCUDACluster.",
        "Medians of each step's seconds, since the step before. *usable*: a client with its worker. *data*: the first tasks. "
        "*cuml*: its import in the script. In a run the scheduler and the worker import cuML while the script starts, "
        "with a LocalCUDACluster the worker does so in its first fit.",
    ),
    "startup": (
        "Start on nodes without GPUs, and runs on many nodes.",
        "All nodes share 16 of one machine's 32 cores. One worker of two threads per node, or one rank. *usable*: from the job's "
        "start until a script has seen all workers, or until all ranks have exchanged a number. Three series compare the starts of "
        "Dask; in each of them another benchmark used the other 16 cores. [Tenths of a second](cpu.md#startup-in-tenths-of-a-second) "
        "shows where the time goes. An earlier Dask run on 128 nodes ended with 82; its logs were not kept.",
    ),
    "failures": (
        "What hpcml says of 22 failures on a GPU, caused in runs on the local site.",
        "*named*: cause, next step and rank have the words that [failures.toml](../../bench/gpu/failures.toml) asks for. *raw*: they have not. "
        "*misleading*: words of another cause, or another rank. *silent*: no cause. *right*, *wrong*: what is to work works, or does not. "
        "Failures of one wave happened at the same time on the same GPU.",
    ),
}

Format = Callable[[Any], str]


def number(digits: int, unit: str = "") -> Format:
    """Return what writes a number with so many digits behind the point."""
    return lambda value: f"{value:,.{digits}f}{unit}"


def small(value: Any) -> str:
    """Write a number that may be tiny."""
    return f"{value:.1e}" if value else "0"


def beginning(most: int) -> Format:
    """Return what writes the first characters of a text."""
    return lambda value: str(value) if len(str(value)) <= most else f"{str(value)[:most]} …"


def truth(value: Any) -> str:
    """Write yes or no."""
    return "yes" if value else "no"


# The columns of each section: heading, key among a result's figures, how it is written.
COLUMNS: dict[str, list[tuple[str, str, Format]]] = {
    "smoke": [("slowest import", "slowest_import_s", number(1, " s")), ("UCX", "ucx", str), ("transports", "transports", str)],
    "topology": [("GPUs seen", "gpus", str), ("probe", "probe_seconds", number(1, " s"))],
    "verdict": [("status", "status", str), ("fast wire proven", "verdict_ok", truth), ("what hpcml says", "line", str),
                ("check", "check_s", number(1, " s"))],
    "kmeans": [("workers", "workers", str), ("rows", "rows", number(0)), ("read", "read_s", number(2, " s")),
               ("fit", "fit_s", number(2, " s")), ("iterations", "iterations", str),
               ("inertia off by", "inertia_difference", small), ("centres apart", "centre_distance", small)],
    "auth": [("refused", "refused", truth), ("how", "how", str), ("plain", "plain_gib_s", number(1, " GiB/s")),
             ("authenticated", "authenticated_gib_s", number(1, " GiB/s")),
             ("plain, without the progress thread", "stock_gib_s", number(1, " GiB/s")),
             ("plain connection", "plain_connect_ms", number(1, " ms")),
             ("authenticated", "authenticated_connect_ms", number(1, " ms"))],
    "bringup": [("runs", "runs", str), ("registered", "registered", number(2, " s")), ("usable", "usable", number(2, " s")),
                ("least", "usable_least", number(2, " s")), ("most", "usable_most", number(2, " s")),
                ("submit to usable", "submit_to_usable", number(2, " s")), ("wire checked", "fabric_checked", number(2, " s"))],
    "merge": [("hpcml", "hpcml_gib_s", number(2, " GiB/s")), ("LocalCUDACluster", "local_gib_s", number(2, " GiB/s")),
              ("pair, hpcml", "hpcml_pair_gib_s", number(1, " GiB/s")), ("pair, Local", "local_pair_gib_s", number(1, " GiB/s")),
              ("by hand", "hand_gib_s", number(2, " GiB/s")), ("starts", "starts", str), ("hpcml, each", "hpcml_spread", str),
              ("by hand, each", "hand_spread", str), ("UCX over TCP", "ucx_over_tcp", number(1, "×"))],
    "image": [("way in", "way", str), ("enter", "enter_s", number(2, " s")), ("workers", "workers", str),
              ("allocated to workers", "ready_s", number(2, " s")), ("inertia off by", "inertia_difference", small),
              ("centres apart", "centre_distance", small), ("transports", "transports", str),
              ("what hpcml says", "line", str), ("image check", "status", str)],
    "gallery": [("jobs", "jobs", str), ("on CPUs", "cpu_s", number(1, " s")), ("on GPUs", "gpu_s", number(1, " s")),
                ("the first time", "gpu_first_s", number(1, " s")), ("figures apart", "apart", small)],
    "headlines": [("data", "size", str), ("of the published size", "scaled", str), ("published", "old", str),
                  ("hpcml", "hpcml_s", number(2, " s")), ("LocalCUDACluster", "local_s", number(2, " s")),
                  ("hpcml, the first time", "first_s", number(2, " s")), ("the job", "job_s", number(2, " s")), ("scikit-learn", "sklearn_s", number(2, " s")), ("CuPy's kernels", "kernels", str), ("hpcml", "gib_s", number(1, " GiB/s")),
                  ("NVLink over TCP", "gain", number(1, "×")), ("1 GPU / N GPUs", "efficiency", number(2))],
    "kernels": [("imports", "imports_s", number(1, " s")), ("context", "context_s", number(1, " s")),
                ("first calls", "first_calls_s", number(1, " s")), ("calls", "calls", str), ("slowest, s", "slowest", str),
                ("script to client", "ready_s", number(1, " s")), ("the second time", "again_s", number(2, " s"))],
    "memory": [("data", "data_gib", number(0, " GiB")), ("the GPUs' memory", "memory_gib", number(0, " GiB")),
               ("spilled", "spilled_gib", number(0, " GiB")), ("nodes it asks for", "nodes_asked", str), ("took", "run_s", number(0, " s")),
               ("kinds of values", "kinds", str), ("pinned a second", "pin_blocks_gib_s", number(1, " GiB")), ("by threads", "pin_threads_gib_s", number(1, " GiB")), ("beyond memlock", "beyond_memlock", truth),
               ("kept on the GPUs", "kept_gib", number(0, " GiB")), ("rounds", "rounds", str), ("loading", "load_s", number(1, " s")), ("a pass", "pass_s", number(2, " s")),
               ("out in a pass", "out_gib", number(1, " GiB")), ("back in a pass", "back_gib", number(1, " GiB")),
               ("out", "out_gib_s", number(1, " GiB/s")), ("in", "back_gib_s", number(1, " GiB/s")), ("pinned", "pinned_gib", number(1, " GiB")),
               ("to the host", "spill_gib_s", number(1, " GiB/s")), ("back", "unspill_gib_s", number(1, " GiB/s")),
               ("to pinned memory", "pinned_to_gib_s", number(1, " GiB/s"))],
    "sweep": [("points", "points", str), ("the sweep", "sweep_s", number(1, " s")), ("a point", "point_s", number(2, " s")),
              ("the first", "first_point_s", number(1, " s")), ("runs by themselves", "alone_runs", str),
              ("each", "alone_each_s", number(1, " s")), ("12 of them", "alone_s", number(0, " s")),
              ("free in the pool, first", "free_first_gib", number(1, " GiB")), ("least found free", "free_least_gib", number(1, " GiB")),
              ("used at most", "full_gib", number(1, " GiB")), ("NVML, first", "nvml_first_gib", number(1, " GiB")),
              ("NVML, most", "nvml_most_gib", number(1, " GiB"))],
    "killed": [("killed", "worker", str), ("workers", "workers", str), ("back after", "back_s", number(1, " s")),
               ("smallest pool", "least_pool_gib", number(0, " GiB")), ("figures right", "right", truth),
               ("answer after", "answer_s", number(1, " s"))],
    "tasks": [("runs", "runs", str), ("300 tasks", "many_ms", number(0, " ms")), ("least", "least_ms", number(0, " ms")),
              ("most", "most_ms", number(0, " ms")), ("one task", "one_ms", number(1, " ms")),
              ("script's CPU, idle", "idle_cpu", number(2)), ("import", "import_s", number(2, " s")),
              ("connect", "connect_s", number(2, " s")), ("scheduler up", "scheduler_up_s", number(2, " s"))],
    "idioms": [("of", "kind", str), ("figure", "figure", str), ("alone", "alone", str), ("took", "seconds", number(1, " s")),
               ("workers", "workers", str), ("opened in", "open_s", number(2, " s")), ("alone", "alone_open_s", number(2, " s")),
               ("passed", "passed", str), ("failed", "failed", str), ("skipped", "skipped", str)],
    "jobs": [("first answer after", "first_s", number(1, " s")), ("all after", "all_s", number(1, " s")), ("workers", "workers", str), ("GPUs that each saw", "devices", str), ("rows", "rows", number(0)), ("the fit", "fit_s", number(1, " s"))],
    "examples": [("on GPUs", "gpu_s", number(1, " s")), ("on CPUs", "cpu_s", number(1, " s")), ("figures apart", "apart", small)],
    "polars": [("rows", "rows", number(0)), ("rounds", "rounds", str), ("same answers", "same", truth),
               ("dask_cudf", "dask_s", number(2, " s")), ("each", "dask_spread", str), ("the first time", "dask_first_s", number(2, " s")),
               ("with P2P", "p2p_s", number(2, " s")), ("each", "p2p_spread", str),
               ("cuDF-Polars", "polars_s", number(2, " s")), ("each", "polars_spread", str), ("the first time", "polars_first_s", number(2, " s")),
               ("engine's start", "engine_s", number(1, " s")), ("Polars on CPUs", "cpu_s", number(2, " s")),
               ("scale", "scale", str), ("22 queries in a run", "run_s", number(2, " s")), ("by hand", "by_hand_s", number(2, " s")),
               ("each", "by_hand_spread", str), ("by ranks", "ranks_s", number(2, " s")), ("each", "ranks_spread", str),
               ("what hpcml says", "line", str), ("security", "security", str)],
    "samples": [("use apart", "use_apart", number(1, " points")), ("memory apart", "memory_apart", number(3)),
                ("power apart", "power_apart", number(3)), ("°C apart", "temperature_apart", number(1)),
                ("energy", "energy_kwh", number(3, " kWh")), ("moved", "moved_gib", number(1, " GiB")),
                ("sampled", "sampled_gib", number(1, " GiB")), ("the interconnect's counters", "fabric_gib", number(1, " GiB")),
                ("advice", "advice", str), ("pairs", "pairs", str), ("with samples", "with_s", number(2, " s")),
                ("without", "without_s", number(2, " s"))],
    "rates": [("memory of a GPU", "memory_gib_s", number(0, " GiB/s")), ("to a GPU", "to_gib_s", number(1, " GiB/s")),
              ("from a GPU", "from_gib_s", number(1, " GiB/s")), ("GPU to GPU", "nvlink_gib_s", number(0, " GiB/s")),
              ("files in memory", "file_gib_s", number(1, " GiB/s")), ("TCP, loopback", "loopback_gib_s", number(1, " GiB/s")),
              ("normal numbers: XORWOW", "draw_xorwow_gib_s", number(0, " GiB/s")), ("Philox", "draw_philox_gib_s", number(0, " GiB/s")),
              ("XORWOW, all threads", "draw_xorwow_all_gib_s", number(0, " GiB/s")), ("Philox, all threads", "draw_philox_all_gib_s", number(0, " GiB/s")),
              ("the legacy generator", "draw_legacy_gib_s", number(0, " GiB/s"))],
    "chunks": [("data", "size", str), ("rounds", "rounds", str), ("the first time", "first_s", number(2, " s")), ("then", "kept_s", number(2, " s")),
               ("least", "least_s", number(2, " s")), ("most", "most_s", number(2, " s")), ("the GPU is in use", "busy", number(0, " %")),
               ("rate", "gib_s", number(0, " GiB/s"))],
    "failures": [("verdict", "verdict", str), ("exit status", "status", str), ("cause", "cause", beginning(110)), ("next step", "remedy", beginning(70)),
                 ("rank", "rank", str), ("node", "node", str), ("took", "seconds", number(1, " s")),
                 ("script began after", "start_s", number(1, " s")), ("cancelled in", "cancel_s", number(1, " s"))],
    "startup": [("runs", "runs", str), ("registered", "registered", number(2, " s")), ("usable", "usable", number(2, " s")),
                ("least", "usable_least", number(2, " s")), ("most", "usable_most", number(2, " s")),
                ("submit to usable", "submit_to_usable", number(2, " s")), ("workers", "workers", str), ("nodes that computed", "nodes", str),
                ("status says", "state", str), ("stacks", "stacks", str), ("nodes without stacks", "silent", str), ("exit status", "status", str),
                ("why: rank", "rank", str), ("node", "node", str)],
    "first": [("runs", "runs", str), ("first line", "first_line", number(1, " s")), ("imports", "imported", number(1, " s")),
              ("usable", "usable", number(1, " s")), ("data", "data", number(1, " s")), ("cuml", "cuml", number(1, " s")),
              ("first fit", "fit1", number(1, " s")), ("second", "fit2", number(1, " s")), ("third", "fit3", number(1, " s")),
              ("end", "gone", number(1, " s")), ("in all", "total_s", number(1, " s"))],
    "estimators": [("rows", "size", str), ("library", "library", str), ("rounds", "rounds", str), ("on GPUs", "gpu_s", number(4, " s")),
                   ("each", "gpu_spread", str), ("move", "move_s", number(4, " s")), ("fit", "fit_s", number(4, " s")), ("call", "call_s", number(4, " s")),
                   ("on CPUs", "cpu_s", number(4, " s")), ("each", "cpu_spread", str), ("apart", "apart", small), ("cuML says", "words", str)],
    "lloyd": [("iterations", "iterations", str), ("rounds", "rounds", str), ("library", "library", str), ("a fit", "lloyd_s", number(3, " s")),
              ("each", "lloyd_spread", str), ("kernels", "kernels_s", number(3, " s")), ("bound", "bound_s", number(3, " s")),
              ("by", "bound", str), ("fit / bound", "times_bound", number(2)), ("cuml.dask", "cuml_dask_s", number(3, " s")),
              ("each", "cuml_dask_spread", str), ("cuML without Dask", "cuml_alone_s", number(3, " s")), ("each", "cuml_alone_spread", str),
              ("inertia apart", "inertia_apart", small), ("centres apart, relative", "relative_apart", small), ("largest", "centres_apart", small)],
}  # fmt: skip
RATIO = {"kmeans": "CPU fit / fit", "auth": "authenticated / plain", "bringup": "usable / by hand",
         "merge": "hpcml / Local", "image": "to workers, inside / outside", "gallery": "CPU / GPU",
         "headlines": "by hand (search: scikit-learn) / hpcml", "chunks": "as published / this", "lloyd": "cuml.dask / this", "estimators": "CPU / GPU", "first": "in all / Local", "startup": "usable / SLURMRunner, or torchrun", "tasks": "300 tasks / Local", "memory": "a pass of dask-cuda's / a pass", "sweep": "12 runs / sweep", "polars": "dask_cudf, or the better other way / cuDF-Polars in a run", "samples": "counter / power, sampled / moved, with / without"}  # fmt: skip


def cell(value: Any, form: Format) -> str:
    """Return a value as a table's cell: one line, bars escaped, empty where there is none."""
    return "" if value is None else re.sub(r"\s+", " ", form(value)).replace("|", "\\|")


def row(cells: list[str]) -> str:
    """Return cells as a line of a table."""
    return "| " + " | ".join(cells) + " |"


def state(result: Result) -> str:
    """Return whether a result was as expected."""
    if result.get("skipped"):
        return cell(result["error"], str)
    return "yes" if result["ok"] else f"**no**: {cell(result['error'][:LONGEST], str)}"


def section_table(name: str, documents: list[Document]) -> list[str]:
    """Return the lines of one section's table; columns without any figure are left out.

    All machines, all results, but what one run skipped and another one measured, and what no time was left for.
    A column says what was not as expected, if anything was.
    """
    rows = [(document, result) for document in documents for result in document["results"]]
    known = {(document["gpus"], result["name"]) for document, result in rows if not result.get("skipped")}
    rows = [(document, result) for document, result in rows
            if not result.get("skipped")
            or ((document["gpus"], result["name"]) not in known and not BUDGET.match(result["error"]))]  # fmt: skip
    used = [column for column in COLUMNS[name] if any(column[1] in result["figures"] for _, result in rows)]
    has_ratio = any(result["ratio"] is not None for _, result in rows)
    has_problem = any(state(result) != "yes" for _, result in rows)
    head = [
        "GPUs",
        "what",
        *(heading for heading, _, _ in used),
        *([RATIO.get(name, "ratio")] if has_ratio else []),
        *(["as expected"] if has_problem else []),
    ]
    lines = [row(head), "|---" * len(head) + "|"]
    for document, result in rows:
        figures = result["figures"]
        cells = [
            str(document["gpus"]),
            cell(result["name"], str),
            *(cell(figures.get(key), form) for _, key, form in used),
        ]
        cells += [cell(result["ratio"], number(2))] if has_ratio else []
        lines.append(row([*cells, *([state(result)] if has_problem else [])]))
    for document in documents:
        if document["error"]:
            lines += ["", f"{document['gpus']} GPUs: {cell(document['error'][:LONGEST], str)}"]
    return lines


def profile_table(documents: list[Document]) -> list[str]:
    """Return what the workers' threads did in the watched time of each result that tells it; nothing if none does.

    Transfers are added up: they go on beside each other and beside the computing.
    """
    lines = []
    for document in documents:
        for result in document["results"]:
            if not (told := result["figures"].get("profile")):
                continue
            did = told["actions"]
            longest = ", ".join(f"{name} {seconds:.2f}" for name, seconds in told["compute"].items() if seconds >= 0.01)
            cells = [str(document["gpus"]), cell(result["name"], str), f"{told['seconds']:.2f} s", f"{told['tasks']:,}"]
            cells += [f"{did.get(name, 0.0):.2f} s" for name in ("compute", "transfer", "nothing")]
            lines.append(row([*cells, cell(longest, str)]))
    head = [
        "GPUs",
        "what",
        "watched",
        "tasks",
        "computing",
        "transfers",
        "not computing",
        "of the computing, the longest",
    ]
    return [row(head), "|---" * len(head) + "|", *lines, ""] if lines else []


def versions(document: Document) -> dict[str, str]:
    """Return the versions that matter to figures."""
    gpus = document["machine"].get("gpus") or []
    known = {**document["versions"], **({"driver": gpus[0]["driver"]} if gpus else {})}
    return {name: known[name] for name in ("hpcml", "cudf", "dask-cuda", "ucxx", "libucx", "driver") if known.get(name)}


def origin(document: Document, common: dict[str, str]) -> str:
    """Return the origin of figures: date, machine, command, and versions that differ from those of all documents."""
    gpus = document["machine"].get("gpus") or []
    what = f"{document['gpus']} × {gpus[0]['name']}" if gpus else document["machine"]["processor"]
    named = [f"{name} {version}" for name, version in versions(document).items() if common.get(name) != version]
    return f"{document['date'][:10]}, {', '.join([what, *named])}; `{document['command']}`"


def render(documents: list[Document]) -> str:
    """Return the tables of all sections that have documents, each with its origin."""
    all_versions = [versions(document).items() for document in documents]
    common = dict(set(all_versions[0]).intersection(*all_versions)) if documents else {}
    named = ", ".join(f"{name} {version}" for name, version in sorted(common.items()))
    lines: list[str] = [f"All figures: {named}.", ""] if common else []
    for name in SECTIONS:
        chosen = [document for document in documents if document["section"] == name]
        if not chosen:
            continue
        what, reading = NOTES[name]
        note = textwrap.fill(f"{what} {reading}", LINE, break_on_hyphens=False, break_long_words=False)
        lines += [f"## {name}", "", note, ""]
        lines += [*section_table(name, chosen), "", *profile_table(chosen)]
        lines += [*(f"* {origin(document, common)}" for document in chosen), ""]
    return "\n".join(lines).strip() or NOTHING


# What readers ask first: the question, the section, the results that count by their names, whose time is divided by
# whose, and what to know.
QUESTIONS = (
    ("published workloads", "headlines", r"svd|csv|array|join|kmeans, \d", "by hand / hpcml", "above 1: hpcml is faster"),
    ("the same over TCP", "headlines", "join over TCP", "by hand / hpcml", "hpcml encrypts, by hand does not"),
    ("a hyperparameter search", "headlines", "search", "scikit-learn / hpcml", "the slow ones compile kernels first"),
    ("a merge over UCX", "merge", ".*ucx.*", "hpcml / by hand", "below 1: hpcml is faster"),
    ("many tiny tasks", "tasks", ".*hpcml.*", "hpcml / by hand", "below 1: hpcml is faster"),
    ("a pass over data larger than GPU memory", "memory", ".*", "dask-cuda / hpcml", "above 1: hpcml is faster"),
    ("startup until the workers are usable", "bringup", r"\dx\d: hpcml", "hpcml / by hand",
     "below 1: hpcml is faster; by hand imports cuDF too"),
    ("the same for a script that uses cuDF", "bringup", r"\dx\d, beside cuDF: hpcml, cuDF", "hpcml / by hand",
     "both import cuDF"),
)  # fmt: skip


def answers(documents: list[Document]) -> str:
    """Return a table of the questions that readers ask first, with medians and ranges of the sections' ratios."""
    lines = [row(["on GPUs", "ratio of times", "median (range, results)", ""]), "|---|---|---|---|"]
    for question, section, names, ratio, note in QUESTIONS:
        ratios = [
            result["ratio"]
            for document in documents
            if document["section"] == section
            for result in document["results"]
            if re.fullmatch(names, result["name"]) and result["ratio"] not in (None, 1.0)
        ]
        if ratios:
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)})"
            lines.append(row([f"[{question}](gpu.md#{section})", ratio, spread, note]))
    return "\n".join([*lines, "", "*By hand*: a LocalCUDACluster, or dask-cuda's workers in a batch script."])


def summary(documents: list[Document]) -> str:
    """Return what each section shows, in which range its ratios are, and on which machines and days."""
    lines: list[str] = []
    for name in SECTIONS:
        chosen = [document for document in documents if document["section"] == name]
        if not chosen:
            continue
        lines += [f"### {name}", "", NOTES[name][0]]
        # A ratio of exactly 1 is that of the case with which the others are compared.
        ratios = [one["ratio"] for document in chosen for one in document["results"] if one["ratio"] not in (None, 1.0)]
        if ratios:
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if len(ratios) > 1 else f"{ratios[0]:.2f}"
            lines += [f"{RATIO.get(name, 'ratio')}: {spread} ({len(ratios)} result{'s' if len(ratios) > 1 else ''})."]
        machines = "; ".join(sorted(set(map(machine, chosen))))
        lines += [*textwrap.wrap(f"[Table](gpu.md#{name}): {machines}.", LINE, break_on_hyphens=False), ""]
    return "\n".join(lines).strip() or NOTHING


def machine(document: Document) -> str:
    """Return the machine and the day of a document."""
    gpus = document["machine"].get("gpus") or []
    kind = gpus[0]["name"].removeprefix("NVIDIA ").split()[0] if gpus else document["machine"]["processor"]
    return f"{document['gpus']} × {kind}, {document['date'][:10]}"


# A page of the folder, the markers of a part, and what writes the part.
PAGES: tuple[tuple[str, tuple[str, str], Callable[[list[Document]], str]], ...] = (
    ("gpu.md", (BEGIN, END), render),
    ("README.md", SHORT, answers),
    ("README.md", (BEGIN, END), summary),
)


def page_with(page: str, tables: str, first: str = BEGIN, last: str = END) -> str:
    """Return the page with the tables between its markers.

    Raises
    ------
    ValueError
        If a marker is missing.
    """
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page lacks {first} or {last}")
    return f"{before}{first}\n\n{tables}\n\n{last}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or report those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files and the pages are")
    options = parser.parse_args(arguments)
    documents = read(options.folder)
    stale = []
    for name, markers, write in PAGES:
        page = options.folder / name
        old = page.read_text(encoding="utf-8")
        new = page_with(old, write(documents), *markers)
        if new != old:
            stale.append(page)
            if not options.check:
                page.write_text(new, encoding="utf-8")
    if options.check:
        for page in stale:
            print(f"{page} does not show its JSON files. Run: python3 bench/gpu/table.py", file=sys.stderr)
    return int(bool(stale) and options.check)


if __name__ == "__main__":
    sys.exit(main())
