"""Slurm's answers as recorded, and those that nobody has seen yet."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from hpcml import schedulers
from hpcml.errors import SiteError, SlurmUnreachableError
from hpcml.paths import RunPaths
from hpcml.request.record import RunRequest
from hpcml.schedulers import JobState, slurm
from hpcml.subprocesses import Answer
from matrix import site_of

GIB = 1024**3


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, the first of PATH, of programs that say what the files beside them hold."""
    for program in ("squeue", "sacct", "sbatch", "scancel"):
        path = tmp_path / program
        path.write_text(f'#!/bin/sh\ncd "{tmp_path}"\n[ -e {program}.err ] && cat {program}.err >&2\n[ -e {program}.out ] && cat {program}.out\n'
                        f"[ -e {program}.code ] && exit $(cat {program}.code)\nexit 0\n")  # fmt: skip
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def say(folder: Path, program: str, out: str = "", err: str = "", code: int = 0) -> None:
    for name, text in (("out", out), ("err", err), ("code", str(code))):
        (folder / f"{program}.{name}").write_text(text)


INVALID = "slurm_load_jobs error: Invalid job id specified\n"


def test_states_of_jobs_of_arrays_and_of_parts(answers: Path) -> None:
    rows = "12|PENDING|Resources|2026-11-21T09:00:00|\n13|RUNNING|None|2026-11-21T08:00:00|n[1-2]\nnoise\n"
    array = "17_1|COMPLETED|None|N/A|n1\n17_[2-9]|PENDING|Priority|N/A|\n"
    parts = "18+0|RUNNING|None|N/A|n1\n18+1|COMPLETED|None|N/A|n2\n"
    say(answers, "squeue", array + parts + rows)
    say(answers, "sacct", "14|CANCELLED by 1000|0:0|2026-11-21T07:00:00|n3\n15|FAILED|3:0|Unknown|n4\n", code=0)
    found = slurm.states(["12", "13", "14", "15", "16"])
    assert found == {
        "12": JobState("PENDING", "waiting for free nodes", "2026-11-21T09:00:00"),
        "13": JobState("RUNNING", "", "2026-11-21T08:00:00", "n[1-2]"),
        "14": JobState("CANCELLED", start="2026-11-21T07:00:00", nodes="n3", exit="0:0"),
        "15": JobState("FAILED", start="Unknown", nodes="n4", exit="3:0"),
        "16": JobState("UNREADABLE", "The output of squeue cannot be read: noise"),
    }
    assert (found["12"].pending, found["13"].active, found["16"].ended) == (True, True, False)
    assert [state.state for state in slurm.states(["17", "18"]).values()] == ["PENDING", "RUNNING"]


def test_the_tasks_of_an_array_are_told_apart(answers: Path) -> None:
    rows = [f"17_{task}|{state}|None|N/A|n1|own|hpcml:own-1" for task, state in ((1, "COMPLETED"), (2, "RUNNING"))]
    say(answers, "squeue", "".join(f"{row}\n" for row in [*rows, "17_11|PENDING|Priority|N/A||own|hpcml:own-1"]))
    say(answers, "sacct", "".join(f"17_{task}|0:0|x|n4|x|0|own|hpcml:own-1\n" for task in ("3|FAILED", "33|TIMEOUT")))
    keys = [f"17_{task} own-1" for task in (1, 2, 3, 11)]
    found = slurm.states(keys)
    assert [found[key].state for key in keys] == ["COMPLETED", "RUNNING", "FAILED", "PENDING"]


def test_the_tasks_of_an_array_whose_answer_was_lost_are_found(answers: Path) -> None:
    array = "own-20261121-074500-1a2b"
    say(answers, "squeue", f"17_4|RUNNING|hpcml:{array}\n17_12|PENDING|hpcml:{array}\n")
    task = array.replace("own-", "own_12-")
    found = slurm.find([task, array.replace("own-", "own_5-")])
    assert {name: (one.job, one.array) for name, one in found.items()} == {task: ("17_12", array)}


