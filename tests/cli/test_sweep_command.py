"""``hpcml sweep`` before and after its runs: what it says and submits, what it makes of records, and what it refuses."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import planted
from hpcml import errors
from tests.said import in_order, says
from world import World, until, write_end, write_events

GRID = ("job.py", "--grid", "k=8,16", "--grid", "lr=0.1,0.01", "--nodes", "2")


def sweep(world: World, *words: str, status: int = 0) -> tuple[str, str]:
    done = world.run("sweep", "--site", "slurm", *words)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def run_of(world: World, number: int = -1) -> Path:
    return world.runs / [name for name in world.left() if name.startswith("job-")][number]


def points_of(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / "points.json").read_text())["points"]
    return found


def end(
    run: Path, point: dict[str, Any], cause: str = "", why: dict[str, Any] | None = None, **metrics: float | None
) -> None:
    """Write the record of a point as the first node does."""
    facts: dict[str, Any] = {"key": point["key"], "values": point["values"], "status": "failed" if cause else "ok", "cause": cause,
             "exit_status": int(bool(cause)), "seconds": 2.0, "metrics": metrics, "reports": len(metrics), "restarted": ""}  # fmt: skip
    (run / "points").mkdir(exist_ok=True)
    (run / "points" / f"{point['key']}.json").write_text(json.dumps(facts | (why or {})))


def directives(run: Path) -> dict[str, str]:
    found: list[list[str]] = json.loads((run / "plan.json").read_text())["directives"]
    return dict(found)


def test_status_without_a_sweep_says_so(world: World) -> None:
    out, said = sweep(world, "status")
    assert (out, "hpcml sweep --help" in said) == ("", True)
    assert json.loads(sweep(world, "status", "--json")[0]) == []


def test_points_and_cost_are_said_before_the_submission(world: World) -> None:
    _, said = sweep(world, *GRID, "--dry-run", "--time", "30", "--", "--epochs", "3")
    assert [line for line in said.splitlines() if not line.startswith("hpcml: note")][:8] == [
        "  points     k=8 lr=0.1",
        "             k=8 lr=0.01",
        "             k=16 lr=0.1",
        "             … and 1 more point",
        says("  count      4 points", "4 to run, one after another", "--at-once N", "--jobs N"),
        "  asks for   2 nodes, time limit 00:30:00, at most 1 node-h",
    ] + [line for line in said.splitlines() if line.startswith(("  start", "Nothing was submitted."))]
    for jobs, cost in (("3", "3 jobs"), ("9", "4 jobs")):  # no more of them than points
        _, said = sweep(world, *GRID, "--dry-run", "--time", "30", "--jobs", jobs)
        assert f", at most {cost[0]} node-h, for {cost}\n" in said
        assert f"4 to run, {cost[0]} at the same time\n" in said
    assert world.left() == []
    sweep(world, *GRID, "--", "--epochs", "3")
    [run] = [name for name in world.left() if name.startswith("job-")]
    points = points_of(world.runs / run)
    assert [point["texts"] for point in points][:2] == [{"k": "8", "lr": "0.1"}, {"k": "8", "lr": "0.01"}]
    assert points[0]["values"] == {"k": 8, "lr": 0.1}
    assert json.loads((world.runs / "sweeps/job/sweep.json").read_text())["runs"] == [run]
    inside = json.loads((world.runs / run / "plan.json").read_text())["inside"]
    assert (inside["points"]["sweep"], inside["code"]["arguments"]) == ("job", ["--epochs", "3"])
    [row] = json.loads(world.run("ls", "--grep", "LR=0.1", "--json").stdout)
    assert row["command"] == "job.py --grid k=8,16 --grid lr=0.1,0.01 -- --epochs 3"


def test_a_grid_takes_several_parameters_after_one_option(world: World) -> None:
    """As --zip and --random do; the script may come before or after them, and its folder may have a =."""
    (world.project / "in=1").symlink_to(".")
    expected = points_of_a_dry_run(world, "job.py", "--grid", "k=8,16", "--grid", "lr=0.1,0.01")
    assert expected.startswith("  points     k=8 lr=0.1\n")
    for words in (
        ("job.py", "--grid", "k=8,16", "lr=0.1,0.01"),
        ("--grid", "k=8,16", "lr=0.1,0.01", "job.py", "--", "--epochs", "3"),
        ("--grid", "k=8,16", "lr=0.1,0.01", "--nodes", "2", "job.py"),
        ("--grid", "k=8,16", "lr=0.1,0.01", "./in=1/job.py"),
    ):
        assert points_of_a_dry_run(world, *words) == expected, words


def points_of_a_dry_run(world: World, *words: str) -> str:
    """Return the points that a sweep would run, as its dry run shows them."""
    _, said = sweep(world, *words, "--dry-run")
    return said[said.index("  points") : said.index("  count")]


def test_a_sweep_of_a_script_that_can_use_gpus_requests_none_and_says_so(world: World) -> None:
    (world.project / "job.py").write_text("import cupy\n")
    for words, notes in (((), 1), (("--gpus-per-node", "0"), 0)):
        done = world.run("sweep", "--site", "leonardo", "--account", "a", *GRID, *words, "--dry-run")
        assert done.returncode == 0, done.stderr
        assert sum("CuPy" in line and "add --gpus-per-node 4" in line for line in done.stderr.splitlines()) == notes


def test_a_plain_script_is_told_that_its_points_have_one_node(world: World) -> None:
    """As ``hpcml submit`` tells it: a point has the first node; one node, or a script with Dask, has no such note."""
    for text, nodes, notes in (("pass\n", 2, 1), ("pass\n", 1, 0), ("import dask\n", 2, 0)):
        (world.project / "job.py").write_text(text)
        _, said = sweep(world, *GRID, "--nodes", str(nodes), "--dry-run")
        assert len(re.findall(in_order("note: ", "first of 2 nodes", "--nodes 1 --jobs 2"), said)) == notes, text


def test_only_what_is_missing_is_submitted(world: World) -> None:
    sweep(world, *GRID)
    first = run_of(world)
    points = points_of(first)
    end(first, points[0], loss=0.5)
    _, said = sweep(world, *GRID)
    assert "4 points, 1 done, 3 under way, 0 to run" in said
    end(first, points[1], "ValueError: no")
    write_end(first, 1)
    _, said = sweep(world, *GRID, "--grid", "s=1", "--dry-run")
    assert "4 points, 4 to run" in said, "another point has another key"
    _, said = sweep(world, *GRID)
    assert "4 points, 1 done, 1 failed, 2 to run" in said
    assert "if each point takes 2.0 s" in said
    second = run_of(world)
    assert [one["key"] for one in points_of(second)] == [points[2]["key"], points[3]["key"]]
    assert [one["number"] for one in points_of(second)] == [3, 4]
    for point in points_of(second):
        end(second, point, loss=0.25)
    write_end(second, 1)
    _, said = sweep(world, *GRID)
    assert "3 done, 1 failed, 0 to run" in said
    assert "--only-failed" in said
    sweep(world, *GRID, "--only-failed")
    third = run_of(world)
    assert [one["key"] for one in points_of(third)] == [points[1]["key"]]
    out, _ = sweep(world, "status", "job", "--json")
    assert {key: value for key, value in json.loads(out).items() if key != "runs"} == {
        "sweep": "job", "points": 4, "ok": 3, "pruned": 0, "failed": 1, "under way": 0, "missing": 0,
        "omitted": 0,
    }  # fmt: skip


def test_points_whose_results_are_there_are_shown(world: World) -> None:
    """The table has the points of the last command, also if nothing was left to run; it names how many it omits."""
    for values in ("1,2", "3,4"):
        sweep(world, "job.py", "--grid", f"k={values}")
        for point in points_of(run_of(world)):
            end(run_of(world), point, loss=float(point["texts"]["k"]))
        write_end(run_of(world), 0)
    for verb in ("status", "table"):
        out, said = sweep(world, verb, "job")
        assert sum(" 2 points of earlier commands" in line for line in (out + said).splitlines()) == 1, verb
    assert json.loads(sweep(world, "status", "job", "--json")[0])["omitted"] == 2
    out, said = sweep(world, "table", "job", "--json")
    assert ([row["values"]["k"] for row in json.loads(out)], said.count(" 2 points ")) == ([3, 4], 1)
    sweep(world, "job.py", "--grid", "k=1,2,3,4", "--dry-run")
    assert len(json.loads(sweep(world, "table", "job", "--json")[0])) == 2, "a dry run changes nothing"
    assert "4 points, 4 done, 0 to run" in sweep(world, "job.py", "--grid", "k=1,2,3,4")[1]
    out, said = sweep(world, "table", "job", "--json")
    assert ([row["values"]["k"] for row in json.loads(out)], said) == ([1, 2, 3, 4], "")
    assert len(world.left()) == 3, "two runs, and the folder of sweeps"
    sweep(world, "job.py", "--grid", "k=1,2", "--metric", "nosuch", "--maximize")
    out, said = sweep(world, "table", "job")
    assert ("nosuch" in out, "--maximize" in said + out) == (False, True), "what ran nothing asks for no other order"
    sweep(world, "job.py", "--grid", "k=5,6")
    assert "1 under way" in sweep(world, "job.py", "--grid", "k=6")[1]
    assert len(json.loads(sweep(world, "table", "job", "--json")[0])) == 2, "point 2 of the run is point 2 of the sweep"


def test_points_of_a_run_that_was_never_submitted_are_missing_again(world: World) -> None:
    """The command was killed between the run's folder and sbatch."""
    sweep(world, *GRID)
    lost = run_of(world)
    (lost / "submission.json").unlink()
    world.forget()
    assert "4 points, 4 under way, 0 to run" in sweep(world, *GRID)[1]
    os.utime(lost / "plan.json", (0, 0))
    assert "4 points, 4 to run" in sweep(world, *GRID)[1]
    assert len(points_of(run_of(world))) == 4
    assert "4 under way, 0 to run" in sweep(world, *GRID)[1]


