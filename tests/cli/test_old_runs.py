"""Runs that an older hpcml made and ended: every command says of them what that version said."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from world import World

RECORDED = Path(__file__).resolve().parents[1] / "fixtures/old_runs"
MADE_AT = "/tmp/hpcml-old-runs"  # TOP of make.py
VERSIONS = ("e5d3041d",)
ON_SLURM = ("chain", "queued", "refused")
QUEUED = "105"  # the job that waits
NEWLY_SAID = ("job_state", "silent", "reason")  # of Slurm, which here is another than where the runs were made
# Facts that this version finds where the older one did not.
BETTER = {
    "ranks-failed": {".occurrences"},  # a line of code in a traceback is no occurrence
}


class OldRuns(NamedTuple):
    """The runs of an older version in a home, and what that version said of them."""

    world: World
    answers: dict[str, Any]

    def ask(self, case: str, *words: str) -> tuple[int, str, str]:
        """Return what this version answers on a case: exit status, output, errors."""
        site = "slurm" if case in ON_SLURM else "local"
        return self.run(*words, "--site", site, self.answers["made"][case])

    def run(self, *words: str) -> tuple[int, str, str]:
        """Return what a command of this version answers."""
        done = self.world.run(*words)
        return done.returncode, done.stdout, done.stderr

    def old(self, case: str, question: str) -> dict[str, Any]:
        """Return what the older version answered."""
        return dict(self.answers["runs"][case][question])

    def said(self, case: str, question: str) -> dict[str, Any]:
        """Return what the older version printed as JSON, with the folder of this test."""
        return dict(json.loads(self.old(case, question)["out"]))


def unpacked(version: str, folder: Path, command: Path) -> OldRuns:
    """Unpack the runs of an older version into a home of this test, whose name they contain from now on."""
    top = folder / "old"
    top.mkdir()
    archive = RECORDED / f"{version}.tar.gz"
    subprocess.run(["tar", "-xzf", archive, "-C", top, "--no-same-owner"], check=True)
    for path in top.rglob("*"):
        if path.is_file() and not path.is_symlink():
            times = path.stat().st_atime_ns, path.stat().st_mtime_ns  # a log dates what it proves
            path.write_bytes(path.read_bytes().replace(MADE_AT.encode(), str(top).encode()))
            os.utime(path, ns=times)
    world = World(folder / "world", command)
    world.home, world.project, world.runs = top / "home", top / "project", top / "home/.hpcml/runs"
    world.environment["HOME"] = str(world.home)
    old = OldRuns(world, json.loads((top / "answers.json").read_text()))
    script = world.runs / old.answers["made"]["queued"] / "job.sh"
    (comment,) = re.findall(r"(?m)^#SBATCH --comment=(.*)$", script.read_text())
    world.add_job(QUEUED, state="PENDING", comment=comment, name="queued")
    return old


@pytest.fixture(scope="module", params=VERSIONS)
def old_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, hpcml_command: Path) -> OldRuns:
    """Return the runs of an older version, which tests only read."""
    return unpacked(request.param, tmp_path_factory.mktemp("old"), hpcml_command)


@pytest.fixture(params=VERSIONS)
def own_old_runs(request: pytest.FixtureRequest, tmp_path: Path, hpcml_command: Path) -> OldRuns:
    """Return the runs of an older version, which a test may change."""
    return unpacked(request.param, tmp_path, hpcml_command)


def lost(old: Any, new: Any, place: str = "") -> list[str]:
    """Return where an answer lacks or changes what the older one had; what is new is nothing lost."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [text for key in old for text in lost(old[key], new.get(key, "(absent)"), f"{place}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [text for number, pair in pairs for text in lost(*pair, f"{place}[{number}]")]
    return [] if old == new else [f"{place}: {old!r} became {new!r}"]


