"""``hpcml stacks`` of a run whose script, workers and children each wait elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homes import Here, here

pytestmark = pytest.mark.local

__all__ = ["here"]

HANGS = """
import os, subprocess, sys, threading
import hpcml
def read():
    return os.read(os.pipe()[0], 1)
def lock():
    one = threading.Lock()
    one.acquire()
    one.acquire()
client = hpcml.connect()
names = sorted(worker["name"] for worker in client.scheduler_info()["workers"].values())
tasks = [client.submit(one, workers=[name]) for one, name in zip((read, lock), names)]
children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE), subprocess.Popen(["sleep", "600"])]
tasks[0].result()
"""


ODD = """
import os, time
def compute():
    time.sleep(600)
if os.environ["RANK"] == "2":
    compute()
time.sleep(600)
"""


def test_why_names_the_rank_for_which_the_others_wait_while_the_run_lives(here: Here) -> None:
    directory = here.started(ODD, "--ranks", "3", "--set", "deadlines.idle_notice=2s")
    answer: Any = {}

    def is_told() -> bool:
        answer.update(json.loads(here.run("why", directory.name, "--json").stdout))
        return [len(one["ranks"]) for one in answer["waiting"]] == [2, 1]

    here.until(is_told)
    assert answer["state"] == "RUNNING"
    assert answer["waiting"][1]["ranks"] == ["rank 2 (local)"]
    assert "2 ranks wait at my script.py:7 <module>, for rank 2 (local) at my script.py:4 compute" in answer["cause"]
    status: Any = json.loads(here.run("status", directory.name, "--json").stdout)
    assert status["idle_since"] > 0
    assert f"hpcml stacks {directory.name} shows where" in here.run("status", directory.name).stdout
    here.run("cancel", directory.name)
    here.ended(directory)


def test_the_stacks_of_all_processes_are_shown_at_once(here: Here) -> None:
    directory = here.started(HANGS, "--nodes", "2")
    places: dict[str, list[str]] = {}

    def are_all_there() -> bool:
        answer: Any = json.loads(here.run("stacks", directory.name, "--json").stdout)
        places.clear()
        for group in answer["groups"]:
            places[group["place"]] = [one["name"] for one in group["processes"]]
        wanted = {"at my script.py:5 read", "at my script.py:9 lock", "at <string>:1 <module>"}
        return answer["missing"] == [] and wanted <= {*places}  # a busy machine may answer late

    here.until(are_all_there)
    assert places.pop("at my script.py:5 read") == ["worker local-0"]
    assert places.pop("at my script.py:9 lock") == ["worker local-1"]
    assert places.pop("at <string>:1 <module>") == ["script"]
    assert ["script"] in [
        names for place, names in places.items() if place.startswith("at my script.py:14 <module>, which called ")
    ]
    assert ["script"] in [
        names for place, names in places.items() if place.startswith("without a Python stack: state S")
    ]
    shown = here.run("stacks", directory.name)
    assert shown.returncode == 0, shown.stderr
    assert "1 process at my script.py:9 lock\n  worker local-1\n" in shown.stdout
    assert "  | my script.py:9 lock: one.acquire()\n" in shown.stdout
    here.run("cancel", directory.name)
    here.ended(directory)
    ended = here.run("stacks", directory.name)
    assert (ended.returncode, ended.stdout) == (66, "")
    assert "The run has no processes" in ended.stderr
