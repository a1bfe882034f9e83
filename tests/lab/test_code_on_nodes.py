"""What script, tasks and scheduler import and find around them, on several nodes and inside an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import alike
from conftest import Cluster, Ended, directory_of

pytestmark = pytest.mark.lab
SURROUNDINGS = Path(alike.__file__).with_name("surroundings.py").read_text()

WHOSE = """
import json
from distributed import Client
import helper

if __name__ == "__main__":
    client = Client()
    print(json.dumps([helper.NAME, client.run_on_scheduler(lambda: __import__("helper").NAME),
                      *client.run(lambda: __import__("helper").NAME).values()]))
"""


def said(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


def test_code_edited_while_the_job_waits_does_not_change_the_run(cluster: Cluster) -> None:
    """Also from another folder with a module of that name, on two nodes."""
    folder = cluster.write("held/main.py", WHOSE).parent
    cluster.write("held/helper.py", "NAME = 'as submitted'\n")
    cluster.write("elsewhere/helper.py", "NAME = 'elsewhere'\n")
    cluster.write("elsewhere/queue.py", "raise SystemExit('of the working directory')\n")
    # It is held by a dependency that is met when the first job is cancelled.
    first = cluster.run("sbatch", "--parsable", "--hold", "--wrap", "true").stdout.strip()
    words = [
        "hpcml",
        "submit",
        "--detach",
        "--json",
        "--nodes",
        "2",
        "--dependency",
        f"afterany:{first}",
        "../held/main.py",
    ]
    done = cluster.run(*words, cwd=folder.with_name("elsewhere"))
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    assert cluster.job(json.loads(done.stdout)["job"])["JobState"] == "PENDING"
    cluster.write("held/helper.py", "NAME = 'edited'\n")
    cluster.write("held/main.py", "raise SystemExit('edited')\n")
    cluster.run("scancel", first)
    assert cluster.wait_status(directory, 120)["exit_status"] == 0
    assert said((directory / "logs/driver.log").read_text()) == ["as submitted"] * 4


def _plain(cluster: Cluster, name: str) -> Any:
    """Return what plain Python finds on a node, from the folder where the tests' scripts lie."""
    python = cluster.run("sh", "-c", "command -v python").stdout.strip()
    done = cluster.run("sh", "-c", f"exec {python} {name}", node="n1")
    assert done.returncode == 0, done.stderr
    return said(done.stdout)


# The lab's plain Python is started without a shell of the user's and without Slurm, which sets these.
OF_THE_LAB = ("SHLVL", "OLDPWD", "PWD", "TMPDIR", "HOSTNAME", "ENVIRONMENT", "TERM")


def _around(cluster: Cluster, *options: str) -> tuple[Ended, dict[str, Any]]:
    ended = cluster.submit(SURROUNDINGS, "--nodes", "3", *options, arguments=("run",))
    assert ended.code == 0, ended.err
    return ended, said(ended.out)


def test_script_tasks_and_scheduler_find_the_same_around_them_on_all_nodes(cluster: Cluster) -> None:
    _, found = _around(cluster)
    assert len(found) == 5
    plain = _plain(cluster, f"script{cluster.count}.py")
    assert not alike.differences(found | plain, (*alike.SCRIPT, *OF_THE_LAB))


def test_script_tasks_and_scheduler_find_the_same_around_them_inside_an_image(cluster: Cluster, image: Path) -> None:
    _, found = _around(cluster, "--image", str(image))
    assert len(found) == 5
    assert not alike.differences(found)
    assert found["script"]["folder"] == str(cluster.work)


SHARED = """
import sys
from distributed import Client

def write(name):
    with open(name, "w") as file:
        file.write("x")

if __name__ == "__main__":
    client = Client()
    write(sys.argv[1] + "/script")
    for worker in client.scheduler_info()["workers"]:
        client.submit(write, sys.argv[1] + "/task-" + worker.rpartition(":")[2], workers=[worker], pure=False).result()
"""


def test_what_is_written_into_a_group_s_folder_is_the_group_s(cluster: Cluster) -> None:
    """The umask of the submission holds for the script and for tasks on other nodes."""
    folder = cluster.write("shared/keep", "").parent
    script = cluster.write("share.py", SHARED)
    words = f"umask 002; exec hpcml submit --wait --nodes 2 {script} {folder}"
    done = cluster.run("sh", "-c", words)
    assert done.returncode == 0, done.stderr
    written = [path for path in folder.iterdir() if path.name != "keep"]
    assert len(written) == 3
    assert {oct(path.stat().st_mode & 0o777) for path in written} == {"0o664"}
    run = directory_of(done)
    assert oct(run.stat().st_mode & 0o777) == "0o700"
    assert oct((run / "out").stat().st_mode & 0o777) == "0o775"
    own = list((run / "attempts").rglob("*"))  # not the code's copy, which may hold folders of any name
    assert {path.parent.name for path in own} >= {"0", "nodes", "exit"}
    assert not [path for path in own if path.stat().st_mode & 0o077]


@pytest.mark.parametrize("inside", [False, True])
def test_a_repository_of_many_files_is_the_same_for_script_and_tasks(
    cluster: Cluster, request: pytest.FixtureRequest, *, inside: bool
) -> None:
    """What is too much to copy is linked to, also inside an image, which sees the script's folder."""
    options = ["--image", str(request.getfixturevalue("image"))] if inside else []
    folder = cluster.write("repository/main.py", WHOSE).parent
    cluster.write("repository/helper.py", "import models.one\nNAME = models.one.NAME\n")
    cluster.write("repository/models/one.py", "NAME = 'at its place'\n")
    made = cluster.run("sh", "-ec", "i=0; while [ $i -lt 60 ]; do : >models/$i.txt; i=$((i+1)); done", cwd=folder)
    assert made.returncode == 0, made.stderr
    cluster.write("beside/keep", "")
    words = [
        "hpcml",
        "submit",
        "--wait",
        "--nodes",
        "2",
        "--set",
        "code.max_files=20",
        *options,
        "../repository/main.py",
    ]
    done = cluster.run(*words, timeout=150, cwd=cluster.work / "beside")
    assert done.returncode == 0, done.stderr
    assert "models/ (more than code.max_files = 20)" in done.stderr
    assert said(done.stdout) == ["at its place"] * 4
    assert (directory_of(done) / "code/models").is_symlink()
