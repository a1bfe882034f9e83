"""All roles inside an image, entered by a real Apptainer in steps of a real Slurm, as an ordinary user."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from conftest import ALL_NODES, Cluster, Clustered, kmeans
from hpcml import assets, errors

pytestmark = pytest.mark.lab

WHERE = """
import hpcml, json, os, platform, sys
def facts():
    import distributed
    names = ("HOME", "GREETING", "POISON", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "LOADEDMODULES", "SLURM_JOB_ID")
    own = {name: os.environ.get(name, "") for name in names}
    return {**own, "python": sys.executable, "system": platform.freedesktop_os_release()["VERSION_CODENAME"],
            "versions": [sys.version, distributed.__version__], "root": os.stat("/").st_dev, "path": sys.path,
            "pid_namespace": os.readlink("/proc/self/ns/pid"), "ipc_namespace": os.readlink("/proc/self/ns/ipc")}
with hpcml.connect() as client:
    found = {"driver": facts(), "scheduler": client.run_on_scheduler(facts), **client.run(facts)}
    print(json.dumps(found))
"""


def test_kmeans_gives_the_same_result_inside(cluster: Cluster, image: Path, kmeans_on_nodes: Clustered) -> None:
    inside = kmeans(cluster, "--nodes", "2", "--image", str(image))
    for found in (kmeans_on_nodes, inside):
        assert (found.directory / "out/kmeans.png").stat().st_size > 1000
    assert inside.metrics["inertia"] == pytest.approx(kmeans_on_nodes.metrics["inertia"], rel=1e-9)
    assert inside.metrics["sizes"] == kmeans_on_nodes.metrics["sizes"]


def test_every_role_is_inside_and_nothing_of_the_host(cluster: Cluster, image: Path) -> None:
    """What a login shell with loaded modules brings along stays out; what the run and the profile say gets in."""
    script = cluster.write("where.py", WHERE)
    poison = {
        "LD_LIBRARY_PATH": "/poison",
        "PYTHONHOME": "",
        "POISON": "yes",
        "LOADEDMODULES": "gcc/99",
        "PYTHONUSERBASE": "/poison",
    }
    done = cluster.run("hpcml", "submit", "--nodes", "4", "--image", str(image), "--set", "environment.GREETING=it's a b $HOME `id`",
                       "--wait", str(script), timeout=200, env=poison)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    host = cluster.run("readlink", "/proc/self/ns/pid", "/proc/self/ns/ipc", node="n1").stdout.split()
    assert len(found) == 2 + len(ALL_NODES)
    for role, facts in found.items():
        assert facts["GREETING"] == "it's a b $HOME `id`", role
        assert not facts["POISON"] + facts["PYTHONHOME"] + facts["LOADEDMODULES"], role
        assert "/poison" not in facts["LD_LIBRARY_PATH"], role
        assert facts["SLURM_JOB_ID"], role
        assert facts["HOME"].endswith("/home"), role
        assert not [path for path in facts["path"] if "hpcml-lab/venv" in path or ".local" in path], role
        assert [facts["pid_namespace"], facts["ipc_namespace"]] == host, role
        assert facts["versions"] == found["driver"]["versions"], role


def test_exit_statuses_and_signals_come_out(cluster: Cluster, image: Path) -> None:
    ended = cluster.submit("raise SystemExit(3)", "--nodes", "2", "--image", str(image))
    assert ended.code == 3
    job, directory = cluster.detach("import time; time.sleep(300)", "--nodes", "2", "--image", str(image))
    cluster.wait_event(directory, "driver-started", 60)
    cluster.run("scancel", job)
    assert cluster.wait_status(directory)["exit_status"] == errors.CANCELLED
    cluster.wait_idle(30)
    deadline = time.monotonic() + 120
    runs = ("squashfuse", "hpcml.node", "/code/", "image.sh")
    while left := [line for _, line in cluster.lab.processes("alice") if any(part in line for part in runs)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_folders_with_spaces(cluster: Cluster, image: Path) -> None:
    script = cluster.write("a b/it's.py", "import hpcml, pathlib\npathlib.Path('made here').touch()\nprint('ran')\n")
    done = cluster.run(
        "hpcml", "submit", "--nodes", "1", "--image", str(image), "--wait", str(script), cwd=script.parent, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert (script.parent / "made here").exists()


def test_compiled_kernels_are_found_again_by_the_next_run(cluster: Cluster, image: Path) -> None:
    """Two entries as the roles of two runs with GPUs make them; the lab's nodes have no GPU whose kernels CuPy compiles."""
    text = (
        "import os, pathlib; f = pathlib.Path(os.environ['CUPY_CACHE_DIR']) / 'k.cubin'; print(f.exists()); f.touch()"
    )
    for number, expected in enumerate(["False", "True"]):
        run = cluster.work / f"kept/run-{number}"
        words = [
            "sh",
            str(run / "image.sh"),
            "apptainer",
            "exec",
            "--cleanenv",
            "--home",
            str(run / "home"),
            str(image),
        ]
        script = cluster.write(
            str(run.relative_to(cluster.work) / "image.sh"), (assets.folder("templates") / "image.sh").read_text()
        )
        done = cluster.run(*words, "python3", "-c", text, node="n1",
                           env={"HPCML_RUN_DIR": str(script.parent), "HPCML_CONTAINER_ENV": "", "HPCML_CUPY_CACHE": "ab12"})  # fmt: skip
        assert done.stdout.strip() == expected, done.stderr
