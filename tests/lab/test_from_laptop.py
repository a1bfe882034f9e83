"""`hpcml --host` from the lab's laptop, through a real sshd with certificates, to a real Slurm."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import lab_ssh
from conftest import directory_of
from laptop import Outside, until
from terminals import Terminal

pytestmark = pytest.mark.lab
HOSTILE = (
    "$(touch pwned)", "`id`", "it's", 'say "no"', "new\nline", "; exit 9", "", "back\\slash", "é", "\udcff",
    "--help", "!!",
)  # fmt: skip

HELD = ("--set", 'slurm.extra=["--hold"]')


@pytest.fixture(scope="module")
def project(outside: Outside) -> Path:
    """A folder of alice's on the laptop, as the laptop names it; the cluster has none of that name."""
    outside.lab.wait_idle(60)
    folder = outside.lab.home("alice") / "laptop project's"
    shutil.rmtree(outside.home / folder.name, ignore_errors=True)
    outside.laptop("mkdir", "-p", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _ends_idle(outside: Outside) -> Iterator[None]:
    for path in outside.home.glob(".hpcml/ssh/*.logins"):  # some tests break the link, and all share one hour
        path.unlink()
    yield
    outside.on("login", "scancel", "--me", "--quiet")
    outside.lab.wait_idle(60)
    assert not staged(outside)


def staged(outside: Outside) -> list[str]:
    folder = outside.lab.home("alice") / ".hpcml/incoming"
    return os.listdir(folder) if folder.is_dir() else []


def serving(outside: Outside) -> list[str]:
    lines = [line for _, line in outside.lab.processes("alice") if "--serve-laptop" in line]
    return [line for line in lines if "ssh" not in line.split()[0]]


def write(outside: Outside, path: Path, text: str) -> Path:
    done = outside.on(lab_ssh.LAPTOP, "tee", str(path), input=text)
    assert done.returncode == 0, done.stderr
    return path


def hpcml(outside: Outside, project: Path, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return outside.lab.exec(["hpcml", "--host", "lab", *words], node=lab_ssh.LAPTOP, cwd=project, timeout=timeout)


def start(outside: Outside, project: Path, *words: str) -> subprocess.Popen[str]:
    return outside.lab.popen(["hpcml", "--host", "lab", *words], node=lab_ssh.LAPTOP, cwd=project)


RESULT = """import json, sys, helper, hpcml
for name in ("a", "b c", "sub/d"):
    path = hpcml.run.out / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(range(256)) * 1000)
print(json.dumps(sys.argv[1:]))
print(helper.x)
sys.exit(255)
"""


def test_a_run_of_hostile_names_from_its_submission_to_its_results(outside: Outside, project: Path) -> None:
    """Submitted, watched and fetched with one login; names and words arrive unchanged, and so does ssh's own status."""
    outside.forget()
    logins = outside.logins("login") + outside.logins("login2")
    folder = project / "$(touch pwned) `id`; it's \\"
    outside.laptop("mkdir", "-p", str(folder))
    write(outside, folder / "-my 'script' $HOME.py", RESULT)
    write(outside, folder / "helper.py", "x = 'helped'\n")
    words = ("--nodes", "2", "--name", "hostile", "--wait", "--", "-my 'script' $HOME.py")
    done = hpcml(outside, folder, "submit", *words, *HOSTILE)
    assert done.returncode == 255, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert (tuple(json.loads(first)), second) == (HOSTILE, "helped")
    assert not list(outside.lab.home("alice").glob("**/pwned"))
    run = directory_of(done).name
    facts = json.loads(hpcml(outside, folder, "status", run, "--json").stdout)
    assert (facts["run"], facts["exit_status"], len(facts["nodes"])) == (run, 255, 2)
    outside.cluster.wait_gone(directory_of(done))  # the report comes after the run's end
    fetched = hpcml(outside, folder, "fetch", run, "results")
    assert fetched.returncode == 0, fetched.stderr
    assert outside.logins("login") + outside.logins("login2") == logins + 1
    here, there = outside.home / project.name / folder.name / "results", directory_of(done) / "out"
    names = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert names >= {"a", "b c", "sub/d"}
    report = {name for name in ("report.html", "report.json") if (there.parent / name).exists()}
    assert {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()} == names | report
    assert all((here / name).read_bytes() == (there / name).read_bytes() for name in names)


def test_ctrl_c_ends_what_follows_a_run_and_not_the_run(outside: Outside, project: Path) -> None:
    """On a terminal `submit` waits, though the login node's hpcml has none; nothing stays there of who went away."""
    write(outside, project / "says.py", "import time, hpcml\nprint('first', flush=True)\n"
          "while not hpcml.run.should_stop(): time.sleep(0.1)\nprint('last\\n', end='', flush=True)\n")  # fmt: skip
    line = "hpcml --host lab submit --nodes 1 says.py"
    with Terminal(outside.lab, line, node=lab_ssh.LAPTOP, cwd=project) as terminal:
        terminal.shown("first\n")
        terminal.type("\x03")
        assert terminal.ended() == 130, terminal.text
    assert "Detached; the run continues." in terminal.text
    assert "hpcml --host lab logs -f says-" in terminal.text
    until(lambda: not serving(outside), 20, lambda: str(serving(outside)))
    facts = json.loads(hpcml(outside, project, "status", "says", "--json").stdout)
    assert facts["state"] == "RUNNING"
    run = facts["run"]
    follower = start(outside, project, "logs", "-f", run)
    assert hpcml(outside, project, "cancel", run).returncode == 0
    out, err = follower.communicate(timeout=180)
    # Slurm may say that it was cancelled.
    own = [line for line in out.splitlines() if not line.startswith("slurmstepd")]
    assert (follower.returncode, own) == (0, ["first", "last"]), err


def test_the_staging_folder_is_alice_s_alone(outside: Outside, project: Path) -> None:
    """Looked at by mallory while the files are there: Slurm's answer is held back meanwhile."""
    write(outside, project / "secret.py", "print('a secret of alice')\n")
    state = outside.lab.state()
    controller = state.daemons["slurmctld"].pid
    incoming = outside.lab.home("alice") / ".hpcml/incoming"
    os.kill(controller, signal.SIGSTOP)
    try:
        process = start(outside, project, "submit", "--nodes", "1", *HELD, "--detach", "secret.py")
        until(lambda: bool(staged(outside)) and (incoming / staged(outside)[0] / "secret.py").exists(), 30)
        folder = incoming / staged(outside)[0]
        assert outside.on("login", "cat", str(folder / "secret.py")).stdout == "print('a secret of alice')\n"
        for words in (["ls", str(incoming)], ["ls", str(folder)], ["cat", str(folder / "secret.py")]):
            assert outside.on("login", *words, user="mallory").returncode != 0, words
        assert [oct(path.stat().st_mode & 0o777) for path in (incoming, folder)] == ["0o700", "0o700"]
        seen = outside.on("login", "ps", "-eo", "args", user="mallory").stdout
        assert "--serve-laptop" in seen
        assert "secret.py" not in "\n".join(line for line in seen.splitlines() if "serve-laptop" in line)
    finally:
        os.kill(controller, signal.SIGCONT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err


def test_a_batch_script_runs_as_it_is_in_the_copy_of_its_folder(outside: Outside, project: Path) -> None:
    folder = project / "batch"
    outside.laptop("mkdir", "-p", str(folder))
    write(outside, folder / "job.sh", "#!/bin/bash\n#SBATCH -N2 --time=5 --mem-per-cpu=100M\nsrun python3 hi.py\npwd\n")
    write(
        outside,
        folder / "hi.py",
        'import os; print("task", os.environ["SLURM_PROCID"], os.environ["SLURM_SUBMIT_DIR"])\n',
    )
    done = hpcml(outside, folder, "submit", "--wait", "job.sh")
    assert done.returncode == 0, done.stderr
    code = directory_of(done) / "code"
    assert sorted(done.stdout.splitlines()) == [str(code), f"task 0 {code}", f"task 1 {code}"]


ARRAY = """#!/bin/bash
#SBATCH --array=1-5:2%2 -n1 --time=5 --mem-per-cpu=100M
#SBATCH --output=logs/%A_%a.txt
echo "$SLURM_ARRAY_TASK_COUNT" "$SLURM_ARRAY_TASK_MAX" "$1" | tee "part_$SLURM_ARRAY_TASK_ID"
[ "$SLURM_ARRAY_TASK_ID" != 3 ] || exit 7
"""
LONG = """#!/bin/bash
#SBATCH --array=0-2%1 -n1 --time=5 --mem-per-cpu=100M
echo ready $PWD
exec sleep 600
"""


def has_begun(log: Path) -> bool:
    return log.exists() and "ready" in log.read_text()


def test_the_tasks_of_an_array_share_the_copy_of_the_folder(outside: Outside, project: Path) -> None:
    """As on a login node: each writes beside the script, and a task that is submitted again finds what others wrote."""
    folder = project / "array"
    outside.laptop("mkdir", "-p", str(folder / "logs"))
    write(outside, folder / "job.sh", ARRAY)
    done = hpcml(outside, folder, "submit", "--detach", "--json", "job.sh", "a b")
    assert done.returncode == 0, done.stderr
    array = json.loads(done.stdout)
    waited = hpcml(outside, folder, "wait", "--json", array["job"])
    assert waited.returncode == 7, waited.stderr
    assert [row["exit_status"] for row in json.loads(waited.stdout)] == [0, 7, 0]
    assert hpcml(outside, folder, "logs", f"{array['job']}_3").stdout == "3 5 a b\n"
    assert "job_3-" in hpcml(outside, folder, "why", "job_3").stdout
    assert hpcml(outside, folder, "fetch", "job_5", "got").returncode == 0
    got = outside.home / folder.relative_to(outside.lab.home("alice")) / "got/code"
    assert {str(path.relative_to(got)) for path in got.rglob("*") if path.is_file()} == {
        name for index in (1, 3, 5) for name in (f"part_{index}", f"logs/{array['job']}_{index}.txt")
    }
    again = hpcml(outside, folder, "rerun", "--wait", "--json", "job_3")
    assert (again.returncode, len(json.loads(again.stdout))) == (7, 1), again.stderr
    assert hpcml(outside, folder, "logs", "job_3").stdout == "1 3 a b\n"


def test_an_array_is_cancelled_from_the_laptop(outside: Outside, project: Path) -> None:
    folder = project / "long"
    outside.laptop("mkdir", "-p", str(folder))
    write(outside, folder / "long.sh", LONG)
    done = hpcml(outside, folder, "submit", "--detach", "--json", "long.sh")
    array = json.loads(done.stdout)
    logs = [Path(run["directory"]) / "logs/script.log" for run in array["runs"]]
    for index in (0, 1):
        until(functools.partial(has_begun, logs[index]), 60)
        assert hpcml(outside, folder, "cancel", array["runs"][0]["run"] if index == 0 else array["job"]).returncode == 0
    waited = hpcml(outside, folder, "wait", "--json", array["job"])
    assert {row["state"] for row in json.loads(waited.stdout)} == {"CANCELLED"}, waited.stdout
    assert logs[1].read_text() == f"ready {logs[0].parent.parent}/code\n"
