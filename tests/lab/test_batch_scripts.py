"""A batch script by sbatch and by `hpcml submit`: the same tasks on the same nodes, and the same end."""

from __future__ import annotations

import functools
import json
import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import Cluster
from lab_state import PATIENCE, wait_for
from tests.looks import without_late_report

pytestmark = pytest.mark.lab

TASK = """python3 -c 'import os, socket
print("task", os.environ["SLURM_PROCID"], "of", os.environ["SLURM_NTASKS"], "on", socket.gethostname(), flush=True)'"""
SHORT = "--time=5 --mem-per-cpu=100M"
beside = pytest.mark.beside(at_once=6)  # each of these scripts has its nodes, which are the same by sbatch


class Case(NamedTuple):
    """A script: its #SBATCH lines, its code and its arguments."""

    lines: str
    code: str
    arguments: tuple[str, ...] = ()


CASES = {
    "srun on two nodes": Case("--nodes=2\n--ntasks-per-node=2", f"srun {TASK}"),
    "a number of tasks alone": Case("-n 4\n--ntasks-per-node=2 --gpus-per-task=1", f"srun {TASK}; echo $SLURM_JOB_GPUS"),
    "full node and steps beside each other": Case(
        "-N2 --exclusive", f"srun --exclusive -n1 -N1 {TASK} & srun -N2 -n2 {TASK} &\nwait; echo waited"
    ),
    "a step in the background": Case("-N2", f"srun -N1 -n1 sleep 1 & {TASK.replace('SLURM_NTASKS', 'SLURM_NNODES')}; wait $!; echo last $?"),
    "functions, loops and arguments": Case(
        "-n2", f'work() {{ srun -n1 -N1 --exclusive {TASK}; }}\nfor one in "$@"; do echo "got $one"; work; done', ("a b", "--c")
    ),
    "mpirun": Case("-N2 -n2", "mpirun --version | head -n1; mpirun --allow-run-as-root hostname"),
    "its own exit status": Case("-n1", "echo before; exit 7"),
    "a failed step": Case("-n2", "srun -n1 sh -c 'exit 3'; echo went on; exit 0"),
    "set -e": Case("-n1", "set -e\nsrun false\necho never"),
    "a signal": Case("-n1", "kill -SEGV $$"),
    "a command that is not there": Case("-n1", "no-such-program"),
    "another interpreter": Case("-n1", "import os\nprint(os.environ['SLURM_JOB_NUM_NODES'])"),
    "the first line's options": Case("-n1", 'echo "$-" | grep -c x; false; echo never'),
    "standard input": Case("-n1 --input=words", "cat; echo; srun cat"),
    "another folder": Case("-n1 --chdir=/tmp", "pwd; echo $SLURM_JOB_NAME"),
    "sbatch typed inside": Case("-n1", "sbatch --wait -n1 -o /dev/null --wrap 'exit 4'; echo inner $?"),
    "what it leaves": Case("-n1", "sleep 300 & echo left"),
    "its own files": Case("-n1 --output=%x-%j.txt --error=%j.err", "echo out; echo err >&2; srun sh -c 'echo task; exit 2'"),
    "a step that it cancels": Case(
        "-n1 --output=%x-%j.txt",
        "begun=/tmp/begun-$SLURM_JOB_ID\nsrun sh -c 'touch $0; exec sleep 600' $begun &\nuntil [ -e $begun ]; do sleep 0.1; done\n"
        "rm $begun; scancel $SLURM_JOB_ID.0; wait $!; echo went on",
    ),
    "variables": Case("-n2 -c2 -J own --export=ALL,A=b", "echo $A $SLURM_CPUS_PER_TASK; env | grep -c '^HPCML_POINT\\|^PYTHONPATH\\|OMP'; umask; ulimit -a"),
}  # fmt: skip
FAILED_STEPS = ("a failed step", "a step that it cancels")  # of scripts that exit with 0
FIRST_LINES = {"another interpreter": "#!/bin/sh\n", "the first line's options": "#!/bin/bash -ex\n"}


