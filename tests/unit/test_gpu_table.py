"""The tables of docs/benchmarks/README.md against the files that they are made of."""

from __future__ import annotations

import dataclasses
import importlib
import time
from pathlib import Path
from typing import Any

import pytest

import eight
import limits
import results
import run
import section
import section_headlines
import table
from harness import World


def test_tables_show_what_the_files_hold() -> None:
    """docs/benchmarks/README.md against gpu-*.json; `python3 tests/bench/gpu/table.py` writes it."""
    assert table.main(["--check"]) == 0
    assert limits.main(["--check"]) == 0


def test_a_headline_is_compared_with_the_bytes_that_it_must_move() -> None:
    rates = {
        "memory_gib_s": 2000.0,
        "nvlink_gib_s": 100.0,
        "draw_philox_gib_s": 200.0,
        "to_gib_s": 50.0,
        "file_gib_s": 10.0,
    }
    assert max(limits.bounds("array", 4, 800.0, rates).values()) == 1.0, "drawn by four GPUs"
    assert limits.bounds("svd: as published", 1, 100.0, rates) == {"memory, each byte read twice": 0.1}
    join = limits.bounds("join", 4, 16.0, rates)
    assert join["NVLink, the left side moved"] == 0.03, "three quarters of each GPU's 4 GiB"
    assert limits.bounds("join over TCP", 4, 16.0, rates).keys() == {
        "memory, the left side read and the result written"
    }
    assert max(limits.bounds("csv", 2, 10.0, rates).values()) == 1.0
    assert limits.bounds("kmeans, 4", 4, 40.0, {}) == {}
    assert (limits.published("10 to 15 s on 16 V100", 1.0), limits.published("-", 1.0)) == (15.0, None)


def document(date: str, *found: results.Result, section: str = "headlines") -> results.Document:
    """Return what a call on two GPUs left."""
    gpus = [{"name": "G", "memory_mib": 1, "driver": "1"}] * 2
    return {"section": section, "gpus": 2, "date": date, "machine": {"gpus": gpus}, "results": list(found)}


def headline(name: str, **figures: Any) -> results.Result:
    """Return a result of a headline."""
    return results.result(name, ok=True, figures={"size": "15 GiB", "old": "-", **figures})


def test_the_job_has_a_line_of_its_own_as_new_as_its_headline() -> None:
    old = document(
        "2026-01-01", headline("join", hpcml_s=1.4, local_s=1.5, job_s=0.5), headline("svd", hpcml_s=3.0, job_s=9.0)
    )
    new = document("2026-01-02", headline("svd", hpcml_s=2.0))
    shown = {line.what: (line.hpcml, line.by_hand, line.gib) for line in limits.lines([old, new])}
    assert shown == {"join": (1.4, 1.5, 15.0), "join: the job": (0.5, None, 15.0), "svd": (2.0, None, 15.0)}
    apart = [
        document("2026-01-03", headline("svd: the job", job_s=1.0)),
        document("2026-01-04", headline("svd", hpcml_s=2.5)),
    ]
    newest = {line.what: line.hpcml for line in limits.lines([old, new, *apart])}
    assert (newest["svd: the job"], newest["svd"]) == (1.0, 2.5), "what ran by itself stays"


def test_a_search_says_whether_its_kernels_were_kept() -> None:
    search = [
        headline("search", hpcml_s=took, kernels=kernels)
        for took, kernels in ((5.0, "new machine"), (1.0, "kernels kept"))
    ]
    shown = {line.what: line.hpcml for line in limits.lines([document("2026-01-01", *search)])}
    assert shown == {"search: new machine": 5.0, "search: kernels kept": 1.0}


def test_what_the_gpus_waited_for_is_that_of_the_recorded_profile() -> None:
    documents = results.read(table.FOLDER)
    shown = next(line for line in limits.waits(documents).splitlines() if line.startswith("| svd: the job |"))
    run = next(one for one in documents if one["section"] == "headlines" and one["date"] == "2026-11-24T00:33:35+00:00")
    profile = run["results"][0]["figures"]["profile"]
    for value in (run["results"][0]["figures"]["job_s"], profile["actions"]["compute"], profile["actions"]["transfer"]):
        assert limits.seconds(value) in shown
    assert "**no**" in shown


