#!/usr/bin/env python3
"""Turn docs/benchmarks/gpu-*.json into docs/benchmarks/hardware-limits.md's tables and picture: each headline beside what the machine allows.

python3 bench/gpu/limits.py            write the page's tables and the picture
python3 bench/gpu/limits.py --check    exit 1 if they do not show what the files hold

A bound is bytes that the work must move at least, over a rate that the section ``rates`` measured on GPUs of that name. The rate
between GPUs is the best that the section ``verdict`` saw there, or that of ``rates``. The last table has what is wanted, what was
measured of it, and what the GPUs waited for meanwhile by the recorded profiles.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from results import Document, Result, read
from table import FOLDER, cell, number, page_with, row

PAGE = FOLDER / "hardware-limits.md"
PICTURE = FOLDER.parent / "pictures/hardware-limits.svg"
BEGIN, END = "<!-- limits: begin (bench/gpu/limits.py) -->", "<!-- limits: end -->"
WAITS_BEGIN, WAITS_END = "<!-- waits: begin (bench/gpu/limits.py) -->", "<!-- waits: end -->"
ITERATIONS = 20  # of k-means in scripts/by_hand.py
OF_LEFT = 3  # bytes of the join's result over those of its left side: two rows of 24 bytes for one of 16
WAYS = ("svd: as published", "svd: floats of a 32nd of the GPU", "array: as published", "array: large chunks",
        "join: as published", "join: direct, 1 to a worker")  # fmt: skip
LAST = "no rate measured"
JOB = ": the job"  # a headline by the workload, in its own way
# Searches that do not say themselves (figure "kernels") how they began, by their documents' dates: docs/benchmarks/gpu.md.
KERNELS = {"2026-11-23T21:18:45+00:00": "new machine", "2026-11-23T21:22:43+00:00": "kernels kept",
           "2026-11-22T02:40:48+00:00": "kernels kept", "2026-11-22T08:19:40+00:00": "kernels kept",
           "2026-11-22T08:38:56+00:00": "new machine"}  # fmt: skip

Rates = dict[str, float]


class Line(NamedTuple):
    """A headline on so many GPUs: seconds as published, by hand and of hpcml, and its bounds in seconds by what they are of."""

    gpus: int
    machine: str
    what: str
    gib: float
    published: float | None
    by_hand: float | None
    hpcml: float
    bounds: dict[str, float]

    @property
    def bound(self) -> tuple[str, float] | None:
        """The largest bound."""
        return max(self.bounds.items(), key=lambda one: one[1], default=None)


def gpu_name(document: Document) -> str:
    """Return the name of a document's GPUs."""
    gpus = document["machine"].get("gpus") or [{"name": ""}]
    return str(gpus[0]["name"])


def rates_by_gpu(documents: list[Document]) -> dict[str, Rates]:
    """Return the newest rates of each kind of GPU, and the best that was seen between two of them."""
    found: dict[str, Rates] = {}
    for document in documents:
        for result in document["results"]:
            if document["section"] == "rates" and result["ok"] and not result.get("skipped"):
                found.setdefault(gpu_name(document), {}).update(
                    {key: value for key, value in result["figures"].items() if key.endswith("_gib_s")}
                )
    for document in documents:
        for result in document["results"]:
            seen = result["figures"].get("within_gib_s", 0.0)
            rates = found.get(gpu_name(document))
            if document["section"] == "verdict" and result["figures"].get("over") == "NVLink" and rates is not None:
                rates["nvlink_gib_s"] = max(seen, rates.get("nvlink_gib_s", 0.0))
    return found


def bounds(what: str, gpus: int, gib: float, rates: Rates) -> dict[str, float]:
    """Return the seconds that a headline takes at least, by what bounds it; nothing where no rate is known."""
    name = re.split(r"[,:]| over ", what)[0]
    memory, moved = rates.get("memory_gib_s"), gib * (gpus - 1) / gpus / gpus
    found: dict[str, float] = {}
    passes = {"svd": ("memory, two passes", 2), "array": ("memory, two passes", 2),
              "join": ("memory", 1 + OF_LEFT),
              "kmeans": (f"memory, {ITERATIONS} passes", ITERATIONS)}  # fmt: skip
    if memory and name in passes:
        title, times = passes[name]
        found[title] = times * gib / gpus / memory
    draws = [value for key, value in rates.items() if key.startswith("draw_")]
    if name == "array" and draws:
        found["CuPy's generator"] = gib / gpus / max(draws)
    if name == "csv":
        if rate := rates.get("file_gib_s"):
            found["page cache"] = gib / rate
        if rate := rates.get("to_gib_s"):
            found["bus"] = gib / gpus / rate
    if name == "join" and gpus > 1:
        title, key = (
            ("TCP, one connection", "loopback_gib_s") if "TCP" in what else ("NVLink, left side", "nvlink_gib_s")
        )
        if rate := rates.get(key):
            found[title] = moved / rate
    return found


