"""What it costs that a run samples itself: k-means with and without samples, taking turns.

On the local site, or with ``--lab`` on the four nodes of the lab (root). The two take turns, the order changed each
time; a ratio is one pair's. ``job`` is the time that the job gives for its phases, ``run`` that from the command to its
end, both by the clock, and told of a quiet machine only. ``processor`` is what the run's processes used; on the lab, what
all processes of the machine used meanwhile, and told of a quiet machine only too.
The samplers' own processor time is what the kernel says of them (/proc/PID/task/*/schedstat), as a share of one core over
their lives, their start included; ``steady`` leaves out the first five seconds. What the scheduler adds is measured
by itself: one sample of a scheduler with 128 workers, 200 kinds of tasks and 1,000,000 tasks.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ROOT / "bench/workloads"
sys.path[:0] = [str(ROOT), str(ROOT / "tests/lab")]

from hpcml.node.sampling import sampler  # noqa: E402
from hpcml.paths import RunPaths  # noqa: E402
from hpcml.samples import line  # noqa: E402

USER, HERE = "alice", "one machine"
TICKS = os.sysconf("SC_CLK_TCK")
WARM = 5.0  # seconds of a sampler's life that `steady` leaves out
WAYS = {"with": "5s", "without": "0s"}

Run = dict[str, Any]


class Life(NamedTuple):
    """One sampler: when and with how much processor time it was seen first, after WARM seconds, and last."""

    first: tuple[float, float]
    warm: tuple[float, float]
    last: tuple[float, float]

    def share(self) -> float:
        """Return the share of a core over its life, in per cent; what was used before it was seen first counts too."""
        return 100 * self.last[1] / max(self.last[0] - self.first[0], 1e-3)

    def steady(self) -> float | None:
        """Return the same without its start."""
        seconds = self.last[0] - self.warm[0]
        return 100 * (self.last[1] - self.warm[1]) / seconds if seconds > WARM else None


class Watch(threading.Thread):
    """Looks for samplers among all processes, until it is told to stop."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = str(folder).encode()  # below which the runs are: others may run too
        self.over = threading.Event()
        self.lives: dict[int, Life] = {}

    def run(self) -> None:
        while not self.over.wait(0.25):
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    if (path / "comm").read_text().strip() != sampler.NAME:
                        continue
                    if self.folder not in (path / "environ").read_bytes():
                        continue
                    threads = [int(one.read_text().split()[0]) for one in path.glob("task/*/schedstat")]
                except (OSError, ProcessLookupError):
                    continue  # it has ended
                now = (time.monotonic(), sum(threads) / 1e9)
                life = self.lives.get(int(path.name), Life(now, now, now))
                warm = now if now[0] - life.first[0] <= WARM else life.warm
                self.lives[int(path.name)] = Life(life.first, warm, now)


class Place:
    """Where runs go: this machine, as its own user, or the lab."""

    def __init__(self, folder: Path, *, lab: bool) -> None:
        self.folder, self.lab = folder, None
        if lab:
            from labs import Lab

            self.lab = Lab()
            self.folder = self.lab.home(USER)

    def hpcml(self, *words: str) -> str:
        """Run hpcml and return what it printed."""
        if self.lab:
            done = self.lab.exec(["hpcml", *words], user=USER, cwd=self.folder, timeout=1200)
        else:
            environment = {
                name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))
            }
            environment |= {"HOME": str(self.folder), "HPCML_SITE": "local"}
            command = [str(Path(sys.executable).with_name("hpcml")), *words]
            done = subprocess.run(
                command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False
            )
        if done.returncode:
            raise SystemExit(f"hpcml {shlex.join(words)}: {done.stderr}{done.stdout}")
        return str(done.stdout)


def once(place: Place, way: str, options: argparse.Namespace) -> Run:
    """Run k-means once and return its figures."""
    where = ["--nodes", "4"] if place.lab else []
    job = [str(options.job), "--rows", str(options.rows), "--k", "5"]
    watch = Watch(place.folder)
    watch.start()
    used = busy_seconds if place.lab else used_by_children
    processor, began = used(), time.monotonic()
    place.hpcml("submit", "--wait", *where, "--set", f"report.sample_every={WAYS[way]}", *job)
    seconds, processor = time.monotonic() - began, used() - processor
    watch.over.set()
    watch.join()
    directory = Path(json.loads(place.hpcml("status", "last", "--json"))["directory"])
    lives = list(watch.lives.values())
    steady = [share for life in lives if (share := life.steady()) is not None]
    return {
        "way": way,
        "run": round(seconds, 3),
        "job": round(sum(json.loads((directory / "out/result.json").read_text())["seconds"].values()), 3),
        "processor": round(processor, 2),
        "samplers": len(lives),
        "share": [round(life.share(), 3) for life in lives],
        "steady": [round(share, 3) for share in steady],
        "bytes_per_hour": bytes_per_hour(directory),
    }


def adopt() -> None:
    """Have processes that outlive their parents become children of this one (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(36, 1)


def used_by_children() -> float:
    """Return the processor time of all processes that were started from here and have ended; wait for those that end."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def busy_seconds() -> float:
    """Return the processor time that all processes of the machine have used."""
    words = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    return (sum(map(int, words)) - int(words[3]) - int(words[4])) / TICKS