def test_kernels_are_counted_where_they_are(tmp_path: Path) -> None:
    world = dataclasses.replace(eight_gpus(), options=["--set", f"environment.CUPY_CACHE_DIR={tmp_path}/kept"])
    assert section_headlines.compiled(world) == 0
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/one.cubin").touch()
    assert section_headlines.compiled(world) == 1
    other = dataclasses.replace(eight_gpus(), environment={"CUPY_CACHE_DIR": str(tmp_path / "kept")})
    assert section_headlines.compiled(other) == 1


def eight_gpus(*, cpu_only: bool = False) -> World:
    """Return a machine of eight GPUs with enough time."""
    return World(Path("/tmp"), "", eight.GPUS, 143_000, {}, cpu_only=cpu_only, ends=time.time() + 1e6)


def test_the_two_calls_for_eight_gpus_name_sections_and_fit_their_budget() -> None:
    for number, steps in eight.CALLS.items():
        assert {step.section for step in steps} <= set(results.SECTIONS)
        assert all(step.seconds <= run.LIMITS[step.section] for step in steps)
        assert run.parse(["--eight", str(number)]).steps == steps


def test_every_case_for_eight_gpus_begins_if_those_before_take_what_they_took(subtests: pytest.Subtests) -> None:
    for number, steps in eight.CALLS.items():
        now = eight.START
        for step in steps:
            world = dataclasses.replace(eight_gpus(), rounds=step.rounds)
            wanted = section.chosen(importlib.import_module(f"section_{step.section}").cases(world), step.case)
            ends = min(run.BUDGET, now + step.seconds)
            assert len(wanted) == len(step.about), (number, step)
            for case, took in zip(wanted, step.about, strict=True):
                with subtests.test(call=number, section=step.section, case=case.name):
                    assert ends - now >= case.seconds, f"{ends - now:.0f} s are left"
                    now += took
        assert now < run.BUDGET


def test_eight_gpus_are_judged_by_the_jobs_ways() -> None:
    wanted = {case.name for steps in eight.CALLS.values() for step in steps if step.section == "headlines"
              for case in section.chosen(section_headlines.cases(eight_gpus()), step.case)}  # fmt: skip
    assert {f"{title} by the job" for title in ("svd", "array", "join", "join over TCP", "csv")} <= wanted
    world, known = eight_gpus(), {"join": 0.1, "join over TCP": 9.0}  # the published way does not count
    most = {"svd": 4.0, "csv": 1.0, "array": 2.5}
    for title, seconds in most.items():
        assert section_headlines.judged_job(world, title, seconds, {})["ok"]
        late = section_headlines.judged_job(world, title, seconds + 0.1, {})
        assert not late["ok"]
        assert f"at most {seconds:g} s" in late["error"]
    fast = section_headlines.judged_job(world, "join", 0.5, known)
    assert fast["ok"]
    assert fast["figures"]["size"] == "14.9 GiB"
    slow = section_headlines.judged_job(world, "join over TCP", 9.0, known)
    assert (slow["ok"], slow["figures"]["gain"]) == (False, 18.0)
    assert "18.0 times" in slow["error"]
    assert section_headlines.judged_job(world, "join over TCP", 10.0, known)["ok"]
    assert section_headlines.judged_job(eight_gpus(cpu_only=True), "svd", 99.0, {})["ok"]


def test_in_turns_the_cluster_is_judged_and_not_the_seconds() -> None:
    line = section_headlines.HEADLINES["svd"]
    one = {"seconds": 9.0, "first": 9.0, "gib": 186.0, "answer": 1.0, "profile": {}}
    found = {"hpcml": one, "local": {**one, "seconds": 8.5}}
    assert section_headlines.judged(eight_gpus(), "svd", line, found, {})["ok"]
    found["local"]["seconds"] = 4.0
    assert "of the other's speed" in section_headlines.judged(eight_gpus(), "svd", line, found, {})["error"]
    over = section_headlines.judged(eight_gpus(), "join over TCP", line, found, {"join": 3.0})
    assert (over["ok"], over["figures"]["gain"]) == (True, 3.0)


def test_every_section_has_its_module_columns_limit_and_description() -> None:
    folder = Path(table.__file__).parent
    described = (folder / "README.md").read_text()
    assert set(run.LIMITS) == set(table.COLUMNS) == set(results.SECTIONS)
    for name in results.SECTIONS:
        assert (folder / f"section_{name}.py").is_file()
        assert f"| {name} |" in described, name
