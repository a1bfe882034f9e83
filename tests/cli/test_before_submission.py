"""Before a submission: its cost, the grant, Slurm's estimate and past runs, within a deadline and never in the way."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from world import World

BUDGET = """\
account  start  end  total  used  all
astro    2026   2027 2000   500   500
"""
COST = """
[cost]
unit = "core-h"
weights = { cpu = "1", "gres/gpu" = "8" }
largest = true
budget = ["grants", "-b"]
budget_row = '^{account}\\s+\\d+\\s+\\d+\\s+(?P<total>\\d+)\\s+(?P<used>\\d+)\\s'
ask = true
"""


@pytest.fixture
def priced(world: World) -> World:
    """A world whose site has a budget command and Slurm's estimates."""
    folder = world.home / ".config/hpcml"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(COST)
    (world.state / "budget").write_text(BUDGET)
    grants(world, 'cat "$FAKE_STATE/budget"')
    return world


def grants(world: World, line: str) -> None:
    """Let the site's budget command be a line of shell."""
    path = world.bin / "grants"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def submit(world: World, *words: str) -> str:
    options = ("--account", "astro", "--nodes", "2", "--cpus-per-node", "4", "--time", "2:00:00", *words)
    done = world.run("submit", "--site", "slurm", *options, "job.py")
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_what_it_costs_and_when_it_starts(priced: World) -> None:
    text = submit(priced)
    (line,) = [line for line in text.splitlines() if line.startswith("  cost ")]
    assert (
        line.split(None, 1)[1]
        == "4 node-h = 16 core-h, 0.8 % of the grant of astro (1500 left); Slurm would start it now"
    )
    assert text.index("  cost ") < text.index("  run ")
    assert priced.calls("scontrol") == []
    done = priced.run("submit", "--site", "slurm", "--dry-run", "--account", "nobody", "--time", "60", "job.py")
    assert done.returncode == 0
    assert "#SBATCH" in done.stdout
    assert "node-h" not in done.stdout
    assert "the budget command says nothing of account nobody" in done.stderr
    assert "start      Slurm would start it now" in done.stderr


def test_a_partition_with_grants_of_its_own_is_asked_for_them(priced: World) -> None:
    grants(priced, '[ "$1" = --own ] && echo "astro 2026 2027 4000 4000 0"')
    own = ("--set", 'partitions.small.budget=["grants", "--own"]', "--partition", "small")
    assert "of the grant of astro (0 left): more than is left" in submit(priced, *own)


def test_slurm_s_own_weights_are_compared(priced: World) -> None:
    """Of the two questions of --dry-run the fake answers with one text, as if both were in it."""
    out = "PartitionName=x\n   TRESBillingWeights=CPU=2.0,Mem=0.25G,GRES/gpu=2.0\nPriorityFlags           = MAX_TRES,FAIR_TREE\n"
    priced.answer("scontrol", out=out)
    assert "by Slurm's own weights 32 core-h: the profile's are others" in submit(
        priced, "--dry-run", "--partition", "x"
    )
    priced.answer("scontrol", out=out.replace("CPU=2.0", "CPU=1.0"))
    assert "by Slurm's own weights 16 core-h\n" in submit(priced, "--dry-run", "--partition", "x")
    for no in ("PartitionName=x TRESBillingWeights=(null)\n", out.replace("MAX_TRES", "MAX_TRES_GRES"), ""):
        priced.answer("scontrol", out=no)
        assert "own weights" not in submit(priced, "--dry-run", "--partition", "x")


def test_without_the_keys_nobody_is_asked(world: World) -> None:
    text = submit(world)
    assert "  cost " not in text
    assert [call["arguments"] for call in world.calls("sbatch") if "--test-only" in call["arguments"]] == []
    dry = submit(world, "--dry-run")
    assert "cost       4 node-h\n" in dry
    assert "one attempt" not in dry
    assert len(world.calls("sbatch")) == 1
    assert world.calls("scontrol") == []
    for words, most in ((("--max-restarts", "2"), 12), (("--max-node-hours", "9"), 9)):
        dry = submit(world, "--dry-run", "--until-done", *words)
        assert f"that is one attempt; all of them take at most {most} node-h ({' '.join(words)})" in dry


def test_what_fails_or_hangs_stops_no_submission(priced: World) -> None:
    grants(priced, "exit 3")
    priced.answer("sbatch", code=1, err="sbatch: error: slurm_persist_conn_open: no\n")
    done = priced.run("submit", "--site", "slurm", "--dry-run", "--account", "astro", "--time", "60", "job.py")
    assert done.returncode == 0
    assert "grants failed with exit status 3" in done.stderr
    assert "not known  slurm: Slurm refused\n" in done.stderr
    priced.answer("sbatch", code=124)
    assert "not known  slurm: Slurm's controller does not answer\n" in submit(priced, "--dry-run")
    priced.answer("sbatch")
    assert "  run " in submit(priced)
    (priced.bin / "grants").unlink()
    assert "  run " in submit(priced)
    grants(priced, "exec sleep 600")
    assert "  run " in submit(priced), "within the minute that a command has here"


