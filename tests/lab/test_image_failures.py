"""What keeps a run's roles out of an image at the job's start: each is one sentence, with the node and a remedy."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors
from lab_apptainer import FUSE

pytestmark = pytest.mark.lab

SCRIPT = "print('the script ran')"


def _foreign(image: Path, path: Path) -> None:
    """Write the begin of an image for arm64: the third number after its partition's name says so (04)."""
    content = bytearray(image.read_bytes()[:100_000])
    descriptors = range(4096, 4096 + 48 * 585, 585)
    partition = next(start for start in descriptors if struct.unpack_from("<I", content, start)[0] == 0x4004)
    content[partition + 209 : partition + 211] = b"04"
    path.write_bytes(content)


@contextlib.contextmanager
def _another_image(cluster: Cluster, image: Path, node: str, kind: str) -> Iterator[None]:
    """Have one node see something else in the image's place, after the submission has looked at the image."""
    other = cluster.write(f"{kind}.sif", "this is no image\n")
    if kind == "none":
        empty = cluster.write("empty/nothing", "").parent
        cover, place = f"mount --bind {empty} {image.parent}", str(image.parent)
    else:
        cover, place = f"mount --bind {other} {image}", str(image)
    if kind == "cut":
        cluster.run("sh", "-c", f"head -c 100000000 {image} > {other}")
    elif kind == "closed":
        cluster.run("chown", "root", str(other), user="root")
        other.chmod(0)
    elif kind == "foreign":
        _foreign(image, other)
    with cluster.covered(node, cover, place):
        yield
    other.unlink()


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize(("kind", "says", "remedy"), [
    ("none", "the image is not there", "moved after the submission"),
    ("text", "the file is not an image", "hpcml image build"),
    ("cut", "the image is damaged or cut off", "Copy it again"),
    ("closed", "the image may not be read", "permissions"),
    ("foreign", "the image is for arm64 processors, and the machine has amd64", "Build the image"),
])  # fmt: skip
def test_an_image_that_is_not_what_was_submitted(
    cluster: Cluster, image: Path, node: str, kind: str, says: str, remedy: str
) -> None:
    """On the first node nothing of hpcml runs then, and only Apptainer's words in the driver's log tell it."""
    with _another_image(cluster, image, node, kind):
        ended = cluster.submit(SCRIPT, "--nodes", "2", "--image", str(image))
    assert ended.code == errors.IMAGE, ended.err
    assert f"{node}: {says}" in ended.err
    assert remedy in ended.err
    assert "the script ran" not in ended.out
    cluster.wait_idle(60)
    shown = cluster.run("hpcml", "status", "last").stdout
    assert f"{node}: {says}" in shown
    assert "88 (the image cannot be used" in shown


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_closed_fuse_device(cluster: Cluster, image: Path, node: str) -> None:
    closed = cluster.lab.places.top / "dev" / "fuse-closed"
    number = FUSE.stat().st_rdev
    cover = f"rm -f {closed}; mknod -m 600 {closed} c {number >> 8} {number & 255}; mount --bind {closed} {FUSE}"
    with cluster.covered(node, cover, str(FUSE)):
        ended = cluster.submit(SCRIPT, "--nodes", "2", "--image", str(image))
    closed.unlink()
    assert ended.code == errors.IMAGE, ended.err
    assert f"{node}: /dev/fuse cannot be used" in ended.err
    assert "mode 666" in ended.err
    cluster.wait_idle(30)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_node_without_the_program(cluster: Cluster, image: Path, node: str) -> None:
    hide = ("mkdir -p /tmp/hidden/upper /tmp/hidden/work; mknod /tmp/hidden/upper/apptainer c 0 0;"
            "mount -t overlay hidden -o lowerdir=/usr/bin,upperdir=/tmp/hidden/upper,workdir=/tmp/hidden/work /usr/bin")  # fmt: skip
    with cluster.covered(node, hide, "/usr/bin"):
        ended = cluster.submit(SCRIPT, "--nodes", "2", "--image", str(image))
    cluster.run("rm", "-rf", "/tmp/hidden", node=node, user="root")
    assert ended.code == errors.IMAGE, ended.err
    assert f"{node}: the program apptainer is not there" in ended.err
    assert "runtime.modules" in ended.err
    cluster.wait_idle(30)


def test_a_node_without_subordinate_ids_runs_all_the_same(cluster: Cluster, image: Path) -> None:
    """They are for building; nothing of a run needs them."""
    empty = "mkdir -p /tmp/ids; : > /tmp/ids/none; mount --bind /tmp/ids/none /etc/subuid"
    with cluster.covered("n1", empty, "/etc/subuid"):
        ended = cluster.submit(SCRIPT, "--nodes", "2", "--image", str(image))
    cluster.run("rm", "-rf", "/tmp/ids", node="n1", user="root")
    assert (ended.code, ended.out) == (0, "the script ran\n"), ended.err


def test_a_bind_whose_source_is_missing(cluster: Cluster, image: Path) -> None:
    ended = cluster.submit(SCRIPT, "--nodes", "2", "--image", str(image), "--set", 'runtime.binds=["/no/such"]')
    assert ended.code == errors.IMAGE
    assert "a path that is to be bound is not there: /no/such" in ended.err
    assert "runtime.binds" in ended.err
    cluster.wait_idle(30)


def test_a_bind_whose_source_is_missing_on_one_node(cluster: Cluster, image: Path) -> None:
    data = cluster.write("data/file", "").parent
    empty = cluster.write("hole/file", "").parent
    with cluster.covered("n2", f"mount --bind {empty} {data.parent}", str(data.parent)):
        ended = cluster.submit(SCRIPT, "--nodes", "2", "--image", str(image), "--set", f'runtime.binds=["{data}"]')
    assert ended.code == errors.IMAGE, ended.err
    assert f"n2: a path that is to be bound is not there: {data}" in ended.err


@pytest.mark.parametrize(("option", "says"), [
    ('runtime.options=["--no-such-option"]', "the program knows no option --no-such-option"),
    ("runtime.python=/no/such/python", "there is no such Python in the image"),
])  # fmt: skip
def test_a_profile_that_does_not_fit(cluster: Cluster, image: Path, option: str, says: str) -> None:
    site = ("--set", "runtime.kind=image", "--set", f"runtime.image={image}", "--set", option)
    ended = cluster.submit(SCRIPT, "--nodes", "2", *site)
    assert ended.code == errors.IMAGE, ended.err
    assert says in ended.err
