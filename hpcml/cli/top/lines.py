"""What ``hpcml top`` writes into a pipe or a file: lines that each tell all by themselves, for grep and awk."""

from __future__ import annotations

import time

from hpcml.cli.top.table import duration, per_second
from hpcml.runs.view import Node, View
from hpcml.terminal import say
from hpcml.units import format_bytes


class Lines:
    """Prints a line for the run and one for each node at each look; state and warnings only when they are new."""

    def __init__(self) -> None:
        self._state = ""
        self._warned: set[str] = set()

    def print(self, view: View, now: float) -> None:
        """Print a view, each line behind the time of day."""
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        for line in self.of(view):
            say(f"{clock} {line}")

    def of(self, view: View) -> list[str]:
        """Return the lines of a view."""
        lines = []
        told = f"state {view.status.state} {view.status.message}{f'; {view.cause}' if view.cause else ''}"
        if told != self._state:
            self._state = told
            lines.append(told)
        for warning in view.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                lines.append(f"warning {warning}")
        nodes = view.nodes if any(node.sampled for node in view.nodes) else ()
        return [*lines, f"run {_joined(_of_run(view))}", *(f"node {node.name} {_of_node(node)}" for node in nodes)]


def _of_run(view: View) -> dict[str, str]:
    facts = {
        "state": view.status.state,
        "phase": view.status.phase,
        "for": "" if view.elapsed is None else duration(view.elapsed),
        "left": "" if view.left is None else duration(view.left),
        "workers": f"{view.status.cluster.workers}/{view.status.planned.expected}",
    }
    if (work := view.work) is not None:
        facts |= {
            "tasks": "" if work.known is None or work.done is None else f"{work.done}/{work.known}",
            "rate": "" if work.rate is None else f"{work.rate:.3g}/s",
            "failed": f"{work.erred or ''}",
            "spilled": _size(work.spilled),
            "spill": per_second(work.spill),
            "transfers": per_second(work.transfer),
        }
    return facts


def _of_node(node: Node) -> str:
    if not node.sampled:
        return "no sample"
    facts = {
        "silent": duration(node.silent) if node.silent else "",
        "workers": "" if node.workers is None else str(node.workers),
        "cpu": "" if node.cpu is None else f"{node.cpu:.1f}/{node.cores:g}" if node.cores else f"{node.cpu:.1f}",
        "memory": _part(node.memory, node.memory_size),
        "spilled": _size(node.spilled),
        "net": per_second(node.net),
        "ib": per_second(node.ib),
        "disk": per_second(node.disk),
    }
    for gpu in node.gpus:
        name = f"gpu{gpu.number}"
        facts |= {
            name: "" if gpu.use is None else f"{gpu.use:.0f}%",
            f"{name}-memory": _part(gpu.memory, gpu.memory_size),
            f"{name}-power": "" if gpu.power is None else f"{gpu.power:.0f}W",
            f"{name}-nvlink": per_second(gpu.nvlink),
        }
    return _joined(facts)


def _joined(facts: dict[str, str]) -> str:
    """Return facts without spaces in them, so that each is one word; what is not known is left out."""
    return " ".join(f"{name}={value.replace(' ', '')}" for name, value in facts.items() if value)


def _size(value: float | None) -> str:
    return "" if value is None else format_bytes(value)


def _part(part: float | None, whole: float | None) -> str:
    return "" if part is None else _size(part) + (f"/{_size(whole)}" if whole else "")
