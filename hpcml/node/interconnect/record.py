"""The record of the interconnect's check, and what its result means for the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcml import errors
from hpcml.node import shared_files
from hpcml.node.context import Context
from hpcml.node.hardware import record
from hpcml.node.hardware.differences import differences
from hpcml.node.interconnect.measurement import Measurement
from hpcml.node.interconnect.result import Result, check_policy
from hpcml.node.interconnect.transport_used import named
from hpcml.node.outcome import say
from hpcml.node.run_state import RunState


def write(context: Context, measurement: Measurement, result: Result, seconds: float) -> dict[str, Any]:
    """Write ``interconnect.json``.

    Returns
    -------
    dict
        ``line`` (the result), ``ok``, ``problem`` (why ``interconnect.require`` is not met, empty if it is),
        ``problems``, ``remedy``, ``differences`` between nodes, ``seconds``.
    """
    probes = {node: record.from_json(measured.probe) for node, measured in measurement.nodes.items() if measured.probe}
    check_record = {"differences": differences(probes), "seconds": round(seconds, 3)}
    table = {"verdict": result.to_json(), "measurement": asdict(measurement), **check_record}
    shared_files.write_json(context.attempt.interconnect, table)
    return {
        "line": result.line,
        "ok": result.ok,
        "problem": check_policy(context.settings.interconnect.require, result),
        "remedy": result.remedy,
        "problems": list(result.problems),
        **check_record,
    }


def too_late(seconds: float, silent: Sequence[str] = ()) -> dict[str, Any]:
    """Return the record of a check that its deadline ended; ``silent`` are nodes that have not answered."""
    missing = f" ({named(silent)} did not answer)" if silent else ""
    problem = f"the interconnect check did not end within {seconds:g} s{missing}"
    return {"line": "", "ok": False, "problem": problem, "remedy": "increase deadlines.interconnect"}


def obey(state: RunState, answer: Mapping[str, Any]) -> None:
    """Say what a check's record says; end the run (RunEndedError) if ``interconnect.require`` demands it."""
    if line := str(answer.get("line", "")):
        say(state.context, f"interconnect: {line}")
    for difference in answer.get("differences", ()):
        say(state.context, f"nodes differ: {difference}")
    if not (problem := str(answer["problem"])):
        return
    say(state.context, f"interconnect: {problem}")
    if state.context.settings.interconnect.require == "rdma":
        where = "See interconnect.json in the run's directory. "
        where += "To let runs continue after a failed check, set interconnect.require = 'warn'."
        hint = str(answer.get("remedy") or where)
        raise state.end(errors.INTERCONNECT, problem, hint, (line,) if line else ())
