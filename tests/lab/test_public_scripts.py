"""Batch scripts in the forms that centres document, by sbatch and by `hpcml submit`: the same output, files and ends.

The scripts are in tests/fixtures/batch_scripts. What they start and the lab lacks is a stand-in, which says how it was
started. All are submitted at once, both ways, each in a folder of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import Cluster
from hpcml.units import expand_hosts
from lab_state import PATIENCE

pytestmark = pytest.mark.lab

SCRIPTS = Path(__file__).resolve().parents[1] / "fixtures/batch_scripts"
PROGRAMS = (
    "app.x",
    "solver",
    "module",
    "conda",
    "torchrun",
    "accelerate",
    "python",
    "prep",
    "post",
    "singularity",
    "uv",
)
STAND_IN = """#!/bin/sh
gpus=$(echo "$CUDA_VISIBLE_DEVICES" | tr , '\\n' | grep -c .)
echo "${0##*/} $* | task ${SLURM_PROCID--} of ${SLURM_NTASKS--}, local ${SLURM_LOCALID--}, on $(hostname), threads \
${OMP_NUM_THREADS--}, gpus $gpus, folder ${PWD##*/}"
"""
MAKE = 'cd bin; chmod 755 app.x; for name; do [ -e "$name" ] || ln -s app.x "$name"; done; cd ..; ln -s bin/app.x bin/solver .'
COPY = """for name; do for way in sbatch hpcml; do
  mkdir -p "$way"; cp -a files "$way/$name"; cp "scripts/$name.sh" "$way/$name/job.sh"
done; done"""
FILES = {
    "data.in": "some data\nmore\n",
    "params.txt": "7 --lr 0.1\n8\n9\n",
    "commands.txt": "echo one\necho two\necho three\necho four\necho five\n",
    "sub/there": "",
    "logs/there": "",
}
ARGUMENTS = {"plain_sh": ("first", "a b"), "functions_and_arrays": ("--more", "a b"), "perl": ("x",)}
ANYWHERE = (  # Slurm chooses the node of each step, or divides tasks among the nodes that have room
    "accelerate_bash_c", "containers", "functions_and_arrays", "multi_prog", "odd_spacing", "output_patterns", "perl",
    "steps_in_the_background", "task_farm", "wait_for_each",
)  # fmt: skip
SAID_BY_SLURM = r"slurmstepd|srun: (Job|Step) .*(step creation temporarily|created)"  # of a busy machine
TIME = 120 * PATIENCE


class Result(NamedTuple):
    """What came of a script: how each of its jobs ended, and the settled lines of the files in its folder."""

    ends: dict[str, tuple[str, int]]  # by the index of a task, state and exit status; of a signal 128 and more
    files: dict[str, list[str]]


class Job(NamedTuple):
    """A script that was submitted: its folder, and its job's number for each task, with hpcml's directory if it has one."""

    folder: Path
    tasks: dict[str, str]
    directories: dict[str, Path]
    refusal: str = ""


def names() -> list[str]:
    return sorted(path.stem for path in SCRIPTS.glob("*.sh"))


def place(cluster: Cluster, names: Sequence[str]) -> None:
    """Make the folders of scripts, with what these expect beside them."""
    for name, text in FILES.items():
        cluster.write(f"public/files/{name}", text)
    cluster.write("public/files/bin/app.x", STAND_IN)
    cluster.run("sh", "-c", MAKE, "sh", *PROGRAMS, cwd=cluster.work / "public/files")
    for name in names:
        cluster.write(f"public/scripts/{name}.sh", (SCRIPTS / f"{name}.sh").read_text())
    cluster.run("sh", "-c", COPY, "sh", *names, cwd=cluster.work / "public")


def submit(cluster: Cluster, name: str, way: str) -> Job:
    folder = cluster.work / f"public/{way}/{name}"
    by_hpcml = way == "hpcml"
    words = ("hpcml", "submit", "--json", "--detach") if by_hpcml else ("sbatch", "--parsable")
    env = {"FROM_THE_SHELL": "of the shell"}
    start = ("sh", "-c", 'PATH="$PWD/bin:$PATH" exec "$@"', "sh")
    done = cluster.run(*start, *words, "job.sh", *ARGUMENTS.get(name, ()), cwd=folder, env=env)
    if done.returncode:
        return Job(folder, {}, {}, done.stderr)
    if not by_hpcml:
        job = done.stdout.strip()
        indices = re.findall(r"ArrayTaskId=(\d+)", cluster.run("scontrol", "show", "job", job).stdout)
        listed = cluster.run("squeue", "--array", "--noheader", "--states=all", f"--jobs={job}", "--format=%K").stdout
        tasks = {index: f"{job}_{index}" for index in {*indices, *listed.split()} if index.isdecimal()}
        return Job(folder, tasks or {"": job}, {})
    facts = json.loads(done.stdout)
    runs = facts.get("runs", [facts])
    jobs = {run["job"].partition("_")[2]: run["job"] for run in runs}
    places = {run["job"].partition("_")[2]: Path(run["directory"]) for run in runs}
    return Job(folder, jobs, places)


def ended(cluster: Cluster, name: str, job: Job) -> Result:
    """Wait for the end of a script's tasks, and return what came of it."""
    ends, texts, hosts = {}, {}, list[str]()
    numbers = [number.partition("_")[0] for number in job.tasks.values()]
    for index, number in job.tasks.items():
        facts = cluster.job_end(number, TIME)
        code, signal = map(int, facts["ExitCode"].split(":"))
        ends[index] = facts["JobState"], code or (128 + signal if signal else 0)
        hosts += sorted({*expand_hosts(facts["NodeList"])} - {*hosts})
        numbers.append(facts["JobId"])
    anywhere = name in ANYWHERE or len(job.tasks) > 1  # Slurm chooses the node of each task of an array too
    names = dict.fromkeys(hosts, "NODE") if anywhere else {host: f"NODE{at}" for at, host in enumerate(hosts)}
    numbers += [number.zfill(5) for number in numbers]  # %5j
    names |= dict.fromkeys(numbers, "JOB") | {str(job.folder): "FOLDER"}
    for index, directory in job.directories.items():
        if Path(facts["StdOut"]).name == "job.log":  # as Slurm names the file of a script without --output
            text = (directory / "logs/script.log").read_text()
            texts[f"slurm-JOB{index and '_'}{index}.out"] = settled(text, names, anywhere=anywhere)
    for path in sorted(job.folder.rglob("*")):
        if path.is_file() and path.parent.name != "bin" and path.name != "job.sh":
            name_there = replaced(str(path.relative_to(job.folder)), names)
            texts[name_there] = settled(path.read_text(), names, anywhere=anywhere)
    return Result(ends, texts)


