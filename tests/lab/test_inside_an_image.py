"""All roles inside an image, entered by a real Apptainer in steps of a real Slurm, as an ordinary user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lab_cgroups
from beside import SMALL
from conftest import Cluster, Ended, directory_of
from hpcml import files, samples
from hpcml.paths import RunPaths

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


@pytest.fixture(scope="module")
def inside(cluster: Cluster, image: Path) -> Ended:
    """A run from a login shell with loaded modules."""
    script = cluster.write("where.py", WHERE)
    poison = {
        "LD_LIBRARY_PATH": "/poison", "PYTHONHOME": "", "POISON": "yes", "LOADEDMODULES": "gcc/99",
        "PYTHONUSERBASE": "/poison", "APPTAINERENV_POISON": "yes", "APPTAINER_BIND": "/var/lib:/mnt",
    }  # fmt: skip
    done = cluster.run("hpcml", "submit", *SMALL, "--image", str(image), "--set", "environment.GREETING=it's a b $HOME `id`",
                       "--wait", str(script), timeout=200, env=poison)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return Ended(done.returncode, done.stdout, done.stderr, directory_of(done), 0)


def test_every_role_is_inside_and_nothing_of_the_host(cluster: Cluster, inside: Ended) -> None:
    """What a login shell with loaded modules brings along stays out; what the run and the profile say gets in."""
    found = json.loads(inside.out.splitlines()[-1])
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


def test_samples_are_the_node_s(inside: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files of /proc and /sys are read inside an image."""
    monkeypatch.setattr(files, "is_ours", lambda _: True)  # only alice and root may read them
    nodes = samples.nodes(RunPaths(inside.directory).attempt(0))
    assert sorted(nodes) == ["n1", "n2"]
    for series in nodes.values():
        assert series.header.scope.memory == ("cgroup" if lab_cgroups.available() else "host")
        assert series.header.interfaces
        assert all(sample.memory and sample.net[0] is not None for sample in series.samples)
