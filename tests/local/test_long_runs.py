"""Runs that go on until they are done, on the local site: attempts of one run, from checkpoint to checkpoint."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from homes import CONNECT, HPCML, Here, here
from hpcml import errors

pytestmark = pytest.mark.local

__all__ = ["here"]


def step(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


# A chain of steps. An attempt does three of them, and then waits to be told that its time limit is near: whatever the
# machine's speed, a run of nine steps has three attempts.
CHAIN = f"""{CONNECT}
import hashlib, json
{inspect.getsource(step)}
state = {{"step": 0, "word": "", "attempts": []}}
if path := hpcml.run.saved("state.json"):
    state = json.loads(path.read_text())
hpcml.run.on_stop(lambda: hpcml.run.save("state.json", lambda path: path.write_text(json.dumps(state))))
seen = [hpcml.run.attempt, os.environ["PYTHONPATH"], state["step"]]
for _ in range(3):
    word = client.submit(step, state["word"]).result()
    state = {{"step": state["step"] + 1, "word": word, "attempts": [*state["attempts"], seen]}}
if hpcml.run.attempt < 2:
    (hpcml.run.out / f"waits-{{hpcml.run.attempt}}").touch()
    time.sleep(600)
print(json.dumps(state), flush=True)
"""


def test_three_times_the_time_limit(here: Here) -> None:
    """It comes when an attempt has done its steps, as Slurm tells it: by a signal to the batch script."""
    words = [HPCML, "submit", "--wait", "--until-done", "--name", "parts", here.script(CHAIN)]
    process = subprocess.Popen(words, cwd=here.folder, env=here.environment, stdout=-1, stderr=-1, text=True)
    here.until(lambda: list(here.folder.glob(".hpcml/runs/parts-*/submission.json")))
    directory = Path(here.status("parts")["directory"])
    for attempt in range(2):
        here.until((directory / f"out/waits-{attempt}").exists, 60)
        batch = json.loads((directory / "submission.json").read_text())["pid"]
        for number in (signal.SIGSTOP, signal.SIGUSR1, signal.SIGCONT):  # two at once, as to a job that was suspended
            os.kill(batch, number)
        here.until((directory / f"attempts/{attempt}/time-limit").exists)
    out, shown = process.communicate(timeout=240)
    assert process.returncode == 0, shown
    found = json.loads(out)
    word = ""
    for _ in range(9):
        word = step(word)
    assert (found["step"], found["word"]) == (9, word)
    assert sorted({step for _, _, step in found["attempts"]}) == [0, 3, 6]  # nothing was done twice
    assert len({path for _, path, _ in found["attempts"]}) == 1
    status = here.status("parts")
    assert (status["attempt"], status["state"], status["exit_status"]) == (2, "COMPLETED", 0)
    assert shown.count("of this run") == 2
    assert here.run("ls", "--name", "parts").stdout.count("parts-") == 1
    assert "attempt    2 of this run" in here.run("status", "parts").stdout


def test_a_script_that_saves_nothing_ends_after_two_attempts(here: Here) -> None:
    done = here.submit("import hpcml\nhpcml.run.stop()\n", "--until-done", "--ranks", "1")
    assert done.returncode == errors.NO_PROGRESS, done.stderr
    assert here.status()["attempt"] == 1
    assert "ended without saving a new checkpoint" in here.run("why").stdout
    assert here.run("ls").stdout.count("no newer checkpoint") == 1


def test_cancelling_ends_all_attempts(here: Here) -> None:
    text = (
        "import hpcml, time\n"
        "hpcml.run.save('state', lambda path: path.touch())\n"
        "hpcml.run.on_stop(lambda: hpcml.run.save('last', lambda path: path.touch()))\n"
        "print('attempt', hpcml.run.attempt, flush=True)\n"
        "time.sleep(600) if hpcml.run.attempt else hpcml.run.stop()\n"
    )
    _, directory = here.detach(text, "--until-done")
    log = directory / "logs/script.log"
    here.until(lambda: log.exists() and "attempt 1" in log.read_text(), 60)
    assert here.status()["state"] == "RUNNING"
    assert here.run("cancel", "last").returncode == 0
    assert here.ended(directory)["exit_status"] == errors.CANCELLED
    assert sorted(os.listdir(directory / "attempts")) == ["0", "1"]
    assert sorted(os.listdir(directory / "checkpoints")) == ["last", "state"]
