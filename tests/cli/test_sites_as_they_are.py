"""Machines as they answer in public: `hpcml site init` and ten requests on each, through one fake of their Slurm.

tests/fixtures/sites/README.md says what a machine's file has. The next machine is one file.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from site_slurm import Site, minutes
from world import World

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/sites"
MACHINES = sorted(path.stem for path in FIXTURES.glob("*.toml"))
WAY_OUT = re.compile(r"(?m)^Try (--partition|--qos) (\S+)\.$")
SITE_FAKES = Path(__file__).resolve().parent / "site_fakes"


def settle(world: World, machine: str) -> dict[str, str]:
    """Put a machine's Slurm in the place of the fake one; return the environment that has it."""
    return {"PATH": f"{SITE_FAKES}:{world.environment['PATH']}", "FAKE_SITE": str(FIXTURES / f"{machine}.toml")}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_gets_its_profile_and_its_requests(world: World, machine: str) -> None:
    """What hpcml gets wrong today is in the file's list ``wrong``, and nothing else is."""
    table = tomllib.loads((FIXTURES / f"{machine}.toml").read_text())
    env = settle(world, machine)
    name = f"my-{machine}"  # some machines have a profile that ships with hpcml
    done = world.run("site", "init", name, "--json", env=env)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    profile = tomllib.loads(Path(written["path"]).read_text())
    wrong = {}
    if odd := profile.get("partitions", {}).keys() ^ table["expect"]["partitions"].keys():
        wrong["partitions"] = f"one has {', '.join(sorted(odd))}, the other not"
    for key, value in expected(table):
        if not same(key[-1], found := has(profile, key), value):
            wrong[".".join(key)] = f"{found} for {value}"
    for request, (words, outcome, *partition) in table["requests"].items():
        try:
            judged(world, env, (*shlex.split(words), "--site", name), outcome, *partition)
        except AssertionError as error:
            wrong[f"request {request}"] = f"{words}\n{error}"
    texts = "\n".join(f"{key}: {text}" for key, text in wrong.items())
    assert wrong.keys() == set(table.get("wrong", ())), texts


def expected(table: dict[str, Any]) -> list[tuple[tuple[str, ...], object]]:
    """Return what a profile must have, by key; None for what it must not have."""
    expect = table["expect"]
    rows: list[tuple[tuple[str, ...], object]] = [
        (("defaults", "partition"), expect["partition"]),
        (("defaults", "account"), expect.get("account")),
    ]
    for kind in ("partitions", "qos"):
        for name, values in expect.get(kind, {}).items():
            rows += [((kind, name, key), value or None) for key, value in values.items()]
    return [*rows, *((("slurm", key), value) for key, value in expect.get("slurm", {}).items())]


def same(key: str, found: object, value: object) -> bool:
    """Return whether a profile's value is the expected one; times may be written otherwise."""
    if key == "max_time" and found and value:
        return minutes(str(found)) == minutes(str(value))
    return found == value


def has(profile: dict[str, Any], key: tuple[str, ...]) -> object:
    """Return what a profile has at a key; None if nothing."""
    found: Any = profile
    for part in key:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def judged(world: World, env: dict[str, str], words: tuple[str, ...], outcome: str, partition: str = "") -> None:
    """Submit a request, and compare what becomes of it with what the machine would make of it."""
    done = world.run("submit", *words, "job.py", env=env)
    said, refusal = f"{done.stdout}{done.stderr}", world.refusal()
    assert "Traceback" not in said
    if outcome == "refused":
        assert done.returncode, said
        for line in refusal:  # the machine's own words are shown, whatever hpcml says of them
            assert line in said, f"not shown: {line}\n{said}"
        if way := WAY_OUT.search(said):
            option, value = way.groups()
            other = world.run("submit", *instead(words, option, value), "job.py", env=env)
            world.refusal()
            assert other.returncode == 0, f"no way out: {way[0]}\n{said}{other.stderr}"
        return
    assert done.returncode == 0, said
    job = world.jobs()[max(world.jobs(), key=int)]
    assert (job["reason"] == "Priority") == (outcome == "runs"), f"waits for {job['reason']}\n{said}"
    directives = [line for line in Path(job["script"]).read_text().splitlines() if line.startswith("#SBATCH ")]
    if "--gpus-per-node" in words and not any("gpu" in line for line in directives):
        assert "slurm.gpu_request" in said, f"no GPU is asked for, without a word\n{said}"
    if "--memory-per-node" in words and not any("--mem" in line for line in directives):
        assert ".remove" in said, f"no memory is asked for, without a word\n{said}"
    if partition:
        chosen = [line.partition("=")[2] for line in directives if line.startswith("#SBATCH --partition=")]
        assert chosen == [partition], said


def instead(words: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    """Return a request with another value for an option."""
    pairs = [(name, words[place + 1]) for place, name in enumerate(words) if place % 2 == 0 and name != option]
    return (*(word for pair in pairs for word in pair), option, value)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_fake_says_what_the_machine_said(machine: str, subtests: pytest.Subtests) -> None:
    """Some files have answers of the real sbatch, which the fake is compared with."""
    site = Site(str(FIXTURES / f"{machine}.toml"))
    for probe in site.table.get("probe", ()):
        with subtests.test(options=probe["options"]):
            verdict = site.judge(probe["options"])
            assert probe.get("message", "") in verdict.message
            assert bool(verdict.message) == ("message" in probe), verdict
            assert probe.get("says", "") in "".join(verdict.says)