def test_two_commands_at_once_submit_the_points_once(world: World) -> None:
    world.answer("sbatch", until=str(world.top / "go on"), then=True)
    words = [str(world.command), "sweep", "--site", "slurm", *GRID]
    with subprocess.Popen(words, env=world.environment, cwd=world.project, stderr=subprocess.PIPE, text=True) as first:
        lock = world.runs / "sweeps/job/lock"
        until(lock.exists)
        try:
            _, said = sweep(world, *GRID, status=errors.USAGE)
        finally:
            (world.top / "go on").touch()
        assert "is submitting points of the sweep 'job'" in said
        assert first.communicate(timeout=120)[1]
    assert first.returncode == 0
    assert not lock.exists()
    world.answer("sbatch")
    assert "4 under way, 0 to run" in sweep(world, *GRID)[1]
    assert len([call for call in world.calls("sbatch") if "--test-only" not in call["arguments"]]) == 1


def test_what_failed_is_tried_again_with_what_its_cause_asks_for(world: World) -> None:
    words = (*GRID, "--memory-per-node", "4G", "--time", "10")
    sweep(world, *words)
    run = run_of(world)
    points = points_of(run)
    write_events(run, {"event": "allocated", "nodes": ["n1", "n2"]})
    end(run, points[0], "out of memory", {"kind": "oom", "rule": "oom-kill", "nodes": []})
    end(run, points[1], "a GPU stopped responding", {"kind": "node", "rule": "off-bus", "nodes": ["n2"]})
    end(run, points[2], "ValueError: no", {"kind": "error", "rule": "script-error", "nodes": []})
    (run / "points" / f"{points[3]['key']}.log").write_text("")  # it had begun
    write_end(run, 85, state="TIMEOUT", by="hpcml")

    assert "1 failed (oom): out of memory (e.g. k=8 lr=0.1)" in sweep(world, "status", "job")[0]
    _, said = sweep(world, *words, "--only-failed=oom", "--dry-run")
    assert "1 to run" in said
    assert "  again      hpcml raises the memory per node from 4.0 GiB to 6.0 GiB" in said
    _, said = sweep(world, *words, "--dry-run")
    assert "2 to run" in said, "the one that was interrupted, and the one that failed by its node's fault"
    assert "hpcml excludes n2: points failed" in said
    assert "is raised" not in said
    _, said = sweep(world, *words, "--only-failed=timeout")
    assert "hpcml raises the time limit from 00:10:00 to 00:15:00" in said
    assert directives(run_of(world))["--time"] == "00:15:00"
    assert [one["key"] for one in points_of(run_of(world))] == [points[3]["key"]]
    _, said = sweep(world, *words, "--only-failed", "--exclude", "n7")
    asked = directives(run_of(world))
    assert (asked["--mem"], asked["--exclude"], asked["--time"]) == ("6144M", "n7,n2", "00:10:00"), said
    assert {one["key"] for one in points_of(run_of(world))} == {point["key"] for point in points[:3]}


