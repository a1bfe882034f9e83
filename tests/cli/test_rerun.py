"""A run's request is submitted again: what was recorded, and what is given now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcml import errors
from world import World

OPTIONS = ("--nodes", "2", "--time", "45m", "--name", "first", "--account", "me", "--constraint", "fast", "--mem", "4G",
           "--set", "workers.per_node=3", "--set", "workers.threads=2", "--own-clusters")  # fmt: skip


def plan(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((directory / "plan.json").read_text())
    return facts


def spec(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((directory / "request.json").read_text())["spec"]
    return facts


def rerun(world: World, *options: str) -> Path:
    """Run it from another folder than the script's; return the new run's directory."""
    return world.made("rerun", *options, cwd=world.home)


def test_the_same_request(world: World) -> None:
    first = world.made("submit", "--site", "slurm", *OPTIONS, "job.py", "--", "--nodes", "9", "a b", "")
    assert f"this run repeats {first.name}" in world.run("rerun", "first", "--dry-run").stderr
    again = rerun(world, "last")
    assert spec(again) == spec(first)
    one, other = plan(first), plan(again)
    assert [[name, value.replace(again.name, first.name)] for name, value in other["directives"]] == one["directives"]
    assert other["inside"]["workers"]["per_node"] == 3


def test_what_is_given_now_wins_and_the_script_is_as_it_is_now(world: World) -> None:
    world.run("submit", "--site", "slurm", *OPTIONS, "job.py", "--k", "8")
    world.script.write_text("print('other')\n")
    again = rerun(
        world, "first", "--nodes", "4", "--set", "workers.per_node=5", "--constraint", "slow", "--name", "second"
    )
    assert again.name.startswith("second-")
    assert (again / "code/job.py").read_text() == "print('other')\n"
    facts = plan(again)
    assert (facts["inside"]["job"]["nodes"], facts["inside"]["workers"]["per_node"]) == (4, 5)
    assert facts["inside"]["code"]["arguments"] == ["--k", "8"]
    script = (again / "job.sh").read_text()
    assert "slow" in script
    assert "fast" not in script


def test_a_script_that_has_changed_is_named_with_its_earlier_file(world: World) -> None:
    first = world.made("submit", "--site", "slurm", "job.py")
    assert "has changed" not in world.run("rerun", first.name, "--dry-run").stderr
    world.script.write_text("print('other')\n")
    said = world.run("rerun", first.name, "--dry-run").stderr
    assert f"has changed since {first.name}." in said
    assert f"{first}/code/job.py" in said.replace("'\"'\"'", "'")


def test_arguments_given_now_replace_all_of_the_scripts(world: World) -> None:
    world.run("submit", "--site", "slurm", *OPTIONS, "job.py", "--k", "8", "--seed", "1")
    again = rerun(world, "first", "--name", "second", "--", "--k", "9", "--", "--nodes", "3")
    inside = plan(again)["inside"]
    assert (inside["code"]["arguments"], inside["job"]["nodes"]) == (["--k", "9", "--", "--nodes", "3"], 2)
    assert plan(rerun(world, "second", "--name", "fourth", "--"))["inside"]["code"]["arguments"] == []
    done = world.run("rerun", "first", "--name", "fifth", "--", "--k", "9")
    assert "change from --k 8 --seed 1 to --k 9" in " ".join(done.stderr.split())


def test_an_option_of_the_script_without_dashes_is_answered_with_the_whole_line(world: World) -> None:
    world.run("submit", "--site", "slurm", *OPTIONS, "job.py", "--", "a b", "--k", "8", "x.csv", "--seed=1")
    done = world.run("rerun", "first", "--nodes", "3", "--k", "9", "--seed", "2", "--lr=5")
    assert done.returncode == errors.USAGE
    assert "type: hpcml rerun first --nodes 3 -- 'a b' --k 9 x.csv --seed 2 --lr=5.\n" in done.stderr
    done = world.run("rerun", "first", "--nodes", "3", "--k", "3")
    assert "type: hpcml rerun first --nodes 3 -- 'a b' --k 3 x.csv --seed=1.\n" in done.stderr
    done = world.run("rerun", "first", "--nodes", "3", "c d", "9")
    assert " -- 'c d' 9.\n" in done.stderr, "not the old ones"


def test_what_cannot_be_run_again(world: World) -> None:
    assert world.run("rerun").returncode == errors.USAGE
    assert world.run("rerun", "last").returncode == errors.NOT_FOUND
    directory = world.submit()
    world.script.unlink()
    assert world.run("rerun", "last").returncode == errors.NOT_FOUND
    (directory / "request.json").write_text("{}")
    assert world.run("rerun", "last").returncode == errors.STORAGE
    assert len(world.left()) == 1


def test_a_module_and_a_program_are_what_they_were(world: World) -> None:
    (world.project / "pack.py").write_text("print(1)\n")
    for words in (("-m", "pack", "--k"), ("--", "bash", "x.sh"), ("--", "python3", "-u", "pack.py", "-c")):
        run = world.made("submit", "--site", "slurm", *words)
        assert spec(rerun(world, run.name)) == spec(run)
