"""The record of the interconnect's check: ``interconnect.json``, and the fields of the event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hpcml.node import shared_files
from hpcml.node.context import Context
from hpcml.node.hardware import record
from hpcml.node.hardware.differences import differences
from hpcml.node.interconnect.measurement import Measurement
from hpcml.node.interconnect.result import Result, check_policy
from hpcml.node.interconnect.transport_used import named


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