def replaced(text: str, names: Mapping[str, str]) -> str:
    """Replace what is another's in each job: numbers, nodes, the folder."""
    for word in sorted(names, key=len, reverse=True):
        beside = "0-9" if word.isdecimal() else "A-Za-z0-9"
        text = re.sub(rf"(?<![{beside}]){re.escape(word)}(?![{beside}])", names[word], text)
    return text


def settled(text: str, names: Mapping[str, str], *, anywhere: bool) -> list[str]:
    """Return the lines of an output without what is another's in each job; tasks may be ``anywhere`` on its nodes."""
    text = re.sub(r"\S*/(?:slurm_script|job\.sh)", "SCRIPT", text)
    text = re.sub(r"\blocal \d+", "local", text) if anywhere else text
    text = re.sub(r"StepId=\S+|STEP \S+|AT \S+|line \d+: +\d+", "…", text)
    return sorted(line for line in replaced(text, names).splitlines() if not re.search(SAID_BY_SLURM, line))


@pytest.fixture(scope="module")
def results(cluster: Cluster, request: pytest.FixtureRequest) -> dict[str, tuple[Result, Result, Job]]:
    """By name of a script that is to be tested, what came of it by sbatch and by hpcml."""
    items = [item for item in request.session.items if "results" in getattr(item, "fixturenames", ())]
    wanted = [item.callspec.params["name"] for item in items]  # type: ignore[attr-defined]
    place(cluster, wanted)
    jobs = {name: (submit(cluster, name, "sbatch"), submit(cluster, name, "hpcml")) for name in wanted}
    return {
        name: (ended(cluster, name, one), ended(cluster, name, other), other) for name, (one, other) in jobs.items()
    }


@pytest.mark.parametrize("name", names())
def test_a_public_script_does_the_same(results: dict[str, tuple[Result, Result, Job]], name: str) -> None:
    by_sbatch, by_hpcml, job = results[name]
    assert job.refusal == ""
    assert by_hpcml.files == by_sbatch.files
    assert by_hpcml.ends == by_sbatch.ends
    for index, end in by_sbatch.ends.items():
        status = json.loads((job.directories[index] / "status.json").read_text())
        assert (status["state"], status["exit_status"]) == end