def test_a_sweep_in_a_hold_asks_for_nothing(world: World) -> None:
    """One job is in the queue, the hold's; points that fail by its size run again with what the hold has."""
    assert world.run("hold", "--site", "slurm", "--nodes", "2", "--time", "1h", "--detach").returncode == 0
    words = ("--in", "last", *GRID)
    said = sweep(world, *words)[1]
    assert "2 nodes of the hold" in said
    run = run_of(world)
    points = points_of(run)
    write_events(run, {"event": "allocated", "nodes": ["n1", "n2"]})
    end(run, points[0], "out of memory", {"kind": "oom", "rule": "oom-kill", "nodes": []})
    write_end(run, 1, state="FAILED")
    said = sweep(world, *words, "--only-failed")[1]
    assert "  again  " in said
    assert [one["key"] for one in points_of(run_of(world))] == [points[0]["key"]]
    assert "hold" in json.loads((run_of(world) / "submission.json").read_text())
    assert len([call for call in world.calls("sbatch") if "--test-only" not in call["arguments"]]) == 1


def test_a_changed_script_is_asked_about(world: World) -> None:
    sweep(world, *GRID)
    first = run_of(world)
    for point in points_of(first):
        end(first, point, loss=1.0)
    write_end(first, 1)
    world.script.write_text("print('other')\n")
    _, said = sweep(world, *GRID, status=errors.USAGE)
    assert "4 points are stale" in said
    assert run_of(world) == first
    sweep(world, *GRID, "--yes")
    assert len(points_of(run_of(world))) == 4
    assert run_of(world) != first