def published(text: str, gib: float) -> float | None:
    """Return the published seconds, the larger of two; of a rate, what this data would take."""
    if match := re.match(r"([\d.]+) GB/s", text):
        return gib * 2**30 / 1e9 / float(match[1])
    match = re.match(r"([\d.]+)(?: to ([\d.]+))? s", text)
    return float(match[2] or match[1]) if match else None


def lines(documents: list[Document]) -> list[Line]:
    """Return a line for each headline on each number of GPUs, the newest of several, for its job, and for some ways of ``chunks``.

    A job that ran with a headline, as older files have it, is left out where a newer file has that headline without it.
    """
    rates = rates_by_gpu(documents)
    old = {result["name"]: result["figures"]["old"] for _, result in _measured(documents, "headlines")}
    found: dict[tuple[str, int], Line] = {}
    beside: set[tuple[str, int]] = set()  # jobs that ran with a headline
    for section in ("headlines", "chunks"):
        for document, result in _measured(documents, section):
            figures, what = result["figures"], result["name"]
            if section == "chunks" and what not in WAYS:
                continue
            gpus = int(what.split(", ")[1]) if what.startswith("kmeans, ") else document["gpus"]
            took = next(figures[key] for key in ("kept_s", "hpcml_s", "job_s") if key in figures)
            gib = float(figures["gib_s"]) * took if "gib_s" in figures else _gib(figures["size"])
            if what == "search":
                what = f"search: {figures.get('kernels') or KERNELS[document['date']]}"
            line = Line(
                gpus, gpu_name(document), what, gib, published(figures.get("old") or old.get(what.split(":")[0], ""), gib),
                figures.get("local_s") or figures.get("sklearn_s"), took, bounds(what, gpus, gib, rates.get(gpu_name(document), {})),
            )  # fmt: skip
            found[what, gpus] = line
            beside.discard((what, gpus))
            job = (what + JOB, gpus)
            if job in beside:
                beside.remove(job)
                del found[job]
            if "job_s" in figures and not what.endswith(JOB):
                beside.add(job)
                found[job] = line._replace(what=job[0], by_hand=None, hpcml=figures["job_s"])
    return sorted(found.values(), key=lambda line: (line.what, line.gpus))


def _measured(documents: list[Document], section: str) -> Iterator[tuple[Document, Result]]:
    for document in documents:
        for result in document["results"]:
            if document["section"] == section and result["figures"]:
                yield document, result


def _gib(size: str) -> float:
    value, unit = size.replace(",", "").split()
    return float(value) * {"MiB": 1 / 1024, "GiB": 1.0}[unit]


def seconds(value: float | None) -> str:
    """Write seconds with two digits that count."""
    if value is None:
        return ""
    digits = max(1 - math.floor(math.log10(value)), 0) if value > 0 else 0
    return f"{value:,.{digits}f} s"


def table(documents: list[Document]) -> str:
    """Return the page's table, the rates behind it, and where they come from."""
    head = ["GPUs", "what", "GiB", "published, s", "by hand, s", "hpcml, s", "bound, s", "by", "hpcml / bound"]
    text = [row(head), "|---" * len(head) + "|"]
    for line in lines(documents):
        what, least = line.bound or (LAST, None)
        cells = [f"{line.gpus} {line.machine.removeprefix('NVIDIA ')}", line.what, f"{line.gib:,.3g}", *(seconds(one)[:-2] for one in (line.published, line.by_hand, line.hpcml, least)), what if not line.what.startswith("search") else "", f"{line.hpcml / least:,.1f}" if least else ""]  # fmt: skip
        text.append(row([cell(one, str) for one in cells]))
    heads = {"memory_gib_s": "memory of a GPU", "to_gib_s": "to a GPU", "from_gib_s": "from a GPU", "nvlink_gib_s": "GPU to GPU",
             "file_gib_s": "files", "loopback_gib_s": "TCP, loopback", "draw_xorwow_gib_s": "drawn: XORWOW",
             "draw_philox_gib_s": "drawn: Philox", "draw_xorwow_all_gib_s": "XORWOW, all threads",
             "draw_philox_all_gib_s": "Philox, all threads", "draw_legacy_gib_s": "drawn: legacy"}  # fmt: skip
    text += ["", row(["rates, GiB/s", *heads.values()]), "|---" * (len(heads) + 1) + "|"]
    for name, rates in sorted(rates_by_gpu(documents).items()):
        text.append(row([name, *(cell(rates.get(key), number(1)) for key in heads)]))
    return "\n".join(text)


