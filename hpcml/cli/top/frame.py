"""What ``hpcml top`` draws: a run at one moment as lines that fit a terminal, a pure function."""

from __future__ import annotations

from hpcml.cli.ls import cut_name
from hpcml.cli.top.table import LABEL, SHORT_BAR, Line, Piece, bar, duration, labelled, per_second, table
from hpcml.runs.view import View, Work
from hpcml.terminal import cells, fit, folded, shown
from hpcml.units import counted, format_bytes

UNLIMITED = 60  # lines where no terminal says how many there are
FOOTER = "q ends this view, not the run"
_LEAST_WITH_FOOTER = 14  # lines
_LEAST_OUTPUT, _MOST_WARNINGS = 3, 3  # lines


def frame(view: View, width: int, height: int = 0, *, live: bool = False) -> list[Line]:
    """Return a run's lines, none wider than ``width`` and no more than ``height``; 0 is a height without a terminal.

    Parameters
    ----------
    live
        Whether keys are read, and the last line says which.
    """
    most = height or UNLIMITED
    footer = [(Piece(FOOTER, "dim"),)] if live and most >= _LEAST_WITH_FOOTER else []
    warnings = _warnings(view, width, 1 if most < 16 else _MOST_WARNINGS)
    top = [*_head(view, width), *warnings, *_work(view, width)]
    room = most - len(top) - len(footer)
    above, below = room >= 12, room >= 14 and bool(view.output)  # an empty line there
    least = min(len(view.output), _LEAST_OUTPUT, max(1, room // 2))
    if nodes := table(view, width, room - above - below - least):
        nodes = [*[()] * above, *nodes, *[()] * below]
    room -= len(nodes)
    output = view.output[-room:] if room > 0 else ()
    lines = [*top, *nodes, *labelled("output", output)]
    return [_cut(line, width) for line in [*lines[: most - len(footer)], *footer]]


def text_of(line: Line) -> str:
    """Return a line without its styles."""
    return "".join(piece.text for piece in line)


def _cut(line: Line, width: int) -> Line:
    """Return a line of at most so many columns, with all that a terminal would obey made visible."""
    pieces, left = [], width
    for piece in line:
        text = shown(piece.text)
        if cells(text) > left:
            pieces.append(piece._replace(text=fit(text, left)))
            break
        left -= cells(text)
        pieces.append(piece._replace(text=text))
    return tuple(pieces)


# -- how it stands ---------------------------------------------------------------------------------------------------


def _head(view: View, width: int) -> list[Line]:
    status = view.status
    job = status.allocation.job
    where = ", ".join(text for text in (status.planned.site, f"job {job}" if job else "") if text)
    name = cut_name(shown(status.run), max(24, width - cells(shown(where)) - 2))
    gap = width - cells(name) - cells(shown(where))
    lines: list[Line] = [(Piece(name, "bold"), *([Piece(" " * gap + where)] if gap >= 2 and where else []))]
    failed = status.over and status.ending.exit_status != 0
    style = "red" if failed else "green" if status.phase in ("running", "ended") else "bold"
    state, *rest = folded(shown(_state(view)), width, first=f"{status.state:<{LABEL - 1}} ", rest=" " * LABEL)
    lines.append((Piece(state[: len(status.state)], style), Piece(state[len(status.state) :])))
    lines += [(Piece(line),) for line in rest[:3]]
    for label, text in _facts(view):
        first, *rest = folded(shown(text), width, first=f"{label:<{LABEL}}", rest=" " * LABEL)
        lines += [(Piece(line),) for line in (first, *rest[:2])]
    return lines


def _state(view: View) -> str:
    """Return the phase in words, how long it lasts and what is left of the limit."""
    status = view.status
    lasts = "" if view.elapsed is None else duration(view.elapsed)
    limit = f"; {duration(view.left)} of {duration(status.planned.time_limit)} left" if view.left is not None else ""
    if status.phase == "queued":
        return f"waiting{f' for {lasts}' if lasts else ''}: {status.message}"
    if status.over:
        return f"{status.message}{f', after {lasts}' if lasts else ''}"
    message = f": {status.message}" if status.message and status.phase != "running" else ""
    return f"{status.phase}{f' for {lasts}' if lasts else ''}{limit}{message}"


def _facts(view: View) -> list[tuple[str, str]]:
    status, exit_status = view.status, view.status.ending.exit_status
    facts = []
    if status.over and exit_status is not None and f"exit status {exit_status}" not in status.message:
        facts.append(("exit", str(exit_status)))
    if view.cause:
        facts.append(("cause", view.cause))
    if status.allocation.estimate and status.phase == "queued":
        facts.append(("estimate", f"Slurm expects a start at {status.allocation.estimate}"))
    if status.allocation.silent:
        facts.append(("slurm", f"{status.allocation.silent} (all this is from the run's own files)"))
    if status.hint and status.phase != "queued":
        facts.append(("next" if status.over else "note", status.hint))
    if status.phase in ("starting", "running", "ending"):
        nodes = f" on {counted(view.node_count, 'node')}" if view.node_count else ""
        facts.append((f"{status.noun}s", f"{status.cluster.workers} of {status.planned.expected}{nodes}"))
    elif status.phase == "queued" and view.node_count:
        facts.append(("nodes", str(view.node_count)))
    return facts


def _warnings(view: View, width: int, most: int) -> list[Line]:
    lines: list[Line] = []
    for warning in view.warnings[-most:]:
        lines += labelled("warning", [fit(shown(warning), width - LABEL)], "red")
    if more := len(view.warnings) - most:
        lines += labelled("", [f"…and {more} more"]) if more > 0 else []
    return lines


def _work(view: View, width: int) -> list[Line]:
    """Return tasks, data and wire, each a line where something is known of it."""
    lines: list[Line] = []
    if (work := view.work) is not None:
        lines += _tasks(work, width, over=view.status.over)
        facts = []
        if work.spilled is not None:
            facts.append(f"spilled {format_bytes(work.spilled)}{per_second(work.spill, ' ({})')}")
        if work.transfer is not None and not view.status.over:
            facts.append(f"transfers {per_second(work.transfer)}")
        lines += labelled("data", [", ".join(facts)]) if facts else []
    wire = []
    for word, values in (
        ("net", [node.net for node in view.nodes]),
        ("IB", [node.ib for node in view.nodes]),
        ("NVLink", [gpu.nvlink for node in view.nodes for gpu in node.gpus]),
    ):
        if known := [value for value in values if value is not None]:
            wire.append(f"{word} {per_second(sum(known))}")
    return [*lines, *labelled("wire", [", ".join(wire)])] if wire and not view.status.over else lines


def _tasks(work: Work, width: int, *, over: bool) -> list[Line]:
    """Return how many tasks are done, with a bar where there is room; what is least wanted goes where there is none."""
    if work.known is None or work.done is None:
        return []
    parts = [f"{work.done:,} of {work.known:,} done"]
    if work.rate is not None and not over:
        parts.append(f"{work.rate:.3g}/s" if work.rate < 1000 else f"{work.rate:,.0f}/s")
    if work.left is not None and work.done < work.known and not over:
        parts.append(f"{duration(work.left)} left")
    if work.erred:
        parts.append(f"{work.erred:,} failed")
    if work.processing and not over:
        parts.append(f"{work.processing:,} assigned")
    while len(text := ", ".join(parts)) > width - LABEL and len(parts) > 1:
        parts.pop()
    size = min(20, width - LABEL - len(text) - 2)
    shape = bar(work.done / work.known if work.known else None, size) if size >= SHORT_BAR else ()
    return [(Piece(f"{'tasks':<{LABEL}}"), *shape, Piece(f"{'  ' if shape else ''}{text}"))]
