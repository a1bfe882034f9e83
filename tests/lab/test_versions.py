"""Roles that have different versions: the run ends before its script, says which role has which, and frees its nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors

pytestmark = pytest.mark.lab

SCRIPT = "print('the script ran')"
SITE_PACKAGES = (
    "import distributed, pathlib; print(pathlib.Path(distributed.__file__).parent.parent, distributed.__version__)"
)
SKEWED = """Bootstrap: localimage
From: {image}
%post
    cd /opt/hpcml/lib/python3*/site-packages
    mv distributed-*.dist-info distributed-2020.1.0.dist-info
    sed -i 's/^Version: .*/Version: 2020.1.0/' distributed-2020.1.0.dist-info/METADATA
%labels
    org.hpcml.kind cpu
    org.hpcml.dask 2026.7.1
    org.hpcml.distributed 2020.1.0
"""


@pytest.fixture(scope="module")
def skewed(cluster: Cluster, image: Path) -> Path:
    """Return a real image in which another version of distributed is installed, and whose labels say so."""
    definition = cluster.write("skewed.def", SKEWED.format(image=image))
    path, work = definition.with_suffix(".sif"), cluster.write("room/file", "").parent
    words = ["apptainer", "build", "--fakeroot", "--mksquashfs-args", "-comp zstd -Xcompression-level 1", str(path)]
    room = {"APPTAINER_TMPDIR": str(work), "APPTAINER_CACHEDIR": str(work / "cache")}
    done = cluster.run(*words, str(definition), env=room, timeout=180)
    assert done.returncode == 0, done.stderr
    return path


def test_all_roles_tell_their_versions(cluster: Cluster, image: Path) -> None:
    version = cluster.run("python", "-c", "import distributed; print(distributed.__version__)").stdout.strip()
    for options in ((), ("--image", str(image))):
        ended = cluster.submit(SCRIPT, "--nodes", "4", *options)
        assert ended.code == 0, ended.err
        ready = next(event for event in ended.events if event["event"] == "environment-ready")
        assert ready["versions"]["distributed"] == version
        assert ready["differences"] == []
        assert ready["words"].startswith("6 roles, python 3.")
        times = ended.times()
        assert 0 < ready["seconds"] < times["environment-ready"] - times["allocated"] + 1  # from the supervisor's start
        assert times["environment-ready"] <= times["driver-started"]
        left = [path.name.partition("@")[0] for path in ended.directory.glob("attempts/0/versions/*")]
        assert left == ["scheduler"]  # a worker task with the same versions takes its own note away at its end
        label = "image" if options else "python"
        assert f"✓ {label:<10} 6 roles, python 3." in ended.err
        shown = cluster.run("hpcml", "status", "last").stdout
        assert "versions   6 roles, python 3." in shown
        assert f"phase      {'image' if options else 'versions':<10}" in shown


def test_labels_that_do_not_belong_together_are_refused_before_slurm(cluster: Cluster, skewed: Path) -> None:
    before = cluster.run("squeue", "--noheader").stdout
    for mode in ("--wait", "--check", "--dry-run"):
        done = cluster.run(*cluster.command(SCRIPT, mode, "--nodes", "4", "--image", str(skewed)))
        assert done.returncode == errors.IMAGE, done.stderr
        assert "distributed 2020.1.0" in done.stderr
        assert ("#SBATCH" in done.stdout) == (mode == "--dry-run")  # the script is shown all the same
    assert cluster.run("squeue", "--noheader").stdout == before


def test_a_node_with_another_image_ends_the_run_within_the_image_phase(
    cluster: Cluster, image: Path, skewed: Path
) -> None:
    with cluster.covered("n3", f"mount --bind {skewed} {image}", str(image)):
        ended = cluster.submit(SCRIPT, "--nodes", "4", "--image", str(image), "--set", "deadlines.workers=200s")
    assert ended.code == errors.VERSIONS, ended.err
    assert "the script ran" not in ended.out
    assert "the roles' versions differ: distributed is 2026" in ended.status["message"]
    assert "in the driver on n1, 2020.1.0 in the workers on n3" in ended.status["message"]
    assert (ended.status["phase"], ended.status["by"]) == ("image", "hpcml")
    assert "must be the same on all nodes" in ended.err
    assert "driver-started" not in ended.times()
    assert ended.times()["torn-down"] - ended.times()["allocated"] < 60
    cluster.wait_idle(30)


def test_a_node_with_another_environment(cluster: Cluster) -> None:
    """A copy of the environment on a node's own disk that was not renewed: one node sees another folder there."""
    folder, version = cluster.run("python", "-c", SITE_PACKAGES).stdout.split()
    renamed = f"{folder}/distributed-{version}.dist-info"
    cover = (f"mkdir -p /tmp/skew/upper /tmp/skew/work; mount -t overlay skew -o "
             f"lowerdir={folder},upperdir=/tmp/skew/upper,workdir=/tmp/skew/work {folder};"
             f"cp -r {renamed} {folder}/distributed-2020.1.0.dist-info; rm -r {renamed}")  # fmt: skip
    with cluster.covered("n2", cover, folder):
        ended = cluster.submit(SCRIPT, "--nodes", "2")
    cluster.run("rm", "-rf", "/tmp/skew", node="n2", user="root")
    assert ended.code == errors.VERSIONS, ended.err
    assert f"distributed is {version} in the driver on n1, 2020.1.0 in the workers on n2" in ended.err
    assert ended.status["phase"] == "environment"
    assert "runtime.python" in ended.err
    assert json.loads((ended.directory / "status.json").read_text())["exit_status"] == errors.VERSIONS