class Wanted(NamedTuple):
    """What is wanted of a result on so many GPUs: a figure of it, at most or at least so much.

    Attributes
    ----------
    section, name, figure, title
        Which result, its figure, and what it is called in the table.
    goal
        How much; the name of another of its figures, which is to be beaten.
    waits
        Tells what the GPUs waited for, from all documents, if it can of the same number of GPUs as what was measured.
    missing
        What was not recorded.
    """

    section: str
    name: str
    figure: str
    gpus: int
    goal: float | str
    waits: Callable[[list[Document], int], str]
    missing: str
    title: str
    least: bool = False


def threads(section: str, name: str) -> Callable[[list[Document], int], str]:
    """Return what tells of a result's profile: seconds of a worker's thread, and of its transfers, which go on beside each other."""

    def told(documents: list[Document], gpus: int) -> str:
        document, one = _result(documents, section, name, "profile", gpus)
        profile = one["figures"]["profile"]
        did = profile["actions"]
        title = name if ":" in name else f"{name}, as published"
        busy = f"; kernels {one['figures']['busy']:.0f} %" if "busy" in one["figures"] else ""
        return (f"{title}, {_on(document)}: {seconds(did['compute'])} of {seconds(profile['seconds'])} in {profile['tasks']:,} tasks, "
                f"{seconds(did['nothing'])} idle; transfers {seconds(did.get('transfer', 0.0))}{busy}")  # fmt: skip

    return told


def kernels(documents: list[Document], _: int) -> str:
    """Tell of the kernels that are compiled on a new machine."""
    document, new = _result(documents, "kernels", "empty cache", "first_calls_s", 0)
    kept = _result(documents, "kernels", "filled cache", "first_calls_s", 0)[1]
    took = [seconds(one["figures"]["first_calls_s"]) for one in (new, kept)]
    return f"CuPy compiling: first calls of {new['figures']['calls']} operations {took[0]}, with kernels kept {took[1]} ({_on(document)})"


def imports(documents: list[Document], _: int) -> str:
    """Tell of the imports in the script, and of what is left without them."""
    document, one = _result(documents, "kernels", "csv, step by step", "first_calls_s", 0)
    took = sorted(sum(turn["script_imports"].values()) for turn in one["figures"]["each"])
    return (f"imports of {', '.join(one['figures']['each'][0]['script_imports'])} {seconds(took[len(took) // 2])}, "
            f"first files {seconds(one['figures']['first_calls_s'])} ({_on(document)})")  # fmt: skip


OWN = "the job's own profile"
WANTED = (
    Wanted("headlines", "svd", "job_s", 4, 2.0, threads("chunks", "svd: floats of a 32nd of the GPU"), OWN, f"svd{JOB}"),
    Wanted("headlines", "array", "job_s", 4, 1.5, threads("chunks", "array: large chunks"), OWN, f"array{JOB}"),
    Wanted("headlines", "join", "job_s", 4, 0.45, threads("chunks", "join: direct, 1 to a worker"), OWN, f"join{JOB}"),
    Wanted("headlines", "join over TCP", "gain", 4, 20.0, threads("headlines", "join"), "the job over TCP", "join, NVLink over TCP", least=True),
    Wanted("headlines", "csv", "hpcml_s", 4, 0.52, threads("headlines", "csv"), "", "csv"),
    Wanted("kernels", "csv, at once", "first_calls_s", 4, 1.5, imports, "", "a run's first CSV files"),
    Wanted("headlines", "search", "hpcml_s", 4, "sklearn_s", kernels, "which of these kernels the search needs", "search: new machine"),
    Wanted("memory", "1.5 times", "run_s", 4, 60.0, lambda *_: "", "what the GPU waited for", "SVD of 1.5 times the memory"),
)  # fmt: skip


def _result(documents: list[Document], section: str, name: str, figure: str, gpus: int) -> tuple[Document, Result]:
    """Return the newest result with a figure, on so many GPUs, or on the most of which there is one."""
    found = [(document, result) for document, result in _measured(documents, section)
             if result["name"] in (name, name + JOB) and figure in result["figures"]
             and (name != "search" or (result["figures"].get("kernels") or KERNELS[document["date"]]) == "new machine")]  # fmt: skip
    return max(
        found, key=lambda one: (one[0]["gpus"] == gpus, one[0]["gpus"], one[1]["name"].endswith(JOB), one[0]["date"])
    )