class Result(NamedTuple):
    """What came of a script."""

    output: list[str]
    exit_code: str
    state: str


def text_of(name: str, case: Case) -> str:
    has_two = any(word in case.lines for word in ("-N2", "--nodes=2", "-n 4"))
    nodes = "n3,n4" if "--exclusive" in case.lines else "n1,n2" if has_two else "n1"
    where = f"--nodelist={nodes} --nodes={nodes.count(',') + 1}"  # else Slurm adds nodes where one is too full
    lines = "".join(f"#SBATCH {line}\n" for line in [*case.lines.splitlines(), SHORT, where])
    code = f"python3 - <<'END'\n{case.code}\nEND" if name == "another interpreter" else case.code
    return f"{FIRST_LINES.get(name, '#!/bin/bash' + chr(10))}{lines}{code}\n"


def settled(text: str, job: str, script: str) -> list[str]:
    """Return the lines of an output without what is another's in each job: numbers, times, places of the script."""
    text = re.sub(rf"(?<!\d){job}(?!\d)", "JOB", text).replace(script, "SCRIPT")
    text = re.sub(r"\S*/slurm_script", "SCRIPT", text)
    text = re.sub(r"Submitted batch job \d+", "Submitted", text)
    text = re.sub(r"(JOB|Step=)\.\d+|StepId=\S+|STEP \S+|AT \S+|line \d+: +\d+|\d+ (Segmentation)", "…", text)
    by_timing = re.compile(
        r"slurmstepd|pending signals|srun: (?:Force Terminated|Job step aborted: Waiting|.*step creation|Step created)"
    )
    return sorted(line for line in text.splitlines() if not by_timing.search(line))


