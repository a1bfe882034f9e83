"""What ``hpcml top`` draws: a run at one moment as lines that fit a terminal, with its nodes as a table; pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpcml.cli.ls import cut_name
from hpcml.failures.end import Reason
from hpcml.runs.top_view import Gpu, Node, View
from hpcml.samples import Work, total
from hpcml.states import COLOURS, HAS_NODES, Phase
from hpcml.terminal import cells, fit, folded, shown
from hpcml.units import counted, format_bytes, format_seconds

UNLIMITED = 60  # lines where no terminal says how many there are
FOOTER = "q ends this view, not the run"
_LEAST_WITH_FOOTER = 14  # lines
_LEAST_OUTPUT, _MOST_WARNINGS = 3, 3  # lines
LABEL = 10  # columns of what stands before a line
SHORT_BAR, _LONG_BAR = 6, 24  # columns
_LONGEST_NAME = 18  # columns of a node's name
_FULL = 0.95  # of a memory
_FULL_BAR, _EMPTY_BAR = "━", "─"


class Piece(NamedTuple):
    """A text and how it is drawn: ``bold``, ``dim``, a colour of :mod:`hpcml.terminal` or as all else."""

    text: str
    style: str = ""


Line = tuple[Piece, ...]


def labelled(label: str, texts: Sequence[str], style: str = "") -> list[Line]:
    """Return texts as lines, the first behind a label."""
    return [(Piece(f"{label if not number else '':<{LABEL}}", style), Piece(text)) for number, text in enumerate(texts)]


def frame(view: View, width: int, height: int = 0, *, live: bool = False, whole: bool = False) -> list[Line]:
    """Return a run's lines, none wider than ``width`` and no more than ``height``; 0 is a height without a terminal.

    Parameters
    ----------
    live
        Whether keys are read, and the last line says which.
    whole
        Whether sentences and output are not cut, and then wider: no terminal shows them.
    """
    most = height or UNLIMITED
    footer = [(Piece(FOOTER, "dim"),)] if live and most >= _LEAST_WITH_FOOTER else []
    widest = sys.maxsize if whole else width
    warnings = _warnings(view, widest, 1 if most < 16 else _MOST_WARNINGS)
    top = [*_head(view, width, whole=whole), *warnings, *_work(view, width)]
    room = most - len(top) - len(footer)
    above, below = room >= 12, room >= 14 and bool(view.output)  # an empty line there
    least = min(len(view.output), _LEAST_OUTPUT, max(1, room // 2))
    if nodes := table(view, width, room - above - below - least):
        nodes = [*[()] * above, *nodes, *[()] * below]
    room -= len(nodes)
    output = view.output[-room:] if room > 0 else ()
    lines = [*top, *nodes, *labelled("output", output)]
    return [_cut(line, widest) for line in [*lines[: most - len(footer)], *footer]]


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


def _head(view: View, width: int, *, whole: bool) -> list[Line]:
    status = view.status
    job = status.allocation.job
    where = ", ".join(text for text in (status.planned.site, f"job {job}" if job else "") if text)
    name = cut_name(shown(status.run), max(24, width - cells(shown(where)) - 2))
    gap = width - cells(name) - cells(shown(where))
    lines: list[Line] = [(Piece(name, "bold"), *([Piece(" " * gap + where)] if gap >= 2 and where else []))]
    style = COLOURS.get(status.state, "bold")
    state, *rest = folded(shown(_state(view)), width, first=f"{status.state:<{LABEL - 1}} ", rest=" " * LABEL)
    lines.append((Piece(state[: len(status.state)], style), Piece(state[len(status.state) :])))
    lines += [(Piece(line),) for line in (rest if whole else rest[:3])]
    for label, text in _facts(view):
        first, *rest = folded(shown(text), width, first=f"{label:<{LABEL}}", rest=" " * LABEL)
        lines += [(Piece(line),) for line in (first, *(rest if whole else rest[:2]))]
    return lines


def _state(view: View) -> str:
    """Return the phase in words, how long it lasts and what is left of the limit."""
    status = view.status
    lasts = "" if view.elapsed is None else duration(view.elapsed)
    limit = f"; {duration(view.left)} of {duration(status.planned.time_limit)} left" if view.left is not None else ""
    if status.phase == Phase.QUEUED:
        return f"waiting{f' for {lasts}' if lasts else ''}: {status.message}"
    if status.over:
        return f"{status.message}{f', after {lasts}' if lasts else ''}"
    message = f": {status.message}" if status.message and status.phase != Phase.RUNNING else ""
    return f"{status.phase}{f' for {lasts}' if lasts else ''}{limit}{message}"


def _facts(view: View) -> list[tuple[str, str]]:
    status, exit_status = view.status, view.status.exit_status
    rows = []
    if status.over and exit_status is not None and status.ending.reason != Reason.EXIT:
        rows.append(("exit", str(exit_status)))
    if view.cause:
        rows.append(("cause", view.cause))
    if status.allocation.estimate and status.phase == Phase.QUEUED:
        rows.append(("estimate", f"Slurm expects a start at {status.allocation.estimate}"))
    if status.allocation.silent:
        rows.append(("slurm", f"{status.allocation.silent} (all other lines come from the run's own files)"))
    if status.hint and status.phase != Phase.QUEUED:
        rows.append(("next" if status.over else "note", status.hint))
    if status.alone and status.phase in HAS_NODES:
        rows.append(("cluster", status.no_cluster))
    elif status.phase in HAS_NODES and status.planned.expected:
        nodes = f" on {counted(view.node_count, 'node')}" if view.node_count else ""
        rows.append((f"{status.noun}s", f"{status.cluster.workers} of {status.planned.expected}{nodes}"))
    elif status.phase == Phase.QUEUED and view.node_count:
        rows.append(("nodes", str(view.node_count)))
    return rows


def _warnings(view: View, width: int, most: int) -> list[Line]:
    lines: list[Line] = []
    for warning in view.warnings[-most:]:
        lines += labelled("warning", [fit(shown(warning), width - LABEL)], "red")
    if more := len(view.warnings) - most:
        lines += labelled("", [f"…and {more} more"]) if more > 0 else []
    return lines


def _work(view: View, width: int) -> list[Line]:
    """Return tasks, data and network, each a line where something is known of it."""
    lines: list[Line] = []
    if (work := view.work) is not None:
        lines += _tasks(work, width, over=view.status.over)
        amounts = []
        if work.spilled is not None:
            amounts.append(f"spilled {format_bytes(work.spilled)}{per_second(work.spill, ' ({})')}")
        if work.transfer is not None and not view.status.over:
            amounts.append(f"transfers {per_second(work.transfer)}")
        lines += labelled("data", [", ".join(amounts)]) if amounts else []
    rates = []
    for word, values in (
        ("net", [node.net for node in view.nodes]),
        ("IB", [node.ib for node in view.nodes]),
        ("NVLink", [gpu.nvlink for node in view.nodes for gpu in node.gpus]),
    ):
        if numbers := [value for value in values if value is not None]:
            rates.append(f"{word} {per_second(sum(numbers))}")
    return [*lines, *labelled("network", [", ".join(rates)])] if rates and not view.status.over else lines


def _tasks(work: Work, width: int, *, over: bool) -> list[Line]:
    """Return the number of done tasks, with a bar if there is room; what is least wanted goes where there is none."""
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


# -- the nodes ------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A node, one of its GPUs, or all nodes; ``text`` replaces the cells. Bars are fractions."""

    name: str
    sub: str = ""
    use: float | None = None
    use_text: str = ""
    memory: float | None = None
    memory_text: str = ""
    extra: tuple[str, ...] = ()
    text: str = ""
    waits: bool = False  # whether ``text`` is of something that may still come


