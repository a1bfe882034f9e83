"""Roles that have different versions: the run ends before its script, says which role has which, and frees its nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beside import SMALL
from conftest import Cluster
from hpcml import errors

pytestmark = pytest.mark.lab

SCRIPT = "print('the script ran')"
SITE_PACKAGES = (
    "import distributed, pathlib; print(pathlib.Path(distributed.__file__).parent.parent, distributed.__version__)"
)
COVER = (
    "mkdir -p /tmp/skew/upper /tmp/skew/work; mount -t overlay skew -o "
    "lowerdir={0},upperdir=/tmp/skew/upper,workdir=/tmp/skew/work {0};"
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
    cover = f"{COVER.format(folder)} cp -r {renamed} {folder}/distributed-2020.1.0.dist-info; rm -r {renamed}"
    with cluster.covered("n2", cover, folder):
        ended = cluster.submit(SCRIPT, *SMALL, "--set", "deadlines.workers=200s", *options)
    cluster.run("rm", "-rf", "/tmp/skew", node="n2", user="root")
    assert ended.code == errors.VERSIONS, ended.err
    assert "the script ran" not in ended.out
    assert f"distributed is {version} in the script on n1, 2020.1.0 in the {role} on n2" in ended.err
    assert (ended.status["phase"], ended.status["by"]) == (phase, "hpcml")
    assert ended.status["exit_status"] == errors.VERSIONS
    assert ("must be the same on all nodes" if where == "image" else "runtime.python") in ended.err
    assert "driver-started" not in ended.times()
    cluster.wait_gone(ended.directory)


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


def test_differences_that_do_no_harm_are_said(cluster: Cluster, other_clock: Callable[[str], str]) -> None:
    """The run works with a clock that is a quarter of an hour behind and another Tornado on a node, and says both."""
    script = "import hpcml\nprint(hpcml.connect().submit(sum, [1, 2]).result())\n"
    folder, _ = cluster.run("python", "-c", SITE_PACKAGES).stdout.split()
    real = next(Path(folder).glob("tornado-*.dist-info"))
    major = real.name.removeprefix("tornado-").split(".")[0]
    cover = f"{COVER.format(folder)} mv {real} {folder}/tornado-{major}.999.dist-info"
    with cluster.covered("n2", cover, folder):
        ended = cluster.submit(script, *SMALL, "--set", f"runtime.python={other_clock('-900s')}")
    cluster.run("rm", "-rf", "/tmp/skew", node="n2", user="root")
    assert ended.code == 0, ended.err
    assert f"{major}.999 in the workers on n2" in ended.err
    (warning,) = [text for text in ended.status["warnings"] if text.startswith("clocks")]
    found = re.fullmatch(r"clocks differ: the clock of n2 is (\d+) s or more behind n1's\. Report .*", warning)
    assert found is not None, warning
    assert 870 < int(found[1]) <= 900
    assert warning in ended.err + ended.out


def test_a_clock_with_which_no_connection_comes_about(cluster: Cluster, other_clock: Callable[[str], str]) -> None:
    """At once and by name, not after the deadline with a log full of certificates."""
    options = ("--set", f"runtime.python={other_clock('+2h')}", "--set", "deadlines.workers=300s")
    ended = cluster.submit(SCRIPT, *SMALL, *options)
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    assert "the script ran" not in ended.out
    assert re.match(r"clocks differ: the clock of n2 is \d+ s or more ahead of n1's", ended.status["message"])
    cluster.wait_gone(ended.directory)
