"""What a real Apptainer says when it cannot enter an image, as an ordinary user: hpcml knows what each of it means."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors
from hpcml.failures.role_end import CONTAINER_FAILED
from hpcml.failures.rule import Where
from hpcml.failures.rules import meaning
from lab_apptainer import FUSE

pytestmark = pytest.mark.lab


def another(cluster: Cluster, image: Path, kind: str) -> Path:
    """Return a file in the place of an image that is none, or not the whole of it, or for another processor."""
    path = cluster.write(f"{kind}.sif", "this is no image\n")
    if kind == "none":
        path.unlink()
    elif kind == "cut":
        cluster.run("sh", "-c", f"head -c 100000000 {image} > {path}")
    elif kind == "closed":
        path.chmod(0)
    elif kind == "foreign":  # the third number after a partition's name says for which processor it is: 04 is arm64
        content = bytearray(image.read_bytes()[:100_000])
        descriptors = range(4096, 4096 + 48 * 585, 585)
        partition = next(start for start in descriptors if struct.unpack_from("<I", content, start)[0] == 0x4004)
        content[partition + 209 : partition + 211] = b"04"
        path.write_bytes(content)
    return path


def exec_words(image: Path, *options: str, program: str = "true") -> list[str]:
    return ["apptainer", "--quiet", "exec", "--cleanenv", "--no-home", *options, str(image), program]


def test_its_words_are_known(cluster: Cluster, image: Path, subtests: pytest.Subtests) -> None:
    def means(words: list[str], what: str, hint: str) -> None:
        with subtests.test(what):
            done = cluster.run(*words, node="n1")
            assert done.returncode == (CONTAINER_FAILED if "option" not in what else 1), done.stderr
            found = meaning(done.stderr, Where.IMAGE)
            assert found is not None, done.stderr
            assert found.cause == what
            assert hint in found.remedy

    for kind, what, hint in (
        ("none", f"the image does not exist: {cluster.work}/none.sif", "move it after the submission"),
        ("text", "the file is not an image", "hpcml image build"),
        ("cut", "the image file is damaged or truncated", "Copy the image again"),
        ("closed", "you have no permission to read the image", "permissions"),
        ("foreign", "the image is for arm64 processors, but the machine has amd64", "Build the image"),
    ):
        path = another(cluster, image, kind)
        means(exec_words(path), what, hint)
        path.unlink(missing_ok=True)
    mount = ("--mount", "type=bind,source=/no/such,destination=/mnt")
    means(exec_words(image, *mount), "a path in runtime.binds does not exist on the node: /no/such", "runtime.binds")
    means(exec_words(image, "--pwd", "/no/where"), "the folder /no/where does not exist in the image", "runtime.binds")
    means(
        exec_words(image, "--no-such-option"),
        "the container program does not know the option --no-such-option",
        "runtime.options",
    )
    means(exec_words(image, program="/no/such/python"), "the image lacks the run's Python", "runtime.python")
    closed = cluster.lab.places.top / "dev" / "fuse-closed"
    number = FUSE.stat().st_rdev
    cover = f"rm -f {closed}; mknod -m 600 {closed} c {number >> 8} {number & 255}; mount --bind {closed} {FUSE}"
    with contextlib.ExitStack() as stack:
        stack.callback(closed.unlink, missing_ok=True)
        stack.enter_context(cluster.covered("n1", cover, str(FUSE)))
        means(exec_words(image), "/dev/fuse cannot be used, but mounting an image needs /dev/fuse", "mode 666")


@pytest.mark.parametrize(
    ("node", "kind", "says", "remedy"),
    [
        ("n1", "text", "the file is not an image", "hpcml image build"),
        ("n2", "cut", "the image file is damaged or truncated", "Copy the image again"),
    ],
)
def test_an_image_that_is_not_what_was_submitted(
    cluster: Cluster, image: Path, node: str, kind: str, says: str, remedy: str
) -> None:
    """On the first node nothing of hpcml runs then, and only Apptainer's words in the driver's log tell it."""
    other = another(cluster, image, kind)
    with cluster.covered(node, f"mount --bind {other} {image}", str(image)):
        ended = cluster.submit("import dask\nprint('the script ran')", "--nodes", "2", "--image", str(image))
    other.unlink()
    assert ended.code == errors.IMAGE, ended.err
    assert f"{node}: {says}" in ended.err
    assert remedy in ended.err
    assert "the script ran" not in ended.out
    cluster.wait_idle(60)
    assert f"{node}: {says}" in cluster.run("hpcml", "status", "last").stdout


def test_a_node_without_the_program(cluster: Cluster, image: Path) -> None:
    hide = ("mkdir -p /tmp/hidden/upper /tmp/hidden/work; mknod /tmp/hidden/upper/apptainer c 0 0;"
            "mount -t overlay hidden -o lowerdir=/usr/bin,upperdir=/tmp/hidden/upper,workdir=/tmp/hidden/work /usr/bin")  # fmt: skip
    with cluster.covered("n2", hide, "/usr/bin"):
        ended = cluster.submit("import dask\nprint('the script ran')", "--nodes", "2", "--image", str(image))
    cluster.run("rm", "-rf", "/tmp/hidden", node="n2", user="root")
    assert ended.code == errors.IMAGE, ended.err
    assert "n2: there is no apptainer on n2" in ended.err
    assert "runtime.modules" in ended.err
