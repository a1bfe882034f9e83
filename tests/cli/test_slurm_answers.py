"""What Slurm can say to a submission, and what it does not: each in words, and never a job that is sent twice."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from hpcml import errors
from hpcml.runs import directories
from hpcml.runs import record as records
from world import World, until, write_end, write_events

# What sbatch 22.05 said on the lab of tests/lab, with and without accounting.
REFUSALS = {
    "account": ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n",
                "rejected the account", "--account"),
    "new": ("sbatch: error: Batch job submission failed: The moon is full\n", "refused the job: Batch job submission failed: The moon is full", "support"),
    # a plugin of the site, whose errors sbatch then describes by an unrelated one of its own
    "plugin": ("sbatch: error: Ask for a moon first\nsbatch: error: See example.org\nsbatch: error: Batch job submission failed: Invalid feature specification\n",
               "Slurm refused the job: Ask for a moon first; See example.org", "support"),
    "cli_filter": ("sbatch: error: cli_filter: cannot explicitly request memory for GPU allocation\nsbatch: error: cli_filter plugin terminated with error\n",
                   "cannot explicitly request memory for GPU allocation", "support"),
}  # fmt: skip
NO_CONTROLLER = "Unable to contact slurm controller (connect failure)\n"
DOWN_NOW = {"err": f"slurm_load_jobs error: {NO_CONTROLLER}", "code": 1}
LOST = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
QUICK = ("--set", "slurm.timeout=2s")


def submit(world: World, *options: str) -> tuple[int, str]:
    done = world.run("submit", "--site", "slurm", *options, "job.py")
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_refusal_is_told_in_words_and_recorded(world: World, subtests: pytest.Subtests) -> None:
    for kind, (said, words, hint) in REFUSALS.items():
        with subtests.test(kind=kind):
            world.answer("sbatch", err=said, code=1)
            before = set(world.left())
            code, err = submit(world)
            assert code == errors.REFUSED
            for text in (words, hint, said.splitlines()[0]):
                assert text in err
            (name,) = set(world.left()) - before
            record = json.loads((world.runs / name / "submission.json").read_text())
            assert record["exit_status"] == errors.REFUSED
            assert words in record["error"]
    rows = world.answers("ls", "--all")
    assert [(row["state"], row["exit_status"]) for row in rows] == [("REFUSED", errors.REFUSED)] * len(REFUSALS)
    status = world.answers("status", "last")
    assert (status["state"], status["exit_status"]) == ("REFUSED", errors.REFUSED)


def test_a_controller_that_is_down_is_told(world: World) -> None:
    world.answer("sbatch", err=f"sbatch: error: Batch job submission failed: {NO_CONTROLLER}", code=1)
    code, err = submit(world)
    assert code == errors.UNREACHABLE
    assert "does not answer" in err
    assert "nothing was submitted" in err
    # a site's ``timeout`` around sbatch ends with 124 and says nothing while the controller is down
    world.answer("sbatch", code=124)
    code, err = submit(world, "--check")
    assert code == errors.UNREACHABLE, err
    assert "controller does not answer" in err


def test_without_slurm_the_run_is_on_this_machine(world: World) -> None:
    path = {"PATH": str(world.bin)}
    done = world.run("submit", "--dry-run", "--nodes", "2", "job.py", env=path)
    assert "so the run uses this machine; all 2" in done.stderr
    assert "sbatch was not found" not in world.run("submit", "--dry-run", "--site", "local", "job.py", env=path).stderr


def test_no_sbatch(world: World) -> None:
    done = world.run("submit", "--site", "slurm", "job.py", env={"PATH": str(world.bin)})
    assert done.returncode == errors.UNREACHABLE
    assert "sbatch: No such file" in done.stderr
    assert "--site local" in done.stderr


def test_a_banner_s_number_is_not_the_job_s(world: World) -> None:
    """The job is looked for by its comment, and `hpcml cancel` cancels no other."""
    world.answer("sbatch", then=True, out="  4711\nWelcome\n")
    world.add_job("4711", comment="(null)", name="mine", state="RUNNING")
    code, err = submit(world)
    assert code == 0, err
    assert json.loads((world.directory() / "submission.json").read_text())["job"] == "101"
    assert world.run("cancel", "last").returncode == 0
    assert {job: facts["state"] for job, facts in world.jobs().items()} == {"101": "CANCELLED", "4711": "RUNNING"}


def test_a_number_that_another_job_has_by_now(world: World) -> None:
    """The controller lost its state: the jobs of runs that waited are gone, and their numbers are other jobs'."""
    for name in ("old", "mine", "theirs"):
        world.submit("--name", name)
    assert world.run("cancel", "mine").returncode == 0
    world.set_job("103", state="CANCELLED")
    assert world.run("wait", "theirs").returncode == errors.CANCELLED
    for job in ("101", "102", "103"):
        world.add_job(job, comment="(null)", name="another", state="RUNNING")
    calls = len(world.calls("scancel"))
    assert world.run("wait", "old").returncode == errors.ALLOCATION_LOST
    for name, state, words in (
        ("old", "FAILED", "knows the run's job: the number 101 now"),
        ("mine", "CANCELLED", "you cancelled the run with hpcml cancel at "),
        ("theirs", "CANCELLED", "the job was cancelled (scancel)"),
    ):
        facts = world.answers("status", name)
        rows = world.answers("ls", "--name", name)
        assert [facts["state"]] == [row["state"] for row in rows] == [state]
        assert words in facts["message"]
        assert "has ended already" in world.run("cancel", name).stdout
    assert len(world.calls("scancel")) == calls
    assert {facts["state"] for facts in world.jobs().values()} == {"RUNNING"}