def test_the_table(world: World) -> None:
    sweep(world, *GRID)
    run = run_of(world)
    points = points_of(run)
    end(run, points[0], loss=0.5, speed=2)
    end(run, points[1], loss=None)
    end(run, points[2], "ValueError: \x1b[2J no", loss=0.1)
    out, said = sweep(world, "table", "job")
    assert out == (
        "loss  state       time  N  point\n"
        " 0.5  ok         2.0 s  1  k=8 lr=0.1\n"
        " nan  ok         2.0 s  2  k=8 lr=0.01\n"
        " 0.1  failed     2.0 s  3  k=16 lr=0.1\n"
        "  ValueError: \\x1b[2J no\n"
        "      under way         4  k=16 lr=0.01\n"
    )
    assert said.startswith("4 points: 2 ok, 1 failed, 1 waiting. ")
    assert "Smallest loss first (" in said
    out, _ = sweep(world, "table", "job", "--csv", "--metric", "speed", "--maximize")
    rows = list(csv.DictReader(out.splitlines()))
    assert [(row["k"], row["lr"], row["loss"], row["speed"], row["state"]) for row in rows][:2] == [
        ("8", "0.1", "0.5", "2", "ok"), ("8", "0.01", "nan", "", "ok"),
    ]  # fmt: skip
    assert sweep(world, "table", "job", "--csv", "t.csv")[0].endswith("/t.csv\n")
    table = world.project / "t.csv"
    assert next(csv.DictReader(table.read_text().splitlines()))["loss"] == "0.5"
    sweep(world, "plot", "job", "-o", "sub/p.svg", status=errors.STORAGE)
    sweep(world, "plot", "job", "--metric", "other", status=errors.USAGE)
    sweep(world, "plot", "job", "-o", "p.txt", status=errors.USAGE)
    sweep(world, "plot", "job")
    assert (world.project / "job.svg").read_text() == sweep(world, "plot", "job", "-o", "-")[0]
    assert sorted(path.name for path in world.project.iterdir()) == ["job.py", "job.svg", "t.csv"]
    out, _ = sweep(world, "table", "job", "--json")
    first = json.loads(out)[0]
    assert (first["values"], first["texts"]) == ({"k": 8, "lr": 0.1}, {"k": "8", "lr": "0.1"})
    assert "1 failed: ValueError: \\x1b[2J no (e.g. k=16 lr=0.1)" in sweep(world, "status", "job")[0]
    (run / f"points/{points[3]['key']}.log").touch()
    assert sweep(world, "status")[0].startswith("job  4 points: 2 ok, 1 failed, 1 running")


