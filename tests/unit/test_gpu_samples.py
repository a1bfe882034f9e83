"""The GPU tier's section `samples`, on made-up runs and a stand-in for nvidia-smi: what it finds right, and what wrong."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import report_samples
import section_samples
from harness import Case, Run
from hpcml.report.make import make
from report_samples import BEGAN, GIB, Shape
from section import run_cases

SHAPES = {
    "busy": Shape(gpus=2, seconds=120, every=1.0, use=lambda *_: 90),
    "move": Shape(gpus=2, seconds=120, every=1.0, transfer=0.1),
    "idle": Shape(gpus=2, seconds=400, use=lambda place, _: 90 * (1 - place)),
    "spill": Shape(gpus=2, seconds=400, use=lambda *_: 30, spill=0.6, transfer=0.0),
}
MOVED = 2 * 0.1 * 2e9 * 40  # bytes: two GPUs, what report_samples has each receive a second, 40 seconds


class World:
    """Runs that are written, not run."""

    gpus, cpu_only, memory_mib, options = 2, False, 1000, ()

    def __init__(self, folder: Path, off: float = 1.0) -> None:
        self.folder, self.off, self.count = folder, off, 0

    def left(self) -> float:
        return 1e6

    def shape(self, nodes: int, gpus: int) -> None:
        assert (nodes, gpus) == (1, 2)

    def submit(self, script: Path, words: Sequence[str], *, settings: Sequence[str], **_: Any) -> Run:
        self.count += 1
        way = words[0] if script.name == "sampled.py" else "kmeans"
        paths = report_samples.write(self.folder / f"{way}-{self.count}", SHAPES.get(way, Shape(gpus=2, seconds=60)))
        if way == "move" and self.off == 1.0:  # another GPU's traffic ends with the script's
            told: dict[str, Any] = {"bytes": MOVED, "fabric_bytes": MOVED, "began": BEGAN + SHAPES[way].seconds - 41.5}
        else:
            told = {"bytes": MOVED * self.off, "fabric_bytes": None, "began": BEGAN + 30}
        seconds = 10.0 if "report.sample_every=0s" in settings else 10.0 * self.off
        paths.out.mkdir()
        (paths.out / "result.json").write_text(json.dumps({**told, "seconds": {"fit": seconds}}))
        make(paths, 0)
        return Run(0, "", 1.0, BEGAN, paths.directory)

    @contextlib.contextmanager
    def started(self, words: Sequence[str]) -> Iterator[Any]:
        assert words[0] == "nvidia-smi"
        lines = []
        for second in range(130):
            stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(BEGAN + second))
            lines += [
                f"{stamp}.500, GPU-{gpu}, {90 * self.off:.0f}, {_memory(second):.0f}, {563 * self.off:.2f}, 58"
                for gpu in range(2)
            ]
        yield SimpleNamespace(output=lambda: "\n".join([*lines, "2026/11/23 12:0"]))


def _memory(second: float) -> float:
    """Return the MiB that report_samples gives at a time."""
    import math

    return (60 * GIB + 20 * GIB * math.sin((BEGAN + second) / 300)) / 2**20


def found(world: World, tmp_path: Path) -> dict[str, dict[str, Any]]:
    chosen: list[Case] = section_samples.cases(world)  # type: ignore[arg-type]
    results = run_cases(chosen, world, tmp_path / "results.json")  # type: ignore[arg-type]
    return {one["name"]: one for one in results}


def test_what_agrees_is_right(tmp_path: Path) -> None:
    results = found(World(tmp_path), tmp_path)
    assert {name: one["error"] for name, one in results.items() if not one["ok"]} == {}
    assert set(results) == {"against nvidia-smi", "energy", "NVLink bytes", "a GPU that is idle", "spilling", "cost"}
    assert results["energy"]["ratio"] == pytest.approx(1, abs=0.05)
    assert results["cost"]["figures"]["pairs"] == section_samples.PAIRS


def test_what_differs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "idle", SHAPES["busy"])
    monkeypatch.setitem(SHAPES, "spill", SHAPES["busy"])
    results = found(World(tmp_path, off=1.3), tmp_path)
    errors = {name: one["error"] for name, one in results.items() if not one["ok"]}
    assert set(errors) == set(results) - {"energy"}
    assert "power is 0.23" in errors["against nvidia-smi"]
    assert "a counter does not tell" in errors["NVLink bytes"]
    assert errors["spilling"].startswith("the report does not name spilling")


def test_without_gpus_it_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.cpu_only = True
    results = found(world, tmp_path)
    assert [name for name, one in results.items() if not one.get("skipped")] == ["cost"]
