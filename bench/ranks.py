#!/usr/bin/env python3
"""Ranks by `hpcml submit --ranks` beside torchrun by hand on this machine: startup, throughput, and the same results.

    python3 bench/ranks.py --gpus 2 --json ranks.json       on a machine with two GPUs
    python3 bench/ranks.py --python /env/bin/python         on CPUs, by Gloo; the Python that has torch
    python3 bench/ranks.py --gpus 2 --examples              the examples of jobs/ alone, each in every form
    python3 bench/ranks.py --gpus 2 --tutorials FOLDER      PyTorch's own: FOLDER is `distributed` of its examples
    python3 bench/gpu/slurm.py up --nodes 2 --gpus-per-node 1 --slurm FOLDER
    python3 bench/gpu/slurm.py exec -- python3 bench/ranks.py --nodes 2 --gpus 1 --python /env/bin/python

With --nodes both are jobs of Slurm: by hand a batch script in which `srun` starts one torchrun on each node.
Each round starts the same script by both, in turn. *startup* is the time from the command to the end of the first training
step; *steps* is the rate of the steps after the tenth. The programs after it run once by each: their results must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRAIN = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
cuda, how, steps = torch.cuda.is_available(), sys.argv[1], int(sys.argv[2])
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local) if cuda else torch.device("cpu")
if cuda: torch.cuda.set_device(device)
dist.init_process_group("nccl" if cuda else "gloo")
torch.manual_seed(0)
wide = 4096 if cuda else 128
layers = [torch.nn.Linear(wide, wide) for _ in range(8)]
model = torch.nn.Sequential(*[part for one in layers for part in (one, torch.nn.GELU())]).to(device)
if how == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for one in model: fully_shard(one)
    fully_shard(model)
else:
    model = DDP(model, device_ids=[local] if cuda else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(rank)
data = torch.randn(512 if cuda else 32, wide, device=device)
def step():
    loss = (model(data) - data).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss
step().item()
first = time.time()
for _ in range(10): loss = step()
loss.item()
began = time.time()
for _ in range(steps): loss = step()
total = loss.detach().clone(); dist.all_reduce(total)
rate = steps / (time.time() - began)
if rank == 0: print("RESULT", json.dumps({"first": first, "rate": rate, "loss": total.item(), "world": dist.get_world_size()}))
dist.destroy_process_group()
"""
JAX = """
import json, os, sys
import jax
given = {}
if "--by-hand" in sys.argv:  # torchrun tells JAX nothing
    place = f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"
    given = {"coordinator_address": place, "num_processes": int(os.environ["WORLD_SIZE"]),
             "process_id": int(os.environ["RANK"]), "local_device_ids": [int(os.environ["LOCAL_RANK"])]}
jax.distributed.initialize(**given)
import jax.numpy as jnp
from jax.experimental import multihost_utils
total = multihost_utils.process_allgather(jnp.arange(4.0) * (jax.process_index() + 1)).sum()
if jax.process_index() == 0: print("RESULT", json.dumps({"sum": float(total), "world": jax.process_count(), "devices": jax.device_count()}))
"""
ACCELERATE = """
import json, torch
from accelerate import Accelerator
run = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
data = torch.arange(64.0, device=run.device).repeat(4, 1) * (run.process_index + 1) / 64
for _ in range(5):
    loss = (model(data) - data).pow(2).mean()
    optimizer.zero_grad(); run.backward(loss); optimizer.step()
total = run.reduce(loss.detach(), "sum").item()
if run.is_main_process: print("RESULT", json.dumps({"loss": total, "world": run.num_processes}))
"""
LIGHTNING = """
import json, sys, torch
try: import lightning as L
except ImportError: import pytorch_lightning as L
from torch.utils.data import DataLoader, TensorDataset
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0); self.layer = torch.nn.Linear(16, 1)
    def training_step(self, batch, _):
        x, y = batch
        self.loss = (self.layer(x) - y).pow(2).mean(); return self.loss
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.05)
x = torch.arange(1024.0).reshape(64, 16) / 1024
cuda = torch.cuda.is_available()
trainer = L.Trainer(accelerator="gpu" if cuda else "cpu", devices=int(sys.argv[1]), num_nodes=int(sys.argv[2]), strategy="ddp", max_epochs=2, logger=False,
                    enable_checkpointing=False, enable_progress_bar=False)
model = Model()
trainer.fit(model, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8))
if trainer.global_rank == 0:
    print("RESULT", json.dumps({"weights": round(float(model.layer.weight.sum()), 5), "world": trainer.world_size}))
"""
BATCH = """#!/bin/bash
head=$(scontrol --oneliner show node "$(scontrol show hostnames | head -n 1)" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
exec srun --kill-on-bad-exit=1 {run} {rendezvous} {script}
"""
# `sbatch --wait` looks only every half minute.
WAITED = """
job=$(sbatch --parsable "$@") || exit
until end=$(scontrol --oneliner show job "$job" | grep -E 'JobState=(COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL)'); do sleep 0.2; done
exit "$(grep -o ' ExitCode=[0-9]*' <<< "$end" | cut -d= -f2)"
"""
# What is submitted of each example, after the site and the GPUs; {bin}: the folder of the Python that has torch.
EXAMPLES = {
    "ddp": ["--ranks", "{ranks}", "jobs/ddp.py"],
    "ddp by torchrun": ["--ranks", "node", "--", "{bin}/torchrun", "--nproc-per-node", "{each}", "jobs/ddp.py"],
    "ddp by accelerate": ["--ranks", "node", "--", "{bin}/accelerate", "launch", "--multi_gpu", "--num_processes", "{each}", "jobs/ddp.py"],
    "jax_train": ["--ranks", "{ranks}", "jobs/jax_train.py"],
}  # fmt: skip
# PyTorch's own programs, unchanged, in its repository's folder examples/distributed.
TUTORIALS = [
    "ddp/example.py",
    "ddp-tutorial-series/multinode.py 3 1",
    "FSDP2/example.py",
    "FSDP2/example.py --mixed-precision --explicit-prefetching --dcp-api",
    "tensor_parallelism/tensor_parallel_example.py",
]
WEIGHTS = """
import pathlib, sys, torch
for path in sorted(pathlib.Path(sys.argv[1]).rglob("model_state_dict.pt")):
    for name, one in torch.load(path, map_location="cpu", weights_only=True).items():
        print(name, f"{one.double().abs().sum().item():.3e}")
"""
PROGRAMS = {"fsdp": TRAIN, "jax": JAX, "accelerate": ACCELERATE, "lightning": LIGHTNING}


