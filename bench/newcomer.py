#!/usr/bin/env python3
"""Type a newcomer's path from docs/first-run.md on the lab, as a user whose home is empty, and time each step.

    sudo .venv/bin/python tests/lab/apart.py 3 .venv/bin/python bench/newcomer.py

The commands are those of the page's section, word for word but for the host's name and the image's path; the scripts are the
page's own and that of docs/lab.md. The machine has no profile but hpcml's own: that of the lab is taken away. A step counts if it
ends as it should (status 0; the tunnel 130, by Ctrl-C, after its dashboard has answered). Nothing is installed: that needs an index.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lab"))

import lab_image
import lab_ssh
from bringup import machine_facts
from lab import Lab, LabError

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/benchmarks/newcomer.json"
USER, HOST, IMAGE = "alice", "me@login.example.org", "cpu.sif"
FIRST_RUN, SECTION = "docs/first-run.md", "## The whole path, timed"
LAPTOPS = "bench/newcomer.py types it on the lab's laptop"  # a comment above the block
DEADLINE = 600.0  # seconds for one step
INTERRUPTED = 130


def block(page: str, after: str) -> str:
    """Return the first fenced block of a page behind a text.

    Raises
    ------
    LabError
        If the page has none.
    """
    text = (ROOT / page).read_text(encoding="utf-8").partition(after)[2]
    found = re.search(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise LabError(f"{page} has no block behind {after!r}.")
    return found[1]


def steps() -> list[tuple[str, str]]:
    """Return the section's commands in their order, each with the node where it is typed."""
    there, here = block(FIRST_RUN, SECTION), block(FIRST_RUN, LAPTOPS)
    return [("login", line) for line in there.splitlines()] + [(lab_ssh.LAPTOP, line) for line in here.splitlines()]


def measure(lab: Lab) -> list[dict[str, Any]]:
    """Type each command; return where, what, the seconds and the exit status, up to the first that ended otherwise than it should."""
    rows = []
    home = lab.home(USER)
    for node, name, text in (("login", "first.py", block(FIRST_RUN, "file=first.py")),
                             (lab_ssh.LAPTOP, "slow.py", block("docs/lab.md", "file=slow.py"))):  # fmt: skip
        lab.exec(["tee", str(home / name)], node=node, input=text)
    for node, line in steps():
        image = str(lab_image.image(lab.places))
        words = ["lab" if word == HOST else image if word == IMAGE else word for word in shlex.split(line)]
        began = time.monotonic()
        if "tunnel" in words:
            good, status, said = _look(lab, words)
        else:
            done = lab.exec(words, node=node, timeout=DEADLINE)
            good, status, said = done.returncode == 0, done.returncode, done.stdout + done.stderr
        seconds = time.monotonic() - began
        rows.append({"node": node, "command": line, "seconds": round(seconds, 2), "status": status, "good": good})
        print(f"--- {node}$ {line}\n{said.rstrip()}\n--- status {status}, {seconds:.1f} s", file=sys.stderr, flush=True)
        if not good:
            break
    return rows


def _look(lab: Lab, words: list[str]) -> tuple[bool, int, str]:
    """Open the tunnel, ask the dashboard for its page, and end it with Ctrl-C."""
    process = lab.popen(words, node=lab_ssh.LAPTOP, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said, answer, end = "", "", time.monotonic() + DEADLINE
    try:
        while time.monotonic() < end and not (found := re.search(r"http://127\.0\.0\.1:\d+\S*\n", said)):
            if not select.select([process.stdout], [], [], 1)[0]:
                continue
            if not (piece := os.read(process.stdout.fileno(), 65536)):
                break
            said += piece.decode()
        if found:
            page = ["curl", "-s", "-L", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", found[0].strip()]
            answer = lab.exec(page, node=lab_ssh.LAPTOP).stdout
            os.kill(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    good = (answer, process.returncode) == ("200", INTERRUPTED)
    return good, process.returncode, f"{said}{rest}the dashboard's answer: {answer or 'none'}\n"


def _is_up(lab: Lab) -> bool:
    try:
        lab.state()
    except LabError:
        return False
    return True


def table(document: dict[str, Any]) -> str:
    """Return the steps as Markdown."""
    lines = ["| where | typed | seconds |", "|---|---|---|"]
    places = {"login": "login node", lab_ssh.LAPTOP: "laptop"}
    lines += [f"| {places[row['node']]} | `{row['command']}` | {row['seconds']:.1f} |" for row in document["steps"]]
    total = sum(row["seconds"] for row in document["steps"])
    machine, versions = document["machine"], document["versions"]
    lines += [f"| | in all | {total:.0f} |", "",
              f"We measured these times on [the lab](lab.md) on {document['date'][:10]}. The lab's nodes share one machine with {machine['cores']} "
              f"cores. Its load before was {machine['load_before'][0]:.1f}. The lab had {versions['slurm']}, Apptainer "
              f"{versions['apptainer']}, an empty queue and an empty home. Each step ended with status 0. Ctrl-C ended the tunnel after the dashboard had answered. `{document['command']}`"]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    """Take the path, print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=FIGURES, metavar="FILE", help="where the figures go")
    options = parser.parse_args()
    lab = Lab()
    if reason := lab.check() or lab_image.reason_against(lab.places):
        print(reason, file=sys.stderr)
        return 3
    if _is_up(lab):
        print("A lab is up, and a newcomer wants one of their own. Run it by tests/lab/apart.py.", file=sys.stderr)
        return 3
    home = lab.home(USER)
    kept = home.with_name(f"{home.name}.kept")
    try:
        if home.exists():
            home.rename(kept)
        lab.up()
        lab.add_laptop()
        shutil.rmtree(lab.places.site)  # the lab's own profile, which `up` writes again
        document = machine_facts(lab, "bench/newcomer.py")
        document["steps"] = measure(lab)
    except LabError as error:
        print(f"newcomer: {error}", file=sys.stderr)
        return 1
    finally:
        lab.down()
        if kept.exists():
            shutil.rmtree(home, ignore_errors=True)
            kept.rename(home)
    print(table(document))
    if not all(row["good"] for row in document["steps"]):
        print("newcomer: the last step did not end as it should; no figures were written.", file=sys.stderr)
        return 1
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