def by_sbatch(cluster: Cluster, script: Path, case: Case, folder: Path) -> Result:
    own = () if "--output" in case.lines else (f"--output={folder}/%j.out",)
    done = cluster.run("sbatch", "--parsable", *own, str(script), *case.arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    facts = cluster.job_end(job, 60 * PATIENCE)
    texts = [path.read_text() for path in sorted(folder.glob(f"*{job}*"))]
    return Result(settled("".join(texts), job, str(script)), facts["ExitCode"], facts["JobState"])


def by_hpcml(cluster: Cluster, script: Path, case: Case, folder: Path) -> tuple[Result, Path]:
    done = cluster.run("hpcml", "submit", "--json", "--detach", str(script), *case.arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    submitted = json.loads(done.stdout)
    directory, job = Path(submitted["directory"]), submitted["job"]
    facts = cluster.job_end(job, 60 * PATIENCE)
    if "--output" in case.lines:
        texts = [path.read_text() for path in sorted(folder.glob(f"*{job}*"))]
        assert {oct(path.stat().st_mode) for path in folder.glob(f"*{job}*")} == {"0o100644"}
        assert sorted("".join(texts).splitlines()) == sorted((directory / "logs/script.log").read_text().splitlines())
    else:
        texts = [(directory / "logs/script.log").read_text()]
    return Result(settled("".join(texts), job, str(script)), facts["ExitCode"], facts["JobState"]), directory


def events_of(directory: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


@beside
@pytest.mark.parametrize("name", CASES)
def test_a_script_does_the_same(cluster: Cluster, name: str) -> None:
    case, folder = CASES[name], cluster.work / f"batch-{time.time_ns()}"
    script = cluster.write(f"{folder.name}/job.sh", text_of(name, case))
    cluster.write(f"{folder.name}/words", "some words")
    expected = by_sbatch(cluster, script, case, folder)
    result, directory = by_hpcml(cluster, script, case, folder)
    assert result.output == expected.output
    status = json.loads((directory / "status.json").read_text())
    assert result.state == expected.state
    code, number = map(int, expected.exit_code.split(":"))
    assert status["exit_status"] == (code or (128 + number if number else 0))
    warned = without_late_report(event["sentence"] for event in events_of(directory) if event["event"] == "warning")
    assert [sentence for sentence in warned if "exited with status 0, but srun reported of" in sentence] == warned
    assert bool(warned) == (name in FAILED_STEPS)


# -- signals, and ends from outside -----------------------------------------------------------------------------------

WAITS = """
{traps}
echo ready
srun -n1 -N1 {task} &
for _ in $(seq 600); do sleep 0.1; done
echo never
"""
IGNORES = "trap 'echo told TERM' TERM; cd /"


class Told(NamedTuple):
    """A script that waits: its lines, its traps, what is typed, and whether `hpcml cancel` may do it too."""

    lines: str
    traps: str
    typed: tuple[str, ...]


TOLD = {
    "scancel": Told("-N2 --nodelist=n1,n2", "trap 'echo told TERM; exit 9' TERM", ("scancel",)),
    "scancel of one that ignores it": Told("-N1 --nodelist=n2", IGNORES, ("scancel",)),
    "a signal to the script": Told("-N2 --nodelist=n1,n2", "trap 'echo told USR1; exit 8' USR1", ("scancel", "--batch", "--signal=USR1")),
    "TERM to the script": Told("-N1 --nodelist=n2", "trap 'echo told TERM; sleep 2; echo saved; exit 0' TERM", ("scancel", "-b", "-s", "TERM")),
    "a signal to all": Told("-N1 --nodelist=n2", "trap 'echo told USR2' USR2; trap 'echo told INT; exit 6' INT",
                            ("scancel", "--full", "--signal=USR2")),
}  # fmt: skip


def _has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


def waiting(cluster: Cluster, told: Told, folder: Path, *, by_hpcml: bool) -> tuple[str, Path, Path]:
    """Submit a script that waits; return its job, its output and hpcml's directory once it is ready."""
    lines = "".join(f"#SBATCH {line}\n" for line in (told.lines, SHORT))
    code = WAITS.format(traps=told.traps, task="sleep 100")
    script = cluster.write(f"{folder.name}/job.sh", f"#!/bin/bash\n{lines}{code}")
    if by_hpcml:
        done = cluster.run("hpcml", "submit", "--json", "--detach", str(script), cwd=folder)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        job, directory = facts["job"], Path(facts["directory"])
        output = directory / "logs/script.log"
    else:
        job = cluster.run("sbatch", "--parsable", f"--output={folder}/%j.out", str(script), cwd=folder).stdout.strip()
        directory, output = folder, folder / f"{job}.out"
    assert wait_for(functools.partial(_has, output, "ready"), 60, 0.1)
    time.sleep(1)  # the step in the background begins too; without it the test is the same
    return job, output, directory


@beside
@pytest.mark.parametrize("name", TOLD)
def test_a_signal_reaches_the_script_as_under_sbatch(cluster: Cluster, name: str) -> None:
    told, ends = TOLD[name], []
    for by_hpcml in (False, True):
        folder = cluster.work / f"told-{time.time_ns()}"
        cluster.run("mkdir", "-p", str(folder))
        job, output, directory = waiting(cluster, told, folder, by_hpcml=by_hpcml)
        assert cluster.run(*told.typed, job).returncode == 0
        if name == "a signal to all":
            assert wait_for(functools.partial(_has, output, "told USR2"), 30, 0.1)
            time.sleep(1)  # in which a second USR2 would arrive
            cluster.run("scancel", "--batch", "--signal=INT", job)
        facts = cluster.job_end(job, 60 * PATIENCE)
        said = [line for line in output.read_text().splitlines() if line.startswith(("told", "saved", "never"))]
        ends.append((said, facts["JobState"]))
    assert ends[1] == ends[0]
    shown = json.loads(cluster.run("hpcml", "status", "--json", directory.name).stdout)
    assert shown["state"] == facts["JobState"], shown


@beside
def test_the_time_limit_is_the_script_s(cluster: Cluster) -> None:
    """Slurm sends the script's own signal before the limit; one with no such line gets none of hpcml's."""
    folder = cluster.work / f"limit-{time.time_ns()}"
    traps = "trap 'echo told USR1' USR1; trap 'echo told URG' URG; trap 'echo told TERM; exit 3' TERM"
    code = WAITS.format(traps=traps, task="true").replace("600", "2000")
    own = cluster.write(  # Slurm looks every 30 s: the signal comes 45 to 15 s before the limit, when the trap is set
        f"{folder.name}/own.sh", f"#!/bin/bash\n#SBATCH -n1 -t 1 --nodelist=n2 --signal=B:USR1@15\n{code}"
    )
    none = cluster.write(f"{folder.name}/none.sh", f"#!/bin/bash\n#SBATCH -n1 -t 1 --nodelist=n2\n{code}")
    jobs, logs = {}, {}
    for script in (own, none):
        by_sbatch = cluster.run("sbatch", "--parsable", f"--output={folder}/%x.out", str(script), cwd=folder)
        jobs[f"sbatch {script.name}"], logs[f"sbatch {script.name}"] = (
            by_sbatch.stdout.strip(),
            folder / f"{script.name}.out",
        )
        done = cluster.run("hpcml", "submit", "--json", "--detach", str(script), cwd=folder)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        jobs[script.name], logs[script.name] = facts["job"], Path(facts["directory"]) / "logs/script.log"
    ends = {name: cluster.job_end(job, 150 * PATIENCE)["JobState"] for name, job in jobs.items()}
    said = {
        name: [line for line in log.read_text().splitlines() if line.startswith("told")] for name, log in logs.items()
    }
    for name in ("own.sh", "none.sh"):
        assert (said[name], ends[name]) == (said[f"sbatch {name}"], ends[f"sbatch {name}"])
        shown = json.loads(cluster.run("hpcml", "status", "--json", logs[name].parent.parent.name).stdout)
        assert shown["state"] == "TIMEOUT"
    assert said["own.sh"] == ["told USR1", "told TERM"]
    events = (logs["none.sh"].parent.parent / "events.jsonl").read_text()
    assert '"time-limit-near"' in events


def test_why_names_the_error_of_a_task(cluster: Cluster) -> None:
    folder = cluster.work / f"why-{time.time_ns()}"
    script = cluster.write(
        f"{folder.name}/job.sh",
        f"#!/bin/bash\n#SBATCH -N2 {SHORT}\nsrun python3 -c 'raise ValueError(6 * 7)' || exit 5\n",
    )
    done = cluster.run("hpcml", "submit", "--wait", str(script), cwd=folder)
    assert done.returncode == 5
    assert "ValueError: 42" in cluster.run("hpcml", "why").stdout
    cluster.write(f"{folder.name}/job.sh", f"#!/bin/bash\n#SBATCH -N2 {SHORT}\nsrun sh -c 'exit 3'; exit 5\n")
    assert cluster.run("hpcml", "submit", "--wait", str(script), cwd=folder).returncode == 5
    assert "Exited with exit code 3" in cluster.run("hpcml", "why").stdout


# -- arrays ----------------------------------------------------------------------------------------------------------------

ARRAY = """#!/bin/bash
#SBATCH --array=1-5:2%2 -n2 --time=5 --mem-per-cpu=100M
#SBATCH --output=%x-%A_%a.txt
env | grep ^SLURM_ARRAY_TASK | sort
[ "$SLURM_ARRAY_JOB_ID" = "$FIRST" ] || echo "job $SLURM_ARRAY_JOB_ID"
srun sh -c 'echo "step $SLURM_PROCID"'
[ "$SLURM_ARRAY_TASK_ID" != 3 ] || exit 7
"""


LONG = f"""#!/bin/bash
#SBATCH --array=0-3%2 -n1 {SHORT}
trap 'echo told; exit 9' TERM
echo ready
sleep 300 & wait
"""


def settled_tasks(folder: Path, job: str) -> dict[str, list[str]]:
    """Return the lines of each task's own file by the end of its name."""
    texts = {path.name.partition(job)[2]: path.read_text().replace(job, "JOB") for path in folder.glob(f"*{job}_*.txt")}
    return {name: sorted(text.splitlines()) for name, text in texts.items()}


def test_an_array_does_the_same_and_each_task_is_a_run(cluster: Cluster) -> None:
    folder = cluster.work / f"array-{time.time_ns()}"
    script = cluster.write(f"{folder.name}/parts.sh", ARRAY)
    expected_job = cluster.run("sbatch", "--parsable", str(script), cwd=folder).stdout.strip()
    ends = {index: cluster.job_end(f"{expected_job}_{index}", 60 * PATIENCE) for index in (1, 3, 5)}
    done = cluster.run("hpcml", "submit", "--json", "--detach", str(script), cwd=folder)
    assert done.returncode == 0, done.stderr
    array = json.loads(done.stdout)
    assert [run["run"].partition("-")[0] for run in array["runs"]] == ["parts_1", "parts_3", "parts_5"]
    assert [run["job"] for run in array["runs"]] == [f"{array['job']}_{index}" for index in (1, 3, 5)]
    waited = cluster.run("hpcml", "wait", "--json", array["array"])
    assert waited.returncode == 7
    shown = {one["run"].partition("-")[0]: one for one in json.loads(waited.stdout)}
    assert {name: (one["state"], one["exit_status"]) for name, one in shown.items()} == {
        f"parts_{index}": (end["JobState"], int(end["ExitCode"].partition(":")[0])) for index, end in ends.items()
    }
    assert settled_tasks(folder, array["job"]) == settled_tasks(folder, expected_job) != {}
    for run in array["runs"]:  # a log each
        text = (Path(run["directory"]) / "logs/script.log").read_text()
        assert f"SLURM_ARRAY_TASK_ID={run['job'].partition('_')[2]}\n" in text
    assert "parts_3-" in cluster.run("hpcml", "why", f"{array['job']}_3").stdout
    again = cluster.run("hpcml", "rerun", "--wait", "--json", "parts_3")
    assert (again.returncode, len(json.loads(again.stdout))) == (7, 1), again.stderr
    assert "SLURM_ARRAY_TASK_ID=3\n" in cluster.run("hpcml", "logs", "parts_3").stdout


def test_an_array_is_cancelled_by_its_number_and_a_task_by_its_own(cluster: Cluster) -> None:
    folder = cluster.work / f"array-{time.time_ns()}"
    script = cluster.write(f"{folder.name}/long.sh", LONG)
    array = json.loads(cluster.run("hpcml", "submit", "--json", "--detach", str(script), cwd=folder).stdout)
    logs = [Path(run["directory"]) / "logs/script.log" for run in array["runs"]]
    assert all(wait_for(functools.partial(_has, log, "ready"), 60, 0.1) for log in logs[:2])
    waits = json.loads(cluster.run("hpcml", "status", "--json", array["runs"][3]["run"]).stdout)
    assert waits["job_state"] == "PENDING", waits
    assert cluster.run("hpcml", "cancel", f"{array['job']}_0").returncode == 0
    assert wait_for(functools.partial(_has, logs[2], "ready"), 60, 0.1)  # it has the place of the first
    done = cluster.run("hpcml", "cancel", array["job"])
    assert done.returncode == 0, done.stdout + done.stderr
    waited = cluster.run("hpcml", "wait", "--json", array["job"])
    assert {one["state"] for one in json.loads(waited.stdout)} == {"CANCELLED"}, waited.stdout
    assert [log.exists() and "told" in log.read_text() for log in logs] == [True, True, True, False]