class Machine:
    """How a script is started here: by hpcml and by hand."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.python, self.gpus, self.folder, self.nodes = options.python, options.gpus, folder, options.nodes
        self.per_node = options.gpus or options.ranks
        self.count = self.per_node * (options.nodes or 1)
        self.ranks = "gpu" if self.gpus else str(self.per_node)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": path}
        if not self.gpus:
            self.environment["CUDA_VISIBLE_DEVICES"] = ""

    def submission(self) -> list[str]:
        """Return the words that submit a run here, up to its ranks and what is submitted."""
        site = ["--site", "slurm", "--nodes", str(self.nodes), "--time", "10"] if self.nodes else ["--site", "local"]
        site += ["--set", f"runtime.python={self.python}", "--set", "report.sample_every=0"]
        return [sys.executable, "-m", "hpcml", "submit", "--wait", *site, "--gpus-per-node", str(self.gpus)]

    def by_hpcml(self, script: Path, *arguments: str) -> dict[str, Any]:
        return self.result([*self.submission(), "--ranks", self.ranks, str(script), *arguments])

    def tutorial(self, folder: Path, words: str, *, by_hand: bool) -> dict[str, Any]:
        """Run a program in a copy of its folder; return its exit status, its lines, and the weights that it saved."""
        path, *arguments = words.split()
        copy = Path(tempfile.mkdtemp(dir=self.folder)) / "copy"
        shutil.copytree((folder / path).parent, copy)
        script = copy / Path(path).name
        began = time.time()
        if by_hand:
            command, output = self.command_by_hand(script, *arguments)
        else:
            command, output = (
                [*self.submission(), "--name", copy.parent.name, "--ranks", self.ranks, str(script), *arguments],
                None,
            )
        done = subprocess.run(
            ["timeout", "-s", "INT", "-k", "20", "100", *command],
            capture_output=True, text=True, check=False, timeout=240, env=self.environment, cwd=copy,
        )  # fmt: skip
        seconds = time.time() - began
        logs = [sys.executable, "-m", "hpcml", "logs", copy.parent.name, "rank"]
        text = done.stdout if by_hand and not output else output.read_text() if output else self.output_of(logs)
        weights = self.output_of([self.python, "-c", WEIGHTS, str(copy)]).splitlines()
        return {"status": done.returncode, "lines": _comparable(text), "weights": weights, "seconds": round(seconds, 1)}

    def output_of(self, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment, timeout=60)
        return done.stdout

    def by_hand(self, script: Path, *arguments: str) -> dict[str, Any]:
        return self.result(*self.command_by_hand(script, *arguments))

    def command_by_hand(self, script: Path, *arguments: str) -> tuple[list[str], Path | None]:
        """Return a command that starts a script by torchrun, and the file for the output of a job."""
        run = [self.python, "-m", "torch.distributed.run", "--nproc-per-node", str(self.per_node)]
        if not self.nodes:
            return [*run, str(script), *arguments], None
        rendezvous = '--nnodes $SLURM_NNODES --rdzv-backend c10d --rdzv-endpoint "$head:29511" --rdzv-id $SLURM_JOB_ID'
        job = self.folder / "by_hand.sh"
        job.write_text(
            BATCH.format(run=shlex.join(run), rendezvous=rendezvous, script=shlex.join([str(script), *arguments]))
        )
        size = ["--nodes", str(self.nodes), "--ntasks-per-node=1", "--exclusive", "--time=10"]
        size += [f"--gpus-per-node={self.gpus}"] if self.gpus else []
        output = self.folder / "by_hand.log"
        output.unlink(missing_ok=True)
        where = [f"--output={output}", f"--error={output}.err"]
        return ["bash", "-c", WAITED, "bash", *size, *where, str(job)], output

    def example(self, words: list[str]) -> str:
        """Run an example; return what is wrong, empty if its loss fell on all ranks."""
        facts = {"ranks": self.ranks, "each": self.per_node, "bin": Path(self.python).parent}
        command = [*self.submission(), *(word.format(**facts) for word in words)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=240, env=self.environment, cwd=ROOT
        )
        pattern = rf"^loss ([\d.]+), then ([\d.]+) after \d+ steps on {self.count} ranks$"
        losses = re.search(pattern, done.stdout, re.MULTILINE)
        fell = losses and float(losses[2]) < float(losses[1]) / 5
        return "" if fell and not done.returncode else (done.stderr + done.stdout)[-3000:]

    def result(self, command: list[str], output: Path | None = None) -> dict[str, Any]:
        """Return what a run printed as its result, or wrote to ``output``, with the seconds to its first step and in all."""
        began = time.time()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=240, env=self.environment, cwd=self.folder
        )
        text = output.read_text() if output and output.exists() else done.stdout
        line = re.search(r"RESULT (\{.*\})", text)
        if done.returncode or line is None:
            errors = Path(f"{output}.err").read_text() if output and output.exists() else done.stderr
            return {"error": (errors or text)[-1500:], "exit_status": done.returncode}
        found: dict[str, Any] = json.loads(line[1])
        if "first" in found:
            found["startup"] = found.pop("first") - began
        return {**found, "seconds": time.time() - began}


def main() -> int:
    """Run both, print the table, write the figures; return 1 if a run failed or results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of this machine, or of each node (default: none)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a node without GPUs (default 2)")
    parser.add_argument("--nodes", type=int, default=0, help="nodes of Slurm (default: none, on this machine)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--budget", type=float, default=3600, help="seconds after which no round begins")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch (default: this one)")
    parser.add_argument("--examples", action="store_true", help="run the examples of jobs/ alone")
    parser.add_argument(
        "--tutorials", type=Path, metavar="FOLDER", help="run PyTorch's own programs alone, those that are there"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    ends = time.monotonic() + options.budget
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(options, Path(folder))
        if options.examples:
            return examples(machine)
        if options.tutorials:
            return tutorials(machine, options)
        train = Path(folder, "train.py")
        train.write_text(TRAIN)
        rounds: list[dict[str, Any]] = []
        while len(rounds) < options.rounds and time.monotonic() < ends:
            arguments = ("ddp", str(options.steps))
            order = [("hpcml", machine.by_hpcml), ("torchrun", machine.by_hand)]
            if len(rounds) % 2:
                order.reverse()
            rounds.append({name: start(train, *arguments) for name, start in order})
            print(json.dumps(rounds[-1]), flush=True)
        programs: dict[str, dict[str, Any]] = {}
        for name, text in PROGRAMS.items():
            if time.monotonic() > ends:
                programs[name] = {"skipped": True}
                continue
            script = Path(folder, f"with_{name}.py")
            script.write_text(text)
            given = {"fsdp": ("fsdp", "20"), "lightning": (str(machine.per_node), str(options.nodes or 1))}.get(
                name, ()
            )
            by_hand = ("--by-hand",) if name == "jax" else ()
            programs[name] = {
                "hpcml": machine.by_hpcml(script, *given),
                "torchrun": machine.by_hand(script, *given, *by_hand),
            }
            print(name, json.dumps(programs[name]), flush=True)
    document = {
        "command": shlex.join(["bench/ranks.py", *sys.argv[1:]]),
        "machine": {"cpus": os.cpu_count(), "gpus": options.gpus, "python": platform.python_version()},
        "versions": _versions(options.python),
        "rounds": rounds,
        "programs": programs,
    }
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return summary(document)


def examples(machine: Machine) -> int:
    """Run each example in all its forms; print what is wrong; return 1 if something is."""
    wrong = {name: machine.example(words) for name, words in EXAMPLES.items()}
    for name, text in wrong.items():
        print(f"{name}: {text or 'ok'}")
    return int(any(wrong.values()))


def tutorials(machine: Machine, options: argparse.Namespace) -> int:
    """Run PyTorch's own programs by both; return 1 if status, lines or saved weights of one differ."""
    rows: list[dict[str, Any]] = []
    document = {
        "command": shlex.join(["bench/ranks.py", *sys.argv[1:]]),
        "nodes": options.nodes or 1,
        "gpus": options.gpus,
        "versions": _versions(options.python),
        "programs": rows,
    }
    for words in TUTORIALS:
        if not (options.tutorials / words.split()[0]).exists():
            continue
        both = {
            name: machine.tutorial(options.tutorials, words, by_hand=name == "torchrun")
            for name in ("hpcml", "torchrun")
        }
        row: dict[str, Any] = {"program": words, "seconds": {name: one["seconds"] for name, one in both.items()}}
        row["status"] = {name: one["status"] for name, one in both.items()}
        lacking = Counter(both["torchrun"]["lines"]) - Counter(both["hpcml"]["lines"])
        row |= {
            "lines": len(both["torchrun"]["lines"]),
            "lacking": [*lacking],
            "weights": len(both["hpcml"]["weights"]),
        }
        row["same"] = (
            len({*row["status"].values()}) == 1
            and not lacking
            and both["hpcml"]["weights"] == both["torchrun"]["weights"]
        )
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(not rows or not all(row["same"] for row in rows))


def _comparable(text: str) -> list[str]:
    """Return the lines of all ranks without what differs from start to start: processes, times, addresses."""
    lines = [re.sub(r"^rank +\d+ \| ", "", line) for line in text.splitlines()]
    lines = [
        re.sub(r"'MASTER_(ADDR|PORT)': '[^']*'|\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d|\d{3,}", "#", line) for line in lines
    ]
    return sorted(line.strip() for line in lines if line.strip())


def _versions(python: str) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in "
        "('torch', 'jax', 'accelerate', 'lightning', 'pytorch-lightning') for d in m.distributions(name=n)}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return dict(json.loads(done.stdout or "{}"))


def summary(document: dict[str, Any]) -> int:
    """Print ratios of the rounds, and whether the programs' results are equal; return 1 if something is wrong."""
    good = [one for one in document["rounds"] if all("error" not in by for by in one.values())]
    wrong = len(document["rounds"]) - len(good)
    for figure in ("startup", "rate") if good else ():
        ratios = [one["hpcml"][figure] / one["torchrun"][figure] for one in good]
        values = {name: statistics.median(one[name][figure] for one in good) for name in ("hpcml", "torchrun")}
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{figure}: {statistics.median(ratios):.2f} ({spread}), medians {values}")
    wrong += sum(one["hpcml"]["loss"] != one["torchrun"]["loss"] for one in good)
    for name, both in document["programs"].items():
        if "skipped" in both:
            print(f"{name}: skipped")
            continue
        results = [{key: value for key, value in one.items() if key in ("loss", "sum", "world", "devices", "weights")}
                   for one in both.values()]  # fmt: skip
        equal = results[0] == results[1] and "error" not in both["hpcml"]
        print(f"{name}: {'equal' if equal else 'DIFFERENT'} {results}")
        wrong += not equal
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