def test_damaged_records_are_named(world: World) -> None:
    sweep(world, *GRID)
    run = run_of(world)
    (run / "points").mkdir()
    for path in (run / "points" / f"{points_of(run)[0]['key']}.json", world.runs / "sweeps/job/sweep.json"):
        whole = path.read_text() if path.exists() else ""
        for damage in (planted.hole, planted.pipe, planted.kinds):
            planted.put(path, damage)
            for words in (("table", "job"), ("status",), GRID):
                _, said = sweep(world, *words, status=errors.STORAGE)
                assert str(path) in said or str(path.parent) in said or str(run) in said
        path.unlink()
        if whole:
            path.write_text(whole)


def test_pruned_points_are_no_failure_and_not_run_again(world: World) -> None:
    prunes = (*GRID, "--metric", "loss", "--maximize", "--pruner", "asha(reduction_factor=4)")
    sweep(world, *prunes)
    run = run_of(world)
    study = json.loads((run / "points.json").read_text())["study"]
    assert study.pop("name").startswith("job-")
    assert study == {
        "journal": str(world.runs / "sweeps/job/study.journal"), "metric": "loss", "maximize": True, "seed": 0,
        "pruner": ["SuccessiveHalvingPruner", {"reduction_factor": 4}], "sampler": ["", {}], "space": {}, "typed": {},
    }  # fmt: skip
    points = points_of(run)
    end(run, points[0], loss=0.5)
    end(run, points[1], "pruned at step 2", {"status": "pruned", "exit_status": 94}, loss=0.9)
    end(run, points[2], "ValueError: no")
    write_end(run, 1)
    out, said = sweep(world, "table", "job")
    assert out.splitlines()[2].split("  ") == [" 0.9", "pruned at step 2", "2.0 s", "2", "k=8 lr=0.01"]
    assert said.startswith("4 points: 1 ok, 1 pruned, 1 failed, ")
    assert said.endswith(" Largest loss first.\n")
    assert "1 done, 1 pruned, 1 failed, 1 to run" in sweep(world, *prunes, "--only-failed")[1]


def test_a_search_has_draws_whose_values_are_chosen_later(world: World) -> None:
    words = ("job.py", "--metric", "loss", "--seed", "7")
    space = ("x=uniform(0,1)", "k=randint(1,9)", "c=choice(8,b)")
    _, said = sweep(world, *words, "--search", "3", *space)
    assert "3 points, 3 to run" in said
    first = run_of(world)
    study = json.loads((first / "points.json").read_text())["study"]
    assert (study["sampler"], study["pruner"], study["seed"]) == (["TPESampler", {}], ["", {}], 7)
    assert study["space"] == {"x": ["uniform", [0, 1]], "k": ["randint", [1, 9]], "c": ["choice", ["8", "b"]]}
    assert study["typed"] == {"c": {"8": 8, "b": "b"}}
    points = points_of(first)
    assert [(point["draw"], point["values"], point["texts"]) for point in points] == [(n, {}, {}) for n in range(3)]
    end(first, points[0] | {"values": {"x": 0.5, "k": 3, "c": 8, "draw": 0}}, loss=0.25)
    end(first, points[1] | {"values": {"x": 0.75, "k": 2, "c": "b", "draw": 1}}, "ValueError: no")
    write_end(first, 1)
    sweep(world, *words, "--search", "3", *space, "--only-failed", "--json")
    assert [point["values"] for point in points_of(run_of(world))] == [{"x": 0.75, "k": 2, "c": "b", "draw": 1}]
    write_end(run_of(world), 1)
    (first / "points" / f"{points[1]['key']}.json").unlink()
    out, _ = sweep(world, "table", "job")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["0.25", "ok", "2.0", "s", "1", "x=0.5", "k=3", "c=8", "draw=0"], ["missing", "2", "draw=1"], ["missing", "3", "draw=2"],
    ]  # fmt: skip
    _, said = sweep(world, *words, "--search", "5", *space)
    assert "5 points, 1 done, 4 to run" in said, "more draws go on with the study"
    again = json.loads((run_of(world) / "points.json").read_text())["study"]
    assert again["name"] == study["name"]
    assert "5 to run" in sweep(world, *words, "--search", "5", *space[:2], "--dry-run")[1], "another space"


