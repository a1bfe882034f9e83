#!/usr/bin/env python3
"""Measure what it costs to start a role inside an image: ``apptainer exec``, hpcml's entry, an instance, an unpacked image.

    sudo python3 bench/image_start.py                        on the lab (make lab): ten rounds, the table
    sudo python3 bench/image_start.py --rounds 5 --json FILE

On one node, as an ordinary user, with the lab's image. All ways take turns in every round, which begins with another one each
time; a first round is not counted. ``hpcml`` is the entry as in a run (templates/image.sh): it asks the program what it is and
hands in the run's variables. An instance is started and stopped in every round; its start and its roles' entries are
separate figures. Memory is what a node's roles cost beside themselves, as proportional set size (PSS) of the user's
processes on the node, for one role and for three (scheduler, worker, script on the first node).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lab"))

import lab_image
from bringup import machine_facts
from lab import Lab, LabError

USER, NODE = "alice", "n1"
HERE = Path(__file__).resolve().parent
ENTRY = HERE.parent / "templates" / "image.sh"
INSTANCE = "bench"
COMMANDS = {"true": ["true"], "python": ["python3", "-c", "import distributed"]}
OUTSIDE, EXEC = "outside", "exec"  # ways that the others are compared with
ROLES = (1, 3)
DEADLINE = 600

# Runs on the node: the way into it (nsenter) is not to be measured.
INSIDE = """
import json, os, subprocess, sys, time
facts = json.load(sys.stdin)
found = {"seconds": {way: {name: [] for name in facts["commands"]} for way in facts["ways"]}, "start": [], "stop": []}

def timed(words, env=None):
    begin = time.perf_counter()
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **(env or {})})
    took = time.perf_counter() - begin
    if done.returncode:
        sys.exit(f"{words}: exit status {done.returncode}: {done.stderr}")
    return took

ways = list(facts["ways"])
for turn in range(facts["rounds"] + 1):
    start = timed(facts["start"])
    for way in ways[turn % len(ways):] + ways[:turn % len(ways)]:
        for name, command in facts["commands"].items():
            took = timed([*facts["ways"][way], *command], facts["environment"] if way == "hpcml" else None)
            if turn:
                found["seconds"][way][name].append(took)
    stop = timed(facts["stop"])
    if turn:
        found["start"].append(start)
        found["stop"].append(stop)
print(json.dumps(found))
"""


def measure(lab: Lab, rounds: int) -> dict[str, Any]:
    """Return the seconds of each way and command, of an instance's start and stop, and the memory in KiB."""
    image = str(lab_image.image(lab.places))
    folder = lab.home(USER) / "image-start"
    _must(lab.exec(["mkdir", "-p", f"{folder}/run"], node=NODE))
    unpacked = f"/tmp/{INSTANCE}-unpacked"  # the node's own disk
    try:
        _must(lab.exec(["cp", "--no-preserve=mode", str(ENTRY), f"{folder}/image.sh"], user="root", node=NODE))
        _must(lab.exec(["apptainer", "--quiet", "build", "--sandbox", unpacked, image], timeout=DEADLINE, node=NODE))
        plain = ["apptainer", "--quiet", "exec"]
        own = ["--no-mount", "cwd", "--home", f"{folder}/run", "--pwd", f"{folder}/run", "--bind", f"{folder}/run"]
        ways = {
            OUTSIDE: ["env", f"PATH={lab.places.venv}/bin:/usr/bin:/bin"],
            EXEC: [*plain, "--cleanenv", image],
            "hpcml": ["sh", f"{folder}/image.sh", "apptainer", "exec", "--cleanenv", *own, image],
            "instance": [*plain, "--cleanenv", f"instance://{INSTANCE}"],
            "unpacked": [*plain, "--cleanenv", unpacked],
        }
        facts = {"ways": ways, "commands": COMMANDS, "rounds": rounds, "environment": {"HPCML_RUN_DIR": f"{folder}/run"},
                 "start": ["apptainer", "--quiet", "instance", "start", "--cleanenv", image, INSTANCE],
                 "stop": ["apptainer", "--quiet", "instance", "stop", INSTANCE]}  # fmt: skip
        done = _must(lab.exec([f"{lab.places.venv}/bin/python", "-c", INSIDE], input=json.dumps(facts), cwd=folder,
                              timeout=DEADLINE, node=NODE))  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        found["memory_kib"] = {way: {str(roles): _memory(lab, ways[way], roles, facts) for roles in ROLES}
                               for way in (EXEC, "instance", "unpacked")}  # fmt: skip
        return found
    finally:
        lab.exec(["apptainer", "--quiet", "instance", "stop", INSTANCE], node=NODE)
        lab.exec(["chmod", "-R", "u+w", unpacked], timeout=60, node=NODE)
        lab.exec(["rm", "-rf", unpacked, str(folder)], timeout=60, node=NODE)


