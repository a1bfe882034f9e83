"""The report of a run as one page: no request to any network, all texts escaped, readable without its script."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence

import jinja2
from markupsafe import Markup

from hpcml.report import ledger, page_text, picture
from hpcml.report.facts import Facts
from hpcml.report.picture import Line
from hpcml.units import counted, format_bytes, format_seconds

GIB = 1024**3
_NONE = "–"
# What the page's parts are coloured by; a style attribute would need 'unsafe-inline'.
_CLASSES = "".join(
    [f".p-{name} {{ fill: var(--{name}); }} .k-{name} {{ background: var(--{name}); }}\n" for name in ledger.PARTS]
    + [
        f".c{place} polyline {{ stroke: var(--c{place}); }} .c{place} circle {{ fill: var(--c{place}); }} "
        f".k{place} {{ background: var(--c{place}); }}\n"
        for place in range(picture.COLOURS)
    ]
    + [".h0 { fill: var(--none); }\n"]
    + [
        f".h{level} {{ fill: rgb(var(--heat) / {round(100 * level / picture.LEVELS)}%); }}\n"
        for level in range(1, picture.LEVELS + 1)
    ]
)
_STYLE = page_text.STYLE + _CLASSES


def html(facts: Facts) -> str:
    """Return the page."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "moment": _moment,
        "duration": format_seconds,
        "hours": lambda hours: f"{hours:.4f}" if hours < 1 else f"{hours:.2f}" if hours < 100 else f"{hours:.0f}",
        "count": lambda number: f"{number:g}",
        "percent": lambda share: _NONE if share is None else f"{share:.0f} %",
        "size": lambda size: _NONE if size is None else format_bytes(size),
    }
    end = facts.ending.end
    good = end.over and not end.exit_status
    shares = facts.ledger.parts
    unit, whole = facts.ledger.unit, sum(facts.total.values())
    parts = [
        (kind, title.format(unit=unit), shares[kind], facts.ledger.share(kind), text.format(unit=unit))
        for kind, (title, text) in ledger.PARTS.items()
        if shares[kind] > 0
    ]
    return environment.from_string(page_text.PAGE).render(
        facts=facts,
        good=good,
        told_status=end.over and not end.message.endswith(f"exit status {end.exit_status}"),
        unit=unit,
        nodes=counted(len(facts.nodes), "node"),
        cards=_cards(facts),
        parts=parts,
        total=whole,
        totals=[
            (kind, title.format(unit=unit), facts.total[kind], 100 * facts.total[kind] / whole)
            for kind, (title, _) in ledger.PARTS.items()
            if facts.total[kind] > 0
        ],
        phases=_phases(facts),
        ledger=picture.bar(
            [(kind, f"{title}: {share:.1f} %", hours) for kind, title, hours, share, _ in parts],
            name=f"Where the {unit}-hours went",
        ),
        pictures=_pictures(facts),
        style=Markup(_STYLE),  # noqa: S704 - this package's own
        script=Markup(page_text.SCRIPT),  # noqa: S704 - this package's own
        policy=_policy(),
    )


def _policy() -> str:
    """Return what the page may do: its own style and script by their sums, and nothing from anywhere."""
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (_STYLE, page_text.SCRIPT)
    )
    own = f"style-src 'sha256-{style}'; script-src 'sha256-{script}'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _phases(facts: Facts) -> Markup:
    sizes = [(one.kind, one.title, one.end - one.begin) for one in facts.phases]
    named = [(kind, f"{title}: {format_seconds(size)}", size) for kind, title, size in sizes]
    return picture.bar(named, name="Phases of the run", height=22)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "nothing ran"


