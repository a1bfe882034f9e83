"""The ledger of a run's hours: each part by a run made for it, and the sum for any samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.kinds.dask.report_part import ACCOUNTING, Activity
from hpcml.report import ledger
from hpcml.report.ledger import PLAIN, Device, Function, Phases, Usage, parts_of

PHASES = Phases(
    0, 10, 30, 40, 140, 150
)  # 10 s starting, 20 importing, 10 the interconnect, 100 of script, 10 to the end
TIMES = [float(at) for at in range(0, 151, 5)]


def usage(use: float | None, *, until: float = 150) -> Usage:
    t = [at for at in TIMES if at <= until]
    return Usage(Device("n1", 0, 2), 1.0, t, [use] * len(t))


def tasks(busy: int, *, until: float = 150, transfer: float = 0.0, spill: float = 0.0) -> Activity:
    """Return what Dask did from the script's start until a time: tasks, and shares of their time."""
    counts = [busy if 40 <= at <= until else 0 for at in TIMES]
    work = [float(min(max(0.0, at - 40), until - 40) * bool(busy)) for at in TIMES]
    done = [float(sum(counts[: place + 1])) for place in range(len(TIMES))]
    return Activity(
        TIMES, {"n1-0": counts}, done, work, [transfer * one for one in work], [spill * one for one in work]
    )


def seconds(device: Usage, dask: Activity | None, phases: Phases = PHASES) -> dict[str, float]:
    """Return the parts that are not empty, in seconds."""
    counted = ledger.divide("GPU", phases, [device], ACCOUNTING, dask)
    assert sum(counted.parts.values()) == pytest.approx(counted.paid)
    return {name: round(3600 * hours, 3) for name, hours in counted.parts.items() if hours > 1e-9}


BRING_UP = {"starting": 20, "importing": 20, "tail": 10}


def test_each_part(subtests: pytest.Subtests) -> None:
    cases = {
        "useful": (usage(100), tasks(3), {"useful": 100}),
        "tasks": (usage(0), tasks(3), {"tasks": 100}),
        "transfers": (usage(0), tasks(3, transfer=1.0), {"transfers": 100}),
        "spilling": (usage(0), tasks(3, spill=1.0), {"spilling": 100}),
        "script": (usage(0), tasks(0), {"script": 100}),
        "shares": (usage(40), tasks(3, transfer=0.25, spill=0.5), {"useful": 40, "transfers": 15, "spilling": 30, "tasks": 15}),
        "tail": (usage(0), tasks(3, until=90), {"tasks": 50, "tail": 60}),
        "used after the last task": (usage(50), tasks(3, until=90), {"useful": 50, "tasks": 25, "tail": 35}),
        "no samples at all": (Usage(Device("n1", 0, 2), 1.0, [], []), tasks(3), {"unknown": 100}),
        "samples that stop": (usage(100, until=90), tasks(3), {"useful": 50, "unknown": 50}),
        "a gap": (usage(100)._replace(t=[40.0, 45.0, 105.0, 110.0], use=[100.0] * 4), tasks(3), {"useful": 10, "unknown": 90}),
        "NVML did not answer": (usage(None), tasks(3), {"unknown": 100}),
        "no samples of Dask": (usage(25), None, {"useful": 25, "unknown": 75}),
    }  # fmt: skip
    for name, (device, dask, expected) in cases.items():
        with subtests.test(name):
            found = seconds(device, dask)
            assert found == pytest.approx({**BRING_UP, **expected}, abs=0.01), name


def test_phases_that_a_run_did_not_reach(subtests: pytest.Subtests) -> None:
    cases = {
        "no worker came": (Phases(0, 10, None, None, 100, 110), {"starting": 10, "importing": 90, "tail": 10}),
        "no role ran": (Phases(0, None, None, None, None, 60), {"starting": 60}),
        "the interconnect did not do": (Phases(0, 10, 30, None, 50, 55), {"starting": 30, "importing": 20, "tail": 5}),
        "the supervisor was killed": (Phases(0, 10, 30, 40, None, 90), {"starting": 20, "importing": 20, "useful": 50}),
        "all at once": (Phases(0, 0, 0, 0, 0, 0), {}),
    }
    for name, (phases, expected) in cases.items():
        with subtests.test(name):
            assert seconds(usage(100), tasks(3), phases) == pytest.approx(expected)


def test_a_worker_without_tasks_beside_one_that_has_some() -> None:
    dask = tasks(3)._replace(busy={"n1-0": [3] * len(TIMES), "n1-1": [0] * len(TIMES)}, work=[None] * len(TIMES))
    idle = usage(0)._replace(device=Device("n1", 1, 2))
    counted = ledger.divide("GPU", PHASES, [usage(100), idle], ACCOUNTING, dask)
    assert counted.of_each["n1:1"]["script"] * 3600 == pytest.approx(100)
    assert counted.of_each["n1:0"]["useful"] * 3600 == pytest.approx(100)


