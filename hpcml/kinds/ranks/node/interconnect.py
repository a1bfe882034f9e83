"""The check of the ranks' interconnect: an all-reduce of all GPUs or CPU nodes before them.

By default NCCL's own logs in the ranks tell of it (:mod:`nccl_log`), and there is no check. For
``interconnect.require = "rdma"`` each agent starts the processes of a check (:mod:`all_reduce`) in the ranks' own
Python and environment, before the ranks: importing torch and joining NCCL costs five to seven seconds. The supervisor
judges both.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcml.kinds.ranks.node import all_reduce
from hpcml.kinds.ranks.roles import RANK
from hpcml.kinds.ranks.variables import World
from hpcml.node import process_helpers, scratch, shared_files
from hpcml.node.context import Context, load
from hpcml.node.interconnect import record
from hpcml.node.interconnect.measurement import (
    Measurement,
    NodeFacts,
    counter_difference,
    merge_nccl_logs,
    parse_nccl_log,
    read_counters,
)
from hpcml.node.interconnect.result import decide
from hpcml.safe_files import tail
from hpcml.settings import Settings
from hpcml.terminal import say
from hpcml.workload_forms import Form

SUBSYSTEMS = "INIT,ENV,NET,P2P,SHM"  # of NCCL: what it read, and the way of each channel
_ENDING = 5.0  # seconds for a killed process to give its GPU back
MOST_WARNINGS, LONGEST = 4, 300


def is_wanted(settings: Settings) -> bool:
    """Whether the settings ask for a check before the ranks, and the run has something between which to make it."""
    if settings.job.nodes * processes_each(settings) < 2:
        return False
    return settings.code.form is Form.INTERCONNECT or settings.interconnect.require == "rdma"


def processes_each(settings: Settings) -> int:
    """Return the number of processes of the check on a node."""
    return settings.gpus or 1


def world_of_check(world: World, settings: Settings, port: int) -> World:
    """Return the world of the check's processes, which meet at a port of their own."""
    return world._replace(each=processes_each(settings), port=port)


def backend(settings: Settings) -> str:
    """Return the library that makes the all-reduce: nccl or gloo."""
    return "nccl" if settings.gpus else "gloo"


class Part:
    """The check's processes on this node, each with the variables of its rank."""

    def __init__(self, context: Context, backend: str, variables: Mapping[int, dict[str, str]]) -> None:
        self.context, self.backend = context, backend
        self.results: dict[int, dict[str, Any]] = {}  # by rank: `all_reduce.measure`, or ``error``
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.folder: scratch.Folder | None = None
        self.is_reported = False
        self.log = context.run.log(RANK.name, f"{context.node}-interconnect")
        self.before = read_counters()
        if python := python_of_ranks(context.settings):
            try:
                self.folder = scratch.Folder(context.scratch())
                self.program = self.folder.path / "all_reduce.py"
                self.program.write_text(inspect.getsource(all_reduce))  # the file itself may be in an archive
                for rank, environment in variables.items():
                    self.children[rank] = self._started(python, self.folder.path, rank, environment)
            except (OSError, scratch.UnsafePlaceError) as error:
                self.results = {-1: {"error": str(error)}}
        else:
            self.results = {-1: {"missing": f"{context.settings.code.script} is not a Python program"}}

    def _started(
        self, python: list[str], folder: Path, rank: int, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        seconds = f"{self.context.settings.deadlines.interconnect:g}"
        file = str(folder / f"{rank}.json")
        logging = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": f"{folder}/nccl-%p.log"}
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [*python, str(self.program), self.backend, file, seconds],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment | logging,
                process_group=0,
                preexec_fn=functools.partial(process_helpers.end_with, os.getpid()),  # noqa: PLW1509 - one thread
            )

    def look(self) -> dict[str, Any] | None:
        """Return once what this node measured: when all its processes have a result, or one cannot have any."""
        for rank, child in self.children.items():
            if rank not in self.results and self.folder:
                status = child.poll()
                if result := shared_files.read_json(self.folder.path / f"{rank}.json"):
                    self.results[rank] = result
                elif status is not None:
                    last = " ".join(tail(self.log, 1, LONGEST))
                    ended = f"the process of the interconnect check exited with status {status}"
                    self.results[rank] = {"error": f"{ended}: {last}"}
        has_failed = any("seconds" not in result for result in self.results.values())
        if self.is_reported or not (has_failed or len(self.results) == len(self.children)):
            return None
        self.is_reported = True
        logs = sorted(self.folder.path.glob("nccl-*.log")) if self.folder else []
        log = parse_nccl_log("\n".join(path.read_text(errors="replace") for path in logs))
        log["warnings"] = [warning[:LONGEST] for warning in log["warnings"][:MOST_WARNINGS]]
        moved = counter_difference(self.before, read_counters())
        interfaces = (moved["interfaces"] or {}).items()  # a message is short, and a node may have hundreds of them
        moved["interfaces"] = {name: one for name, one in interfaces if (one["tx"] or 0) > all_reduce.MIB}
        return {"results": list(self.results.values()), "log": log, "moved": moved}

    def end(self) -> None:
        """Kill the processes, and wait until they have given their GPUs back."""
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                child.wait(_ENDING)
            if child.stdin:
                child.stdin.close()
        self.children.clear()
        if self.folder:
            self.folder.remove()


