"""``hpcml stacks`` where another account planted names in /dev/shm of the nodes before the run."""

from __future__ import annotations

import json

import pytest

from beside import SMALL
from conftest import Cluster, directory_of
from lab_state import wait_for

pytestmark = pytest.mark.lab

NODES = ("n1", "n2")
PLANT = """
import os
for number in range(40000):
    path = f"/dev/shm/hpcml-stacks.{number}"
    if number % 3 == 0: os.mkfifo(path)
    elif number % 3 == 1: os.symlink("/etc/passwd", path)
    else: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
"""
HANGS = """
import time
import hpcml
def hang():
    time.sleep(600)
def main():
    client = hpcml.connect()
    workers = sorted(client.scheduler_info()["workers"])
    for task in [client.submit(hang, workers=[worker], pure=False) for worker in workers]:
        task.result()
if __name__ == "__main__":
    main()
"""


def test_planted_names_hide_no_stack(cluster: Cluster) -> None:
    try:
        for node in NODES:
            planted = cluster.lab.exec(["python3", "-c", PLANT], node=node, user="mallory")
            assert planted.returncode == 0, planted.stderr
        script = str(cluster.write("hangs.py", HANGS))
        directory = directory_of(cluster.run("hpcml", "submit", *SMALL, script))

        def names() -> dict[str, set[str]]:
            """Return the processes that each kind of place has; those without a stack have none."""
            answer = json.loads(cluster.run("hpcml", "stacks", directory.name, "--json").stdout)
            places: dict[str, set[str]] = {}
            for group in answer.get("groups", []):  # none before the run has processes
                place = "none" if group["place"].startswith("without") else group["place"].split()[-1]
                places.setdefault(place, set()).update(one["name"] for one in group["processes"] if not one["child"])
            return places

        def all_are_there() -> bool:
            found = names()  # a process of a busy machine may answer too late for one look
            seen = set().union(*(there for place, there in found.items() if place != "none"))
            return len(found.get("hang", ())) == 2 and seen >= {"script", "scheduler"}

        assert wait_for(all_are_there, 240), names()
        assert cluster.run("hpcml", "cancel", directory.name).returncode == 0
        for node in NODES:
            words = ("find", "/dev/shm", "-name", "hpcml-*", "-user", "hpcml-alice")
            assert cluster.lab.exec(list(words), node=node, user="root").stdout == ""
    finally:
        for node in NODES:
            cluster.lab.exec(["find", "/dev/shm", "-name", "hpcml-stacks.*", "-delete"], node=node, user="root")