def test_tasks_shorter_than_the_distance_of_samples() -> None:
    """None was seen at a sample, and Dask's seconds say that they were worked on half of the time."""
    work = [max(0.0, at - 40) / 2 for at in TIMES]
    zero = [0.0] * len(TIMES)
    dask = Activity(TIMES, {"n1-0": [0] * len(TIMES)}, [float(at) for at in TIMES], work, zero, zero)
    found = seconds(usage(0), dask)
    assert found["tasks"] == pytest.approx(50)
    assert found["script"] == pytest.approx(50)


def test_what_made_tasks_slow(subtests: pytest.Subtests) -> None:
    """Each figure is a share of the time between the script's start and its end, 40 and 140."""
    all_of_it, whole = [1.0] * len(TIMES), tasks(3)
    work, same = [max(0.0, at - 40) for at in TIMES], (Function("f", 20, 100.0, 6.0),)
    straggler = (Function("g", 9, 9.0, 1.0), Function("f", 20, 100.0, 90.0))
    cases: dict[str, tuple[Activity, dict[str, float]]] = {
        "no task ever": (tasks(0), {"without_tasks": 100, "few_tasks": 0}),
        "none after half of the time": (tasks(3, until=90), {"idle_tail": 47.5, "without_tasks": 0}),
        "a quarter of the threads": (whole._replace(busy_threads=[0.25] * len(TIMES), functions=same), {"few_tasks": 75}),
        "one is slow": (whole._replace(busy_threads=[0.25] * len(TIMES), functions=straggler), {"straggler": 75}),
        "tiny": (whole._replace(other=work, functions=(Function("f", 9000, 9.0, 0.1),)), {"tiny_tasks": 100}),
        "not tiny": (whole._replace(other=work, functions=same), {"tiny_tasks": -1}),
        "files": (whole._replace(on_files=all_of_it, busy_threads=all_of_it), {"on_files": 100, "few_tasks": 0}),
        "spilling": (tasks(3, spill=0.5, transfer=0.25), {"spilling": 50, "transfers": 25}),
    }  # fmt: skip
    for name, (activity, expected) in cases.items():
        with subtests.test(name):
            figures, words = activity.figures(40, 140)
            assert {one: figures.get(one, -1) for one in expected} == pytest.approx(expected)
            assert (words.get("function") == "f") == (name == "one is slow")
    assert whole.figures(40, 42) == ({}, {})  # too short


def test_a_kind_that_explains_nothing() -> None:
    """Idle time of the script is the script's, and the startup is no part of its own."""
    counted = ledger.divide("GPU", PHASES, [usage(25)], PLAIN, None)
    assert {name: 3600 * hours for name, hours in counted.parts.items()} == pytest.approx(
        {"starting": 40, "script": 75, "useful": 25, "tail": 10, "unknown": 0}
    )


number = st.one_of(st.none(), st.floats(0, 100))
counter = st.one_of(st.none(), st.floats(0, 1e6))


@st.composite
def runs(draw: st.DrawFn) -> tuple[Phases, list[Usage], Activity | None]:
    marks = sorted(draw(st.lists(st.floats(0, 1000), min_size=6, max_size=6)))
    reached = draw(st.integers(0, 4))
    inner = [mark if place < reached else None for place, mark in enumerate(marks[1:5])]
    if inner[3] is None and draw(st.booleans()):
        inner[3] = marks[4]
    phases = Phases(marks[0], inner[0], inner[1], inner[2], inner[3], marks[5])
    devices = []
    for place in range(draw(st.integers(1, 3))):
        t = sorted(draw(st.lists(st.floats(0, 1000), max_size=30, unique=True)))
        use = draw(st.lists(number, min_size=len(t), max_size=len(t)))
        devices.append(Usage(Device(f"n{place}"), draw(st.sampled_from([1.0, 48.0])), t, use))
    t = sorted(draw(st.lists(st.floats(0, 1000), min_size=1, max_size=30, unique=True)))
    columns = [draw(st.lists(counter, min_size=len(t), max_size=len(t))) for _ in range(5)]
    return (
        phases,
        devices,
        draw(st.sampled_from([None, Activity(t, {"n0": columns[0]}, columns[1], columns[2], columns[3], columns[4])])),
    )


@given(runs())
def test_the_parts_add_up_to_what_was_paid(run: tuple[Phases, list[Usage], Activity | None]) -> None:
    counted = ledger.divide("GPU", run[0], run[1], ACCOUNTING, run[2])
    assert set(counted.parts) == set(parts_of(ACCOUNTING))
    assert sum(counted.parts.values()) == pytest.approx(counted.paid, rel=0.01, abs=1e-9)
    assert all(hours >= 0 for each in counted.of_each.values() for hours in each.values())
    for name in counted.parts:
        assert counted.parts[name] == pytest.approx(sum(each[name] for each in counted.of_each.values()))