def python_of_ranks(settings: Settings) -> list[str]:
    """Return the command of the Python that the ranks run, empty if they run none."""
    code = settings.code
    if code.form is not Form.PROGRAM:
        return list(code.interpreter) or [sys.executable]
    program = str(Path(code.cwd, code.script)) if "/" in code.script else shutil.which(code.script) or ""
    if Path(program).name.startswith("python"):
        return [program]
    try:
        with open(program, "rb") as file:
            first = file.readline(4096).decode(errors="replace")
    except OSError:  # the ranks' own start says so
        return []
    return shlex.split(first[2:]) if first.startswith("#!") and "python" in first else []


def is_complete(answers: Mapping[str, Mapping[str, Any]], nodes: int) -> bool:
    """Whether all nodes have answered, or one answer spoils the check."""
    has_failed = any("seconds" not in result for answer in answers.values() for result in answer["results"])
    return len(answers) == nodes or has_failed


def judged(context: Context, answers: Mapping[str, Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Judge what the nodes measured (:meth:`Part.look`, by node), and write ``interconnect.json``.

    ``seconds`` is what the check took. It returns the fields of the event.
    """
    for node, answer in answers.items():
        if missing := next((result["missing"] for result in answer["results"] if "missing" in result), ""):
            line, is_required = (
                f"the interconnect was not checked: {missing} ({node})",
                context.settings.interconnect.require == "rdma",
            )
            remedy = "install torch in the run's Python environment, or set interconnect.require=warn"
            return {"line": line, "ok": not is_required, "problem": line if is_required else "", "remedy": remedy}
    measured = measurement(context, answers)
    return record.write(context, measured, decide(measured), seconds)


def measurement(context: Context, answers: Mapping[str, Mapping[str, Any]]) -> Measurement:
    """Return the results of the nodes as one measurement; the slowest process counts."""
    settings = context.settings
    results = [row for answer in answers.values() for row in answer["results"]]
    log = merge_nccl_logs([answer["log"] for answer in answers.values()])
    failed = [(node, row["error"]) for node, answer in answers.items() for row in answer["results"] if "error" in row]
    reasons = [f"{node}: {error}" for node, error in failed[:1]]
    collective: dict[str, Any] = {"log": log, "error": "; ".join([*reasons, *log["warnings"][:1]] if reasons else [])}
    if not reasons:
        size, slowest = len(results), max(results, key=lambda one: float(one["seconds"]))
        collective |= slowest
        collective["bandwidth"] = 2 * (size - 1) / size * slowest["bytes"] / slowest["seconds"]  # nccl-tests' busbw
        if not all(row["right"] for row in results):
            collective["error"] = "the all-reduce returned a wrong sum"
    nodes = {
        node: NodeFacts(answer["moved"], shared_files.read_json(context.attempt.probe_of(node)))
        for node, answer in answers.items()
    }
    memory = "cuda" if settings.gpus else "host"
    interfaces = sorted({answer["interface"] for answer in answers.values()} - {""})
    return Measurement(backend(settings), memory, (), {}, nodes, nccl=collective, interface=", ".join(interfaces))


def main() -> int:
    """Show the check's result in rank 0, for ``hpcml interconnect --ranks``; return the exit status."""
    if os.environ.get("RANK") != "0":
        return 0
    context = load()
    events = context.run.events.read_text().splitlines()
    checked = [event for event in map(json.loads, events) if event["event"] == "interconnect-checked"]
    if not checked:
        say("A measurement needs two nodes or two GPUs. Use --nodes 2 or --gpus-per-node 2.")
        return 0
    if (table := shared_files.read_json(context.attempt.interconnect)) is not None:
        shared_files.write_json(context.run.out / "interconnect.json", table)
    for sentence in (checked[-1]["line"] or checked[-1]["problem"], *checked[-1].get("problems", ())):
        say(sentence)
    return 0 if table else 1


if __name__ == "__main__":
    sys.exit(main())
