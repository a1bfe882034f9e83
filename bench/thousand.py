#!/usr/bin/env python3
"""What a run of a thousand workers costs, from parts that one small machine can hold; and which limit is met first.

    sudo tests/lab/apart.py 7 .venv/bin/python bench/thousand.py lab --grid 4x4,16x4,64x4,4x32   real runs on a Slurm of N nodes
    sudo tests/lab/apart.py 7 .venv/bin/python bench/thousand.py ops --grid 4x4,16x4             their calls to file systems
    .venv/bin/python bench/thousand.py crowd --counts 125,250,500,1000                 a scheduler with so many workers (crowd.py)
    .venv/bin/python bench/thousand.py look --counts 8,64,250                          a supervisor that waits for so many nodes
    .venv/bin/python bench/thousand.py watch --counts 8,64,250                         top, status and the report of such a run
    .venv/bin/python bench/thousand.py model --nodes 250 --each 4                      what these say of 250 nodes of 4 workers

Each part adds its figures to ``--json`` (docs/benchmarks/thousand.json), with its command, date and the load beside; ``--label`` keeps
those of another state of the code beside them. Processor time, counts and bytes are told; seconds by the clock are those of a machine
that all nodes share. A *call* is a system call with a path, or a listing: what a client of a parallel file system may have to ask its
server for. ``lab`` looks at /proc while a script sleeps with all workers there; ``ops`` has strace count on the first two nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import os
import platform
import re
import shlex
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CALLS_OF_A_LOOK = 4  # at a folder: open, fstat, and getdents64 twice
sys.path[:0] = [str(ROOT), str(ROOT / "tests/lab"), str(ROOT / "tests/golden"), str(ROOT / "bench")]

FIGURES = ROOT / "docs/benchmarks/thousand.json"
USER, TICKS = "alice", os.sysconf("SC_CLK_TCK")
SLEEP = 10  # seconds for which the script has all workers and does nothing
DEADLINE = 235.0
Facts = dict[str, Any]

SCRIPT = f"""\
import json, time
import hpcml
client = hpcml.connect()
(hpcml.run.out / "usable.json").write_text(json.dumps({{"usable": time.time(), "workers": len(client.nthreads())}}))
time.sleep({SLEEP})
"""

# The interpreter of the run's roles: on the first two nodes under strace, with a file of its own for each role.
TRACED = """\
#!/bin/sh
for role; do :; done
case $SLURMD_NODENAME in n1|n2) ;; *) exec {python} "$@" ;; esac
exec strace -f -qq -ttt -y -s 0 --seccomp-bpf -e trace={calls} -o "{folder}/$SLURMD_NODENAME-$role.trace" {python} "$@"
"""
CALLS = ("open", "openat", "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
         "getdents64", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "statfs", "chmod",
         "fchmodat", "link", "linkat", "symlink", "symlinkat", "ftruncate")  # fmt: skip
MOVES = ("read", "pread64", "write", "pwrite64", "writev")


# -- real runs ---------------------------------------------------------------------------------------------------------


def grid(text: str) -> list[tuple[int, int]]:
    return [(int(nodes), int(each)) for nodes, each in (word.split("x") for word in text.split(","))]


def lab_run(lab: Any, nodes: int, each: int, *, traced: bool, image: str = "") -> Facts:
    """Run once on a lab of so many nodes and return what was measured."""
    folder = lab.home(USER) / "thousand"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "trace").mkdir(parents=True)
    (folder / "script.py").write_text(SCRIPT)
    words = ["hpcml", "submit", "--wait", "--nodes", str(nodes), "--name", "thousand", "--set", f"workers.per_node={each}",
             "--set", "workers.threads=1", "--set", "workers.memory_limit=300M", "--set", "deadlines.workers=220s",
             "--set", "deadlines.scheduler=200s", "--set", f"partitions.boost.max_nodes={nodes}"]  # fmt: skip
    words += ["--image", image] if image else []
    if traced:
        python = folder / "python"
        text = TRACED.format(
            python=lab.places.venv / "bin/python", calls=",".join((*CALLS, *MOVES)), folder=folder / "trace"
        )
        python.write_text(text)
        words += ["--set", f"runtime.python={python}"]
    owner = lab.home(USER).stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(0o755)
    load = os.getloadavg()[0]
    watch = Watch(owner.st_uid, nodes * each)
    watch.start()
    submitted = time.time()
    try:
        done = lab.exec([*words, "script.py"], user=USER, cwd=folder, timeout=DEADLINE)
    finally:
        watch.over.set()
        watch.join()
    if done.returncode:
        raise SystemExit(
            f"thousand: {nodes}x{each}: status {done.returncode}: {done.stdout[-1500:]}{done.stderr[-2500:]}"
        )
    directory = Path(
        json.loads(lab.exec(["hpcml", "status", "last", "--json"], user=USER, cwd=folder).stdout)["directory"]
    )
    happened = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    at = {one["event"]: one["time"] for one in happened}
    torn = next(one for one in happened if one["event"] == "torn-down")
    usable = json.loads((directory / "out/usable.json").read_text())
    kept = [path for path in directory.rglob("*") if path.is_file()]
    facts = {
        "nodes": nodes,
        "each": each,
        "load": load,
        "seconds": {
            "allocated": round(at["allocated"] - submitted, 2),
            "scheduler": round(at["scheduler-up"] - at["allocated"], 2),
            "workers": round(at["workers-ready"] - at["scheduler-up"], 2),
            "usable": round(usable["usable"] - at["script-started"], 2),
            "teardown": torn["seconds"],
        },
        "workers": usable["workers"],
        "killed": torn["killed"],
        "watched": watch.figures(),
        "files": len(kept),
        "bytes": sum(path.stat().st_size for path in kept),
        "events": len(happened),
    }
    if traced:
        phases = [at["workers-ready"], at["script-ended"]]
        facts["calls"] = {
            path.stem: calls_of(path, directory, lab.places.venv, phases)
            for path in sorted((folder / "trace").iterdir())
        }
    shutil.rmtree(folder)
    return facts


class Watch(threading.Thread):
    """Looks at all processes of a user twice a second: their processor time, and once all is there, what they hold."""

    def __init__(self, uid: int, workers: int) -> None:
        super().__init__(daemon=True)
        self.uid, self.workers = uid, workers
        self.over = threading.Event()
        self.used: dict[int, tuple[str, float]] = {}
        self.held: dict[str, list[Facts]] = {}
        self.steady: dict[str, float] = {}
        self._first: tuple[float, dict[str, float]] | None = None

    def run(self) -> None:
        while not self.over.wait(0.5):
            roles = dict(self.roles())
            if sum(role == "one worker" for role in roles.values()) < self.workers or "script" not in roles.values():
                continue
            now, total = time.monotonic(), self.total()
            if self._first is None:
                self._first = now, total
            passed = now - self._first[0]
            if not self.held and passed > SLEEP / 4:
                self.held = self.hold(roles)
            if passed > SLEEP / 4:
                self.steady = {role: (total[role] - self._first[1].get(role, 0.0)) / passed for role in total}

    def roles(self) -> Iterator[tuple[int, str]]:
        """Yield the user's processes, each with its role, and take note of its processor time."""
        parents, words = {}, {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if path.stat().st_uid != self.uid:
                    continue
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                line = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                name = (path / "comm").read_text().strip()
            except OSError:
                continue
            pid = int(path.name)
            parents[pid], words[pid] = int(fields[1]), line
            role = self.role(line, name)
            if role == "worker task" and self.used.get(parents[pid], ("",))[0] == "worker task":
                role = "one worker"
            if role:
                self.used[pid] = role, (int(fields[11]) + int(fields[12])) / TICKS
                yield pid, role

    @staticmethod
    def role(words: Sequence[str], name: str) -> str:
        """Return what a process is in a run, empty for another."""
        if name == "hpcml-sampler":
            return "sampler"
        if name.startswith("squashfuse"):
            return "image"
        if "hpcml.kinds" in words and "python" in words[0]:  # not the shell around it
            return {"worker": "worker task"}.get(words[-2], words[-2])
        if len(words) < 2 or words[0].endswith("srun"):
            return "srun" if words[0].endswith("srun") else ""
        script = words[-2].endswith("script.py")
        return ("submit --wait" if "submit" in words else "script") if script else ""

    def total(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for role, used in list(self.used.values()):
            found[role] += used
        return found

    @staticmethod
    def hold(roles: dict[int, str]) -> dict[str, list[Facts]]:
        """Return the open files and the memory of the scheduler, the supervisor, and some of the others."""
        found: dict[str, list[Facts]] = defaultdict(list)
        for pid, role in roles.items():
            if len(found[role]) >= 16:
                continue
            place = Path(f"/proc/{pid}")
            try:
                links = [str(path.readlink()) for path in (place / "fd").iterdir()]
                size = {
                    line.split()[0]: int(line.split()[1])
                    for line in (place / "smaps_rollup").read_text().splitlines()[1:]
                }
            except OSError:
                continue
            if role == "image":
                counted = (place / "io").read_text().split()
                found[role].append({"read_mb": int(counted[counted.index("rchar:") + 1]) / 1e6})
                continue
            sockets = sum(link.startswith("socket:") for link in links)
            own = size["Private_Clean:"] + size["Private_Dirty:"]
            found[role].append({"files": len(links), "sockets": sockets, "own_kib": own, "pss_kib": size["Pss:"]})
        return found

    def figures(self) -> Facts:
        """Return by role how many there were, their processor seconds in all and while nothing happened, and what one held."""
        counts, used = Counter(role for role, _ in self.used.values()), self.total()
        return {
            role: {
                "count": counts[role],
                "cpu": round(used[role], 2),
                "idle_share": round(self.steady.get(role, 0.0), 4),
                **{
                    name: statistics.median(one[name] for one in held)
                    for held in [self.held.get(role)]
                    if held
                    for name in held[0]
                },
            }
            for role in sorted(counts)
        }


_CALL = re.compile(r"^\d+\s+([\d.]+) (\w+)\((.*)\)\s+= (-?\d+)")


def calls_of(path: Path, run: Path, venv: Path, phases: Sequence[float]) -> Facts:
    """Return the calls in a file of strace's by phase (bring-up, script, end) and by place, and the bytes moved."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in path.read_text(errors="replace").splitlines():
        if not (match := _CALL.match(line)):
            continue
        when, call, words, result = float(match[1]), match[2], match[3], int(match[4])
        phase = ("bring-up", "script", "end")[sum(when > moment for moment in phases)]
        place = place_of(words, run, venv)
        if call in MOVES:
            found[phase][f"{place} {'read' if 'read' in call else 'written'}"] += max(0, result)
        else:
            found[phase][place] += 1
    return {phase: dict(sorted(counts.items())) for phase, counts in found.items()}


def place_of(words: str, run: Path, venv: Path) -> str:
    """Return where a call goes: the run's directory, the environment, the home, or the node itself (/usr, /tmp, /proc)."""
    words = re.sub(r"AT_FDCWD<[^>]*>", "", words)  # the working directory is none of the call's
    if str(run) in words:
        return "run"
    if str(venv) in words or "/lib/python3" in words:
        return "environment"
    return "home" if "/home/" in words else "node"


def on_lab(arguments: argparse.Namespace, *, traced: bool) -> list[Facts]:
    import lab_image
    from labs import Lab

    lab, found = Lab(), []
    reason = lab.check()
    if reason:
        raise SystemExit(reason)
    for nodes, each in grid(arguments.grid):
        lab.up(nodes=nodes)
        image = str(lab_image.image(lab.places)) if arguments.image else ""
        found.append({**lab_run(lab, nodes, each, traced=traced, image=image), "label": arguments.label})
        print(json.dumps(found[-1]), flush=True)
    return found


# -- the supervisor ----------------------------------------------------------------------------------------------------


def look(count: int, each: int, label: str) -> Facts:
    """Return what one look at so many nodes costs a supervisor: while none of their workers is there, and when all are."""
    from absences import absence_of
    from hpcml.kinds.dask import KIND
    from hpcml.kinds.dask.node import lost_workers
    from hpcml.node import shared_files
    from hpcml.node.context import Context
    from hpcml.paths import RunPaths

    with tempfile.TemporaryDirectory(prefix="hpcml-look-") as name:
        run = RunPaths(Path(name))
        attempt = run.attempt(0)
        for folder in (attempt.nodes, attempt.exits, run.logs):
            folder.mkdir(parents=True)
        names = tuple(f"n{number}" for number in range(count))
        settings: Any = SimpleNamespace(
            job=SimpleNamespace(nodes=count, one_machine=False, image=""), workers=SimpleNamespace(per_node=each)
        )
        context = Context(run, attempt, 0, settings, "n0", names)
        for node in names:
            mark = {"refused": "", "failed": [], "deaths": {}, "state": "workers"}
            shared_files.write_json(attempt.mark_of(node), mark)
            run.log("worker", node).write_text("a line\n" * 20)
        present = {worker for node in names for worker in context.worker_names(node)}
        figures = {}
        for way, there in (("waiting", set()), ("all there", present)):
            absence = absence_of(context, KIND, lost_workers.WORDS, connected=names if label != "by files" else ())
            calls = opened(lambda there=there, absence=absence: lost_workers.missing_nodes(absence, there))
            used = time.process_time()
            for _ in range(5):
                lost_workers.missing_nodes(absence, there)
            figures[way] = {"calls": calls, "milliseconds": round((time.process_time() - used) * 200, 2)}
    return {"nodes": count, "each": each, "label": label, **figures}


def opened(work: Any) -> int:
    """Return how many files and folders some work opens in this process (Python's own audit events)."""
    counted, active = 0, True

    def hear(event: str, _: object) -> None:
        nonlocal counted
        counted += active and event in ("open", "os.scandir", "os.listdir")

    sys.addaudithook(hear)
    work()
    active = False
    return counted


# -- watchers ----------------------------------------------------------------------------------------------------------


def watch(count: int, label: str) -> Facts:
    """Return what it costs to look at a run of so many nodes of four GPUs, an hour old, and to make its report."""
    import report
    from hpcml import kinds
    from hpcml.node.sampling.sampler import LARGEST
    from hpcml.runs.top_view import Reader
    from tests.report_samples import Shape, write

    with tempfile.TemporaryDirectory(prefix="hpcml-watch-", dir="/var/tmp") as name:
        paths = write(Path(name) / "run", Shape(nodes=count, gpus=4))
        dask = paths.attempt(0).samples_of_kind("dask")
        head, *rows = dask.read_bytes().splitlines(keepends=True)
        dask.write_bytes(b"".join([head, *rows[:: -(-dask.stat().st_size // LARGEST)]]))  # as the scheduler thins it
        run: Any = SimpleNamespace(paths=paths)
        reader, times = Reader(kinds.get("dask")), []
        for _ in range(3):
            for path in (paths.attempt(0).directory / "samples/nodes").iterdir():  # each has a new sample at each look
                last = path.read_bytes().splitlines(keepends=True)[-1]
                with path.open("ab") as file:
                    file.write(last)
            used = time.process_time()
            reader.look(run, 0)
            times.append(time.process_time() - used)
        samples = sum(path.stat().st_size for path in (paths.attempt(0).directory / "samples").rglob("*.jsonl"))
        importing, making = report.once(paths.directory)
        page = paths.report.stat().st_size
    return {"nodes": count, "label": label, "look_first": round(times[0], 3), "look": round(times[-1], 3), "load": os.getloadavg()[0],
            "report": round(making, 2), "report_import": round(importing, 2), "page_bytes": page, "sample_bytes": samples}  # fmt: skip


# -- the model ---------------------------------------------------------------------------------------------------------

SERVER = (
    20_000  # calls a second that a file server answers: an assumption; theirs are some thousands to a hundred thousand
)
NOFILE = (1024, 4096, 524288)  # hard limits of open files that machines have


def rows_of(document: Facts, part: str, label: str = "") -> list[Facts]:
    return [row for row in document["parts"].get(part, {}).get("rows", ()) if not label or row["label"] == label]


def per_worker(rows: Sequence[Facts], key: str) -> tuple[float, float]:
    """Return b and c of ``b * n + c * n**2``, by least squares of what one worker costs."""
    slope, each = statistics.linear_regression(
        [row["workers"] for row in rows], [row[key] / row["workers"] for row in rows]
    )
    return each, slope


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a and b of ``a + b * n``."""
    slope, first = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return first, slope


Row = tuple[str, str, str]


def model(document: Facts, nodes: int, each: int) -> list[Row]:
    """Return what a run of so many nodes costs: what, from which measured figures, and how much."""
    parts = (model_of_imports, model_of_the_scheduler, model_of_the_supervisor, model_of_watchers)
    return [row for part in parts for row in part(document, nodes, each)]


def model_of_imports(document: Facts, nodes: int, each: int) -> list[Row]:
    found: list[Row] = []
    if ops := rows_of(document, "ops", "now"):
        most = max(ops, key=lambda row: row["nodes"])
        phases = most["calls"]["n2-worker"]
        calls, moved = phases["bring-up"]["environment"], phases["bring-up"].get("environment read", 0) / 1e6
        own = {phase: phases.get(phase, {}).get("run", 0) for phase in ("bring-up", "script", "end")}
        rate, total = own["script"] / SLEEP - looks_for_stacks(most["nodes"]), own["bring-up"] + own["end"]
        looks = looks_for_stacks(nodes)
        found += [
            (
                "imports from a shared file system",
                f"{calls:,} calls and {moved:.0f} MB a node",
                f"{calls * nodes / 1e6:.1f} million calls, {calls * nodes / SERVER:.0f} s of a server that answers {SERVER:,} a second",
            ),
            ("the run's directory, bring-up and end", f"{total} calls a node", f"{total * nodes:,} calls"),
            ("the run's directory, while the script runs", f"{rate:.1f} calls a second and node in the first minute, then a fifth; {looks:.2f} to look for `hpcml stacks`", f"{(rate + looks) * nodes:,.0f} a second"),
        ]  # fmt: skip
    if inside := rows_of(document, "lab", "image"):
        read = statistics.median(row["watched"]["image"]["read_mb"] for row in inside)
        found.insert(
            1,
            (
                "imports from an image there",
                f"one file opened, {read:.0f} MB read a node",
                f"{nodes} opens, {read * nodes / 1000:.0f} GB",
            ),
        )
    if lab := rows_of(document, "lab", "now"):
        task = statistics.median(row["watched"]["worker task"]["cpu"] / row["nodes"] for row in lab)
        one = statistics.median(row["watched"]["one worker"]["cpu"] / row["workers"] for row in lab)
        own_mib = statistics.median(row["watched"]["one worker"]["own_kib"] for row in lab) / 1024
        first, more = line([(row["nodes"], row["files"]) for row in lab])
        found += [
            ("each node: processor time until its workers are there", f"{task:.1f} s to import and fork, {one:.2f} s a worker", "the same"),
            ("each node: memory of the workers' own", f"{own_mib:.0f} MiB a worker", f"{own_mib * each:.0f} MiB"),
            ("files that the run leaves", f"{first:.0f}, and {more:.1f} a node", f"{first + more * nodes:,.0f}"),
        ]  # fmt: skip
    return found


def looks_for_stacks(nodes: int) -> float:
    """Return the calls of a node in a second to look for a request of ``hpcml stacks``: the more nodes, the fewer."""
    from hpcml.node import stacks

    return CALLS_OF_A_LOOK / max(stacks.EVERY, nodes / stacks.LOOKS)


def model_of_the_scheduler(document: Facts, nodes: int, each: int) -> list[Row]:
    found: list[Row] = []
    count = nodes * each
    for label in ("before", "now"):
        for what, words in (("register", "all workers register"), ("close", "it closes")):
            if crowd := rows_of(document, "crowd", label):
                b, c = per_worker(crowd, what)
                terms = f"{1000 * max(0.0, b):.2f} ms a worker, {1e6 * max(0.0, c):.2f} µs a worker and worker"
                found.append(
                    (f"scheduler: {words} ({label})", terms, f"{b * count + c * count**2:.1f} s of its one thread")
                )
    if crowd := rows_of(document, "crowd", "now"):
        most = max(crowd, key=lambda row: row["workers"])
        second, beat = (statistics.mean(row[key] / row["workers"] for row in crowd) for key in ("connect", "beat"))
        every = count / 200 + 1 if count >= 200 else 2.0
        files, size = most["files"] / most["workers"], most["bytes"] / most["workers"] / 1024
        found += [
            ("scheduler: a TLS handshake more of each", f"{1000 * second:.1f} ms", f"{second * count:.1f} s"),
            ("scheduler: heartbeats", f"{1000 * beat:.2f} ms each, every {every:.0f} s (as Dask has it)", f"{100 * beat * count / every:.1f} % of a core"),
            ("scheduler: connections", f"{files:.0f} a worker, and a third while it asks all", f"{(files + 1) * count:,.0f}"),
            ("scheduler: memory", f"{size:.0f} KiB a worker", f"{size * count / 1024:.0f} MiB"),
        ]  # fmt: skip
    return found


def model_of_the_supervisor(document: Facts, nodes: int, _: int) -> list[Row]:
    found: list[Row] = []
    if lab := rows_of(document, "lab", "now"):
        first, more = line([(row["nodes"], row["watched"]["supervisor"]["cpu"]) for row in lab])
        found.append(
            (
                "supervisor: processor time of a short run",
                f"{first:.1f} s, and {1000 * more:.0f} ms a node",
                f"{first + more * nodes:.1f} s",
            )
        )
    for label in ("before", "now"):
        if looks := rows_of(document, "look", label):
            first, more = line([(row["nodes"], row["waiting"]["calls"]) for row in looks])
            every = 0.5 if label == "before" else max(0.5, 0.005 * nodes)
            what = f"supervisor: while no worker is there ({label})"
            found.append(
                (
                    what,
                    f"{more:.0f} opened a node and look, every {every:g} s",
                    f"{(first + more * nodes) / every:,.0f} in a second",
                )
            )
    return found


def model_of_watchers(document: Facts, nodes: int, each: int) -> list[Row]:
    found: list[Row] = []
    for label in ("before", "now"):
        if rows := rows_of(document, "watch", label):
            first, more = line([(row["nodes"], row["report"]) for row in rows])
            terms = (
                f"{first:.1f} s, and {1000 * more:.0f} ms a node of 4 GPUs"
                if label == "before"
                else "of 12 MiB of samples at most"
            )
            seconds = first + more * nodes if label == "before" else max(row["report"] for row in rows)
            found.append(
                (f"the report after an hour, which has 3 s ({label})", terms, f"{seconds:.1f} s of processor time")
            )
    if rows := rows_of(document, "watch", "now"):
        first, more = line([(row["nodes"], row["look"]) for row in rows])
        found.append(
            (
                "`hpcml top`: each look",
                f"{1000 * more:.1f} ms a node",
                f"{first + more * nodes:.2f} s of processor time",
            )
        )
    return found


def limits(document: Facts) -> list[Row]:
    """Return which limits there are, what they are measured against, and how many workers meet them."""
    found: list[Row] = []
    if not (crowd := rows_of(document, "crowd", "now")):
        return found
    before, own = rows_of(document, "crowd", "before"), document["limits"]
    if before and (reports := rows_of(document, "watch", "before")):
        first, more = line([(row["nodes"], row["report"]) for row in reports])
        found.append(
            (
                "3 s for the report after an hour (before)",
                f"{1000 * more:.0f} ms a node of 4 GPUs",
                f"{(3 - first) / more:.0f} nodes; now some samples are taken",
            )
        )
    for name, rows in (("before", before), ("now", crowd)):
        if not rows:
            continue
        b, c = per_worker(rows, "close")
        if name == "before":
            what = "2 s for the steps to end (before; now 3 ms more for each worker)"
            found.append((what, "the scheduler's closing alone", f"{root(b, c, 2.0):,.0f} workers"))
        found.append(
            (
                f"10 s for the end, of the scheduler's closing alone ({name})",
                "as above",
                f"{root(b, c, 10.0):,.0f} workers",
            )
        )
    for hard in NOFILE:
        most = (hard - own["files"]) // own["files_each"]
        found.append(
            (f"open files of the scheduler, hard limit {hard:,}", f"{own['files_each']} a worker", f"{most:,} workers")
        )
    b, c = per_worker(crowd, "register")
    found.append(
        (
            "10 s for a TLS handshake, while all register in one moment",
            "as above",
            f"{root(b, c, own['handshake']):,.0f} workers",
        )
    )
    return found


def root(b: float, c: float, seconds: float) -> float:
    """Return the n for which ``b * n + c * n**2`` is so many seconds."""
    return seconds / max(b, 1e-9) if c <= 1e-12 else (-b + math.sqrt(b * b + 4 * c * seconds)) / (2 * c)


# -- pages -------------------------------------------------------------------------------------------------------------


def grid_of(head: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown, and an empty line; nothing without rows."""
    if not rows:
        return []
    return [f"| {head} |", "|" + "---|" * len(rows[0]), *(f"| {' | '.join(row)} |" for row in rows), ""]


def of_lab(row: Facts) -> list[str]:
    seen, took = row["watched"], row["seconds"]
    scheduler, task, one = (seen[role] for role in ("scheduler", "worker task", "one worker"))
    return [
        f"{row['nodes']} × {row['each']}{', in an image' if row['label'] == 'image' else ''}",
        f"{took['scheduler'] + took['workers']:.1f} s",
        f"{took['usable']:.1f} s",
        f"{took['teardown']:.1f} s",
        f"{scheduler['cpu']:.1f} s",
        f"{scheduler.get('sockets', 0):.0f}",
        f"{seen['supervisor']['cpu']:.1f} s",
        f"{task['cpu'] / row['nodes']:.2f} s",
        f"{one['cpu'] / row['workers']:.2f} s, {one.get('own_kib', 0) / 1024:.0f} MiB",
        f"{row['files']}",
        f"{row['load']:.0f}",
    ]


def of_crowd(row: Facts) -> list[str]:
    count = row["workers"]
    return [
        f"{count}",
        row["label"],
        f"{row['register']:.2f} s",
        f"{1000 * row['connect'] / count:.1f} ms",
        f"{1000 * row['beat'] / count:.2f} ms",
        f"{row['close']:.2f} s",
        f"{row['close_wall']:.1f} s",
        f"{row['files']}",
        f"{row['bytes'] / count / 1024:.0f} KiB",
    ]


def of_ops(row: Facts) -> list[list[str]]:
    return [
        [f"{row['nodes']} × {row['each']}", name.replace("-", ": "), phase.replace("bring-up", "startup")]
        + [f"{counts.get(place, 0):,}" for place in ("environment", "run", "node")]
        + [f"{counts.get('environment read', 0) / 1e6:.1f} MB"]
        for name, phases in row["calls"].items()
        for phase, counts in ((phase, phases.get(phase, {})) for phase in ("bring-up", "script", "end"))
    ]


def table(document: Facts) -> str:
    """Return all figures as Markdown."""
    lines = grid_of(
        "nodes × workers | workers there | usable | teardown | scheduler: processor | connections | supervisor: processor "
        "| a worker task: processor | a worker: processor, own memory | files of the run | load before",
        [of_lab(row) for row in rows_of(document, "lab")],
    )
    lines += grid_of(
        "a crowd of | state | register: processor | a second connection of each | a heartbeat | close: processor | by the clock | files | memory of each",
        [of_crowd(row) for row in rows_of(document, "crowd")],
    )
    lines += grid_of(
        "calls of | role | phase | environment | run's directory | the node itself | read of the environment",
        [cells for row in rows_of(document, "ops") for cells in of_ops(row)],
    )
    lines += grid_of(
        "a supervisor's look at | state | no worker there: opened | processor | all there: opened | processor",
        [
            [f"{row['nodes']} nodes", row["label"]]
            + [
                f"{row[way][key]}{unit}"
                for way in ("waiting", "all there")
                for key, unit in (("calls", ""), ("milliseconds", " ms"))
            ]
            for row in rows_of(document, "look")
        ],
    )
    lines += grid_of(
        "an hour of | state | report: processor after the roles' end | page | samples | `top`: first look | each look",
        [
            [
                f"{row['nodes']} nodes of 4 GPUs",
                row["label"],
                f"{row['report']:.1f} s",
                f"{row['page_bytes'] / 1e6:.1f} MB",
                f"{row['sample_bytes'] / 1e6:.0f} MB",
                f"{row['look_first']:.2f} s",
                f"{row['look']:.2f} s",
            ]
            for row in rows_of(document, "watch")
        ],
    )
    told = [f"* `{part['command']}`: {part['date']}, {part['machine']}" for part in document["parts"].values()]
    return "\n".join([*lines, *told])


def modelled(document: Facts, nodes: int = 250, each: int = 4) -> list[str]:
    """Return the model and the limits as Markdown."""
    lines = [f"| {nodes} nodes of {each} workers | from | |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in model(document, nodes, each)]
    if rows := limits(document):
        lines += ["", "| limit | measured | met at |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return lines


def page(document: Facts) -> str:
    """Return the model alone, for the user's page."""
    return "\n".join(modelled(document))


def main() -> int:
    """Measure a part, or print the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("lab", "ops", "crowd", "look", "watch", "model"))
    parser.add_argument("--grid", default="4x4", help="nodes x workers of each, with commas")
    parser.add_argument("--counts", default="8,64,250", help="workers (crowd) or nodes, with commas")
    parser.add_argument("--label", default="now", help="which state of the code is measured")
    parser.add_argument("--as-dask", action="store_true", help="crowd: without what hpcml changes of Dask for many")
    parser.add_argument("--source", type=Path, metavar="DIR", help="look, watch: hpcml from another folder")
    parser.add_argument("--image", action="store_true", help="lab: inside the lab's image")
    parser.add_argument("--nodes", type=int, default=250)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--json", type=Path, default=FIGURES)
    options = parser.parse_args()
    if options.source:
        sys.path.insert(0, str(options.source))
        os.environ["PYTHONPATH"] = str(options.source)
    document: Facts = json.loads(options.json.read_text()) if options.json.exists() else {"parts": {}}
    if options.part == "model":
        print("\n".join(modelled(document, options.nodes, options.each)))
        return 0
    load, counts = os.getloadavg()[0], [int(word) for word in options.counts.split(",")]
    match options.part:
        case "lab" | "ops":
            rows = on_lab(options, traced=options.part == "ops")
        case "crowd":
            import crowd
            from hpcml.kinds.dask.node.security import connection_limits as own

            document["limits"] = {
                "files": own.FILES_OF_ITS_OWN,
                "files_each": own.FILES_EACH,
                "handshake": own.DEADLINE,
            }
            way = crowd.DASK if options.as_dask else "hpcml"
            rows = [{**asyncio.run(crowd.measure(count, way)), "label": options.label} for count in counts]
        case "look":
            rows = [look(count, options.each, options.label) for count in counts]
        case _:
            rows = [watch(count, options.label) for count in counts]
    kept = [row for row in rows_of(document, options.part) if row["label"] != options.label]
    document["parts"][options.part] = {
        "command": f".venv/bin/python {shlex.join(['bench/thousand.py', *sys.argv[1:]])}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30} GiB, Python {platform.python_version()}",
        "load": load,
        "rows": [*kept, *rows],
    }
    for row in rows:
        print(json.dumps(row))
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
