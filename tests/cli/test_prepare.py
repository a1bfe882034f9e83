"""``hpcml submit --prepare``: all of a submission but sbatch, which a person or a workflow manager calls."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

from hpcml import errors
from remote_world import Laptop
from world import World, write_end

SLURM = ("submit", "--site", "slurm")


def prepare(world: World, *words: str) -> tuple[str, Path]:
    """Prepare a run; return its line and its directory."""
    before = set(world.left())
    done = world.run(*SLURM, "--prepare", *(words or ("job.py",)))
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    (name,) = set(world.left()) - before
    assert name in done.stderr
    return line, world.runs / name


def type_line(world: World, line: str) -> str:
    """Type a line as the user does, on the shell; return the job."""
    done = subprocess.run(
        ["bash", "-c", line], env=world.environment, cwd=world.home, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def begin(directory: Path, job: str) -> subprocess.CompletedProcess[str]:
    """Start a run's batch script as Slurm does, on a node without srun: it gets no further than to its job's id."""
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": job}
    return subprocess.run(
        ["bash", str(directory / "job.sh")], env=environment, capture_output=True, text=True, check=False
    )


def test_the_line_alone_is_on_standard_output(world: World) -> None:
    line, directory = prepare(world, "--nodes", "2", "job.py", "--k", "8")
    assert shlex.split(line) == ["sbatch", str(directory / "job.sh")]
    assert world.calls("sbatch") == []
    assert (directory / "code/job.py").exists()
    submitted = world.submit("--nodes", "2")
    ours, theirs = (
        (run / "job.sh").read_text().replace(run.name, "RUN").splitlines() for run in (directory, submitted)
    )
    assert ours == theirs
    assert {path.name for path in directory.iterdir()} == {path.name for path in submitted.iterdir()}


def test_it_is_listed_and_says_its_line(world: World) -> None:
    line, directory = prepare(world)
    row = world.run("ls").stdout.splitlines()[1]
    assert "PREPARED" in row
    assert "not submitted yet" in row
    told = world.run("status", "last").stdout
    assert "PREPARED: not submitted yet" in told
    assert told.endswith(f"Submit the run with:\n{line}\n")
    for words, place in ((("wait", "last"), line), (("cancel", "last"), f"hpcml rm {directory.name}")):
        done = world.run(*words)
        assert done.returncode == errors.NOT_FOUND, words
        assert place in " ".join(done.stderr.split()), words


def test_a_typed_line_makes_it_a_run_as_others(world: World) -> None:
    line, directory = prepare(world)
    job = type_line(world, line)
    assert "PENDING" in world.run("ls").stdout
    assert world.answers("status", "last")["state"] == "PENDING"
    assert world.run("rm", "last", "--yes").returncode == 1
    assert directory.is_dir()
    begin(directory, job)
    assert world.answers("status", job)["state"] == "PENDING"  # Slurm's word
    world.set_job(job, state="RUNNING")
    assert json.loads(world.run("ls", "--json").stdout)[0]["job"] == job
    write_end(directory, 3)
    world.set_job(job, state="FAILED")
    assert world.run("wait", "last").returncode == 3
    assert world.run("rm", "last", "--yes").returncode == 0
    assert world.left() == []


def test_it_is_cancelled_while_it_waits_and_can_be_typed_again(world: World) -> None:
    line, directory = prepare(world)
    first = type_line(world, line)
    assert f"job {first}" in world.run("cancel", "last").stdout
    assert world.run("wait", "last").returncode == errors.CANCELLED
    second = type_line(world, line)
    assert world.answers("status", "last")["state"] == "PENDING"
    begin(directory, second)
    assert world.run("cancel", "--all", "--yes").returncode == 0
    assert world.jobs()[second]["state"] == "CANCELLED"


def test_a_second_job_leaves_the_run_alone(world: World) -> None:
    line, directory = prepare(world)
    first, second = type_line(world, line), type_line(world, line)
    begin(directory, first)
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}
    done = begin(directory, second)
    assert done.returncode == errors.USAGE
    assert done.stderr == (
        f"This run is job {first}, so job {second} does not change it; to run it again: hpcml rerun {directory.name}\n"
    )
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()} == before
    assert json.loads(world.run("status", "last", "--json").stdout)["job"] == first


def test_one_that_nobody_submits_can_be_removed(world: World) -> None:
    prepare(world)
    world.answer("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    assert world.run("rm", "last", "--yes").returncode == 1  # it may have been submitted
    assert "PREPARED" in world.run("ls").stdout
    world.answer("squeue")
    assert world.run("rm", "last", "--yes").returncode == 0
    assert world.left() == []


def test_what_it_does_not_go_with(world: World) -> None:
    for option in ("--wait", "--dry-run"):
        done = world.run(*SLURM, "--prepare", option, "job.py")
        assert done.returncode == errors.USAGE
        assert "cannot be combined" in done.stderr
    done = world.run("submit", "--site", "local", "--prepare", "job.py")
    assert done.returncode == errors.USAGE
    assert "no sbatch" in done.stderr
    world.script.write_text("# hpcml: --prepare\n")
    assert world.run(*SLURM, "job.py").returncode == errors.USAGE
    assert world.left() == []


def test_from_python(world: World) -> None:
    code = "import hpcml; run = hpcml.submit('job.py', site='slurm', prepare=True); print(run.state); print(run.line)"
    done = subprocess.run([sys.executable, "-c", code], env=world.environment, cwd=world.project, capture_output=True, text=True,
                          check=True)  # fmt: skip
    word, line = done.stdout.splitlines()
    assert word == "PREPARED"
    assert type_line(world, line) in world.jobs()


def test_from_a_laptop_the_line_is_for_the_login_node(laptop: Laptop) -> None:
    facts = json.loads(laptop.run("submit", "--prepare", "--json", "job.py").stdout)
    (name,) = laptop.runs()
    assert shlex.split(facts["line"]) == ["sbatch", str(laptop.far / ".hpcml/runs" / name / "job.sh")]
    assert laptop.staged() == []


def test_a_job_s_id_that_is_none_does_not_count(world: World) -> None:
    _, directory = prepare(world)
    (directory / "job").symlink_to("../../etc")
    assert world.answers("status", "last")["state"] == "PREPARED"
