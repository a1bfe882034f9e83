"""All roles inside an image, entered by a real Apptainer in steps of a real Slurm, as an ordinary user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from beside import SMALL
from conftest import Cluster
from terminals import Terminal

pytestmark = pytest.mark.lab

WHERE = """
import hpcml, json, os, platform, sys
def facts():
    import distributed
    names = ("HOME", "GREETING", "POISON", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "LOADEDMODULES", "SLURM_JOB_ID")
    own = {name: os.environ.get(name, "") for name in names}
    return {**own, "python": sys.executable, "system": platform.freedesktop_os_release()["VERSION_CODENAME"],
            "versions": [sys.version, distributed.__version__], "bound": os.path.exists("/mnt/dpkg"), "path": sys.path,
            "pid_namespace": os.readlink("/proc/self/ns/pid"), "ipc_namespace": os.readlink("/proc/self/ns/ipc")}
with hpcml.connect() as client:
    found = {"driver": facts(), "scheduler": client.run_on_scheduler(facts), **client.run(facts)}
    print(json.dumps(found))
"""


def test_every_role_is_inside_and_nothing_of_the_host(cluster: Cluster, image: Path) -> None:
    """What a login shell with loaded modules brings along stays out; what the run and the profile say gets in."""
    script = cluster.write("where.py", WHERE)
    poison = {
        "LD_LIBRARY_PATH": "/poison", "PYTHONHOME": "", "POISON": "yes", "LOADEDMODULES": "gcc/99",
        "PYTHONUSERBASE": "/poison", "APPTAINERENV_POISON": "yes", "APPTAINER_BIND": "/var/lib:/mnt",
    }  # fmt: skip
    done = cluster.run("hpcml", "submit", *SMALL, "--image", str(image), "--set", "environment.GREETING=it's a b $HOME `id`",
                       "--wait", str(script), timeout=200, env=poison)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    host = cluster.run("readlink", "/proc/self/ns/pid", "/proc/self/ns/ipc", node="n1").stdout.split()
    assert len(found) == 4  # driver, scheduler, two workers
    for role, facts in found.items():
        assert facts["GREETING"] == "it's a b $HOME `id`", role
        assert not facts["POISON"] + facts["PYTHONHOME"] + facts["LOADEDMODULES"], role
        assert "/poison" not in facts["LD_LIBRARY_PATH"], role
        assert not facts["bound"], role
        assert facts["SLURM_JOB_ID"], role
        assert facts["HOME"].endswith("/home"), role
        assert not [path for path in facts["path"] if "hpcml-lab/venv" in path or ".local" in path], role
        assert [facts["pid_namespace"], facts["ipc_namespace"]] == host, role
        assert facts["versions"] == found["driver"]["versions"], role


STAYS = "import time; time.sleep(900)"
TALK = "echo on-$(hostname) $APPTAINER_CONTAINER $HPCML_RUN_DIR; pwd; exit 5\n"


def test_a_shell_is_in_the_image_on_the_node_of_a_rank(cluster: Cluster, image: Path) -> None:
    _, directory = cluster.detach(STAYS, "--image", str(image), "--ranks", "1", *SMALL, "--name", "shell")
    cluster.wait_event(directory, "script-started", 60)
    with Terminal(cluster.lab, f"hpcml shell {directory.name} rank:1", cwd=cluster.work) as shell:
        shell.type(TALK)
        shell.shown(f"on-n2 {image} {directory}\n{cluster.home}\n")
        assert shell.ended() == 5
    cluster.run("hpcml", "cancel", directory.name)


PROGRAM = """#!/bin/bash
cat "$(dirname "$0")/data.txt"
python3 -c 'from distributed import Client; print(Client().submit(sum, [1, 2]).result())' || exit 1
echo "$@"
exit 7
"""


def test_a_program_in_an_image(cluster: Cluster, image: Path) -> None:
    """Its interpreter is the image's, and so is the Python that it starts."""
    cluster.write("forms/bin/data.txt", "data\n")
    cluster.write("forms/bin/run", PROGRAM).chmod(0o755)
    words = ("--nodes", "2", "--image", str(image), "--", "bin/run", "a", "--b")
    done = cluster.run("hpcml", "submit", "--wait", *words, cwd=cluster.work / "forms", timeout=200)
    assert (done.returncode, done.stdout) == (7, "data\n3\na --b\n"), done.stderr