def _must(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        raise LabError(f"{' '.join(done.args[:4])}… ended with status {done.returncode}: {done.stderr.strip()}")
    return done


def _memory(lab: Lab, way: Sequence[str], roles: int, facts: dict[str, Any]) -> int:
    """Return the PSS of the user's processes while so many roles sleep inside, without the sleeping ones, in KiB."""
    before = {pid for pid, _ in lab.processes(USER)}
    instance = any(word.startswith("instance://") for word in way)
    if instance:
        _must(lab.exec(facts["start"], node=NODE, user=USER))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(roles):
                stack.enter_context(_sleeping(lab, way))
            return sum(
                _pss(pid)
                for pid, words in lab.processes(USER)
                if pid not in before and not words.startswith(("sleep", "timeout"))
            )
    finally:
        if instance:
            _must(lab.exec(facts["stop"], node=NODE, user=USER))


@contextlib.contextmanager
def _sleeping(lab: Lab, way: Sequence[str]) -> Iterator[None]:
    words = ["timeout", "90", *way, "sh", "-c", "echo ready; exec sleep 60"]
    with lab.popen(words, node=NODE, user=USER, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":  # nothing, when timeout has ended it
                raise LabError(f"{' '.join(way[:3])}… did not start.")
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def table(document: dict[str, Any]) -> str:
    """Return the medians as ratios to ``exec`` and outside, as Markdown."""
    seconds = document["seconds"]
    middle = {way: {name: statistics.median(each) for name, each in names.items()} for way, names in seconds.items()}
    words = {OUTSIDE: "outside, the lab's environment", EXEC: "`apptainer exec`", "hpcml": "hpcml's entry",
             "instance": "`exec` into an instance that runs", "unpacked": "`exec` of the unpacked image"}  # fmt: skip
    memory = document["memory_kib"]
    lines = [
        "| | `true` | `import distributed` | `import distributed` / outside | memory of 1 role | of 3 roles |",
        "|---|---|---|---|---|---|",
    ]
    for way, figures in middle.items():
        kept = [f"{memory[way][str(roles)] / 1024:.0f} MiB" if way in memory else "" for roles in ROLES]
        ratio = figures["python"] / middle[OUTSIDE]["python"]
        lines.append(
            f"| {words[way]} | {_span(seconds[way]['true'])} | {_span(seconds[way]['python'])} | {ratio:.2f} | {kept[0]} | {kept[1]} |"
        )
    gain = middle[EXEC]["true"] - middle["instance"]["true"]
    start = statistics.median(document["start"])
    lines += ["", f"An instance starts in {_span(document['start'])} and saves {gain:.2f} s a role: {start / gain:.1f} roles on a node pay for it."
              if gain > 0 else f"An instance starts in {_span(document['start'])} and saves nothing."]  # fmt: skip
    machine, versions = document["machine"], document["versions"]
    lines += ["", f"Median (least to most); {document['date'][:10]}, {machine['cores']} cores, {machine['processor']}, load "
              f"{machine['load_before'][0]:.1f} before, Apptainer {versions['apptainer']}; `{document['command']}`"]  # fmt: skip
    return "\n".join(lines)


def _span(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def main() -> int:
    """Measure, print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="rounds that count (default 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and what it was measured on")
    options = parser.parse_args()
    lab = Lab()
    reason = lab.check() or lab_image.reason_against(lab.places)
    if reason:
        print(reason, file=sys.stderr)
        return 3
    try:
        lab.up()
        facts = machine_facts(lab, "bench/image_start.py")
        document = {**facts, **measure(lab, options.rounds)}
    except LabError as error:
        print(f"image_start: {error}", file=sys.stderr)
        return 1
    print(table(document))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