def _cards(facts: Facts) -> list[tuple[str, str]]:
    """Return the figures at the top, each with its title; what is not known has none."""
    figures, unit = facts.figures, facts.ledger.unit
    found = [("elapsed", format_seconds(facts.end - facts.began))] if facts.began else []
    if facts.ledger.paid:
        found.append((f"{unit}-hours paid", f"{facts.ledger.paid:.3g}"))
    if facts.ledger.parts["unknown"] < facts.ledger.paid / 2:
        found.append(("of them useful", f"{figures.get('useful', 0):.0f} %"))
    if "gpu_use" in figures:
        found.append(("mean GPU use", f"{figures['gpu_use']:.0f} %"))
    if "cpu_use" in figures:
        found.append(("mean use of the cores", f"{figures['cpu_use']:.0f} %"))
    if "memory_peak" in figures:
        found.append(("highest memory of a node", format_bytes(figures["memory_peak"])))
    if "energy_kwh" in figures:
        energy = figures["energy_kwh"]
        found.append(("energy of the GPUs", f"{energy:.3g} kWh" if energy >= 0.1 else f"{1000 * energy:.3g} Wh"))
    if "imbalance" in figures:
        found.append(("imbalance of the GPUs", f"{figures['imbalance']:.0f} %"))
    return found


def _pictures(facts: Facts) -> list[tuple[str, str, Markup, list[str]]]:
    """Return the pictures over time: title, note, picture and the names of its lines; none that would be empty."""
    seconds = facts.end - facts.began
    gap = max([20.0, *(4 * node.every for node in facts.series.values())])

    def of_gpus(column: str) -> list[Line]:
        return [
            Line(f"{name}:{gpu.number}", [at - facts.began for at in node.t], gpu.columns[column])
            for name, node in facts.series.items()
            for gpu in node.gpus
        ]

    def of_nodes(column: str, *, share: bool = False) -> list[Line]:
        return [
            Line(
                name,
                [at - facts.began for at in node.t],
                [None if value is None else value / node.cores if share else value for value in node.columns[column]],
            )
            for name, node in facts.series.items()
        ]

    found: list[tuple[str, str, Markup, list[str]]] = []

    def draw(
        title: str, lines: Sequence[Line], unit: str, *, top: float = 0.0, scale: float = 1.0, note: str = ""
    ) -> None:
        shown = [line for line in picture.spread(lines) if any(value is not None for value in line.values)]
        highest = max((value for line in shown for value in line.values if value is not None), default=0.0)
        if title not in _ALWAYS and not highest:
            return  # nothing but zero
        if scale == GIB and highest < GIB / 8:
            unit, scale = unit.replace("GiB", "MiB"), 1 << 20
        if drawn := picture.lines(shown, seconds, name=title, unit=unit, top=top, scale=scale, gap=gap):
            found.append((f"{title}, {unit}" if unit else title, note, drawn, [line.title for line in shown]))

    if drawn := picture.heat(of_gpus("use"), seconds, name="Use of each GPU over time", gap=gap):
        found.append(("Use of each GPU", "Darker is more: a row is a GPU, from 0 to 100 %.", drawn, []))
    draw("GPU use", of_gpus("use"), "%", top=100, scale=0.01)
    draw("GPU memory", of_gpus("memory"), "GiB", scale=GIB)
    draw("GPU power", of_gpus("power"), "W")
    draw("NVLink", of_gpus("nvlink"), "GiB/s", scale=GIB, note="Sent and received, of each GPU.")
    draw("PCIe", of_gpus("pcie"), "GiB/s", scale=GIB, note="Sent and received, of each GPU.")
    if drawn := picture.heat(of_nodes("cpu", share=True), seconds, name="Use of each node's cores over time", gap=gap):
        found.append(("Use of each node's cores", "Darker is more: a row is a node, from 0 to 100 %.", drawn, []))
    draw("Cores in use", of_nodes("cpu"), "")
    draw("Memory of the nodes", of_nodes("memory"), "GiB", scale=GIB)
    draw("InfiniBand", of_nodes("ib"), "GiB/s", scale=GIB, note="Sent and received, of each node.")
    draw("Network", of_nodes("net"), "GiB/s", scale=GIB, note="Sent and received by the nodes' interfaces.")
    draw("Disk", of_nodes("disk"), "GiB/s", scale=GIB, note="Read and written.")
    if facts.dask:
        t = [at - facts.began for at in facts.dask.t]
        draw("Tasks being worked on", [Line("tasks", t, facts.dask.columns["processing"])], "")
        draw("Spilled by Dask", [Line("spilled", t, facts.dask.columns["spilled"])], "GiB", scale=GIB)
    return found


_ALWAYS = ("GPU use", "Cores in use", "Tasks being worked on")
