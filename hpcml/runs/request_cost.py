"""What a recorded run asked for and what that costs at most, from its own files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcml import attempt_history, units
from hpcml.errors import ConfigError, StorageError
from hpcml.plan import cost
from hpcml.run_files import Recorded
from hpcml.runs import directories
from hpcml.runs.directories import complete
from hpcml.runs.record import Planned, Record
from hpcml.runs.status import Status, has_results
from hpcml.sites import lookup
from hpcml.sites.schema import Site
from hpcml.workload_forms import Form


def asked(run: directories.Run, planned: Planned) -> dict[str, Any]:
    """Return the nodes, partition, GPUs, time limit (s) and highest cost of a run, as far as its record has them."""
    request = {"nodes": planned.node_count, "partition": planned.partition, "time_limit": planned.time_limit}
    return {name: value for name, value in {**request, **_recorded(run, planned)}.items() if value}


def described(run: directories.Run, status: Status) -> dict[str, Any]:
    """Return a run's status with what was asked for, its results, attempts and notes: what ``status --json`` prints."""
    more = {
        "asked": asked(run, status.planned),
        "results": str(run.paths.out) if has_results(run) else "",
        "attempts": [
            attempt._asdict() for attempt in attempt_history.earlier(Recorded(run.paths), status.progress.attempt)
        ],
        "notes": [*run.submission.notes, *run.submission.said] if run.submission else [],
    }
    return {**status.as_json(), **more}


def sentence(request: Mapping[str, Any]) -> str:
    """Return the request in words, from :func:`asked`, in a line."""
    nodes, gpus, limit = request.get("nodes", 0), request.get("gpus", 0), request.get("time_limit", 0)
    of_node = f" with {request['of_node']}{' each' if nodes > 1 else ''}" if request.get("of_node") else ""
    parts = (
        f"{units.counted(nodes, 'node')}{of_node}" if nodes else "",
        f"partition {request['partition']}" if request.get("partition") else "",
        units.counted(gpus, "GPU") if gpus else "",
        f"time limit {units.format_time_limit(limit)}" if limit else "",
        f"at most {request['cost']}" if request.get("cost") else "",
        f"Python {request['python']} ({request['python_from']})" if request.get("python") else "",
    )
    return ", ".join(filter(None, parts))


def _recorded(run: directories.Run, planned: Planned) -> dict[str, Any]:
    """Return the Python of the script, GPUs and highest cost of a recorded run; the latter two only of a batch job."""
    try:
        record = Record(run.paths)
        code, named_by = record.plan.inside.code, record.plan.python_from
        if code.form.traits.has_code and code.form not in (Form.PROGRAM, Form.BATCH) and not code.interpreter:
            named_by = named_by or "hpcml's own"
        python = {"python": record.plan.python, "python_from": named_by}
        python = python if all(python.values()) and not record.plan.inside.job.image else {}
        if not (record.request and record.plan.directives):
            return python
        with complete(run.paths.directory):
            site, limits = lookup.recorded(record.request.site), record.plan.inside.attempts
    except (ConfigError, StorageError):  # another version of hpcml wrote it, or it is damaged
        return {}
    made = record.plan
    one = cost.request(site, made.directives, planned.node_count, planned.time_limit, made.lines)
    asks = {"nodes": one.nodes, "gpus": one.gpus, "of_node": one.of_node, **python}
    if not planned.time_limit:
        return asks
    billed, _ = bill(site, one)
    most = most_hours(limits.max_restarts, limits.max_node_hours, one.node_hours)[0] if planned.several_jobs else None
    if most is not None and one.node_hours:
        billed = None if billed is None else billed * most / one.node_hours
    hours = one.node_hours if most is None else most
    return {**asks, "cost": price(one, hours, billed, site.cost.unit or "billing-h")}


def price(request: cost.Request, hours: float, billed: float | None, unit: str) -> str:
    """Return node-hours with what they are in the site's unit, or without one in GPU-hours if there are GPUs.

    A job that shares its nodes pays for its CPUs, as in Slurm's accounting: its node-hours would be misleading.
    """
    text = (
        f"{amount(hours * request.cpus / request.nodes)} CPU-h" if request.shares_nodes else f"{amount(hours)} node-h"
    )
    if billed is not None:
        return f"{amount(billed)} {unit}" if request.shares_nodes else f"{text} = {amount(billed)} {unit}"
    return f"{text}, {amount(hours * request.gpus / request.nodes)} GPU-h" if request.gpus else text


def bill(site: Site, request: cost.Request) -> tuple[float | None, list[str]]:
    """Return the cost in the site's unit, None if something for it is unknown, and what is wrong with the weights."""
    weights, problems = cost.weights(site.cost.weights)
    hours = request.seconds / 3600 if request.cpus else 0
    billed = cost.billing(request, weights, largest=site.cost.largest) * hours if weights and hours else None
    return billed, problems


def most_hours(max_restarts: int, max_node_hours: float, one: float) -> tuple[float | None, str]:
    """Return the most node-hours that all attempts of a run may take together, and which option says so."""
    hours, limit = one * (1 + max_restarts), f"--max-restarts {max_restarts}"
    if max_node_hours and not 0 < hours <= max_node_hours:
        return max_node_hours, f"--max-node-hours {max_node_hours:g}"
    return (hours, limit) if one else (None, "")


def amount(value: float) -> str:
    """Return a number with three digits that count, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.001 or not value else "less than 0.001"