@pytest.mark.parametrize("answer", [{"out": "", "code": 0}, {"out": "", "code": 124}, {"sleep": 60}],
                         ids=["nothing", "ended-by-a-wrapper", "hangs"])  # fmt: skip
def test_a_lost_answer_is_found_again_and_the_job_not_sent_twice(world: World, answer: dict[str, object]) -> None:
    world.answer("sbatch", then=True, **answer)
    code, err = submit(world, *QUICK)
    assert code == 0, err
    assert "found the job by the job's comment" in err
    assert len(world.calls("sbatch")) == len(world.jobs()) == 1
    record = json.loads((world.directory() / "submission.json").read_text())
    assert record["job"] == "101"


def test_an_answer_that_stays_lost_has_a_status_of_its_own_and_is_found_later(world: World) -> None:
    world.answer("sbatch", then=True, out="", err=LOST, code=1)
    world.answer("squeue", **DOWN_NOW)
    code, err = submit(world, *QUICK)
    assert code == errors.ANSWER_LOST
    run = world.directory().name
    assert f"hpcml status {run}" in err
    assert "did not submit the job again" in err
    world.answer("squeue")
    facts = world.answers("status", run)
    assert (facts["job"], facts["state"]) == ("101", "PENDING")
    assert len(world.calls("sbatch")) == 1