def test_a_project_does_not_say_what_is_started(priced: World) -> None:
    (priced.home / ".config/hpcml/config.toml").unlink()
    (priced.project / "hpcml.toml").write_text(COST)
    grants(priced, "echo started > started")
    assert "  run " in submit(priced)
    assert not (priced.project / "started").exists()


def past(world: World, seconds: int, exit_status: int = 0) -> Path:
    """Submit the script and write that it has ended after so long."""
    world.run("submit", "--site", "slurm", "--time", "2:00:00", "--nodes", "2", "job.py")
    run = world.runs / max(world.left(), key=lambda name: name[-20:])
    events = [("allocated", 0, {"nodes": ["n1", "n2"]}), ("driver-started", 5, {}), ("torn-down", seconds, {})]
    lines = [json.dumps({"event": name, "time": 1e9 + at, "attempt": 0, **facts}) + "\n" for name, at, facts in events]
    (run / "events.jsonl").write_text("".join(lines))
    end = {
        "over": True,
        "state": "COMPLETED",
        "exit_status": exit_status,
        "by": "script",
        "message": "",
        "hint": "",
        "quote": [],
    }
    (run / "status.json").write_text(json.dumps(end))
    return run


def test_runs_before_that_took_much_less(world: World) -> None:
    past(world, 700)
    assert "  time " not in submit(world), "one run tells nothing"
    past(world, 750)
    past(world, 7100, 1)
    assert "the last 2 runs of it took 00:12:30 at most of the 02:00:00 asked: --time 00:20:00 may do" in submit(world)
    assert "  time " not in submit(world, "--nodes", "3")
    assert "  time " not in submit(world, "--time", "20")
    (past(world, 700) / "request.json").write_text("{")
    assert "  time " not in submit(world)


def lost(world: World, node: str, *words: str) -> Path:
    """Submit a script and write that the run ended because a node's GPU was gone."""
    before = set(world.left())
    assert world.run("submit", "--site", "slurm", "--nodes", "2", *words, "job.py").returncode == 0
    (name,) = set(world.left()) - before
    run, now = world.runs / name, time.time()
    events = [
        {"event": "allocated", "time": now, "attempt": 0, "nodes": ["n2", "n3"]},
        {"event": "ending", "time": now + 1, "attempt": 0},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now))
    (run / "logs" / f"worker-{node}.log").write_text(f"{stamp},000 - NVRM: GPU has fallen off the bus\n")
    end = {
        "over": True,
        "state": "FAILED",
        "exit_status": 82,
        "by": "hpcml",
        "message": "workers were lost: n3",
        "hint": "",
        "quote": [],
    }
    (run / "status.json").write_text(json.dumps(end))
    return run


def test_a_node_that_failed_is_named_for_a_day(world: World) -> None:
    run = lost(world, "n3")
    told = f"n3 failed a run within a day (GPU gone, {run.name}): leave it out with --exclude n3"
    assert "--exclude n3" not in submit(world, "--dry-run"), "a dry run writes nothing"
    assert told in " ".join(submit(world).split())
    assert "--exclude" not in (world.runs / max(world.left(), key=lambda name: name[-20:]) / "job.sh").read_text()
    assert told in " ".join(submit(world, "--dry-run").split())
    assert "failed a run" not in submit(world, "--exclude", "n4")
    assert "failed a run" not in submit(world, "--nodelist", "n[3-4]")
    wanted = world.run("submit", "--site", "slurm", "--dry-run", "--set", "slurm.exclude_failed=true", "job.py")
    assert "#SBATCH --exclude=n3\n" in wanted.stdout
    more = ("--set", "slurm.exclude_failed=true", "--set", 'slurm.extra=["--exclude=n[7-8]"]')
    assert (
        "#SBATCH --exclude=n[7-8],n3\n" in world.run("submit", "--site", "slurm", "--dry-run", *more, "job.py").stdout
    )
    assert "n3" in (world.home / ".hpcml/nodes/slurm.json").read_text()
    failing = ("--site", "slurm", "--set", "slurm.exclude_failed=true", "--name", "careful")
    assert world.run("submit", *failing, "job.py").returncode == 0
    (world.home / ".hpcml/nodes/slurm.json").write_text('{"nodes": [], "judged": {}}')
    (run / "status.json").unlink()
    assert "--exclude" not in world.run("rerun", "careful", "--dry-run").stdout, "not those of the first time"
    other = world.run("submit", "--site", "local", "--dry-run", "job.py")
    assert "failed a run" not in other.stderr


def test_why_and_status_remember_too(world: World) -> None:
    for verb in ("why", "status"):
        (world.home / ".hpcml/nodes/slurm.json").unlink(missing_ok=True)
        run = lost(world, "n3")
        assert world.run(verb, run.name).returncode == 0
        assert run.name in (world.home / ".hpcml/nodes/slurm.json").read_text()


def test_a_variable_s_value_is_no_command(world: World) -> None:
    value = "a'b $(touch owned)"
    variables = world.submit("--env", f"NOTE={value}") / "environment.sh"
    command = ["bash", "-c", '. "$0"; printf %s "$NOTE"', str(variables)]
    done = subprocess.run(command, cwd=world.project, capture_output=True, text=True, check=True)
    assert (done.stdout, (world.project / "owned").exists()) == (value, False)
