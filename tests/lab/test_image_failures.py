"""What keeps a run's roles out of an image on one node: a sentence with the node and a remedy.

What Apptainer says of what, and what it means, is in test_apptainer.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors
from test_apptainer import another

pytestmark = pytest.mark.lab

SCRIPT = "print('the script ran')"


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
        ended = cluster.submit(SCRIPT, "--nodes", "2", "--image", str(image))
    other.unlink()
    assert ended.code == errors.IMAGE, ended.err
    assert f"{node}: {says}" in ended.err
    assert remedy in ended.err
    assert "the script ran" not in ended.out
    cluster.wait_idle(60)
    shown = cluster.run("hpcml", "status", "last").stdout
    assert f"{node}: {says}" in shown
    assert "88 (the image cannot be used" in shown


def test_a_node_without_the_program(cluster: Cluster, image: Path) -> None:
    hide = ("mkdir -p /tmp/hidden/upper /tmp/hidden/work; mknod /tmp/hidden/upper/apptainer c 0 0;"
            "mount -t overlay hidden -o lowerdir=/usr/bin,upperdir=/tmp/hidden/upper,workdir=/tmp/hidden/work /usr/bin")  # fmt: skip
    with cluster.covered("n2", hide, "/usr/bin"):
        ended = cluster.submit(SCRIPT, "--nodes", "2", "--image", str(image))
    cluster.run("rm", "-rf", "/tmp/hidden", node="n2", user="root")
    assert ended.code == errors.IMAGE, ended.err
    assert "n2: the container program apptainer is missing" in ended.err
    assert "runtime.modules" in ended.err
    cluster.wait_idle(30)
