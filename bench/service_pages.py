"""TensorBoard, MLflow and http.server of two nodes, through ``hpcml tunnel`` and in Chromium: what their pages load.

    python3 -m venv /opt/apps && /opt/apps/bin/pip install tensorboard mlflow        # where the lab's users can read it
    sudo tests/lab/lab.py up && sudo tests/lab/lab.py env && sudo tests/lab/lab.py laptop
    sudo .venv/bin/python bench/service_pages.py --apps /opt/apps --json docs/benchmarks/service-pages.json

Each of two ranks, one a node, starts the three programs. The browser on the laptop loads each page with its scripts,
styles and requests. Then a browser on the program's own node loads the same page. How much a page has loaded when it
shows what it should differs a little from time to time. This script ends with 1 if other requests fail on the laptop than
on the node, or if other hosts are asked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / "tests/lab")]

from labs import Lab  # noqa: E402
from laptop import Outside  # noqa: E402

COMMAND = "sudo .venv/bin/python bench/service_pages.py --apps /opt/apps --json docs/benchmarks/service-pages.json"
PROGRAMS = {  # the port, and what is true in the browser once the page shows what was logged
    "tensorboard": (6006, "document.body.innerText.includes('loss')"),
    "mlflow": (5000, "document.body.innerText.includes('seen-from-')"),
    "http.server": (8000, "document.body.innerText.includes('listed.txt')"),
}
LOGS = """
import pathlib, sys, time
import mlflow
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
folder, node = pathlib.Path(sys.argv[1]), sys.argv[2]
writer = EventFileWriter(str(folder / "events"))
mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
mlflow.set_experiment(f"seen-from-{node}")
with mlflow.start_run():
    for step in range(20):
        value = Summary(value=[Summary.Value(tag="loss", simple_value=1 / (step + 1))])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=value))
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
writer.close()
"""
SCRIPT = """
import os, pathlib, subprocess, sys, tempfile, time
import hpcml
apps, logs = sys.argv[1:]
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "listed.txt").touch()
subprocess.run([f"{apps}/bin/python", "-c", logs, str(folder), os.uname().nodename], check=True)
started = [
    subprocess.Popen([f"{apps}/bin/tensorboard", "--logdir", str(folder / "events"), "--port", "6006", "--host", "localhost"]),
    subprocess.Popen([f"{apps}/bin/mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
                      "--host", "127.0.0.1", "--port", "5000", "--workers", "1"]),
    subprocess.Popen([sys.executable, "-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", str(folder)]),
]
while not hpcml.run.should_stop():
    time.sleep(0.2)
for program in started:
    program.terminate()
"""


def versions(apps: str) -> dict[str, str]:
    """Return the versions of the programs."""
    code = "import importlib.metadata as m; print(m.version('tensorboard'), m.version('mlflow'))"
    done = subprocess.run([f"{apps}/bin/python", "-c", code], capture_output=True, text=True, check=True)
    chromium = subprocess.run(["chromium", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    return dict(zip(("tensorboard", "mlflow"), done.stdout.split(), strict=True)) | {"chromium": chromium}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apps", metavar="VENV", required=True)
    parser.add_argument("--json", metavar="FILE", default="")
    options = parser.parse_args()
    lab = Lab()
    lab.add_laptop()
    outside = Outside(lab)
    submit = ["--ranks", "1", "--nodes", "2", "--time", "20", "--name", "programs", "--detach", "--json"]
    script = outside.cluster.write("programs.py", SCRIPT)
    done = outside.on("login", "hpcml", "submit", *submit, str(script), options.apps, LOGS)
    run = json.loads(done.stdout)["run"]
    pages: dict[str, dict[str, Any]] = {}
    try:
        outside.cluster.wait_event(outside.cluster.directory(run), "script-started", 60)
        tunnels = {(program, rank): outside.tunnel(run, "--to", f"{port}@rank:{rank}", "--retry-for", "3m")
                   for program, (port, _) in PROGRAMS.items() for rank in (0, 1)}  # fmt: skip
        for (program, rank), tunnel in tunnels.items():
            port, shown = PROGRAMS[program]
            facts = tunnel.up(1, 180)
            pages[f"{program}, rank {rank}"] = {
                "on the laptop": loaded(outside, "laptop", facts["url"], shown),
                "on the node": loaded(outside, facts["node"], f"http://127.0.0.1:{port}/", shown),
            }
            print(program, rank, json.dumps(pages[f"{program}, rank {rank}"]), flush=True)
    finally:
        for tunnel in outside.tunnels:
            tunnel.stop()
        outside.on("login", "hpcml", "cancel", run)
        outside.lab.wait_idle(60)
    if options.json:
        found = {"command": COMMAND, "versions": versions(options.apps), "pages": pages}
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    for page in pages.values():
        far, near = page["on the laptop"], page["on the node"]
        if any(far.get(part) != near.get(part) for part in ("title", "failed", "elsewhere")):
            raise SystemExit(1)


def loaded(outside: Outside, where: str, address: str, shown: str) -> dict[str, Any]:
    """Return what a page loads in a browser on a machine: kinds, what failed, other hosts."""
    words = [sys.executable, str(TOP / "tests/lab/in_browser.py"), address, shown]
    done = outside.on(where, *words, user="root", timeout=200)
    if done.returncode != 0:
        return {"failed": [done.stderr[-800:]]}
    page: dict[str, Any] = json.loads(done.stdout)
    host = "/".join(address.split("/")[:3])
    return page | {"failed": [line.replace(host, "") for line in page["failed"]]}


if __name__ == "__main__":
    main()