@pytest.mark.parametrize("killed", [True, False], ids=["command-killed", "answer-lost"])
def test_a_run_without_a_job_was_not_submitted_after_some_minutes(world: World, killed: bool) -> None:
    """The command was killed between the run's folder and sbatch's answer, and sbatch with it."""
    directory, name = world.submit(), world.left()[0]
    record = directory / "submission.json"
    lost = json.loads(record.read_text()) | {"job": "", "error": "It is not known", "exit_status": errors.ANSWER_LOST}
    record.unlink() if killed else record.write_text(json.dumps(lost))
    world.forget()

    def state(*words: str) -> tuple[str, int | None]:
        facts = json.loads(world.run(*words, "--json").stdout)
        facts = facts[0] if isinstance(facts, list) else facts
        return facts["state"], facts["exit_status"]

    unknown = state("status", name)[0], state("ls")[0]
    assert unknown == ("UNKNOWN", "UNKNOWN"), "a job may come still"
    assert world.run("rm", "--yes", name).returncode == 1
    past = time.time() - records.LOST_AFTER - 60
    os.utime(directory / "plan.json", (past, past))
    world.answer("squeue", **DOWN_NOW)
    assert state("ls")[0] == "UNKNOWN", "only an answer of Slurm's shows it"
    world.answer("squeue")
    waited = world.run("wait", name)
    assert waited.returncode == errors.ANSWER_LOST, waited.stderr
    assert "was not submitted" in waited.stderr + waited.stdout
    assert state("status", name) == state("ls") == ("REFUSED", errors.ANSWER_LOST)
    cancelled = world.run("cancel", name)
    assert (cancelled.returncode, "was not submitted" in cancelled.stderr + cancelled.stdout) == (0, True)
    # an sbatch that took longer than that
    late = subprocess.run(
        ["bash", directory / "job.sh"], env={"SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin"}, check=False
    )
    assert (late.returncode, (directory / "attempts").exists()) == (errors.USAGE, False)
    assert world.run("rm", "--yes", name).returncode == 0
    assert world.left() == []


def test_a_run_whose_job_is_forgotten_was_submitted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = world.submit()
    (directory / "submission.json").unlink()
    world.forget()
    (directory / "job").symlink_to("101")
    os.utime(directory / "plan.json", (0, 0))
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    assert records.adopt(directories.load(directory)).job == "101"


