"""The results of a run for its report: the files below out/, the pictures among them, and the points of a sweep."""

from __future__ import annotations

import base64
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from hpcml import safe_files
from hpcml.failures import point
from hpcml.failures.note import table
from hpcml.failures.point import PointEnd
from hpcml.paths import RunPaths, sweep_folder
from hpcml.terminal import shown

MOST_FILES = 60  # that the page names
MOST_POINTS = 500  # whose records are read: the nodes wait for the report
LARGEST_PICTURE, ALL_PICTURES = 512 << 10, 3 << 20  # bytes that the page holds
_LOOKED_AT = 2000  # names below out/
_LARGEST = 16 << 20  # bytes of a sweep's record
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF8": "gif",
    b"<svg": "svg+xml",
    b"<?xml": "svg+xml",
}
_ENDS = (".png", ".jpg", ".jpeg", ".gif", ".svg")


class Result(NamedTuple):
    """A file below out/."""

    name: str  # its path there, as a text
    link: str  # from the page, quoted
    size: int  # bytes
    picture: str = ""  # a data: address, for a picture that the page holds


class Results(NamedTuple):
    """The files below out/."""

    folder: str
    files: tuple[Result, ...]
    others: int  # files that are left out


class Points(NamedTuple):
    """The points of the sweep that the run belongs to, the best first; none for another run."""

    sweep: str = ""
    metric: str = ""  # that sorts them
    maximize: bool = False
    ended: tuple[PointEnd, ...] = ()  # of their metrics only finite numbers
    others: int = 0  # that have not ended, or whose records are not read


def results_of(paths: RunPaths) -> Results:
    """Return the files below out/ by name; links are left out."""
    paths_below = sorted(_below(paths.out))
    room, results = ALL_PICTURES, []
    for name, size in paths_below[:MOST_FILES]:
        picture = _picture(paths.out / name) if size <= min(room, LARGEST_PICTURE) else ""
        room -= size if picture else 0
        link = quote(b"out/" + os.fsencode(name))
        results.append(Result(shown(os.fsencode(name).decode(errors="replace")), link, size, picture))
    return Results(str(paths.out), tuple(results), len(paths_below) - len(results))


def _below(folder: Path) -> Iterator[tuple[str, int]]:
    looked_at = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            looked_at += 1
            if looked_at > _LOOKED_AT:
                return
            path = Path(place, name)
            with contextlib.suppress(OSError):  # it is gone
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    yield str(path.relative_to(folder)), status.st_size


def _picture(path: Path) -> str:
    """Return a picture as a data: address, empty for a file that is none or cannot be read."""
    if not path.name.lower().endswith(_ENDS):
        return ""
    try:
        content = safe_files.read(path, LARGEST_PICTURE)
    except OSError:
        return ""
    kind = next((kind for start, kind in _PICTURES.items() if content.startswith(start)), "")
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}" if kind else ""


def points_of(paths: RunPaths, sweep: str) -> Points:
    """Return the points of the sweep that have ended, as its runs have written them."""
    if not sweep or "/" in sweep:
        return Points()
    runs = paths.directory.parent
    record = table(sweep_folder(runs, sweep) / "sweep.json", _LARGEST)
    planned, names = record.get("points"), record.get("runs")
    others = [runs / str(name) for name in names if "/" not in str(name)] if isinstance(names, list) else []
    by_key: dict[str, PointEnd] = {}
    for folder in dict.fromkeys((*others, paths.directory)):
        for path in sorted(RunPaths(folder).point_records.glob("[!.]*.json"))[: MOST_POINTS - len(by_key)]:
            with contextlib.suppress(OSError, ValueError):  # a damaged record is no evidence
                end = point.read(path, folder.name)
                numbers = {name: one for name, value in end.metrics.items() if (one := _number(value)) is not None}
                by_key[path.name] = end._replace(metrics=numbers)
    reported = [name for end in by_key.values() for name in end.metrics]
    metric, maximize = str(record.get("metric") or next(iter(reported), "")), record.get("maximize") is True

    def place(end: PointEnd) -> tuple[bool, float]:
        value = end.metrics.get(metric)
        return value is None, 0.0 if value is None else -value if maximize else value

    listed = planned if isinstance(planned, list) else []
    keys = {f"{row.get('key')}.json" for row in listed if isinstance(row, dict)}
    return Points(sweep, metric, maximize, tuple(sorted(by_key.values(), key=place)), len(keys - by_key.keys()))


def _number(value: object) -> float | None:
    """Return a finite number of a file, None for anything else."""
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e20
    return float(value) if whole and isinstance(value, (int, float)) else None
