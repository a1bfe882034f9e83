#!/usr/bin/env python3
"""The interconnect's check of ranks on this machine's GPUs: what it says of each transport of NCCL, and its seconds.

    python3 bench/ranks_interconnect.py --gpus 2 --json interconnect.json          NCCL on two GPUs of this machine
    python3 bench/ranks_interconnect.py --nodes 2 --gpus 1                   on two nodes of the Slurm at hand
    python3 bench/ranks_interconnect.py --python /env/bin/python             Gloo, on CPUs; the Python that has torch

NCCL is steered by its own variables, so that each transport comes up: peer access, shared memory, sockets. By default hpcml
reads the log of the ranks' own NCCL; with interconnect.require=rdma it measures, and the script then measures the same all-reduce
itself: both figures must agree within a factor of 1.5 (Gloo: 3). It returns 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import json, os, time, torch, torch.distributed as dist
cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda: torch.cuda.set_device(device)
dist.init_process_group("nccl" if cuda else "gloo")
first = time.time()
size, count = dist.get_world_size(), (256 if cuda else 16) << 20
values = torch.ones(count // 4, device=device)
def reduce(repeats):
    for _ in range(repeats): dist.all_reduce(values)
    if cuda: torch.cuda.synchronize()
reduce(3)
began = time.perf_counter()
reduce(5)
seconds = (time.perf_counter() - began) / 5
if dist.get_rank() == 0:
    print("RESULT", json.dumps({"first": first, "bandwidth": 2 * (size - 1) / size * count / seconds / 1024**3}), flush=True)
time.sleep(4)  # by default hpcml reads NCCL's log while the ranks run
dist.destroy_process_group()
"""


class Case(NamedTuple):
    """Variables of NCCL, settings, and what the check must say and end with."""

    name: str
    variables: dict[str, str]
    settings: tuple[str, ...]
    says: str  # a pattern
    status: int = 0


NO_PEERS = {"NCCL_P2P_DISABLE": "1"}
NO_MEMORY = {**NO_PEERS, "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
ON_ONE_NODE = (
    Case("without", {}, ("interconnect.require=none",), r"^$"),
    Case("default", {}, (), r"^NCCL: P2P/\S+( and P2P/\S+)* within nodes$"),
    Case("rdma", {}, ("interconnect.require=rdma",), r"^NCCL: P2P/"),
    Case("shared memory", NO_PEERS, (), r"NCCL uses SHM within nodes \(NCCL_P2P_DISABLE=1 is set\)"),
    Case("sockets", NO_MEMORY, (), r"NCCL uses TCP sockets within nodes .*NET/Socket on"),
    Case("sockets refused", NO_MEMORY, ("interconnect.require=rdma",), r"NCCL uses TCP sockets", 89),
)
ON_NODES = (
    Case("without", {}, ("interconnect.require=none",), r"^$"),
    Case("default", {}, (), r"NCCL: NET/|NCCL uses TCP sockets across nodes"),
    Case("sockets", {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}, (), r"NCCL uses TCP sockets across nodes"),
    Case(
        "refused",
        {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"},
        ("interconnect.require=rdma",),
        r"TCP sockets across",
        89,
    ),
)
ON_CPUS = (
    Case("without", {}, (), r"^$"),
    Case("rdma", {}, ("interconnect.require=rdma",), r"^Gloo: tcp on \S+ within nodes; bus bandwidth"),
)


def run(options: argparse.Namespace, folder: Path, case: Case) -> dict[str, Any]:
    """Run the script with the check of one case; return what the check said, the seconds, and the script's figure."""
    script = folder / "reduce.py"
    script.write_text(SCRIPT)
    size = ["--nodes", str(options.nodes)]
    size += ["--gpus-per-node", str(options.gpus), "--ranks", "gpu"] if options.gpus else ["--ranks", "1"]
    site = ["--site", "local"] if options.nodes == 1 or not options.gpus else []
    given = [f"runtime.python={options.python}", "deadlines.interconnect=120s", "report.sample_every=0", *case.settings]
    settings = [word for one in given for word in ("--set", one)]
    command = [sys.executable, "-m", "hpcml", "submit", "--wait", *site, *size, *settings, str(script)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **case.variables, "HOME": str(folder), "PYTHONPATH": path}
    if not options.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    began = time.time()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=400, env=environment, cwd=folder
    )
    runs = sorted((folder / ".hpcml/runs").iterdir(), key=lambda path: path.stat().st_mtime)
    events = [json.loads(line) for line in (runs[-1] / "events.jsonl").read_text().splitlines()] if runs else []
    checked: dict[str, Any] = next(
        (one for one in events if one["event"] in ("interconnect-checked", "interconnect-seen")), {}
    )
    line = re.search(r"RESULT (\{.*\})", done.stdout)
    result = json.loads(line[1]) if line else {}
    figure = re.search(r"bus bandwidth ([0-9.]+) (GiB|MiB)/s", checked.get("line", ""))
    answer = {
        "case": case.name,
        "line": checked.get("line", ""),
        "problem": checked.get("problem", ""),
        "check_seconds": checked.get("seconds", 0.0),
        "startup": result["first"] - began if result else None,
        "status": done.returncode,
        "checked": float(figure[1]) / (1024 if figure[2] == "MiB" else 1) if figure else None,
        "measured": result.get("bandwidth"),
    }
    told = f"{answer['line']} {answer['problem']}".strip()
    answer["good"] = done.returncode == case.status and bool(re.search(case.says, told))
    if answer["checked"] and answer["measured"]:
        factor = 1.5 if options.gpus else 3  # Gloo's figures vary with all that the processors do
        answer["good"] = answer["good"] and 1 / factor < answer["checked"] / answer["measured"] < factor
    if not answer["good"]:
        answer["output"] = (done.stdout + done.stderr)[-1500:]
        answer["log"] = [path.read_text()[-1500:] for path in runs[-1].glob("logs/*interconnect*")] if runs else []
    return answer


def main() -> int:
    """Run all cases, print a line for each, and return 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each node (default: none, by Gloo)")
    parser.add_argument("--nodes", type=int, default=1, help="more than 1 with --gpus: by the site that hpcml finds")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch (default: this one)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    cases: tuple[Case, ...] = ON_NODES if options.nodes > 1 else ON_ONE_NODE
    if not options.gpus:
        cases, options.nodes = ON_CPUS, max(2, options.nodes)
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        for case in (cases[0], *cases):  # the first run reads torch from the disk, and counts for nothing
            answers.append(run(options, Path(folder), case))
            print(json.dumps(answers[-1]), flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"gpus": options.gpus, "nodes": options.nodes, "runs": answers}, indent=1) + "\n"
        )
    return int(not all(answer["good"] for answer in answers))


if __name__ == "__main__":
    sys.exit(main())
