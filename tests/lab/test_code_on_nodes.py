"""What script, tasks and scheduler import, find and write on two nodes, and inside an image: two runs with all that is odd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import alike
from beside import SMALL
from conftest import Cluster, directory_of

pytestmark = pytest.mark.lab
COLLECT = Path(alike.__file__).with_name("surroundings.py").read_text().partition('if __name__ == "__main__":')[0]
MAIN = """
import os, pathlib

def modules():
    import helper
    import models.one
    return [helper.NAME, models.one.NAME]

def write(name):
    with open(name, "w") as file:
        file.write("x")

def look(top):
    place = pathlib.Path("/mnt/its data")
    found = {path.name: (path / "file").read_text() for path in pathlib.Path(top).iterdir() if (path / "file").exists()}
    try:
        (place / "new").touch()
    except OSError as error:
        refused = error.strerror
    return {"binds": found, "devices": os.listdir("/dev"), "read": (place / "file").read_text(), "refused": refused}

if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(json.dumps({"python": collect()}))
        sys.exit()
    from distributed import Client
    client = Client()
    said = {name: {"script": act(), "scheduler": client.run_on_scheduler(act), **client.run(act)}
            for name, act in (("around", collect), ("modules", modules))}
    write(sys.argv[1] + "/script")
    for number, worker in enumerate(client.scheduler_info()["workers"]):
        client.submit(write, f"{sys.argv[1]}/task-{number}", workers=[worker]).result()
    said["look"] = look(sys.argv[2]) if sys.argv[2:] else {}
    print(json.dumps(said))
    sys.exit(3 if sys.argv[2:] else 0)
"""
NAMES = ["as submitted", "at its place"]
MANY = ("--set", "code.max_files=20")
ODD = ("plain", "a space", " before", 'a"quote', "it's", "a=sign", "ä", "a$HOME", "a`id`", "a;b", "a*b", "#a", "%a",
       "-a", "a&b", "a|b", "~a", "(a)", "[a]", "{a}")  # fmt: skip


def project(cluster: Cluster, folder: str, script: str) -> Path:
    """Put MAIN and its modules into a folder, one of them in a folder of more files than are copied; return the script."""
    path = cluster.write(f"{folder}/{script}", COLLECT + MAIN)
    cluster.write(f"{folder}/helper.py", "NAME = 'as submitted'\n")
    cluster.write(f"{folder}/models/one.py", "NAME = 'at its place'\n")
    cluster.write(f"{folder}/shared/keep", "")
    made = cluster.run("sh", "-ec", "i=0; while [ $i -lt 25 ]; do : >models/$i.txt; i=$((i+1)); done", cwd=path.parent)
    assert made.returncode == 0, made.stderr
    return path


# The lab's plain Python is started without a shell of the user's and without Slurm, which sets these.
OF_THE_LAB = ("SHLVL", "OLDPWD", "PWD", "TMPDIR", "HOSTNAME", "ENVIRONMENT", "TERM")


def test_code_surroundings_and_umask_are_those_of_the_submission(cluster: Cluster) -> None:
    """A run of two nodes under a careless umask, typed in another folder; its files are edited while it waits."""
    script = project(cluster, "held", "main.py")
    cluster.write("elsewhere/helper.py", "NAME = 'elsewhere'\n")
    elsewhere = cluster.write("elsewhere/queue.py", "raise SystemExit('of the working directory')\n").parent
    # It is held by a dependency that is met when the first job is cancelled.
    first = cluster.run("sbatch", "--parsable", "--hold", "--wrap", "true").stdout.strip()
    words = ("--detach", "--json", *SMALL, *MANY, "--dependency", f"afterany:{first}", "../held/main.py")
    typed = ("sh", "-c", 'umask 002; exec hpcml submit "$@"', "sh", *words, str(script.parent / "shared"))
    done = cluster.run(*typed, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "models/ (exceeds code.max_files = 20)" in done.stdout
    facts = json.loads(done.stdout)
    directory = Path(facts["directory"])
    assert cluster.job(facts["job"])["JobState"] == "PENDING"
    cluster.write("held/helper.py", "NAME = 'edited'\n")
    cluster.write("held/main.py", "raise SystemExit('edited')\n")
    cluster.run("scancel", first)
    status = cluster.wait_status(directory, 120)
    log = (directory / "logs/script.log").read_text()
    assert status["exit_status"] == 0, log
    said = json.loads(log.splitlines()[-1])
    assert list(said["modules"].values()) == [NAMES] * 4
    assert (directory / "code/models").is_symlink()

    python = cluster.run("sh", "-c", "command -v python").stdout.strip()
    project(cluster, "held", "main.py")
    plain = cluster.run("sh", "-c", f"umask 002; exec {python} ../held/main.py", node="n1", cwd=elsewhere)
    assert plain.returncode == 0, plain.stderr
    found = said["around"] | json.loads(plain.stdout)
    assert len(found) == 5
    assert not alike.differences(found, (*alike.SCRIPT, *OF_THE_LAB))

    written = [path for path in (script.parent / "shared").iterdir() if path.name != "keep"]
    assert len(written) == 3
    assert {oct(path.stat().st_mode & 0o777) for path in written} == {"0o664"}
    assert [oct(path.stat().st_mode & 0o777) for path in (directory, directory / "out")] == ["0o700", "0o775"]
    own = list((directory / "attempts").rglob("*"))  # not the code's copy, which may hold folders of any name
    assert {path.parent.name for path in own} >= {"0", "nodes", "exit"}
    assert not [path for path in own if path.stat().st_mode & 0o077]


def test_code_surroundings_and_folders_with_odd_names_are_inside_an_image(cluster: Cluster, image: Path) -> None:
    """InfiniBand's /dev/infiniband is one of the host's devices; nobody has to bind it."""
    top = cluster.write("binds/x", "").parent
    for name in ODD:
        cluster.write(f"binds/{name}/file", name)
    script = project(cluster, 'binds/a"quote', "it's a script.py")
    data = cluster.write("the data/file", "seen").parent
    link = cluster.work / "a ,:$HOME.sif"
    cluster.run("ln", "-sf", str(image), str(link))
    binds = json.dumps([*(str(top / name) for name in ODD), f"{data}:/mnt/its data:ro"])
    done = cluster.run(
        "hpcml", "submit", "--wait", *SMALL, *MANY, "--image", str(link), "--set", f"runtime.binds={binds}",
        "--set", f"paths.runs={top}/a `id` $HOME/runs", "--set", f"paths.scratch={top}/a;b", str(script), "shared", str(top),
        cwd=script.parent, timeout=150,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert list(said["modules"].values()) == [NAMES] * 4
    assert (directory_of(done) / "code/models").is_symlink()
    assert not alike.differences(said["around"])
    assert said["around"]["script"]["folder"] == str(script.parent)
    assert len(list((script.parent / "shared").glob("*"))) == 4
    seen = said["look"]
    assert seen["binds"] == {name: name for name in ODD}
    assert (seen["read"], seen["refused"]) == ("seen", "Read-only file system")
    outside = set(cluster.run("ls", "-A", "/dev", node="n1").stdout.split())
    assert outside - set(seen["devices"]) <= {"core", "initctl", "log"}
