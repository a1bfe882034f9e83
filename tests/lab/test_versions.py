"""Roles that have different versions: the run ends before its script, says which role has which, and frees its nodes."""

from __future__ import annotations

import re

import pytest

from beside import SMALL
from conftest import Cluster
from hpcml import errors

pytestmark = pytest.mark.lab

SCRIPT = "import dask\nprint('the script ran')"
SITE_PACKAGES = (
    "import distributed, pathlib; print(pathlib.Path(distributed.__file__).parent.parent, distributed.__version__)"
)


@pytest.mark.parametrize("where", ["image", "ranks"])
def test_a_node_with_another_environment(cluster: Cluster, where: str, request: pytest.FixtureRequest) -> None:
    """A copy of the environment on a node's own disk that was not renewed: one node sees another folder there."""
    options: tuple[str, ...] = ("--ranks", "1")
    phase, role = "environment", "ranks"
    if where == "image":  # which has the environment by a bind
        phase, role = "image", "workers"
        venv = cluster.lab.places.venv
        place = ("runtime.kind=image", f"runtime.python={venv}/bin/python", f'runtime.binds=["{venv}"]')
        image = str(request.getfixturevalue("image"))
        options = ("--image", image, *(word for setting in place for word in ("--set", setting)))
    folder, version = cluster.run("python", "-c", SITE_PACKAGES).stdout.split()
    renamed = f"{folder}/distributed-{version}.dist-info"
    cover = (
        "mkdir -p /tmp/skew/upper /tmp/skew/work; mount -t overlay skew "
        f"-o lowerdir={folder},upperdir=/tmp/skew/upper,workdir=/tmp/skew/work {folder}; "
        f"cp -r {renamed} {folder}/distributed-2020.1.0.dist-info; rm -r {renamed}"
    )
    with cluster.covered("n2", cover, folder):
        ended = cluster.submit(SCRIPT, *SMALL, "--set", "deadlines.workers=200s", *options)
    cluster.run("rm", "-rf", "/tmp/skew", node="n2", user="root")
    assert ended.code == errors.VERSIONS, ended.err
    assert "the script ran" not in ended.out
    assert f"distributed is {version} in the script on n1, 2020.1.0 in the {role} on n2" in ended.err
    assert (ended.status["phase"], ended.status["by"]) == (phase, "hpcml")
    assert ("must be the same on all nodes" if where == "image" else "runtime.python") in ended.err
    assert "script-started" not in ended.times()
    cluster.wait_gone(ended.directory)


@pytest.mark.parametrize("offset", ["-900s", "+2h"])
def test_a_node_with_another_clock(cluster: Cluster, offset: str) -> None:
    """The run works with a quarter of an hour and says so; where no connection comes about it ends at once and by name."""
    path = "/tmp/hpcml-test-clock"
    faked = f"LD_PRELOAD=$(echo /usr/lib/*/faketime/libfaketime.so.1) FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME={offset}"
    for node, before in (("n1", ""), ("n2", faked)):
        cluster.program(node, path, f'exec env {before} "$(command -v python)" "$@"')
    script = "import hpcml\nhpcml.connect().submit(sum, [1, 2]).result()\nprint('the script ran')\n"
    ended = cluster.submit(script, *SMALL, "--set", f"runtime.python={path}", "--set", "deadlines.workers=300s")
    for node in ("n1", "n2"):
        cluster.run("rm", "-f", path, node=node)
    if offset == "-900s":
        assert (ended.code, "the script ran" in ended.out) == (0, True), ended.err
        (warning,) = [text for text in ended.status["warnings"] if text.startswith("clocks")]
        found = re.fullmatch(r"clocks differ: the clock of n2 is (\d+) s or more behind n1's\. Report .*", warning)
        assert found is not None, warning
        assert 870 < int(found[1]) <= 900
    else:
        assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
        assert "the script ran" not in ended.out
        assert re.match(r"clocks differ: the clock of n2 is \d+ s or more ahead of n1's", ended.status["message"])
