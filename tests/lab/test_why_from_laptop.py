"""`hpcml why` from the laptop through ssh: of a run that goes on, and of one that failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lab_ssh
from laptop import Outside

pytestmark = pytest.mark.lab

SCRIPT = """import hpcml, time
while not (hpcml.run.out / "go").exists():
    time.sleep(0.1)
bytearray(1 << 60)
"""


def test_the_laptop_is_told_why(outside: Outside) -> None:
    def hpcml(*words: str) -> str:
        done = outside.lab.exec(["hpcml", "--host", "lab", *words], node=lab_ssh.LAPTOP, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    outside.lab.wait_idle(60)
    run, directory = outside.start_run("fails", SCRIPT, "--nodes", "1", "--memory-per-node", "1G")
    found = json.loads(hpcml("why", run, "--json"))
    assert (found["failed"], found["state"]) == (False, "RUNNING")
    outside.on("login", "touch", str(directory / "out/go"))
    outside.lab.wait_idle(60)
    said = hpcml("why", run)
    assert "\ncause      A process asked for more memory than it can have.\n" in said, said
    assert f"again      hpcml --host lab rerun {run} --memory-per-node 1536M\n" in said
    assert f"lab:{Path(outside.lab.home('alice'))}/{run}.tar.gz: " in hpcml("why", run, "--bundle")
    (outside.lab.home("alice") / f"{run}.tar.gz").unlink()