def test_without_optuna_nothing_is_submitted(world: World) -> None:
    env = world.top / "env"
    for name in ("dask", "distributed", "cryptography"):
        (env / "lib/python3.11/site-packages" / name).mkdir(parents=True)
    (env / "bin").mkdir()
    (env / "bin/python").symlink_to(sys.executable)
    (env / "pyvenv.cfg").write_text("home = /usr/bin\n")
    python = f"runtime.python={env}/bin/python"
    (dask := env / "lib/python3.11/site-packages/dask").rmdir()
    _, said = sweep(world, *GRID, "--set", python, status=errors.REFUSED)
    assert " ".join(said.split()) == says("lacks the package dask", "--python PATH. A sweep needs Dask")
    dask.mkdir()
    _, said = sweep(world, *GRID, "--pruner", "median", "--metric", "loss", "--set", python, status=errors.REFUSED)
    assert f"hpcml: The run's Python ({env}/bin/python) lacks the package optuna (extra 'sweep')." in said
    assert "Nothing was submitted." in said
    assert world.left() == []


REFUSED: list[tuple[tuple[str, ...], str]] = [
    ((), "SCRIPT is missing"),
    (("job.py",), "The sweep has no points"),
    (("job.py", "--grid", "k=1", "other"), "'other' is not NAME=VALUES (--grid)"),
    (
        ("delete", "fitp"),
        "'delete' is no script here, and not a verb (hpcml sweep).\nThe verbs are status, table, plot, cancel, rm.",
    ),
    (("logs", "fitp"), "'logs' is no script here, and not a verb"),
    (
        ("job.py", "--grid=k=1", "lr=2"),
        "'lr=2' is not an option (hpcml sweep).\nWrite a parameter of the grid as --grid lr=2.",
    ),
    (
        ("--grid", "k=1", "job.py", "lr=2"),
        "'lr=2' is not an option (hpcml sweep).\nWrite a parameter of the grid as --grid lr=2.",
    ),
    (("--zip", "k=1", "l=1", "job.py", "lr=2", "--json"), "'lr=2' is not an option"),
    (("job.py", "--grid", "k=1", "--", "--k", "3"), "The script's arguments and the points both set --k"),
    (("job.py", "--grid", "k=1", "--max-fails", "x"), "'x' is not a whole number"),
    (("job.py", "--random", "5", "x=uniform(0,1)", "--seed", "x"), "'x' is not a whole number"),
    (("job.py", "--grid", "k=1", "--sampler", "tpe"), "--sampler needs --search"),
    (("job.py", "--grid", "k=1", "--pruner", "asha"), "--pruner needs a metric"),
    (("job.py", "--search", "5", "x=uniform(0,1)"), "--search needs a metric"),
    (("job.py", "--search", "5", "--metric", "m"), "--search needs a number of points, then distributions"),
    (
        ("job.py", "--search", "5", "draw=uniform(0,1)", "--metric", "m"),
        "'draw' is reserved: it numbers the points of a search",
    ),
    (
        ("job.py", "--search", "5", "x=uniform(0,1)", "--grid", "k=1", "--metric", "m"),
        "--search and --grid cannot be combined",
    ),
    (
        ("job.py", "--search", "5", "x=uniform(0,1)", "--metric", "m", "--", "--x=3"),
        "The script's arguments and the points both set --x",
    ),
    (("job.py", "--grid", "k=1", "--metric", "m", "--pruner", "best"), "'best' is not one of asha, median, hyperband"),
    (("job.py", "--grid", "k=1", "--metric", "m", "--pruner", "asha(eta=3)"), "Optuna refuses 'asha(eta=3)'"),
    (("job.py", "--grid", "k=1", "--metric", "m", "--pruner", "asha(reduction_factor=1)"), "Optuna refuses 'asha("),
    (("job.py", "--grid", "k=1", "--wait", "--detach"), "--wait and --detach cannot be combined"),
    (("job.py", "--grid", "k=1", "--profile", "dask"), "A sweep cannot record profiler output"),
    (("book.ipynb", "--grid", "k=1"), "The script of a sweep must be a Python file"),
    (("job.py", "--grid", "a=range(1000)", "--grid", "b=range(1000)"), "The sweep would have 1,000,000 points"),
    (("table",), "Add the NAME of one sweep"),
    (("plot",), "Add the NAME of one sweep"),
    (("plot", "-o", "a.svg"), "Add the NAME of one sweep"),
    (("table", "a", "b"), "Add the NAME of one sweep"),
]


