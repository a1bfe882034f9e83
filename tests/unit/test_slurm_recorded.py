"""What each version of Slurm said on the lab (bench/record_slurm.py), and what hpcml reads of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcml import schedulers
from hpcml.errors import SlurmUnreachableError
from hpcml.failures.rules import RULES
from hpcml.node import end_cause
from hpcml.schedulers import existing_allocation, slurm, slurm_machine
from hpcml.subprocesses import Answer
from tests.said import says

FOLDER = Path(__file__).resolve().parents[1] / "fixtures/slurm"
Recorded = dict[str, dict[str, Any]]


@pytest.fixture(params=sorted(path.stem for path in FOLDER.glob("*.json")))
def recorded(request: pytest.FixtureRequest) -> Recorded:
    found: Recorded = json.loads((FOLDER / f"{request.param}.json").read_text())
    return found


def answer(recorded: Recorded, name: str) -> Answer:
    said = recorded[name]
    return Answer(said["code"], said["out"], said["err"])


def saying(monkeypatch: pytest.MonkeyPatch, recorded: Recorded, *names: str) -> None:
    """Have hpcml be answered by what was recorded: of these answers the one whose program and options are the question's."""

    def options(words: list[str]) -> list[str]:
        # what changes an answer, not which jobs are asked for; --array only gives each task of an array its own line
        kept = ("--format", "--steps", "--details")
        return [words[0], *sorted(word for word in words if word.startswith(kept) or word in ("config", "partition"))]

    def ask(command: list[str], timeout: float = 0) -> Answer:
        found = [name for name in names if options(recorded[name]["command"]) == options(command)]
        return answer(recorded, found[0]) if found else Answer(1, "", "Invalid job id specified\n")

    monkeypatch.setattr(slurm, "ask", ask)


REFUSALS = {
    "account": ["rejected the account"],
    "qos": ["QoS does not exist"],
    "partition": ["partition does not exist"],
    "time": ["time limit exceeds the maximum of"],
    "nodes": ["requests more nodes than the partition allows", "requests more CPUs than the partition has"],
    "nodes of the partition": ["requests more nodes than the partition allows"],
    "cpus": ["No node of the partition matches the request", "requests more CPUs than the partition has"],
    "memory": [
        "No node of the partition has as much memory as the job requests",
        "No node of the partition matches the request",
    ],
    "gpus": ["No node of the partition matches the request"],
    "gpu type": ["No node of the partition matches the request", "does not know the requested GPUs"],
    "gres": ["does not know the requested GPUs"],
    "dependency": ["rejected the dependency"],
    "feature": ["No node has the requested feature"],
    "option": ["does not know one of the job's options"],
}


def test_refusals_have_words(recorded: Recorded, subtests: pytest.Subtests) -> None:
    for kind in ("refused", "test only, refused"):
        for name, messages in REFUSALS.items():
            with subtests.test(name, kind=kind):
                said = answer(recorded, f"{kind}: {name}")
                if name == "dependency" and said.code == 0:
                    assert recorded["version"]["out"].startswith("slurm-wlm 22.05"), "older ones take it"
                    continue
                assert said.code not in (0, None)
                message = slurm.refusal(said).message
                assert any(words in message for words in messages), (message, said.err)
    one_job = slurm.refusal(answer(recorded, "refused: one job"))
    assert "exceeds a limit of the account or the QoS" in one_job.message


def test_a_controller_that_is_gone(recorded: Recorded, subtests: pytest.Subtests) -> None:
    for program in ("squeue", "sbatch", "scancel", "scontrol"):
        with subtests.test(program):
            error = slurm.refusal(answer(recorded, f"gone: {program}"), program)
            assert isinstance(error, SlurmUnreachableError)
            assert error.transient


ENDS = {
    "time limit": "TIMEOUT", "node failure": "NODE_FAIL", "completed": "COMPLETED", "failed": "FAILED",
    "task failed": "FAILED", "task killed": "FAILED", "no program": "FAILED", "cancelled": "CANCELLED",
    "signalled": "FAILED", "requeued": "CANCELLED",
}  # fmt: skip


@pytest.mark.parametrize("source", ["squeue: ended", "sacct: ended"])
def test_states_of_ended_jobs(recorded: Recorded, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, recorded, source)
    jobs: Any = recorded["ended jobs"]
    found = slurm.states(list(jobs.values()))
    assert {name: found[jobs[name]].state for name in ENDS} == ENDS
    assert found[jobs["no program"]].nodes == "n[1-2]"
    if source == "sacct: ended":
        assert found[jobs["failed"]].exit == "3:0"