def _on(document: Document) -> str:
    return f"{document['gpus']} {gpu_name(document).removeprefix('NVIDIA ')}"


def waits(documents: list[Document]) -> str:
    """Return the table of what is wanted, what was measured, and what the GPUs waited for."""
    head = ["what", "wanted", "measured", "on", "as wanted", "what the GPUs waited for", "not recorded"]
    text = [row(head), "|---" * len(head) + "|"]
    for want in WANTED:
        document, one = _result(documents, want.section, want.name, want.figure, want.gpus)
        value = float(one["figures"][want.figure])
        goal = float(one["figures"][want.goal] if isinstance(want.goal, str) else want.goal)
        write = (lambda number: f"{number:,.1f}×") if want.least else seconds
        met = value >= goal if want.least else round(value, 2) <= goal
        missing = [f"on {want.gpus} GPUs"] if document["gpus"] != want.gpus else []
        cells = [want.title, f"{'≥' if want.least else '≤'} {write(goal)}", write(value), _on(document), "yes" if met else "**no**",
                 want.waits(documents, document["gpus"]), "; ".join([*missing, *filter(None, [want.missing])])]  # fmt: skip
        text.append(row([cell(one, str) for one in cells]))
    most = max(document["gpus"] for document, _ in _measured(documents, "headlines"))
    return "\n".join([*text, "", f"No headline was recorded on more than {most} GPUs."])


WIDE, LEFT, STEP, TOP = 980, 370, 22, 60
MARKS = {"published": "#999999", "by hand": "#e69f00", "hpcml": "#0072b2", "bound": "#d55e00"}


def picture(documents: list[Document]) -> str:
    """Return an SVG: a line for each headline, and on it the seconds as published, by hand, of hpcml, and the bound."""
    drawn = [line for line in lines(documents) if line.bound]
    values = [(line, {"published": line.published, "by hand": line.by_hand, "hpcml": line.hpcml,
                      "bound": line.bound[1] if line.bound else None}) for line in drawn]  # fmt: skip
    known = [value for _, marks in values for value in marks.values() if value]
    low, high = (math.floor(math.log10(min(known, default=1))), math.ceil(math.log10(max(known, default=10))))
    tall = TOP + STEP * len(drawn) + 40

    def across(value: float) -> float:
        return round(LEFT + (math.log10(value) - low) / max(high - low, 1) * (WIDE - LEFT - 30), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {tall}" font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDE}" height="{tall}" fill="white"/>']  # fmt: skip
    for place, (name, colour) in enumerate(MARKS.items()):
        at = LEFT + 130 * place
        parts += [f'<circle cx="{at}" cy="20" r="5" fill="{colour}"/>', f'<text x="{at + 10}" y="24">{name}</text>']
    for power in range(low, high + 1):
        x = across(10.0**power)
        parts += [f'<line x1="{x}" y1="{TOP - 15}" x2="{x}" y2="{tall - 35}" stroke="#dddddd"/>',
                  f'<text x="{x}" y="{tall - 15}" text-anchor="middle">{10.0**power:g} s</text>']  # fmt: skip
    for place, (line, marks) in enumerate(values):
        y = TOP + STEP * place
        there = {name: across(value) for name, value in marks.items() if value}
        title = f"{line.what.removesuffix(f', {line.gpus}')}, {line.gpus} GPU{'s' * (line.gpus > 1)}"
        parts += [f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(title)}</text>',
                  f'<line x1="{min(there.values())}" y1="{y}" x2="{max(there.values())}" y2="{y}" stroke="#bbbbbb"/>']  # fmt: skip
        parts += [f'<circle cx="{x}" cy="{y}" r="5" fill="{MARKS[name]}"/>' for name, x in there.items()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write page and picture, or say whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is not up to date")
    options = parser.parse_args(arguments)
    documents = read(FOLDER)
    page = PAGE.read_text(encoding="utf-8")
    page = page_with(page, waits(documents), WAITS_BEGIN, WAITS_END)
    wanted = {PAGE: page_with(page, table(documents), BEGIN, END), PICTURE: picture(documents)}
    for path, text in wanted.items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(
                f"{path} does not show what docs/benchmarks holds. Run: python3 bench/gpu/limits.py",
                file=sys.stderr,
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