def test_a_run_whose_answer_is_being_written_keeps_all_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hpcml ls` in another window looks between sbatch's answer and its record: the record is the submission's."""
    directory = world.submit("--set", 'slurm.extra=["--requeue"]')
    record = (directory / "submission.json").read_text()
    (directory / "submission.json").unlink()
    early = directories.load(directory)
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    (directory / "submission.json").write_text(record)
    found = records.adopt(early)
    assert (found.job, found.may_start_again) == ("101", True)
    assert (directory / "submission.json").read_text() == record
    (directory / "submission.json").unlink()
    again = records.adopt(early)
    assert (again.job, again.may_start_again) == ("101", True)
    assert json.loads((directory / "submission.json").read_text())["site"] == json.loads(record)["site"]


def test_check_asks_and_leaves_nothing(world: World) -> None:
    done = world.run("submit", "--site", "slurm", "--check", "job.py")
    assert done.returncode == 0, done.stderr
    assert "Slurm would accept the job" in done.stdout
    assert world.left() == []
    assert world.jobs() == {}
    world.answer(
        "sbatch", err="allocation failure: Requested time limit is invalid (missing or exceeds some limit)\n", code=1
    )
    done = world.run("submit", "--site", "slurm", "--check", "--json", "job.py")
    assert done.returncode == errors.REFUSED
    assert json.loads(done.stdout)["exit_status"] == errors.REFUSED


def running(world: World, *options: str, state: str = "RUNNING") -> Path:
    directory = world.submit(*options)
    world.set_job("101", state=state)
    now = {"time": time.time(), "nodes": ["n7"], "job": "101"}
    write_events(directory, {"event": "allocated", **now}, {"event": "script-started", **now})
    return directory


def test_a_running_run_is_shown_though_slurm_does_not_answer(world: World) -> None:
    running(world)
    world.answer("squeue", **DOWN_NOW)
    done = world.run("status", "last")
    assert done.returncode == 0, done.stderr
    assert "state      RUNNING: the script runs" in done.stdout
    assert "nodes      n7" in done.stdout
    assert done.stdout.count("does not answer") == 1
    listed = world.run("ls", "--json")
    assert [row["state"] for row in json.loads(listed.stdout)] == ["RUNNING"]
    assert "does not answer" in listed.stderr
    world.answer("scancel", err=DOWN_NOW["err"], code=1)
    cancelled = world.run("cancel", "last")
    assert cancelled.returncode == errors.UNREACHABLE
    assert "nothing was cancelled" in cancelled.stderr


def test_a_run_of_which_nothing_is_known_is_an_error(world: World) -> None:
    world.submit()
    world.answer("squeue", **DOWN_NOW)
    done = world.run("status", "last")
    assert done.returncode == errors.UNREACHABLE
    assert "job        101" in done.stdout
    assert "does not answer" in done.stdout


def test_a_run_that_is_put_back_into_the_queue_has_not_ended(world: World) -> None:
    """Preempted with the user's own --requeue: its first attempt wrote an end, and its job waits again."""
    directory = running(world, "--set", 'slurm.extra=["--requeue"]')
    script = (directory / "job.sh").read_text()
    assert "#SBATCH --requeue\n" in script
    assert "--no-requeue" not in script
    assert json.loads((directory / "submission.json").read_text())["requeue"] is True
    write_end(directory, errors.PREEMPTED, state="PREEMPTED", message="the job was preempted", by="scheduler")
    for state, seen in (("COMPLETING", "RUNNING"), ("PENDING", "PENDING"), ("PREEMPTED", "PREEMPTED")):
        world.set_job("101", state=state, reason="BeginTime")
        facts = world.answers("status", "last")
        assert facts["state"] == seen
        assert facts["exit_status"] == (errors.PREEMPTED if seen == "PREEMPTED" else None)
        assert [row["state"] for row in world.answers("ls")] == [seen]


def test_a_node_s_failure_leaves_the_next_attempt_in_the_queue(world: World) -> None:
    """Of a run that goes on until it is done: the batch script was killed, and nobody could write anything."""
    directory = running(world, "--until-done")
    world.submit("--name", "other")  # a job that stands for the follow-up
    world.set_job("102", comment=f"hpcml:{directory.name}")
    (directory / "next-job").symlink_to("102")
    (directory / "job").symlink_to("101")
    world.set_job("101", state="NODE_FAIL")
    for state, seen in (("PENDING", "PENDING"), ("RUNNING", "RUNNING"), ("CANCELLED", "CANCELLED")):
        world.set_job("102", state=state, reason="Priority")
        facts = world.answers("status", directory.name)
        assert (facts["state"], facts["job"]) == (seen, "102")
        rows = world.answers("ls")
        assert [row["state"] for row in rows if row["run"] == directory.name] == [seen]
    world.set_job("101", state="RUNNING")
    world.set_job("102", state="PENDING")
    assert world.run("cancel", directory.name).returncode == 0
    assert [job["state"] for job in world.jobs().values()] == ["CANCELLED", "CANCELLED"]


def test_a_job_that_wrote_nothing_may_have_had_no_folder_for_its_output(world: World) -> None:
    """Slurm fails such a job: ``--output`` of a batch script may name a folder by ``%x``, or one of the node's."""
    world.submit()
    world.set_job("101", state="FAILED")
    facts = world.answers("status")
    assert facts["exit_status"] == errors.ALLOCATION_LOST
    assert "output" in facts["hint"]


def test_many_runs_are_asked_for_in_one_question(world: World) -> None:
    for _ in range(3):
        world.submit()
    done = world.run("ls", "--json", "--last", "2")
    assert len(json.loads(done.stdout)) == 2
    (call,) = world.calls("squeue")
    assert "--jobs=102,103" in call["arguments"]


@pytest.mark.parametrize("way", ["option", "variable", "line", "short"])
def test_a_run_on_another_cluster_is_asked_for_and_cancelled_there(world: World, way: str) -> None:
    """sbatch names the cluster; without the name squeue knows no such job, and the run would count as failed."""
    if way == "line":
        world.script.write_text("#SBATCH -M dodrio,joltik\nprint('hello')\n")
    words = {"option": ("--clusters", "dodrio,joltik"), "short": ("-M", "joltik")}.get(way, ())
    env = {"SLURM_CLUSTERS": "joltik"} if way == "variable" else {}
    done = world.run("submit", "--site", "slurm", "--detach", *words, "job.py", env=env)
    assert done.returncode == 0, done.stderr
    (run,) = world.runs.glob("job-*")
    kept = json.loads((run / "submission.json").read_text())
    assert (kept["job"], kept["cluster"]) == ("101", "joltik")
    status = world.run("status", run.name, "--json")
    assert json.loads(status.stdout)["phase"] == "queued", status.stdout
    assert "--clusters=joltik" in world.calls("squeue")[-1]["arguments"]
    done = world.run("cancel", run.name)
    assert "job 101 on cluster joltik" in done.stdout
    assert world.calls("scancel")[-1]["arguments"] == ["--clusters=joltik", "101"]


def test_each_cluster_is_asked_once_and_a_silent_one_hides_no_other(world: World) -> None:
    for words in ((), ("-M", "joltik"), ("-M", "joltik"), ("-M", "down")):
        assert world.run("submit", "--site", "slurm", "--detach", *words, "job.py").returncode == 0
    before = len(world.calls("squeue"))
    (world.state / "down").write_text(repr({"down": True}))
    rows = json.loads(world.run("ls", "--json").stdout)
    asked = sorted(call["arguments"][0] for call in world.calls("squeue")[before:])
    assert asked == ["--all", "--clusters=down", "--clusters=joltik"]
    assert [row["state"] for row in rows].count("PENDING") == 3, rows


def test_a_lost_answer_of_another_cluster_is_found_there(world: World) -> None:
    (world.state / "sbatch.answer").write_text(
        repr({"then": True, "out": "", "err": "sbatch: error: Socket timed out\n", "code": 1})
    )
    done = world.run("submit", "--site", "slurm", "--detach", "-M", "dodrio,joltik", "job.py")
    assert done.returncode == 0, done.stderr
    (run,) = world.runs.glob("job-*")
    kept = json.loads((run / "submission.json").read_text())
    assert (kept["job"], kept["cluster"], kept["found_again"]) == ("101", "joltik", True)


def test_a_run_that_waits_for_a_maintenance_says_which_time_limit_still_fits(world: World) -> None:
    directory = world.submit()
    world.set_job("101", reason="ReqNodeNotAvail, Reserved for maintenance")
    world.answer(
        "scontrol",
        out="ReservationName=m StartTime=2099-01-01T08:00:00 EndTime=2099-01-02T08:00:00 Flags=MAINT Nodes=ALL\n",
    )
    text = world.run("status", directory.name).stdout
    assert "maintenance from 2099-01-01 08:00" in text
    assert re.search(r"--time \d+-\d\d:\d\d:00 or less", " ".join(text.split()))


def test_cancel(world: World) -> None:
    world.submit()
    done = world.run("cancel", "101")
    assert done.returncode == 0, done.stderr
    assert "is being cancelled (job 101)" in done.stdout
    assert world.jobs()["101"]["state"] == "CANCELLED"
    again = world.run("cancel", "last", "--json")
    assert (again.returncode, json.loads(again.stdout)["cancelled"]) == (0, False)
    world.submit()
    world.answer("scancel", err="scancel: error: Kill job error on job id 102: Access/permission denied\n", code=1)
    done = world.run("cancel", "last")
    assert done.returncode == errors.REFUSED
    assert "scancel" in done.stderr
    assert "partition" not in done.stderr  # which is what the same words mean of a submission


def test_a_run_that_was_cancelled_while_it_waited_stays_cancelled(world: World) -> None:
    """Also after Slurm has forgotten its job: without accounting that is five minutes later."""
    for name in ("mine", "theirs", "unseen"):
        world.submit("--name", name)
    assert world.run("cancel", "mine").returncode == 0
    world.set_job("102", state="CANCELLED")
    assert world.run("wait", "theirs").returncode == errors.CANCELLED
    world.set_job("103", state="CANCELLED")
    world.forget("101", "102")
    assert world.answers("ls")[2]["state"] == "CANCELLED"  # it is the first that sees it
    world.forget("103")
    for name, words in (("mine", "the run with hpcml cancel at 20"), ("theirs", "the job was cancelled (scancel)"),
                        ("unseen", "the job was cancelled (scancel)")):  # fmt: skip
        facts = world.answers("status", name)
        assert (facts["state"], facts["exit_status"]) == ("CANCELLED", errors.CANCELLED)
        assert words in facts["message"]
        assert "before it started" in facts["message"]
        assert f"hpcml rerun {facts['run']}" in world.run("why", name).stdout


def test_the_run_is_written_before_it_is_sent(world: World) -> None:
    """Sbatch sees the whole directory under its final name, and nobody else may enter it."""
    directory = world.submit()
    (call,) = world.calls("sbatch")
    assert call["arguments"] == ["--parsable", str(directory / "job.sh")]
    assert directory.stat().st_mode & 0o777 == 0o700
    for name in ("request.json", "plan.json", "job.sh", "step.sh", "submission.json"):
        assert (directory / name).stat().st_mode & 0o777 == 0o600
    assert zipfile.ZipFile(directory / "lib.zip").testzip() is None
    assert (directory / "code/job.py").read_text() == world.script.read_text()
    assert Path(json.loads((directory / "plan.json").read_text())["inside"]["code"]["cwd"]) == world.project
    assert os.listdir(directory / "out") == []


def test_defaults_of_the_users_shell_count_below_the_command_line(world: World) -> None:
    shell = {"SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "big", "SBATCH_TIMELIMIT": "1:00:00",
             "SBATCH_CONSTRAINT": "fast", "SBATCH_NO_REQUEUE": "1"}  # fmt: skip
    given = ("--set", "defaults.account=files", "-p", "small")
    options = ("submit", "--site", "slurm", "--dry-run=script", *given, "job.py")
    done = world.run(*options, env=shell)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --account=files" in done.stdout  # --set is the command line too
    assert "#SBATCH --partition=small" in done.stdout
    assert "#SBATCH --time=01:00:00" in done.stdout
    assert "#SBATCH --constraint=fast" in done.stdout
    assert "--time 1:00:00 (SBATCH_TIMELIMIT)" in done.stderr
    assert "hpcml ignores SBATCH_NO_REQUEUE: " in done.stderr
    assert "fast" not in world.run(*options, env={**shell, "SLURM_JOB_ID": "1"}).stdout, "those of an outer job"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_slurm_takes_the_job(world: World, times: int) -> None:
    """The job exists before sbatch says its number: the first waits for that and cancels the job, a second does not."""
    answered = world.state / "answered"
    world.answer("sbatch", until=str(answered), then=True)
    words = [str(world.command), "submit", "--site", "slurm", str(world.script)]
    process = subprocess.Popen(words, env=world.environment, cwd=world.project, stdin=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    until((world.state / "jobs").exists)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5 if times == 1 else 5)  # two signals that come before the first is taken are one
    if times == 1:
        assert process.returncode is None
        answered.touch()
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said.endswith("Interrupted.\n")) == (130, True), said
    if times == 1:
        assert [job["state"] for job in world.jobs().values()] == ["CANCELLED"]
        assert "cancelled" in json.loads((world.directory() / "submission.json").read_text())


def test_the_environment_of_an_outer_job_does_not_reach_slurm(world: World) -> None:
    outer = {"SLURM_JOB_ID": "1", "SBATCH_PARTITION": "x", "SLURM_CPUS_PER_TASK": "3", "SQUEUE_FORMAT": "%i", "PMI_RANK": "0",
             "SACCT_FORMAT": "x", "SLURM_TIME_FORMAT": "%Q%n%%", "SLURM_CLUSTERS": "other", "SQUEUE_PARTITION": "x", "HPCML_RUN_DIR": "/x", "SLURM_CONF": "/etc/slurm.conf", "MINE": "1"}  # fmt: skip
    done = world.run("submit", "--site", "slurm", "job.py", env=outer)
    assert done.returncode == 0, done.stderr
    assert json.loads(world.run("status", "last", "--json", env=outer).stdout)["state"] == "PENDING"
    for program in ("sbatch", "squeue"):
        (call,) = world.calls(program)
        assert set(outer) & call["environment"].keys() == {"SLURM_CONF", "MINE"}