def test_jobs_in_the_queue(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, recorded, "squeue: queue", "squeue: array", "squeue: comments", "squeue: steps")
    jobs: Any = recorded["jobs"]
    found = slurm.states(list(jobs.values()))
    running = found[jobs["allocation"]]
    assert (running.state, running.nodes) == ("RUNNING", "n[1-2]")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[0-9:]{8}", running.start)
    assert {name: found[job].reason for name, job in jobs.items() if name not in ("allocation", "array")} == {
        "held": says("held by the user (to release the job"),
        "dependent": says("waiting for the jobs that this job"),
        "later": "waiting for the requested start time",
        "depends": says("waiting for the jobs that this job"),
        "too many": says("it requests more nodes than the QoS"),
    }
    assert slurm.task_states([jobs["array"]]) == {
        (jobs["array"], index): "RUNNING" if index < 2 else "PENDING" for index in range(6)
    }
    assert slurm.find(["held"])["held"].job == jobs["held"]
    steps = existing_allocation._steps(["--job", "1"])
    assert [name for _, name, _ in steps] == ["sleep", "batch"]
    assert all(node in ("n1", "n2") for _, _, node in steps)
    saying(monkeypatch, recorded, "squeue: unknown")
    assert slurm.states(["999999"])["999999"].state == "UNKNOWN"
    saying(monkeypatch, recorded, "squeue: unknown ones")
    assert slurm.states(["999998", "999999"])["999998"] == schedulers.UNKNOWN
    saying(monkeypatch, recorded, "squeue: queue")
    keys = [f"{jobs['held']} held", f"{jobs['held']} another-20261121-074500-1a2b"]
    assert [state.state for state in slurm.states(keys).values()] == ["PENDING", "UNKNOWN"]
    monkeypatch.setattr(slurm, "ask", lambda *_: answer(recorded, "scancel: unknown"))
    assert slurm.cancel("999999") == "job 999999"
    monkeypatch.setattr(slurm, "ask", lambda *_: answer(recorded, "scancel: ended"))
    assert slurm.cancel("999999") == "job 999999"


def test_what_else_is_asked(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, recorded, "config", "partition", "test only", "sacct: memory", "sacct: end",
           "sacctmgr: assoc", "sacctmgr: qos")  # fmt: skip
    assert slurm.most_tasks() == 1001
    jobs: Any = recorded["ended jobs"]
    assert slurm.requested_memory(jobs["completed"]) == 500 * 1024**2
    monkeypatch.setattr(slurm, "_test_only", lambda *_: answer(recorded, "test only"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[0-9:]{8}", slurm.prospect(Path("job.sh"), "boost", 1.0).start)


def test_how_a_job_ended(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    told = recorded["sacct: end"]["code"] == 0
    jobs: Any = recorded["ended jobs"]
    job = jobs["node failure"]

    def ask(command: list[str], timeout: float = 0) -> Answer:
        is_end = any("FailedNode" in word for word in command)
        return answer(recorded, "sacct: end") if is_end else Answer(0, f"{job}|0:9\n", "")

    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm.end(job) == (schedulers.JobEnd(0, "n4", 1) if told else schedulers.JobEnd(9))


def test_the_tables_of_a_profile(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `hpcml site init` reads."""

    def ask(command: list[str], timeout: float = 0) -> Answer:
        known = {tuple(said["command"]): name for name, said in recorded.items() if "command" in said}
        return answer(recorded, known[tuple(command)])

    monkeypatch.setattr(slurm, "ask", ask)
    found = slurm_machine.read("hpcml-alice")
    assert not found.refused
    assert found.partitions["debug"]["MaxNodes"] == "2"
    kind = found.kinds[0]
    assert (kind.partition, kind.nodes, kind.cpus, kind.memory, kind.gpus) == ("boost", 4, 8, 4000, 4)
    assert set(found.qos) == {"normal", "boost_qos_dbg", "one_job"}
    assert {row["Account"] for row in found.associations} == {"lab_account"}
    assert slurm_machine._submit_limits("hpcml-alice", "lab_account", "one_job", 60.0) == [1]


def test_without_an_account_the_limits_are_those_of_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"user": "alice|second|None\n", "account=second": "20|long\n", "name=long": "|long\n"}

    def ask(command: list[str], timeout: float = 0) -> Answer:
        return Answer(0, next((rows[word] for word in reversed(command) if word in rows), "5|short\n20|long\n"), "")

    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm_machine._submit_limits("alice", "", "", 60.0) == [20]
    rows |= {"user": "", "name=short": ""}  # as of a Slurm that does not tell
    assert slurm_machine._submit_limits("alice", "", "", 60.0) == [5, 20]


def test_an_allocation(recorded: Recorded) -> None:
    job = recorded["jobs"]["allocation"]
    found = existing_allocation.parse(job, recorded["job: allocation"]["out"])
    assert found._replace(end=0.0) == existing_allocation.Allocation(job, ("n1", "n2"), 2, 600, 2, 0.0)
    assert found.end > 0


RULES_OF = {
    "time limit": "time-limit", "node failure": "node-failure", "memory": "oom-kill", "no program": "execve",
    "no folder": "chdir", "step too wide": "step-cpus", "requeued": "requeued",
}  # fmt: skip
CAUSES = {
    "time limit": "TIME LIMIT",
    "node failure": "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
    "cancelled": "",
    "requeued": "JOB REQUEUE",
}


def test_lines_of_job_logs(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for name, rule in RULES_OF.items():
        with subtests.test(name):
            text = recorded[f"log: {name}"]["out"]
            known = {row.name for row in RULES if any(re.search(row.pattern, line) for line in text.splitlines())}
            assert rule in known, text
    log = tmp_path / "job.log"
    for name, cause in CAUSES.items():
        with subtests.test(name, of="the end"):
            log.write_text(recorded[f"log: {name}"]["out"])
            monkeypatch.setenv("SLURM_JOB_ID", recorded[f"log: {name}"]["job"])
            assert end_cause.why_ended({log: 0}) == cause