def test_what_is_refused(world: World, subtests: pytest.Subtests) -> None:
    for words, sentence in REFUSED:
        with subtests.test(words=words):
            _, said = sweep(world, *words, status=errors.USAGE)
            assert said.startswith(f"hpcml: {sentence}")
    _, said = sweep(world, "table", "none", status=errors.NOT_FOUND)
    assert said.startswith("hpcml: Unknown sweep 'none'")
    assert world.left() == []
    sweep(world, *GRID)
    assert sweep(world, "table")[1].startswith("The newest sweep: job\n")
    done = world.run("rerun", "last")
    assert done.returncode == errors.USAGE
    assert done.stderr.startswith("hpcml: The run belongs to the sweep 'job'")
    done = world.run("--host", "nowhere.invalid", "sweep", *GRID)
    assert done.returncode == errors.USAGE
    assert done.stderr.startswith("hpcml: A laptop cannot start a sweep")


def test_a_script_may_be_called_nearly_as_a_verb(world: World) -> None:
    sweep(world, "plot.py", "--grid", "k=1,2", status=errors.NOT_FOUND)
    world.script.rename(world.project / "plot.py")
    sweep(world, "plot.py", "--grid", "k=1,2", "--dry-run")


def test_cancel_ends_all_runs_of_a_sweep(world: World) -> None:
    sweep(world, *GRID, "--jobs", "2", "--json")
    sweep(world, *GRID, "--grid", "s=1", "--json")
    end(run_of(world), points_of(run_of(world))[0], loss=0.5)
    world.submit("--name", "other")
    out, _ = sweep(world, "cancel", "job", "--json")
    facts = json.loads(out)
    assert [one["cancelled"] for one in facts["cancelled"]] == [True] * 3
    assert (facts["points"], facts["ok"]) == (4, 1)
    assert sorted(call["arguments"][0] for call in world.calls("scancel")) == ["101", "102", "103"]
    out, said = sweep(world, "cancel", "job")
    assert (out, said) == ("job  4 points: 1 ok, 3 missing\n", "The sweep has no active run.\n")
    sweep(world, "cancel", "none", status=errors.NOT_FOUND)
    assert sweep(world, "cancel", status=errors.USAGE)


def end_all(world: World) -> None:
    """End each run of the world, and its job."""
    for plan in world.runs.glob("*/plan.json"):
        write_end(plan.parent)
    for job in world.jobs():
        world.set_job(job, state="COMPLETED")


def test_rm_removes_a_sweep_with_its_runs(world: World) -> None:
    sweep(world, *GRID, "--jobs", "2", "--json")
    sweep(world, *GRID, "--name", "other", "--json")
    record, runs = world.runs / "sweeps/job", world.left()
    _, said = sweep(world, "rm", "job", "--yes", status=errors.USAGE)
    assert "hpcml cancel RUN" in said
    assert record.exists()
    end_all(world)
    sweep(world, "rm", "job", status=errors.USAGE)  # nobody is there to be asked
    facts = json.loads(sweep(world, "rm", "job", "--dry-run", "--json")[0])
    assert [len(facts["would_remove"]), world.left()] == [2, runs]
    assert record.exists()
    facts = json.loads(sweep(world, "rm", "job", "--yes", "--json")[0])
    assert sorted(facts["removed"]) == sorted(name for name in runs if name.startswith("job-"))
    assert [name.partition("-")[0] for name in world.left()] == ["other", "sweeps"]
    assert [path.name for path in record.parent.iterdir()] == ["other"]
    sweep(world, "rm", "job", status=errors.NOT_FOUND)
    world.run("rm", "--name", "other", "--yes")
    assert "with 0 runs" in sweep(world, "rm", "other", "--yes")[1]
    assert sweep(world, "status")[0] == ""


