"""The report's advice: planted faults are named, a healthy run and a short one are left in peace."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml import kinds
from hpcml.errors import ConfigError
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.report_part import ACCOUNTING
from hpcml.report import advice, contents, series
from hpcml.sites import schema
from tests import report_samples
from tests.report_samples import Shape

RULES = (*advice.RULES, *ACCOUNTING.rules)
FIGURES = (*advice.FIGURES, *(figure.name for figure in ACCOUNTING.figures))


def said(folder: Path, shape: Shape) -> list[str]:
    """Return the rules that are said of a made-up run."""
    found = contents.load(report_samples.write(folder, shape._replace(every=20)), 0, kinds.get("dask"))
    assert set(found.findings.figures) <= set(FIGURES)
    return [one.rule for one in found.findings.advice]


def test_planted_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases = {
        "healthy": (Shape(), []),
        "one GPU idle": (Shape(use=lambda place, _: 0 if place == 3 else 20), ["gpu-unused"]),
        "one GPU idle, short": (Shape(seconds=200, use=lambda place, _: 0 if place == 3 else 90), []),
        "spilling": (Shape(spill=0.6, use=lambda _, __: 40), ["spilling"]),
        "waiting for data": (Shape(transfer=0.7, use=lambda _, __: 40), ["transfers"]),
        "low use, spilling": (Shape(spill=0.3, use=lambda _, __: 10), ["gpu-low", "spilling", "tasks-without-gpu"]),
        "no tasks": (Shape(busy=lambda _: 0, use=lambda _, __: 30), ["no-tasks"]),
        "queries, no tasks": (Shape(busy=lambda _: 0, use=lambda _, __: 30, queries=True), []),
        "a slow start": (Shape(seconds=900, bring_up=300), ["slow-start"]),
        "a long tail": (Shape(tail=1200, use=lambda _, at: 90 if at < 2300 else 0), ["idle-tail"]),
        "uneven": (Shape(use=lambda place, _: 30 if place == 7 else 90), ["imbalance"]),
        "cores": (Shape(nodes=2, gpus=0, use=lambda _, __: 20), ["cpu-low", "memory-asked"]),
    }  # fmt: skip
    for name, (shape, expected) in cases.items():
        with subtests.test(name):
            assert said(tmp_path / name, shape) == expected


def test_a_site_changes_adds_and_removes_rules(subtests: pytest.Subtests) -> None:
    figures = {"seconds": 4000.0, "gpu_use": 30.0, "energy_kwh": 60.5, "idle_tail": 20.0}
    site = schema.Site(
        report=schema.Report(
            advice={
                "gpu-low": schema.Advice(below="40"),
                "idle-tail": schema.Advice(off=True),
                "energy": schema.Advice("energy_kwh", above="50", sentence="{energy_kwh} kWh, {gpus}, {__class__}, {x"),
            }
        )
    )
    assert [one.rule for one in advice.advise(RULES, figures, {})] == ["idle-tail"]
    told = advice.advise(advice.changed(RULES, advice.of_site(site.report.advice, KIND)), figures, {})
    assert {one.rule for one in told} == {"gpu-low", "energy"}
    assert next(one.sentence for one in told if one.rule == "energy") == "60 kWh, ?, ?, {x"
    for name, rule in {
        "new": schema.Advice(below="40"),
        "gpu-low": schema.Advice(below="much"),
        "idle-tail": schema.Advice("no_such_figure"),
    }.items():
        with subtests.test(name), pytest.raises(ConfigError):
            advice.of_site({name: rule}, KIND)


def test_a_gpu_at_its_power_cap_is_not_hot() -> None:
    """NVML's bits: 0x4 is the usual power cap, 0x8 and 0x40 are hardware and heat."""
    columns = series.GpuColumns(*([[]] * len(series.GpuColumns._fields)))
    assert series.hot_share(columns._replace(throttle=[0x4, 0x4, None])) == 0
    assert series.hot_share(columns._replace(throttle=[0x4, 0x8, 0x40, 0])) == 50
