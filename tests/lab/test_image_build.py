"""`hpcml image build` by a real Apptainer whose folders are too small: which of them, in one sentence, and nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors

pytestmark = pytest.mark.lab

# The label says that it takes little, so that it is tried.
DEFINITION = """Bootstrap: localimage
From: {base}
%labels
    org.hpcml.space 1M
"""


@pytest.fixture(scope="module")
def base(cluster: Cluster, image: Path) -> Path:
    """An image to begin with: twice what the small folders hold, of what cannot be packed, and quick to unpack."""
    box, path = cluster.write("box/filler", "").parent, cluster.work / "base.sif"
    cluster.run("sh", "-c", f"head -c 40000000 /dev/urandom > {box}/filler")
    room = {"APPTAINER_TMPDIR": str(cluster.work), "APPTAINER_CACHEDIR": str(cluster.work / "cache")}
    done = cluster.run("apptainer", "build", "--fakeroot", str(path), str(box), env=room)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("which", ["temporary", "image"])
def test_a_folder_that_fills_up(cluster: Cluster, base: Path, which: str) -> None:
    definition = cluster.write(f"{which}.def", DEFINITION.format(base=base))
    small = "/tmp/small"
    out = f"{small}/new.sif" if which == "image" else str(cluster.work / "new.sif")
    room = {"TMPDIR": small if which == "temporary" else str(cluster.work)}
    before = cluster.run("ls", "-A", str(cluster.work)).stdout
    cover = f"mkdir -p {small}; mount -t tmpfs -o size=20m,mode=1777 small {small}"
    with cluster.covered("login", cover, small):
        done = cluster.run("hpcml", "image", "build", str(definition), out, env=room, timeout=300)
        left = cluster.run("ls", "-A", small).stdout
    cluster.run("rmdir", small, node="login", user="root")
    assert done.returncode == errors.STORAGE, done.stderr
    place = "for the image" if which == "image" else "in its temporary folder"
    assert f"The build ran out of space {place}: the disk is full ({small})." in done.stderr
    assert ("Write the image to" if which == "image" else "Set APPTAINER_TMPDIR") in done.stderr.splitlines()[-1]
    assert (cluster.run("ls", "-A", str(cluster.work)).stdout, left) == (before, "")


def test_no_line_in_subuid(cluster: Cluster, base: Path) -> None:
    definition = cluster.write("ids.def", DEFINITION.format(base=base))
    cover = "mkdir -p /tmp/ids; : > /tmp/ids/none; mount --bind /tmp/ids/none /etc/subuid"
    with cluster.covered("login", cover, "/etc/subuid"):
        done = cluster.run("hpcml", "image", "build", str(definition), str(cluster.work / "ids.sif"))
    cluster.run("rm", "-rf", "/tmp/ids", node="login", user="root")
    assert done.returncode == errors.IMAGE, done.stderr
    assert "build as root (--fakeroot) (/etc/subuid)" in done.stderr
    assert "site's support to add you to /etc/subuid" in done.stderr