def test_the_name_of_a_sweep_may_come_after_options_and_is_no_path(world: World, tmp_path: Path) -> None:
    sweep(world, *GRID, "--json")
    end_all(world)
    for words in (("rm", "--dry-run", "job"), ("rm", "--set", "report.sample_every=0", "job", "--dry-run"), ("status", "--json", "job"),
                  ("table", "--csv", "job")):  # fmt: skip
        sweep(world, *words)
    sweep(world, "table", "job", "--csv", str(tmp_path / "x.csv"))
    assert (tmp_path / "x.csv").exists()
    assert "(job)" in sweep(world, "plot", "-o", "x.svg", "job", status=errors.USAGE)[1]  # it has no metric yet
    for name in ("../sweeps/job", "job/", str(world.runs / "sweeps/job"), "x" * 300):
        sweep(world, "rm", "--yes", name, status=errors.NOT_FOUND)
    assert (world.runs / "sweeps/job/sweep.json").exists()


def test_rm_keeps_a_sweep_that_went_on_meanwhile(world: World) -> None:
    """Another command submits more points while the user is asked."""
    sweep(world, *GRID, "--json")
    end_all(world)
    ours, theirs = pty.openpty()
    command = [str(world.command), "sweep", "rm", "job"]
    with subprocess.Popen(command, env=world.environment, stdin=theirs, stderr=subprocess.PIPE, text=True) as removal:
        assert removal.stderr
        said = ""
        while not said.endswith("[y/N] "):
            said += removal.stderr.read(1)
        sweep(world, *GRID, "--grid", "s=1", "--json")
        os.write(ours, b"y\n")
        assert removal.wait() == errors.USAGE
    assert len(world.left()) == 3  # with the folder of sweeps


def test_the_log_of_a_point_is_that_of_the_run_that_ran_it_last(world: World) -> None:
    sweep(world, *GRID, "--json")
    run = run_of(world)
    points = points_of(run)
    end(run, points[1], "ValueError: no")
    (run / f"points/{points[1]['key']}.log").write_text("first try\n")
    for words in (("job", "point:2"), ("point:2",), (run.name, "point:2"), ("job", "point:2", "-n", "1")):
        assert world.run("logs", *words).stdout == "first try\n"
    end_all(world)
    sweep(world, *GRID, "--only-failed", "--json")
    (run_of(world).joinpath("points")).mkdir()
    (run_of(world) / f"points/{points[1]['key']}.log").write_text("second try\n")
    assert world.run("logs", "job", "point:2").stdout == "second try\n"
    for words, status in ((("job", "point:9"), errors.NOT_FOUND), (("job", "point:0"), errors.NOT_FOUND)):
        done = world.run("logs", *words)
        assert (done.returncode, "4 points" in done.stderr) == (status, True)
    world.submit("--name", "job")  # a later run of the same name
    assert world.run("logs", "job", "point:2").stdout == "second try\n"
    world.submit("--name", "plain")
    assert world.run("logs", "plain", "point:1").returncode == errors.USAGE
    assert world.run("logs", "job", f"point:{'9' * 5000}").returncode == errors.USAGE
    assert world.run("logs", "none", "point:1").returncode == errors.NOT_FOUND


def test_cancel_of_a_run_ends_those_that_divide_points_with_it(world: World) -> None:
    sweep(world, *GRID, "--jobs", "3", "--json")
    sweep(world, *GRID, "--name", "other", "--json")
    done = world.run("cancel", run_of(world, 1).name, "--json")
    facts = json.loads(done.stdout)
    assert (facts["cancelled"], [one["cancelled"] for one in facts["others"]]) == (True, [True, True])
    assert sorted(call["arguments"][0] for call in world.calls("scancel")) == ["101", "102", "103"]


def test_why_names_the_points_that_remain(world: World) -> None:
    """The time limit ended no point: the stacks of hpcml's processes, which the node wrote before it, explain nothing."""
    sweep(world, *GRID)
    run, message = run_of(world), "2 of 4 points, 2 remain"
    (run / "attempts/0/stacks").mkdir(parents=True)
    process = {
        "pid": 7,
        "name": "script",
        "by": "",
        "command": "",
        "child": False,
        "threads": [],
        "state": "S",
        "wait": "",
    }
    (run / "attempts/0/stacks/n1.json").write_text(json.dumps({"id": "", "processes": [process]}))
    ends = {"submitted": 4, "failed": 0, "first": []}
    write_end(run, errors.TIME_LIMIT, message=message, hint="Repeat it.", points=ends)
    found = json.loads(world.run("why", "job", "--json").stdout)
    assert (found["cause"], found["next_step"], found["evidence"], found["known"]) == (message, "Repeat it.", [], True)
