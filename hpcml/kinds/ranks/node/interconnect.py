"""The interconnect's check before the ranks: an all-reduce by torch between all GPUs, or one process on each CPU node.

Each agent starts the processes of its node (:mod:`all_reduce`) in the ranks' own Python and environment; the supervisor
judges their figures and NCCL's logs. Importing torch costs seconds, so CPU ranks are checked only if the settings ask
for it.
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

from hpcml.files import tail
from hpcml.forms import Form
from hpcml.kinds.ranks import RANK
from hpcml.kinds.ranks.node import all_reduce
from hpcml.kinds.ranks.variables import World
from hpcml.node import files, processes, scratch
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
from hpcml.node.settings import Context, Settings, load
from hpcml.terminal import say

_SUBSYSTEMS = "INIT,ENV,NET,P2P,SHM"  # of NCCL: what it read, and the way of each channel
_ENDING = 5.0  # seconds for a killed process to give its GPU back
_MOST_WARNINGS, _LONGEST = 4, 300


def is_wanted(settings: Settings) -> bool:
    """Whether the settings ask for a check, and the run has something between which to make it."""
    network = settings.network
    if settings.job.nodes * _each(settings) < 2:
        return False
    if settings.code.form is Form.FABRIC:
        return True
    return network.interconnect == "rdma" or (network.interconnect == "warn" and settings.gpus > 0 and network.nccl)


def _each(settings: Settings) -> int:
    """Return how many processes of the check a node has."""
    return settings.gpus or 1


def world_of_check(world: World, settings: Settings, port: int) -> World:
    """Return the world of the check's processes, which meet at a port of their own."""
    return world._replace(each=_each(settings), port=port)


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
        self.log = context.run.log(RANK.name, f"{context.node}-fabric")
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
            self.results = {-1: {"missing": f"{context.settings.code.script} is no Python program"}}

    def _started(
        self, python: list[str], folder: Path, rank: int, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        seconds = f"{self.context.settings.deadlines.interconnect:g}"
        file = str(folder / f"{rank}.json")
        logging = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": _SUBSYSTEMS, "NCCL_DEBUG_FILE": f"{folder}/nccl-%p.log"}
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [*python, str(self.program), self.backend, file, seconds],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment | logging,
                process_group=0,
                preexec_fn=functools.partial(processes.end_with, os.getpid()),  # noqa: PLW1509 - one thread
            )

    def look(self) -> dict[str, Any] | None:
        """Return once what this node measured: when all its processes have a result, or one cannot have any."""
        for rank, child in self.children.items():
            if rank not in self.results and self.folder:
                status = child.poll()
                if result := files.read_json(self.folder.path / f"{rank}.json"):
                    self.results[rank] = result
                elif status is not None:
                    last = " ".join(tail(self.log, 1, _LONGEST))
                    self.results[rank] = {"error": f"the check's process ended with status {status}: {last}"}
        has_failed = any("seconds" not in one for one in self.results.values())
        if self.is_reported or not (has_failed or len(self.results) == len(self.children)):
            return None
        self.is_reported = True
        logs = sorted(self.folder.path.glob("nccl-*.log")) if self.folder else []
        log = parse_nccl_log("\n".join(path.read_text(errors="replace") for path in logs))
        log["warnings"] = [warning[:_LONGEST] for warning in log["warnings"][:_MOST_WARNINGS]]
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
    has_failed = any("seconds" not in one for answer in answers.values() for one in answer["results"])
    return len(answers) == nodes or has_failed


def judged(context: Context, answers: Mapping[str, Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Judge what the nodes measured (:meth:`Part.look`, by node), and write ``fabric.json``.

    ``seconds`` is what the check took. It returns the fields of the event.
    """
    for node, answer in answers.items():
        if missing := next((one["missing"] for one in answer["results"] if "missing" in one), ""):
            line, is_required = f"not checked: {missing} ({node})", context.settings.network.interconnect == "rdma"
            remedy = "install torch there, or set fabric.require=warn"
            return {"line": line, "ok": not is_required, "problem": line if is_required else "", "remedy": remedy}
    measured = measurement(context, answers)
    return record.write(context, measured, decide(measured), seconds)


def measurement(context: Context, answers: Mapping[str, Mapping[str, Any]]) -> Measurement:
    """Return what the nodes measured as one measurement; the slowest process counts."""
    settings = context.settings
    results = [one for answer in answers.values() for one in answer["results"]]
    log = merge_nccl_logs([answer["log"] for answer in answers.values()])
    failed = [(node, one["error"]) for node, answer in answers.items() for one in answer["results"] if "error" in one]
    reasons = [f"{node}: {error}" for node, error in failed[:1]]
    collective: dict[str, Any] = {"log": log, "error": "; ".join([*reasons, *log["warnings"][:1]] if reasons else [])}
    if not reasons:
        size, slowest = len(results), max(results, key=lambda one: float(one["seconds"]))
        collective |= slowest
        collective["bandwidth"] = 2 * (size - 1) / size * slowest["bytes"] / slowest["seconds"]  # nccl-tests' busbw
        if not all(one["right"] for one in results):
            collective["error"] = "the all-reduce returned a wrong sum"
    nodes = {
        node: NodeFacts(answer["moved"], files.read_json(context.attempt.probe_of(node)))
        for node, answer in answers.items()
    }
    memory = "cuda" if settings.gpus else "host"
    interfaces = sorted({answer["interface"] for answer in answers.values()} - {""})
    return Measurement(backend(settings), memory, (), {}, nodes, nccl=collective, interface=", ".join(interfaces))


def main() -> int:
    """Show the check's result in rank 0, for ``hpcml fabric --ranks``; return the exit status."""
    if os.environ.get("RANK") != "0":
        return 0
    context = load()
    events = context.run.events.read_text().splitlines()
    checked = [one for one in map(json.loads, events) if one["event"] == "fabric-checked"]
    if not checked:
        say("There is nothing between which to measure. Use --nodes 2, or two GPUs.")
        return 0
    if (table := files.read_json(context.attempt.fabric)) is not None:
        files.write_json(context.run.out / "fabric.json", table)
    for sentence in (checked[-1]["line"] or checked[-1]["problem"], *checked[-1].get("problems", ())):
        say(sentence)
    return 0 if table else 1


if __name__ == "__main__":
    sys.exit(main())