def test_a_difference_that_does_no_harm_is_said(cluster: Cluster) -> None:
    folder, _ = cluster.run("python", "-c", SITE_PACKAGES).stdout.split()
    real = next(Path(folder).glob("tornado-*.dist-info"))
    major = real.name.removeprefix("tornado-").split(".")[0]
    cover = (f"mkdir -p /tmp/skew/upper /tmp/skew/work; mount -t overlay skew -o "
             f"lowerdir={folder},upperdir=/tmp/skew/upper,workdir=/tmp/skew/work {folder};"
             f"mv {real} {folder}/tornado-{major}.999.dist-info")  # fmt: skip
    with cluster.covered("n2", cover, folder):
        ended = cluster.submit(SCRIPT, "--nodes", "2")
    cluster.run("rm", "-rf", "/tmp/skew", node="n2", user="root")
    assert ended.code == 0, ended.err
    assert f"{major}.999 in the workers on n2" in ended.err


def test_what_an_image_that_is_not_refused_is_looked_at_for(cluster: Cluster, image: Path) -> None:
    """The lab's image has no labels of hpcml: a note, as is that nothing was started."""
    for mode in ("--check", "--dry-run"):
        done = cluster.run(*cluster.command(SCRIPT, mode, "--nodes", "2", "--image", str(image)))
        assert done.returncode == 0, done.stderr
        assert "note: the image: it has no labels of hpcml" in done.stderr
        assert "nothing started" in done.stderr


FAKETIME = "LD_PRELOAD=$(echo /usr/lib/*/faketime/libfaketime.so.1) FAKETIME_DONT_FAKE_MONOTONIC=1"


@pytest.fixture
def other_clock(cluster: Cluster) -> Iterator[Callable[[str], str]]:
    """An interpreter for which n2's clock is wrong by what the test says, and no other node's."""
    path = "/tmp/hpcml-test-clock"

    def make(offset: str) -> str:
        for node in ("n1", "n2"):
            faked = f"{FAKETIME} FAKETIME={offset} " if node == "n2" else ""
            text = f'#!/bin/sh\nexec env {faked}"$(command -v python)" "$@"\n'
            cluster.lab.exec(["tee", path], node=node, input=text)
            cluster.run("chmod", "755", path, node=node)
        return path

    yield make
    for node in ("n1", "n2"):
        cluster.run("rm", "-f", path, node=node)


def test_a_clock_that_is_a_quarter_of_an_hour_behind(cluster: Cluster, other_clock: Callable[[str], str]) -> None:
    """The run works, and says it."""
    script = "import hpcml\nprint(hpcml.connect().submit(sum, [1, 2]).result())\n"
    ended = cluster.submit(script, "--nodes", "2", "--set", f"runtime.python={other_clock('-900s')}")
    assert ended.code == 0, ended.err
    (warning,) = ended.status["warnings"]
    found = re.fullmatch(r"clocks differ: that of n2 is (\d+) s or more behind n1's\. Tell .*", warning)
    assert found is not None, warning
    assert 870 < int(found[1]) <= 900
    assert warning in ended.err + ended.out


@pytest.mark.parametrize(("offset", "words"), [("-2d", "behind"), ("+2h", "ahead of")])
def test_a_clock_with_which_no_connection_comes_about(
    cluster: Cluster, other_clock: Callable[[str], str], offset: str, words: str
) -> None:
    """At once and by name, not after the deadline with a log full of certificates."""
    options = ("--nodes", "2", "--set", f"runtime.python={other_clock(offset)}", "--set", "deadlines.workers=300s")
    ended = cluster.submit("print('the script ran')\n", *options)
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    assert "the script ran" not in ended.out
    assert re.match(rf"clocks differ: that of n2 is \d+ s or more {words} n1's", ended.status["message"])
    cluster.wait_idle(30)