def table(view: View, width: int, room: int) -> list[Line]:
    """Return the nodes in at most ``room`` lines: each GPU, else each node, else the worst and the best of them."""
    sampled = [node for node in view.nodes if node.sampled]
    if not sampled:
        waits = view.nodes and view.status.phase in (Phase.STARTING, Phase.RUNNING) and room >= 1
        return labelled("nodes", ["no data yet"]) if waits else []
    if room < 2:
        return []
    with_gpus = any(node.gpus for node in sampled)
    count = sum(max(1, len(node.gpus)) for node in view.nodes)
    if with_gpus and count < room:
        return _laid_out(_gpu_rows(view), _Titles("gpu", "use", ("power", "temp", "NVLink")), width)
    row: Callable[[Node], _Row] = _gpus_row if with_gpus else _cpu_row
    whole = "whole node" if any(node.whole for node in sampled) else "node"
    of_cpus = _Titles("", "cpu", ("spilled", "network"), whole)
    titles = _Titles("gpus", "use", ("least", "power")) if with_gpus else of_cpus
    if len(view.nodes) < room:
        rows = [_of_node(view, node, row) for node in view.nodes]
        if 1 < len(rows) < room - 1:
            rows.append(_all_row(sampled, with_gpus))
        return _laid_out(rows, titles, width)
    kept = room - 3  # beside the titles, the line between and all of them
    return _laid_out([*_worst_and_best(view, row, kept), _all_row(sampled, with_gpus)], titles, width)


