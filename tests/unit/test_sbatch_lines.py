"""A batch script as it is: which lines Slurm gets, what hpcml adds, and what is refused."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcml.cli import commands, dry_run, submit
from hpcml.errors import ANSWER_LOST, REFUSED, HpcmlError, NotFoundError, UsageError
from hpcml.failures import last_output
from hpcml.failures.evidence import Piece
from hpcml.options.sbatch_tasks import is_batch_script
from hpcml.runs import directories
from hpcml.runs import submit as submission
from hpcml.runs.submit import Prepared
from hpcml.schedulers import JobState, Submission, sbatch_lines, slurm
from hpcml.subprocesses import Answer
from tests.said import says

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/batch_scripts"
LINES = """
#SBATCH --nodes=2 --ntasks-per-node=2   # remark
##SBATCH --nodes=9
#SBATCH	-J own	-t 00:10:00
#PBS -l nodes=3
#SBATCH --licenses="a b:2" --unknown-option=1
""".strip()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def prepared(lines: str, *words: str, code: str = "srun hostname", site: str = "slurm") -> Prepared:
    Path("job.sh").write_text(f"#!/bin/bash\n{lines}\n{code}\n#SBATCH --nodes=7\n")
    options = commands.build_parser("submit").parse_args(["--site", site, *words])
    options.caller, options.script_words = None, ["job.sh", "an argument"]
    return submission.prepare_request(submit.script_spec(options))


def sbatch_of(prepared: Prepared) -> list[str]:
    return [line for line in prepared.script.splitlines() if line.startswith(("#SBATCH", "#PBS"))]


def test_the_lines_go_to_slurm_as_they_are_and_in_order() -> None:
    made = prepared(LINES)
    kept = [line.replace("\t", " ") for line in LINES.splitlines() if not line.startswith("##")]
    lines = sbatch_of(made)
    assert lines[-len(kept) :] == kept
    own = {line.removeprefix("#SBATCH ").partition("=")[0] for line in lines[: -len(kept)]}
    assert own == {"--comment", "--chdir", "--signal", "--output", "--open-mode"}
    assert (made.plan.inside.job.nodes, made.plan.inside.job.time_limit, made.plan.name) == (2, 600, "own")
    assert made.plan.inside.kind == "batch"
    assert subprocess.run(["bash", "-n"], input=made.script, text=True, check=False).returncode == 0


def test_options_of_the_command_line_replace_lines_and_it_is_said() -> None:
    made = prepared(
        "#SBATCH -N 4 --mem-per-cpu=1G --exclude=n7\n#SBATCH -t 5 --gres=gpu:1",
        "--nodes", "3", "--memory-per-node", "8G", "--time", "1h", "--exclude=n8", "--gpus-per-node", "2",
    )  # fmt: skip
    lines = sbatch_of(made)
    assert {"#SBATCH --nodes=3", "#SBATCH --mem=8192M", "#SBATCH --time=01:00:00", "#SBATCH --exclude=n7,n8",
            "#SBATCH --gpus-per-node=2"} <= {*lines}  # fmt: skip
    assert not [line for line in lines if "-N 4" in line or "mem-per-cpu" in line or "gres" in line or "-t 5" in line]
    assert " ".join(made.plan.reasons) == says("--nodes replaces -N 4", "--time replaces -t 5")


@pytest.mark.parametrize(("line", "lacks"), [
    ("-o out.txt", {"--output", "--open-mode"}), ("--error=%j.err", {"--output", "--open-mode"}),
    ("--signal=B:TERM@60", {"--signal"}), ("-A mine -p debug -q low", {"--account", "--partition", "--qos"}),
    ("-D /tmp", {"--chdir"}), ("--job-name=a", {"--job-name"}), ("--export=NONE", {"--export"}),
])  # fmt: skip
def test_what_hpcml_adds_does_not_overrule_a_line(line: str, lacks: set[str]) -> None:
    made = prepared(f"#SBATCH {line}", "--set", "defaults.account=profiles", "--set", "defaults.partition=boost")
    assert not lacks & dict(made.plan.directives).keys()
    assert f"#SBATCH {line}" in sbatch_of(made)


def test_the_profile_s_sizes_do_not_count() -> None:
    made = prepared("#SBATCH -n 1", "--set", "defaults.time=2h", "--set", "resources.cpus_per_node=64",
                    "--set", "resources.memory_per_node=100G", "--set", "resources.exclusive=true")  # fmt: skip
    assert not {"--time", "--cpus-per-task", "--mem", "--exclusive", "--nodes"} & dict(made.plan.directives).keys()


@pytest.mark.parametrize("code", ["srun a\r", "cat <<E\na\r\nE"])
def test_a_line_break_of_windows_is_refused_in_any_line_as_by_sbatch(code: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepared("#SBATCH -n 1", code=code)
    assert "dos2unix job.sh" in caught.value.hint


def test_a_folder_that_the_output_lacks_is_refused_before_slurm_fails_the_job(tmp_path: Path) -> None:
    for lines in (
        "#SBATCH --output=logs/%j.out",
        f"#SBATCH -D {tmp_path}\n#SBATCH -e 'logs/e'",
        "#SBATCH -D logs -o a",
    ):
        with pytest.raises(NotFoundError) as caught:
            prepared(lines)
        assert "mkdir -p logs" in caught.value.hint
    assert "/nodes-only" in " ".join(prepared("#SBATCH -o /nodes-only/%j").notes)
    (tmp_path / "logs").mkdir()
    for lines in ("#SBATCH -o logs/%j", "#SBATCH -o %x/%j", "#SBATCH -o /dev/null", "#SBATCH -o %j.out"):
        assert not [note for note in prepared(lines).notes if "does not exist" in note]


def test_a_time_limit_is_in_whole_minutes_as_slurm_s() -> None:
    limits = [prepared(f"#SBATCH -t {text}").plan.inside.job.time_limit for text in ("00:00:10", "1:01", "5", "0", "x")]
    assert limits == [60, 120, 300, 0, 0]


@pytest.mark.parametrize(("line", "least"), [
    ("-n 48", 1), ("-N 2-4", 2), ("-n 8 --ntasks-per-node=4", 0), ("-n 48 -N 2", 0), ("-n 1", 0), ("-c 4", 0),
])  # fmt: skip
def test_a_number_of_nodes_that_slurm_chooses_is_the_least(line: str, least: int) -> None:
    reasons = " ".join(prepared(f"#SBATCH {line}").plan.reasons)
    assert ("at least" in reasons) == (least > 0)
    assert f"at least {least} node" in reasons or not least
    assert "at least" not in " ".join(prepared(f"#SBATCH {line}", "--nodes", "4").plan.reasons)


def test_the_comment_is_hpcml_s_and_sbatch_s_own_wait_is_left_out() -> None:
    made = prepared("#SBATCH --comment=mine --wait -n 2\n#SBATCH --wait")
    assert sbatch_of(made)[-1] == "#SBATCH -n 2"
    assert [line for line in sbatch_of(made) if "--comment" in line] == [f"#SBATCH --comment=hpcml:{made.plan.run_id}"]
    assert " ".join(made.notes) == says("--wait", "hpcml submit --wait", "--comment=mine")


@pytest.mark.parametrize(("lines", "words", "place"), [
    ("#SBATCH --array=3-1", (), "--array=3-1 of job.sh"), ("#SBATCH -a 1", ("--until-done",), "--until-done"),
    ("#SBATCH -n 1\n#SBATCH hetjob", (), "line 3 of job.sh"), ("#SBATCH -n 1", ("--sbatch=--array=x",), "--sbatch"),
    ("#SBATCH -n 1", ("--image", "a.sif"), "--image"), ("#SBATCH -n 1", ("--python", "a"), "--python"),
    ("#SBATCH -n 1", ("--cpus-per-node", "4"), "--cpus-per-node"),
])  # fmt: skip
def test_what_is_refused(lines: str, words: tuple[str, ...], place: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepared(lines, *words)
    assert caught.value.place == place


def test_a_site_without_slurm_names_the_line_that_does_the_same() -> None:
    with pytest.raises(UsageError) as caught:
        prepared("#SBATCH -N 2 --ntasks-per-node=2", code="srun ./solve --x 1", site="local")
    assert str(caught.value) == says(
        "job.sh", "'local'", "--translate", "--nodes 2 --cpus-per-node 2 --ranks 2 -- ./solve --x 1"
    )


def test_the_copy_is_the_users_own_to_run_and_no_line_of_it_runs_here() -> None:
    made = prepared("#SBATCH -n 1", code="touch ran-here", site="slurm")
    run = submission.submit(made, by_hand=True)
    copy = run.paths.batch_script
    assert copy.read_bytes() == Path("job.sh").read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert not Path("ran-here").exists()
    assert json.loads(run.paths.request.read_text())["spec"]["form"] == "batch"


def test_without_an_output_line_the_place_of_the_output_is_named() -> None:
    assert "slurm-JOBID.out" in " ".join(prepared("#SBATCH -n 1").notes)
    assert "slurm-JOBID.out" not in " ".join(prepared("#SBATCH -n 1 -o a.txt").notes)


def test_no_line_of_a_public_script_runs_at_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Each program that the scripts name leaves a file; nor does any other line."""
    (tmp_path / "bin").mkdir()
    for program in ("module", "conda", "srun", "mpirun", "python", "singularity", "uv", "touch", "mkdir", "cp"):
        path = tmp_path / "bin" / program
        path.write_text(f"#!/bin/sh\necho {program} >>{tmp_path}/started\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    scripts = sorted(FIXTURES.glob("*.sh"))
    assert len(scripts) >= 42
    for script in scripts:
        with subtests.test(script.stem):
            folder = tmp_path / script.stem
            folder.mkdir()
            monkeypatch.chdir(folder)
            Path("job.sh").write_bytes(script.read_bytes())
            folders = {"other_folder": ["sub"], "output_patterns": ["logs"]}.get(script.stem, [])
            for name in folders:
                Path(name).mkdir()
            options = commands.build_parser("submit").parse_args(["--site", "slurm", "--dry-run"])
            options.caller, options.script_words = None, ["job.sh"]
            made = submission.prepare_request(submit.script_spec(options), dry_run=True)
            assert made.plan.inside.kind == "batch"
            assert subprocess.run(["bash", "-n"], input=made.script, text=True, check=False).returncode == 0
            assert {path.name for path in folder.iterdir()} == {"job.sh", *folders}
    assert not (tmp_path / "started").exists()


BATCH = "#!/bin/sh\n#SBATCH -n1\n"


@pytest.mark.parametrize(("text", "is_one"), [
    (BATCH, True), ("#!/usr/bin/env bash\nsrun a", True), ("#!/bin/bash -l\n#SBATCH -n1\n", True),
    ("#!/usr/bin/env -S bash -e\n#SBATCH -n1\n", True), ("#!/bin/zsh\n#SBATCH -n1\n", True),
    ("#!/usr/bin/env python3\n#SBATCH -n1\n", False), ("#!/opt/py/bin/python3.12 -u\n#SBATCH -n1\n", False),
    ("#!/usr/bin/perl\n#SBATCH -n1\n", True), ("#!/usr/bin/env Rscript\n#SBATCH -n1\n", True), ("#!/usr/bin/perl\nsrun a", False),
    ("#!/usr/bin/env -S uv run -s\n#SBATCH -n1\n", False), ("#!/usr/bin/env julia\n#SBATCH -n1\n", True), ("#SBATCH -n1\nsrun a", False), ("#!/bin/bash\necho a", False),
    ("#!/bin/bash\n# srun a\n", False), ("#!/bin/bash\necho a\n#SBATCH -n1\n", False), ("#!/bin/shell\nsrun a", False),
    ("#!/bin/bash\n##SBATCH -n1\n# SBATCH -n1\n", False),
])  # fmt: skip
def test_which_files_are_batch_scripts(text: str, is_one: bool) -> None:
    assert is_batch_script(text) is is_one


def test_the_lines_that_sbatch_reads_are_read(subtests: pytest.Subtests) -> None:
    """As the lab's sbatch does: otherwise the job silently has fewer nodes than the script asks for."""
    for before in (
        "  # note\n",
        "\t# note\n",
        "# a\u2028b\n",
        "# a\x85b\n",
        "# a\x0cb\n",
        "# a\x0bb\n",
        " \x0c\n",
        "#SBATCH-t5\n",
    ):
        with subtests.test(before):
            lines = [line for _, line in sbatch_lines.of_script(f"#!/bin/bash\n{before}#SBATCH -N2\n")]
            assert lines[-1:] == ["#SBATCH -N2"]
    assert [line for _, line in sbatch_lines.of_script("#!/bin/bash\n#SBATCH-N2\n")] == ["#SBATCH-N2"]
    for code in ("set -e\n", "\xa0\n"):
        assert list(sbatch_lines.of_script(f"#!/bin/bash\n{code}#SBATCH -N2\n")) == []
    assert list(sbatch_lines.of_script("#!/bin/bash\n #SBATCH -N2\n")) == []


@pytest.mark.parametrize(("line", "options"), [
    ("#SBATCH -N2 -n 4 --exclusive --mem=0", {"--nodes": "2", "--ntasks": "4", "--exclusive": "", "--mem": "0"}),
    ("#SBATCH --arr=0-9 --job x --mem-bind=no --gpus-per=4", {"--array": "0-9", "--job-name": "x", "--mem-bind": "no", "--gpus-per": "4"}),
    ("#SBATCH --tasks-per=4 --work=/x", {"--ntasks-per-node": "4", "--chdir": "/x"}),
    ("#SBATCH-N2", {"--nodes": "2"}),
    ("#SBATCH --exclusive -t 5", {"--exclusive": "", "--time": "5"}),
    ("#SBATCH --hold --wait -J a", {"--hold": "", "--wait": "", "--job-name": "a"}),
    ('#SBATCH --job-name="a b" # -n 3', {"--job-name": "a b"}), ("#SBATCH 'open", {}), ("#PBS -l nodes=1", {}),
    ("#SBATCH --nice=-5 -c 2", {"--nice": "-5", "--cpus-per-task": "2"}),
])  # fmt: skip
def test_options_of_a_line(line: str, options: dict[str, str]) -> None:
    assert {option.name: option.value for option in sbatch_lines.options(line)} == options


@pytest.mark.parametrize(("lines", "nodes", "gpus"), [
    (["#SBATCH -N 2-4"], 2, 0), (["#SBATCH -n 5 --ntasks-per-node=2"], 3, 0), (["#SBATCH -n 5"], 1, 0),
    (["#SBATCH --gres=lustre:1,gpu:a100:4"], 1, 4), (["#SBATCH --gpus-per-node=h100:2"], 1, 2), (["#SBATCH --gres=gpu"], 1, 1),
    (["#SBATCH --gres=gpu:1g.10gb:2,gpu:3g.40gb:1"], 1, 3), (["#SBATCH --gpus-per-node=h100"], 1, 1),
])  # fmt: skip
def test_sizes_of_lines(lines: list[str], nodes: int, gpus: int) -> None:
    stated = sbatch_lines.all_options(lines)
    assert (sbatch_lines.nodes(stated), sbatch_lines.gpus(stated)) == (nodes, gpus)


def test_the_first_task_that_srun_reports_is_named() -> None:
    text = "x\nsrun: error: n2: task 2: Exited with exit code 3\nsrun: error: n1: tasks 0-1: Exited with exit code 4\n"
    assert last_output.failed_task(Piece(text, 1)) == "srun reported of task 2 on n2: Exited with exit code 3"
    assert last_output.failed_task(Piece("no task", 1)) == ""


# -- arrays ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "tasks", "at_once"), [
    ("0-3", (0, 1, 2, 3), 0), ("1-7:2%2", (1, 3, 5, 7), 2), ("7", (7,), 0), ("3,1-2,2", (1, 2, 3), 0), ("[0-1]", (0, 1), 0),
    ("001-010:9", (1, 10), 0), ("1-1", (1,), 0),
])  # fmt: skip
def test_the_tasks_of_an_array(text: str, tasks: tuple[int, ...], at_once: int) -> None:
    assert sbatch_lines.array(text) == (tasks, at_once)


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "1-3:0", "1-3%", "1-3%0", "1-3%x", "1,,2", "-1", "1-3%2%1", "0-9999999", "٣"]
)
def test_what_is_no_list_of_tasks(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|more than 1000 tasks"):
        sbatch_lines.array(text)


def test_each_task_of_an_array_is_a_run() -> None:
    made = prepared("#SBATCH -a 1-5:2%2 -J own\n#SBATCH -a 2,4")
    assert (made.plan.array, made.plan.at_once) == ((2, 4), 0)  # the last line counts, as for sbatch
    made = prepared("#SBATCH --array=1-5:2%2 -J own")
    assert (made.plan.array, made.plan.at_once) == ((1, 3, 5), 2)
    task = made.plan.of_task(3)
    array_id = made.plan.run_id
    assert task.run_id == array_id.replace("own-", "own_3-", 1)
    assert Path(task.directory).name == task.run_id
    assert f"/{array_id}/" not in made._replace(plan=task).script
    lines = sbatch_of(made)
    assert f"#SBATCH --comment=hpcml:{array_id}" in lines
    assert f"/{array_id.replace('own-', 'own_%a-', 1)}/logs/job.log" in next(
        line for line in lines if "--output" in line
    )
    for script in (made.script, made._replace(plan=task).script):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_the_script_of_an_array_starts_its_task_and_nobody_else_s(tmp_path: Path) -> None:
    made = prepared("#SBATCH --array=0-1")
    script = tmp_path / "array.sh"
    script.write_text(made.script)
    for index in made.plan.array:
        directory = Path(made.plan.of_task(index).directory)
        directory.mkdir(parents=True)
        (directory / "job.sh").write_text(f"echo task {index} {directory.name}; exit 5")
    words = ["bash", str(script)]
    done = subprocess.run(words, env={"SLURM_ARRAY_TASK_ID": "1"}, capture_output=True, text=True, check=False)
    assert (done.stdout.split()[:2], done.returncode) == (["task", "1"], 5)
    first = Path(made.plan.of_task(0).directory)
    first.rename(tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "elsewhere")
    done = subprocess.run(words, env={"SLURM_ARRAY_TASK_ID": "0"}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 74)


def test_a_dry_run_names_the_tasks_of_an_array_and_a_missing_account(capsys: pytest.CaptureFixture[str]) -> None:
    for text, expected in (
        ("0-9%3", "10 tasks, each a run of its own: job_0 …"),
        ("3,7", "job_3, job_7"),
    ):
        dry_run.show(prepared(f"#SBATCH --array={text}"), {}, [])
        assert expected in " ".join(capsys.readouterr().out.split())
    asks = prepared("#SBATCH --time=5", "--set", "slurm.account_required=true").plan.notices
    assert [one for one in asks if "needs an account" in one]
    assert prepared("#SBATCH -A a", "--set", "slurm.account_required=true").plan.notices == ()


@pytest.mark.parametrize(("lines", "words", "warned"), [
    ("#SBATCH --time=5", (), True), ("#SBATCH -N1 --time=5", ("--partition", "gpu_a100"), False),
    ("#SBATCH -p gpu_a100 --time=5", (), False), ("#SBATCH --gpus-per-node=4 --time=5", (), False),
    ("#SBATCH --time=5", ("--gpus-per-node", "1"), False),
])  # fmt: skip
def test_a_default_partition_with_gpus_that_a_script_does_not_request_is_named(
    lines: str, words: tuple[str, ...], *, warned: bool
) -> None:
    """A Python file would go to the partition without GPUs; a batch script goes where the profile says."""
    plan = prepared(lines, "--account", "a", *words, site="snellius").plan
    assert any(note == says("gpu_a100 have GPUs", "--partition rome") for note in plan.notices) is warned
    by_default = words[:1] != ("--partition",) and "-p " not in lines
    assert any("partition gpu_a100: the site's default" in reason for reason in plan.reasons) == by_default


def test_a_script_that_requests_gpus_in_any_way_gets_no_note(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_named(line: str = "", *words: str) -> bool:
        notices = prepared(f"#SBATCH --time=5 {line}", "--account", "a", *words, site="snellius").plan.notices
        return any("gpu_a100 have GPUs" in note for note in notices)

    for line in ("--gpus-per-task=1 -n4", "--gpus-per-socket=1", "--tres-per-task=cpu:2,gres/gpu:1", "-C a100", "-G 1",
                 "--tres-per-node=gres/gpu:1", "--gres=tmpfs:5G,gpu:a100:1", "--ntasks-per-gpu=2", "--gpus-per=1"):  # fmt: skip
        with subtests.test(line):
            assert not is_named(line)
    for line in ("--gres=tmpfs:5G", "--tres-per-task=cpu:2", "--gres-flags=enforce-binding", "--comment=gpu"):
        with subtests.test(line):
            assert is_named(line)
    assert not is_named("", "--sbatch=--constraint=a100")
    for name, value, warned in (("SBATCH_GPUS_PER_TASK", "1", False), ("SBATCH_GRES", "gpu:1", False), ("SBATCH_CONSTRAINT", "a", False),
                                ("SBATCH_GRES", "tmpfs", True), ("SBATCH_QOS", "gpu", True)):  # fmt: skip
        with subtests.test(name), monkeypatch.context() as shell:
            shell.setenv(name, value)
            assert is_named() is warned


def test_a_task_is_run_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared("#SBATCH --array=0-9%4", "--sbatch=--array=3,7")
    assert made.plan.array == (3, 7)
    assert " ".join(made.plan.reasons) == says("--array replaces --array=0-9%4")
    monkeypatch.setattr(slurm, "submit", lambda site, run: Submission(job="17"))  # noqa: ARG005
    runs = submission.submit_all(made)
    assert [run.job for run in runs] == ["17_3", "17_7"]
    request = json.loads(runs[1].paths.request.read_text())
    assert request["spec"]["sbatch"] == [["--array", "7"]]
    assert runs[1].submission is not None
    assert runs[1].submission.key == f"17_7 {made.plan.run_id}"
    folder = runs[0].paths.directory.parent
    assert [run.id for run in directories.tasks_of(folder, made.plan.run_id)] == [run.id for run in runs]
    assert [run.id for run in directories.tasks_of(folder, "17")] == [run.id for run in runs]
    assert directories.find(folder, "17_7").id == runs[1].id
    with pytest.raises(NotFoundError, match="is a job array"):
        directories.find(folder, "17")


def test_an_array_is_written_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared("#SBATCH --array=0-4")
    write = submission._write
    calls: list[str] = []

    def failing(one: Prepared, *others: Any) -> list[str]:
        calls.append(one.plan.run_id)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return write(one, *others)

    monkeypatch.setattr(submission, "_write", failing)
    with pytest.raises(OSError, match="No space"):
        submission.submit_all(made)
    folder = Path(made.plan.directory).parent
    assert directories.ids(folder) == []


@pytest.mark.parametrize(("status", "count"), [(REFUSED, 1), (ANSWER_LOST, 5)])
def test_an_array_that_is_refused_leaves_one_record(monkeypatch: pytest.MonkeyPatch, status: int, count: int) -> None:
    """Of one whose answer was lost all tasks stay: it may run."""
    made = prepared("#SBATCH --array=0-4")

    def refuse(_site: object, _run: object) -> Submission:
        raise HpcmlError("no", exit_status=status)

    monkeypatch.setattr(slurm, "submit", refuse)
    with pytest.raises(HpcmlError):
        submission.submit_all(made)
    folder = Path(made.plan.directory).parent
    runs = [directories.load(folder / run_id) for run_id in directories.ids(folder)]
    assert [run.submission.error for run in runs if run.submission] == ["no"] * count


def test_a_run_waits_for_all_tasks_of_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "submit", lambda site, run: Submission(job="17"))  # noqa: ARG005
    monkeypatch.setattr(slurm, "states", lambda jobs: dict.fromkeys(jobs, JobState("PENDING")))
    made = prepared("#SBATCH --array=0-1")
    submission.submit_all(made)
    for word in ("17", made.plan.run_id):
        assert (
            dict(prepared("#SBATCH -n 1", "--after", word).plan.directives)["--dependency"]
            == "afterok:17_0,afterok:17_1"
        )


def test_python_submits_no_array() -> None:
    with pytest.raises(UsageError, match="job array"):
        submission.submit(prepared("#SBATCH --array=0-4"))


AMBIGUOUS = """\
sbatch: option '--node=2' is ambiguous; possibilities: '--nodes'
Try "sbatch --help" for more information
"""


def test_the_words_of_sbatch_about_an_option_are_shown() -> None:
    assert "ambiguous" in slurm.refusal(Answer(1, "", AMBIGUOUS)).message