def bytes_per_hour(directory: Path) -> dict[str, int]:
    """Return by file how much it would grow in an hour, from the size of its lines."""
    folder = RunPaths(directory).attempt(0).samples
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        lines = [text for text in path.read_text().splitlines() if text.startswith("[")]
        size = statistics.mean(len(text) + 1 for text in lines)
        found[path.stem] = round(size * (60 + (3600 - 60) / 5))
    return found


def of_a_scheduler(workers: int = 128, kinds: int = 200, turns: int = 200) -> dict[str, float]:
    """Return what one sample costs a scheduler: milliseconds of a core, bytes, and the share with one each 5 s."""
    from hpcml.kinds.dask.node.state_samples import SENT, Measurement

    metrics = {"memory": 1 << 34, "cpu": 99.5, "spilled_bytes": {"memory": 0, "disk": 1 << 30}, SENT: 1 << 40}
    activities = ("thread-cpu", "thread-noncpu", "disk-read", "deserialize", "executor", "other")
    names = [("execute", f"kind-{kind}", one, "seconds") for kind in range(kinds) for one in activities]
    states = dict.fromkeys(("released", "waiting", "processing", "memory", "erred", "queued", "forgotten"), 100)
    prefix = SimpleNamespace(states=defaultdict(int, states), state_counts=defaultdict(int, states))
    scheduler: Any = SimpleNamespace(
        workers={f"tls://{n}": SimpleNamespace(name=f"node{n // 4}-{n % 4}", processing=range(60), metrics=metrics)
                 for n in range(workers)},
        task_prefixes=dict.fromkeys(range(kinds), prefix),
        cumulative_worker_metrics=dict.fromkeys(names, 1234.5),
        tasks=range(1_000_000),
    )  # fmt: skip
    state = Measurement(scheduler)
    began = time.thread_time()
    for _ in range(turns):
        text = line(state.sample())
    cost = (time.thread_time() - began) / turns
    return {"milliseconds": round(cost * 1000, 3), "bytes": len(text), "share": round(100 * cost / 5, 4)}


def table(document: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = ["| with samples / without | median | least to most |", "|---|---|---|"]
    quiet = document["machine"]["load"] < 0.5
    for name, ratios in document["ratios"].items():
        if not quiet and (name != "processor" or document["where"] != HERE):
            continue  # others used the machine: neither the clock nor its processors say anything
        lines.append(f"| {name} | {statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} |")
    runs = [run for run in document["runs"] if run["way"] == "with"]
    lines = lines if len(lines) > 2 else []
    parts = [
        f"{len(document['runs']) // 2} pairs of {document['rows']} rows on {document['where']}.",
        f"Samplers used {_spread([one for run in runs for one in run['share']])} % of a core, their start included",
    ]
    if steady := [one for run in runs for one in run["steady"]]:
        parts[-1] += f", and {_spread(steady)} % after it"
    grown = [run["bytes_per_hour"] for run in runs]
    nodes = [size for files in grown for name, size in files.items() if name != "dask"]
    parts[-1] += f"; a node's file grows by {_spread([size / 1000 for size in nodes])} kB an hour."
    facts = document["scheduler"]
    parts.append(
        f"A sample of a scheduler with 128 workers takes {facts['milliseconds']:.2f} ms, {facts['share']:.3f} % of a core."
    )
    if not quiet:
        parts.append("Not a quiet machine: times by the clock are left out.")
    machine = document["machine"]
    parts.append(
        f"\n\n{document['date']}, {machine['cores']} cores, load before {machine['load']:.1f}; `{document['command']}`"
    )
    return "\n".join([*lines, "", " ".join(parts)])


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--lab", action="store_true", help="on the lab's four nodes (root)")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    runs: list[Run] = []
    adopt()
    with tempfile.TemporaryDirectory(prefix="hpcml-sampling-") as name:
        place = Place(Path(name), lab=options.lab)
        options.job = WORKLOADS / "kmeans.py"
        if place.lab:
            options.job = place.folder / "workloads/kmeans.py"
            for path in WORKLOADS.rglob("*.py"):
                copy = options.job.parent / path.relative_to(WORKLOADS)
                place.lab.exec(["mkdir", "-p", str(copy.parent)], user=USER)
                place.lab.exec(["tee", str(copy)], user=USER, input=path.read_text())
        for pair in range(options.pairs):
            for way in list(WAYS) if pair % 2 else reversed(WAYS):
                runs.append(once(place, way, options))
                print(f"{way:8} {runs[-1]}", file=sys.stderr, flush=True)
    both = {way: [run for run in runs if run["way"] == way] for way in WAYS}
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f".venv/bin/python {shlex.join(['bench/sampling.py', *sys.argv[1:]])}",
        "where": "the lab's four nodes" if options.lab else HERE,
        "rows": options.rows,
        "machine": {"cores": os.cpu_count(), "load": load},
        "ratios": {
            figure: [
                round(one[figure] / other[figure], 4) for one, other in zip(both["with"], both["without"], strict=True)
            ]
            for figure in ("job", "run", "processor")
        },
        "scheduler": of_a_scheduler(),
        "runs": runs,
    }
    print(table(document))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