def _worst_and_best(view: View, row: Callable[[Node], _Row], kept: int) -> list[_Row]:
    """Return the rows of so many nodes, the worst and the best, with a line between; none if there is no room."""
    if kept <= 0:
        return []
    ranked = sorted(view.nodes, key=_rank)
    worst, best = ranked[: (kept + 1) // 2], ranked[len(ranked) - kept // 2 :]
    more = _Row("", text=f"…and {len(ranked) - kept} more")
    return [*(_of_node(view, node, row) for node in worst), more, *(_of_node(view, node, row) for node in best)]


def _rank(node: Node) -> tuple[bool, float, float, str]:
    """Return the key that orders nodes, the worst first: silent ones, then by how little is used."""
    return node.sampled and not node.silent, -node.silent, _use(node) or 0.0, node.name


def _use(node: Node) -> float | None:
    """Return the fraction of a node that is in use: of its GPUs, else of its cores."""
    if node.gpus:
        return _mean([gpu.use for gpu in node.gpus], 100.0)
    return _fraction(node.cpu, node.cores)


def _of_node(view: View, node: Node, row: Callable[[Node], _Row]) -> _Row:
    return row(node)._replace(name=_name(view, node), text=_trouble(view, node), waits=_waits(view, node))


def _trouble(view: View, node: Node) -> str:
    """Return the reason why a node has nothing to show, or its fault."""
    if not node.sampled:
        return "no data yet" if _waits(view, node) else "no data"
    return f"no data for {duration(node.silent)}" if node.silent and not view.status.over else ""


def _waits(view: View, node: Node) -> bool:
    """Whether the first sample of a node may still come."""
    return not node.sampled and not view.status.over


def _name(view: View, node: Node) -> str:
    each = view.status.planned.expected // view.node_count if view.node_count else 0
    lacks = node.workers is not None and node.workers < each and view.status.phase == Phase.RUNNING
    return f"{node.name} {node.workers}/{each}" if lacks else node.name


def _gpu_rows(view: View) -> list[_Row]:
    rows = []
    for node in view.nodes:
        name, trouble = _name(view, node), _trouble(view, node)
        if trouble or not node.gpus:
            rows.append(_Row(name, text=trouble or "no GPU", waits=_waits(view, node)))
            continue
        for place, gpu in enumerate(node.gpus):
            rows.append(
                _Row(
                    "" if place else name,
                    str(gpu.number),
                    _fraction(gpu.use, 100.0),
                    _percent(gpu.use),
                    _fraction(gpu.memory, gpu.memory_size),
                    _sizes(gpu.memory, gpu.memory_size),
                    (_watts(gpu), _celsius(gpu), per_second(gpu.nvlink)),
                )
            )
    return rows


def _gpus_row(node: Node) -> _Row:
    use = _mean([gpu.use for gpu in node.gpus], 1.0)
    least = min([gpu.use for gpu in node.gpus if gpu.use is not None], default=None)
    memory, size = total([gpu.memory for gpu in node.gpus]), total([gpu.memory_size for gpu in node.gpus])
    power = total([gpu.power for gpu in node.gpus])
    return _Row(
        node.name,
        str(len(node.gpus)),
        _fraction(use, 100.0),
        _percent(use),
        _fraction(memory, size),
        _sizes(memory, size),
        (_percent(least), "" if power is None else f"{power:,.0f} W"),
    )


def _cpu_row(node: Node) -> _Row:
    cores = "" if node.cores is None else f"/{node.cores:g}"
    return _Row(
        node.name,
        "",
        _fraction(node.cpu, node.cores),
        "" if node.cpu is None else f"{node.cpu:.1f}{cores}",
        _fraction(node.memory, node.memory_size),
        _sizes(node.memory, node.memory_size),
        ("" if node.spilled is None else format_bytes(node.spilled), per_second(node.net)),
    )


def _all_row(nodes: Sequence[Node], with_gpus: bool) -> _Row:
    """Return all nodes as one: what they use in all, their GPUs on average."""
    one = Node(
        f"all {len(nodes)}",
        cpu=total([node.cpu for node in nodes]),
        cores=total([node.cores for node in nodes]),
        memory=total([node.memory for node in nodes]),
        memory_size=total([node.memory_size for node in nodes]),
        spilled=total([node.spilled for node in nodes]),
        net=total([node.net for node in nodes]),
        gpus=tuple(gpu for node in nodes for gpu in node.gpus),
    )
    return _gpus_row(one) if with_gpus else _cpu_row(one)


class _Titles(NamedTuple):
    """The titles over the columns."""

    sub: str
    use: str
    extra: tuple[str, ...]
    node: str = "node"


class _Widths(NamedTuple):
    """Columns of each part of a row; of what there is no room for none, and of a part that no row has 0."""

    name: int
    sub: int
    use: int
    memory: int
    bar: int
    extras: tuple[int, ...]


def _widths(rows: Sequence[_Row], titles: _Titles, width: int) -> _Widths:
    """Return the widths of the parts; what there is no room for goes first at the right end, then the bars shrink."""
    name = min(_LONGEST_NAME, max(len(titles.node), *(cells(shown(row.name)) for row in rows)))
    sub = max(len(titles.sub), *(len(row.sub) for row in rows)) if titles.sub else 0
    use = max(4, *(len(row.use_text) for row in rows))
    memory = max(len(row.memory_text) for row in rows)
    extras = []
    for place, title in enumerate(titles.extra):
        longest = max(len(row.extra[place]) if row.extra else 0 for row in rows)
        extras.append(max(len(title), longest) if longest else 0)
    fixed = name + (sub + 2 if sub else 0) + 2 + 1 + use + 2 + 1 + memory
    while extras and fixed + _room_of(extras) + 2 * SHORT_BAR > width:
        extras.pop()
    bar_size = max(1, min(_LONG_BAR, (width - fixed - _room_of(extras)) // 2))
    return _Widths(name, sub, use, memory, bar_size, tuple(extras))


def _room_of(extras: Sequence[int]) -> int:
    return sum(size + 2 for size in extras if size)


def _laid_out(rows: Sequence[_Row], titles: _Titles, width: int) -> list[Line]:
    """Return rows in columns below their titles."""
    wide = _widths(rows, titles, width)
    header = f"{titles.node:<{wide.name}}" + (f"  {titles.sub:>{wide.sub}}" if wide.sub else "")
    header += f"  {titles.use:<{wide.bar + 1 + wide.use}}  {'memory':<{wide.bar + 1 + wide.memory}}"
    header += "".join(f"  {title:>{size}}" for title, size in zip(titles.extra, wide.extras, strict=False) if size)
    return [(Piece(header.rstrip(), "dim"),), *(_line(row, wide) for row in rows)]


def _line(row: _Row, wide: _Widths) -> Line:
    """Return a row: its name, and its bars and numbers, or what is said of it instead."""
    name = _end(shown(row.name), wide.name)
    sub = f"  {row.sub:>{wide.sub}}" if wide.sub else ""
    first = Piece(name + " " * (wide.name - cells(name)) + sub + "  ")
    if row.text:
        return first, Piece(row.text, "dim" if not row.name or row.waits else "red")
    extra = row.extra or ("",) * len(wide.extras)
    rest = "".join(f"  {text:>{size}}" for text, size in zip(extra, wide.extras, strict=False) if size)
    style = "red" if row.memory is not None and row.memory >= _FULL else ""
    return (
        first,
        *bar(row.use, wide.bar, "green"),
        Piece(f" {row.use_text:>{wide.use}}  "),
        *bar(row.memory, wide.bar, style),
        Piece(f" {row.memory_text:>{wide.memory}}", style),
        Piece(rest.rstrip()),
    )


def _end(text: str, width: int) -> str:
    """Return a node's name, or the end of it, in which the names of nodes differ."""
    while cells(text) > width:
        text = "…" + text.removeprefix("…")[1:][1 - width :]  # no character has less than a column
    return text


def bar(fraction: float | None, size: int, style: str = "") -> Line:
    """Return a bar of so many columns, spaces where nothing is known."""
    if fraction is None:
        return (Piece(" " * size),)
    full = round(min(1.0, max(0.0, fraction)) * size)
    return Piece(_FULL_BAR * full, style), Piece(_EMPTY_BAR * (size - full), "dim")


# -- numbers as words ------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Return a duration in whole seconds: ``7 s``, ``3:05``, ``1:02:05``."""
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else format_seconds(whole)


def per_second(value: float | None, form: str = "{}") -> str:
    """Return bytes per second in words, empty where they are not known."""
    return "" if value is None else form.format(f"{format_bytes(value)}/s")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"


def _watts(gpu: Gpu) -> str:
    return "" if gpu.power is None else f"{gpu.power:.0f} W"


def _celsius(gpu: Gpu) -> str:
    return "" if gpu.temperature is None else f"{gpu.temperature:.0f} °C"


def _sizes(used: float | None, size: float | None) -> str:
    """Return a part and the whole in the whole's unit: ``71/141 GiB``."""
    if used is None or not size:
        return "" if used is None else format_bytes(used)
    whole, _, unit = format_bytes(size).partition(" ")
    part = used / size * float(whole)
    return f"{part:.1f}/{whole} {unit}" if float(whole) < 100 else f"{part:.0f}/{whole} {unit}"


def _fraction(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _mean(values: Sequence[float | None], whole: float) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) / whole if numbers else None
