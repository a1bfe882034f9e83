"""Any program in the place of a script, in an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

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