def facts_of(why: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of an explanation; its sentences may be written better."""
    names = ("run", "state", "failed", "known", "rule", "occurrences", "nodes")
    evidence = [{name: line[name] for name in ("text", "file", "number", "time", "node")} for line in why["evidence"]]
    return {**{name: why[name] for name in names}, "evidence": evidence}


def without_sentences(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without when it was made, its sentences, and the words for the sources of lines."""
    del report["made"], report["ending"]["cause"], report["ending"]["next_step"]
    for line in report["ending"]["evidence"]:
        del line["source"]
    return report


def test_status_of_an_old_run(old_runs: OldRuns, subtests: pytest.Subtests) -> None:
    for case in old_runs.answers["made"]:
        with subtests.test(case):
            status, out, error = old_runs.ask(case, "status", "--json")
            assert status == 0, error
            new, old = json.loads(out), old_runs.said(case, "status.json")
            if case == "queued":  # nobody answered in Slurm's place where it was made
                assert (new["state"], new["phase"], new["job"]) == ("PENDING", "queued", QUEUED)
                old = {
                    name: old[name] for name in ("run", "directory", "site", "kind", "command", "node_count", "asked")
                }
            assert not [line for line in lost(old, new) if not line.startswith(tuple(f".{one}" for one in NEWLY_SAID))]
            status, out, error = old_runs.ask(case, "status")
            assert status == 0, error
            assert old["run"] in out


def test_list_of_old_runs(old_runs: OldRuns) -> None:
    status, out, error = old_runs.run("ls", "--all", "--json", "--site", "slurm")
    assert status == 0, error
    rows = {row["run"]: row for row in json.loads(out)}
    assert len(rows) == len(old_runs.answers["ls"])
    for old in old_runs.answers["ls"]:
        differing = [line for line in lost(old, rows[old["run"]]) if not line.startswith((".job_state", ".silent"))]
        assert not differing or "queued" in old["run"], differing


def test_logs_of_an_old_run(old_runs: OldRuns, subtests: pytest.Subtests) -> None:
    for case in old_runs.answers["made"]:
        with subtests.test(case):
            old = old_runs.old(case, "logs")
            status, out, _ = old_runs.ask(case, "logs")
            assert (status, sorted(out.splitlines())) == (old["status"], sorted(old["out"].splitlines()))
            if not case.startswith("ranks"):  # the lines of ranks have an order by bytes, which another folder changes
                assert out == old["out"]
    run = old_runs.answers["made"]["dask-failed"]
    for role in ("driver", "scheduler", "worker", "job"):
        status, out, error = old_runs.run("logs", "--site", "local", run, role)
        assert status == 0, error
        assert out or role == "job"


# In a report an end that had none; since then all shares of time are of the job's time. Samples of a script of less than
# 10 s do not say for how long no task ran.
REPORTS_BETTER = (
    ".ending.phase: ''", ".ending.time: 0.0", ".figures.without_tasks: ", ".advice[0].value: ", ".advice[0].sentence: ",
    ".script_alone: ",
)  # fmt: skip


def test_why_of_an_old_run(old_runs: OldRuns, subtests: pytest.Subtests) -> None:
    for case in old_runs.answers["made"]:
        with subtests.test(case):
            status, out, error = old_runs.ask(case, "why", "--json")
            assert status == 0, error
            old, new = (facts_of(json.loads(text)) for text in (old_runs.old(case, "why.json")["out"], out))
            if case != "queued":
                assert not [line for line in lost(old, new) if line.partition(":")[0] not in BETTER.get(case, ())]


def test_report_of_an_old_run(old_runs: OldRuns, subtests: pytest.Subtests) -> None:
    for case in old_runs.answers["made"]:
        with subtests.test(case):
            old = old_runs.old(case, "report.json")
            status, out, error = old_runs.ask(case, "report", "--json")
            assert status == old["status"], error
            if status == 0:
                found = lost(without_sentences(json.loads(old["out"])), without_sentences(json.loads(out)))
                assert not [line for line in found if not line.startswith(REPORTS_BETTER)]
                status, _, error = old_runs.ask(case, "report")
                assert status == 0, error


def test_other_views_of_an_old_run(old_runs: OldRuns, subtests: pytest.Subtests) -> None:
    for case in old_runs.answers["made"]:
        with subtests.test(case):
            for words, expected in ((("top", "--once"), 0), (("stacks",), 66)):  # an ended run has no processes
                status, out, error = old_runs.ask(case, *words)
                assert status == expected, error
                assert old_runs.answers["made"][case] in out + error
            old = old_runs.old(case, "rerun")
            status, out, error = old_runs.ask(case, "rerun", "--dry-run")
            assert status == old["status"], error
            for word in ("command", "asks for", "code", "results"):
                lines = [[line for line in text.splitlines() if line.startswith(word)] for text in (old["out"], out)]
                assert lines[0] == lines[1]


def test_an_old_sweep_continues_with_what_is_missing(old_runs: OldRuns) -> None:
    for name in ("sweep-half", "sweep-complete"):
        for verb in ("status", "table"):
            old = old_runs.answers[f"{verb} {name}"]
            status, out, error = old_runs.run("sweep", verb, name, "--json", "--site", "local")
            assert status == old["status"] == 0, error
            before = json.loads(old["out"])
            for row in before if verb == "table" else ():
                row["texts"] = row.pop("values")  # as they are called now; values are typed
            assert not lost(before, json.loads(out))
    words = ("sweep", "point.py", "--grid", "k=1,2,3,4,5", "--site", "local", "--dry-run", "--json", "--name")
    for name, more, points in (("half", (), [4, 5]), ("half", ("--only-failed",), [3]), ("complete", (), [])):
        status, out, error = old_runs.run(*words, f"sweep-{name}", *more)
        assert status == 0, error
        assert [point["k"] for point in json.loads(out)["to_run"]] == points


def test_old_runs_are_submitted_again_and_cancelled(own_old_runs: OldRuns) -> None:
    old = own_old_runs
    for case in ("chain", "queued", "refused"):
        status, out, error = old.ask(case, "rerun", "--json")
        assert status == 0, error
        new = json.loads((Path(json.loads(out)["directory"]) / "request.json").read_text())
        before = json.loads((old.world.runs / old.answers["made"][case] / "request.json").read_text())
        del before["modules"]  # what this Python has installed
        before["spec"] = {name: value for name, value in before["spec"].items() if value}  # what was not given
        assert not lost(before, new)
    status, _, error = old.ask("queued", "cancel")
    assert status == 0, error
    assert old.world.jobs()[QUEUED]["state"] == "CANCELLED"
    status, out, _ = old.ask("queued", "status", "--json")
    assert json.loads(out)["state"] == "CANCELLED"
    for case in ("dask-ok", "chain", "sweep-half"):
        status, _, error = old.ask(case, "rm", "--yes")
        assert status == 0, error
        assert not (old.world.runs / old.answers["made"][case]).exists()