@pytest.mark.parametrize("line", ["14||0:0||", "", "14"])
def test_an_empty_answer_of_accounting_is_no_state(answers: Path, line: str) -> None:
    say(answers, "squeue", err=INVALID, code=1)
    say(answers, "sacct", f"{line}\n")
    assert slurm.states(["14"])["14"].state == "UNKNOWN"


def test_without_accounting_installed(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (answers / "sacct").unlink()
    monkeypatch.setenv("PATH", str(answers))
    (answers / "cat").symlink_to("/bin/cat")
    say(answers, "squeue", err=INVALID, code=1)
    assert slurm.states(["14"]) == {"14": schedulers.UNKNOWN}


@pytest.mark.parametrize("said", ["", "12\n", "12|what|\n", "Queue is being rebuilt\n"])
def test_an_answer_that_cannot_be_read_is_no_end(answers: Path, said: str) -> None:
    say(answers, "squeue", said)
    say(answers, "sacct", err="Slurm accounting storage is disabled\n", code=1)
    found = slurm.states(["12"])["12"]
    assert (found.state, found.ended) == ("UNREADABLE", False)
    with pytest.raises(SlurmUnreachableError, match="cannot be read"):
        schedulers.state(schedulers.Submission(job="12"))
    say(answers, "sacct", "12|FAILED|3:0|Unknown|n4\n")
    assert schedulers.state(schedulers.Submission(job="12")).state == "FAILED"


def test_accounting_that_lags_behind_is_not_believed(answers: Path) -> None:
    say(answers, "squeue", err=INVALID, code=1)
    say(answers, "sacct", "12|RUNNING|0:0|2026-11-22T08:00:00|n1\n")
    assert schedulers.state(schedulers.Submission(job="12")) == schedulers.UNKNOWN


@pytest.mark.parametrize("said", ["", "7\n8\n", "Submitted\n", "12 13\n", "  4711\nSubmitted batch job 7\n"])
def test_sbatch_s_answer_is_one_job_id_or_lost(answers: Path, said: str) -> None:
    say(answers, "sbatch", said)
    with pytest.raises(schedulers.AnswerLostError):
        slurm.sbatch("job.sh")


@pytest.mark.parametrize("said", ["42;lab\n", "  42\nSubmitted batch job 42 on cluster lab\n"])
def test_what_sbatch_says_beside_the_job_id_is_kept(answers: Path, said: str) -> None:
    say(answers, "sbatch", f"Welcome\n\n{said}", "sbatch: account 95 % used\n")
    found = slurm.sbatch("job.sh")
    assert (found.job, found.cluster) == ("42", "lab")
    assert found.said == ("sbatch: Welcome", "sbatch: account 95 % used")
    say(answers, "sbatch", said, "line\n" * 42)
    assert slurm.sbatch("job.sh").said[39:] == ("sbatch: line", "sbatch: (2 more lines)")


RUN = "sum-20261121-074500-1a2b"


@pytest.mark.parametrize(("rows", "state"), [
    (f"12|RUNNING|None|N/A|n1|sum|hpcml:{RUN}\n", "RUNNING"),
    (f"12|RUNNING|None|N/A|n1|sum|site hpcml:{RUN}\n", "RUNNING"),
    ("12|RUNNING|None|N/A|n1|sum|hpcml:sum-20261121-074500-1a2c\n", "UNKNOWN"),
    ("12|RUNNING|None|N/A|n1|other|(null)\n", "UNKNOWN"),
    ("12|RUNNING|None|N/A|n1|sum|(null)\n", "UNREADABLE"),
    ("12|RUNNING|None|N/A|n1\n", "UNREADABLE"),
])  # fmt: skip
def test_a_job_number_is_not_believed_without_the_run_s_comment(answers: Path, rows: str, state: str) -> None:
    say(answers, "squeue", f"JOBID|STATE|REASON|START_TIME|NODELIST|NAME|COMMENT\n{rows}")
    say(answers, "sacct", err="Slurm accounting storage is disabled\n", code=1)
    (answers / "scancel").write_text(f"#!/bin/sh\necho >{answers}/cancelled $@\n")
    key = schedulers.Submission(job="12", run=RUN).key
    assert slurm.states([key])[key].state == state
    if state == "UNREADABLE":
        with pytest.raises(SlurmUnreachableError) as caught:
            slurm.cancel(key)
        assert "nothing was cancelled" in caught.value.hint
    else:
        assert slurm.cancel(key) == ("job 12" if state == "RUNNING" else "")
    assert (answers / "cancelled").exists() == (state == "RUNNING")


def test_accounting_tells_the_run_s_job_from_another_of_its_number(answers: Path) -> None:
    """By the comment; where accounting keeps none, by user, name and time of submission."""
    say(answers, "squeue", err=INVALID, code=1)
    end, user = "0:0|Unknown|None assigned|{}|", os.getuid()
    own = f"12|TIMEOUT|{end.format('2026-11-21T07:45:01')}{user}|sum|hpcml:{RUN}\n"
    without = f"12|CANCELLED by 1|{end.format('2026-11-21T07:45:01')}{user}|sum|\n"
    strangers = (
        f"12|COMPLETED|{end.format('2025-01-01T00:00:00')}{user}|sum|\n",
        f"12|COMPLETED|{end.format('2026-11-22T00:00:00')}{user}|other|\n",
        f"12|COMPLETED|{end.format('2026-11-22T00:00:00')}{user + 1}|sum|\n",
        f"12|COMPLETED|{end.format('2026-11-22T00:00:00')}{user}|sum|hpcml:x\n",
    )
    key = f"12 {RUN}"
    for rows, state in (((own, *strangers), "TIMEOUT"), ((without, *strangers), "CANCELLED"), (strangers, "UNKNOWN")):
        say(answers, "sacct", "".join(rows))
        assert slurm.states([key])[key].state == state
    say(answers, "sacct", own.replace("TIMEOUT|0:0", "0:9|n4").replace("Unknown|None assigned|", "") + strangers[1])
    assert slurm.end(key) == schedulers.JobEnd(9, "n4")


def test_a_job_that_a_whole_answer_leaves_out_is_unknown(answers: Path) -> None:
    """However many they are; squeue's header shows that it is whole."""
    jobs = [str(job) for job in range(100, 140)]
    say(answers, "squeue", "JOBID|STATE|REASON|START_TIME|NODELIST|NAME|COMMENT\n120|RUNNING|None|N/A|n1|x|(null)\n")
    say(answers, "sacct", err="Slurm accounting storage is disabled\n", code=1)
    found = slurm.states(jobs)
    assert [job for job, state in found.items() if state != schedulers.UNKNOWN] == ["120"]


def test_accounting_that_fails_for_many_is_asked_for_the_newest_alone(answers: Path) -> None:
    jobs = [str(job) for job in range(100, 120)]
    say(answers, "squeue", "JOBID|STATE|REASON\n")
    (answers / "sacct").write_text(
        "#!/bin/sh\nfor word; do case $word in --jobs=*,*) echo no >&2; exit 1;; --jobs=*) job=${word#*=};; esac; done\n"
        'echo "$job|CANCELLED|0:0|Unknown|None assigned"\n'
    )
    found = slurm.states(jobs)
    assert [found[job].state for job in jobs] == ["UNREADABLE"] * 4 + ["CANCELLED"] * 16
    assert found["100"].reason == schedulers.NOT_ASKED


@pytest.mark.parametrize(("program", "words"), [("sbatch", "nothing was submitted"), ("scancel", "nothing was cancelled"),
                                                ("squeue", "running jobs are not affected")])  # fmt: skip
def test_what_a_silent_controller_means_depends_on_the_question(program: str, words: str) -> None:
    answer = Answer(1, "", f"{program}: error: Unable to contact slurm controller (connect failure)\n")
    assert words in slurm.refusal(answer, program).hint


def test_a_squeue_that_fails_is_no_answer(answers: Path) -> None:
    say(answers, "squeue", err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", code=1)
    with pytest.raises(SlurmUnreachableError, match="does not answer"):
        slurm.states(["12"])
    with pytest.raises(SlurmUnreachableError, match="does not answer"):
        slurm.find(["x"])


def test_a_job_is_found_by_its_comment_alone(answers: Path) -> None:
    say(answers, "squeue", f"11|PENDING|hpcml:{RUN[:-1]}\n12|PENDING|hpcml:{RUN}\n13|RUNNING|(null)\n")
    assert slurm.find([RUN, "x"]) == {RUN: schedulers.Submission(job="12", run=RUN, found_again=True)}
    say(answers, "sacct", "9|CANCELLED by 1000|hpcml:y\n")
    assert slurm.find(["y"]) == {"y": schedulers.Submission(job="9", run="y", found_again=True)}


def test_of_two_jobs_of_a_run_one_that_has_not_ended_is_found(answers: Path) -> None:
    waiting = "8|PENDING|hpcml:x\n9|PENDING|hpcml:x\n"
    say(answers, "squeue", f"{waiting}10_4|CANCELLED|hpcml:x\n11|FAILED|hpcml:y\n7|FAILED|hpcml:y\n")
    assert {run: found.job for run, found in slurm.find(["x", "y"]).items()} == {"x": "9", "y": "11"}


def test_the_environment_is_scrubbed_but_for_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = dict.fromkeys(["SLURM_CONF", "SLURM_JWT", "SLURM_JOB_ID", "SBATCH_QOS", "SQUEUE_FORMAT", "SRUN_DEBUG", "PMIX_RANK", "HPCML_X",
                            "SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SACCT_FORMAT", "SCONTROL_ALL", "SLURMX", "PATH", "HOME"], "1")  # fmt: skip
    for name in os.environ:
        monkeypatch.delenv(name)
    for name in given_:
        monkeypatch.setenv(name, "1")
    assert set(slurm.clean_environment()) == {"SLURM_CONF", "SLURM_JWT", "SLURMX", "PATH", "HOME"}


@pytest.mark.parametrize("said", ["", "\n", "sbatch: error: \n", "what nobody has seen yet"])
def test_any_refusal_has_words_and_a_next_step(said: str) -> None:
    error = slurm.refusal(Answer(1, said, said))
    assert isinstance(error, SiteError)
    assert error.message
    assert error.hint


def test_no_cluster_and_a_busy_controller_are_told_apart(answers: Path) -> None:
    say(answers, "sbatch", err="sbatch: error: Could not establish a configuration source\n", code=1)
    with pytest.raises(SlurmUnreachableError, match="no cluster is configured") as caught:
        slurm.sbatch("job.sh")
    assert not caught.value.transient
    say(answers, "sbatch", err="sbatch: error: Unable to contact slurm controller (connect failure)\n", code=1)
    with pytest.raises(SlurmUnreachableError, match="does not answer") as caught:
        slurm.sbatch("job.sh")
    assert caught.value.transient


def test_the_command_line_goes_before_the_shells_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("SBATCH_ACCOUNT", "shell")
    monkeypatch.setenv("SBATCH_PARTITION", "shell")
    asked = RunRequest.of(Path("job.py"), (), Path("/home/me"), account="mine")
    made = slurm.with_variables(asked, lambda _: False)
    assert (made.place.account, made.place.partition) == ("mine", "shell")


@pytest.mark.parametrize(("text", "nodes", "cpus", "size"), [
    ("4Gn", 2, 16, 4 * GIB), ("2000Mc", 2, 16, 8 * 2000 * 2**20), ("16G", 2, 16, 8 * GIB), ("1.50T", 3, 6, 512 * GIB),
    ("0n", 2, 16, 0), ("0", 2, 16, 0), ("?", 2, 16, 0), ("16G", 0, 0, 0),
])  # fmt: skip
def test_the_forms_of_reqmem(text: str, nodes: int, cpus: int, size: int) -> None:
    assert slurm.memory_per_node(text, nodes, cpus) == size


@pytest.mark.parametrize(("said", "ended"), [
    ("Invalid job id specified", True), ("Job/step already completing or completed", True), ("Access/permission denied", False),
])  # fmt: skip
def test_a_job_that_has_just_ended_is_cancelled(answers: Path, said: str, ended: bool) -> None:
    say(answers, "scancel", err=f"scancel: error: Kill job error on job id 12: {said}\n", code=1)
    with contextlib.nullcontext() if ended else pytest.raises(SiteError):
        assert slurm.cancel("12") == "job 12"


def test_a_job_that_has_ended_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without accounting, squeue alone knows a job that ended before it was looked for, if it is asked for all states."""

    def ask(command: list[str], *_: float) -> Answer:
        ended = command[0] == "squeue" and "--states=all" in command
        return Answer(0, "7|COMPLETED|hpcml:run-1\n" if ended else "", "")

    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm.find(["run-1"])["run-1"].job == "7"


def test_no_step_starts_on_another_cluster() -> None:
    assert "--jobid=7" in slurm.step_on("7 job-20261121-080000-0001", "n1", "x")
    with pytest.raises(SiteError) as error:
        slurm.step_on("7;joltik job-1", "n1", "x")
    assert "joltik" in error.value.hint
    with pytest.raises(SiteError):
        slurm.shell_on("7;joltik job-1", "n1")


def test_a_shell_shares_the_job_with_the_run_s_steps() -> None:
    assert {"--overlap", "--mem=0", "--mpi=none", "--jobid=7"} <= {*slurm.shell_on("7", "n1")}


@pytest.mark.parametrize("word", [
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"
])  # fmt: skip
def test_a_job_in_a_final_state_of_slurm_has_ended(word: str) -> None:
    assert JobState(word).ended


HUGE = 1 << 20  # characters of a field


@pytest.mark.parametrize("letter", ["A", "7", "é"])
@pytest.mark.parametrize("place", range(7))
def test_a_field_without_end_is_neither_shown_nor_counted(answers: Path, place: int, letter: str) -> None:
    fields = ["12", "PENDING", "odd", "2026-11-21T09:00:00", "n1", "job", "hpcml:run-1"]
    fields[place] = letter * HUGE
    header = "JOBID|STATE|REASON|START_TIME|NODELIST|NAME|COMMENT\n"
    say(answers, "squeue", f"{header}{'|'.join(fields)}\n")
    say(answers, "sacct", f"12|{letter * HUGE}|{letter * HUGE}:0|{letter * HUGE}|n1|||job|hpcml:run-1\n")
    found = slurm.states(["12 run-1"])["12 run-1"]
    assert max(len(text) for text in found if isinstance(text, str)) <= 65536
    assert len(found.state) <= 30
    assert len(found.reason) <= 1000
    for command in (slurm.find, slurm.task_states):
        command(["run-1"])  # no error of a number that is too long
    slurm.end("12 run-1")
    slurm.requested_memory("12 run-1")
    say(answers, "squeue", err=f"error: {letter * HUGE}\n", code=1)
    with pytest.raises(SlurmUnreachableError) as error:
        slurm.states(["12 run-1"])
    assert len(str(error.value)) < 1000


def test_the_log_of_a_job_is_the_user_s_alone_with_any_umask(answers: Path) -> None:
    """Slurm makes it with the umask of sbatch."""
    (answers / "sbatch").write_text(f"#!/bin/sh\necho 12; umask >{answers}/umask\n")
    before = os.umask(0)
    try:
        assert slurm.sbatch("job.sh").job == "12"
        assert os.umask(0) == 0, "another thread of the program would make its files with it"
    finally:
        os.umask(before)
    assert int((answers / "umask").read_text(), 8) == 0o077


def test_a_job_of_an_elastic_cluster_or_a_map_has_no_plan(answers: Path, tmp_path: Path) -> None:
    (answers / "sbatch").write_text(f"#!/bin/sh\necho 12; umask >{answers}/umask\n")
    assert slurm.submit(site_of({"scheduler": "slurm"}), RunPaths(tmp_path)).job == "12"
    assert int((answers / "umask").read_text(), 8) == 0o077
