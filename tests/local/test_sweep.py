"""``hpcml sweep`` with real Dask: every point once, what failed is named, what is missing is run, nothing twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from homes import HPCML, Here, here
from hpcml import errors
from tests.looks import by_age

pytestmark = pytest.mark.local
__all__ = ["here"]

# Each start of a point adds its arguments to a file, which is how they are counted.
SCRIPT = """
import argparse, json, os, sys, time
import hpcml

parser = argparse.ArgumentParser()
parser.add_argument("--log")
parser.add_argument("--k", type=int)
parser.add_argument("--mode", default="")
chosen = parser.parse_args()
with open(chosen.log, "a") as log:
    log.write(f"{chosen.k}{chosen.mode}\\n")
if chosen.mode == "sets":
    os.environ["OF_A_POINT"] = "of this one"
client = hpcml.connect()
assert set(client.run(os.getenv, "OF_A_POINT").values()) == {"of this one" if chosen.mode == "sets" else None}
if chosen.mode == "keeps":  # memory of one worker
    def keep():
        import builtins
        builtins.kept = bytearray(b"x") * (400 << 20)
    client.run(keep, workers=[*client.scheduler_info()["workers"]][:1])
futures = client.map(lambda x: x * chosen.k, range(10))
if chosen.mode == "crash":
    raise ValueError(f"no {chosen.k}")
if chosen.mode == "wait":
    while not hpcml.run.should_stop():
        time.sleep(0.05)
if chosen.mode == "kill":
    os.kill(os.getpid(), 9)
client.publish_dataset(left=futures)
facts = {"point": hpcml.run.point, "seed": hpcml.run.seed, "tasks": client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)),
         "clients": client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.client_comms)), "name": __name__, "file": __file__}
(hpcml.run.out / "facts.json").write_text(json.dumps(facts))
hpcml.run.report(loss=1 / chosen.k, step=1)
hpcml.run.report(loss=sum(client.gather(futures)) / 45, step=2)
import atexit
atexit.register(print, "at exit")
left_open = open(hpcml.run.out / "open", "w")
left_open.write("written")
print("point", chosen.k)
if chosen.mode == "stays":  # a task that does not end with its point
    from distributed import fire_and_forget
    begun = hpcml.run.out / "begun"
    def stay():
        begun.touch()
        time.sleep(60)
    fire_and_forget(client.submit(stay))
    while not begun.exists():
        time.sleep(0.02)
if chosen.mode == "three":
    sys.exit(3)
"""
LAST = "exit status 3: at exit"  # what it printed last
CRASH = f"train.py:{SCRIPT[: SCRIPT.index('raise ValueError')].count(chr(10)) + 1}"


@pytest.fixture
def train(here: Here) -> Here:
    """A home with the script, whose points note their starts."""
    (here.folder / "train.py").write_text(SCRIPT)
    return here


def started(here: Here) -> list[str]:
    log = here.folder / "starts"
    return sorted(log.read_text().split()) if log.exists() else []


def test_a_sweep_and_again(train: Here) -> None:
    """Nine points of which three fail and two leave workers that are not free; then the failed ones alone."""
    zips = (
        "--zip",
        "k=3,1,7,8,9,2,4,5,6",
        "mode=run,crash,sets,keeps,stays,run,kill,run,three",
        "--",
        "--log",
        "starts",
    )
    options = ("--wait", "--nodes", "2", "--set", "workers.memory_limit=1G")
    done = train.run("sweep", *options, "train.py", *zips)
    assert done.returncode == 1, done.stderr + done.stdout
    assert "sweep: 6 of 9 points are done, 3 failed." in done.stdout
    assert train.status()["message"] == "6 of 9 points are done, 3 failed"
    why = train.json("why")
    assert why["cause"] == f"3 of 9 points failed; the first failed point: k=1 mode=crash: ValueError: no 1 ({CRASH})"
    assert [line["text"].partition(": ")[2] for line in why["evidence"][1:]] == ["killed by SIGKILL", LAST]
    assert "hpcml logs train point:N" in train.status()["hint"]
    all_points = ["1crash", "2run", "3run", "4kill", "5run", "6three", "7sets", "8keeps", "9stays"]
    assert started(train) == all_points
    rows = train.json("sweep", "table", "train")
    assert [(row["values"]["k"], row["state"], row["cause"]) for row in rows] == [
        (2, "ok", ""), (3, "ok", ""), (5, "ok", ""), (7, "ok", ""), (8, "ok", ""), (9, "ok", ""),
        (6, "failed", LAST),  # it had reported a loss
        (1, "failed", f"ValueError: no 1 ({CRASH})"), (4, "failed", "killed by SIGKILL"),
    ]  # fmt: skip
    assert [row["metrics"] for row in rows[:3]] == [{"loss": 2.0}, {"loss": 3.0}, {"loss": 5.0}]
    facts = [json.loads(Path(row["out"], "facts.json").read_text()) for row in rows[:3]]
    assert [one["point"] for one in facts] == [{"k": k, "mode": "run"} for k in (2, 3, 5)]
    assert [one["tasks"] for one in facts] == [10, 10, 10]  # none of the point before
    assert [one["clients"] for one in facts] == [2, 2, 2]  # its own, and the one that cleans
    assert len({one["seed"] for one in facts}) == 3
    assert {one["name"] for one in facts} == {"__main__"}
    logs = Path(train.status()["directory"], "points")
    assert (logs / f"{rows[0]['key']}.log").read_text() == "point 2\nat exit\n"
    assert {Path(row["out"], "open").read_text() for row in rows[:3]} == {"written"}
    assert "the workers were restarted: 1" in done.stdout
    assert "tasks of the sweep point still ran on 1" in done.stdout

    only = train.run("sweep", "--wait", "--only-failed", "--max-fails", "0", "train.py", *zips)
    assert only.returncode == 1
    assert "1 failed, 2 remain: more than 0 points failed" in only.stdout
    assert started(train) == ["1crash", *all_points]


def test_what_was_interrupted_is_missing_and_what_goes_on_is_not_submitted_twice(train: Here) -> None:
    """Ctrl-C leaves the run, and the same command finds it; what is cancelled is missing."""
    words = ["sweep", "train.py", "--zip", "k=1,2,3", "mode=run,wait,run", "--", "--log", "starts"]
    with subprocess.Popen([HPCML, *words[:1], "--wait", *words[1:]], cwd=train.folder, env=train.environment, text=True,
                          stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as command:  # fmt: skip
        train.until(lambda: started(train) == ["1run", "2wait"])
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=240)
    assert command.returncode == 130
    assert "Detached; the run continues." in said
    again = train.run(*words)
    assert again.returncode == 0
    assert "2 under way, 0 to run" in again.stderr
    assert train.run("cancel", "train").returncode == 0
    assert train.run("wait", "train").returncode == 86
    assert sorted(row["state"] for row in train.json("sweep", "table", "train")) == ["missing", "missing", "ok"]
    assert started(train) == ["1run", "2wait"]


SIDE = """
import argparse, json, time
from pathlib import Path
import hpcml

parser = argparse.ArgumentParser()
parser.add_argument("--folder")
parser.add_argument("--k", type=int)
parser.add_argument("--meet", type=int)
chosen = parser.parse_args()
folder = Path(chosen.folder)
with open(folder / "starts", "a") as starts:
    starts.write(f"{chosen.k} {hpcml.run.id}\\n")
(folder / f"begun-{chosen.k}").touch()
while chosen.meet and not (folder / f"begun-{chosen.k ^ 1}").exists():
    time.sleep(0.02)
if chosen.meet:
    client = hpcml.connect()
    names = sorted(worker["name"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
    assert len(names) == client.cluster.n_workers == len(client.run(abs, 1)), names
    assert client.submit(abs, -chosen.k, pure=False).result() == chosen.k
    (hpcml.run.out / "names").write_text(json.dumps(names))
if chosen.k == 6:
    raise ValueError("six")
hpcml.run.report(loss=chosen.k)
"""


def test_points_side_by_side_and_in_several_runs(here: Here) -> None:
    """Each pair of points waits for the other, and no two that run at once share a worker; two runs then divide more."""
    (here.folder / "side.py").write_text(SIDE)

    def sweep(grid: str, meet: str, *options: str) -> subprocess.CompletedProcess[str]:
        arguments = ("--grid", grid, "--", "--folder", str(here.folder), "--meet", meet)
        return here.run("sweep", "--wait", *options, "side.py", *arguments)

    few = sweep("k=range(0,4)", "1", "--at-once", "5")
    assert few.returncode == errors.USAGE
    assert "5 parallel points need 5 workers" in few.stderr
    done = sweep("k=range(0,4)", "1", "--nodes", "2", "--set", "workers.per_node=2", "--at-once", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    names = {path: json.loads(path.read_text()) for path in Path(here.status()["directory"]).glob("out/*/names")}
    assert len(names) == 4
    assert len({tuple(one) for one in names.values()}) == 2
    assert len({name for one in names.values() for name in one}) == 4, "no worker is in both groups"
    assert all(len(one) == 2 for one in names.values())

    folder = Path(here.status()["directory"]).parent / "sweeps/side"
    (folder / "claims-of-runs-that-ended").mkdir(mode=0o700)
    done = sweep("k=range(4,8)", "0", "--jobs", "2")
    assert done.returncode == 1, done.stderr + done.stdout
    facts = here.json("sweep", "status", "side")
    assert (facts["ok"], facts["failed"], len(facts["runs"])) == (3, 1, 3)
    started = [line.split() for line in (here.folder / "starts").read_text().splitlines()]
    assert sorted(k for k, _ in started) == list("01234567")
    assert {run for _, run in started} <= set(facts["runs"])
    rows = here.json("sweep", "table", "side")
    assert [(row["values"]["k"], row["state"]) for row in rows] == [
        (4, "ok"), (5, "ok"), (7, "ok"), (6, "failed"),
    ]  # fmt: skip
    left = [path.name for path in folder.glob("claims-*")]
    assert len(left) == 1
    assert left != ["claims-of-runs-that-ended"]


STEPS = """
import sys
from pathlib import Path
import hpcml
loss = float(sys.argv[-1])
ended = Path("ended")
try:
    for step in range(1, 11):
        hpcml.run.report(loss=loss, step=step)
finally:
    with ended.open("a") as file:
        file.write(f"{loss:g}:{step} ")
"""


def test_a_pruner_stops_points_of_a_grid(here: Here) -> None:
    (here.folder / "steps.py").write_text(STEPS)
    words = ("steps.py", "--metric", "loss", "--pruner", "asha(min_resource=1,reduction_factor=3)", "--grid")
    done = here.run("sweep", "--wait", *words, "loss=3,5,2,6,4,1")
    assert done.returncode == 0, done.stderr + done.stdout
    assert (here.folder / "ended").read_text() == "3:10 5:1 2:10 6:1 4:1 1:10 "
    assert "3 of 6 points are done, 3 pruned" in here.status()["message"]
    rows = here.json("sweep", "table", "steps")
    assert [(row["values"]["loss"], row["state"], row["cause"]) for row in rows[:4]] == [
        (1, "ok", ""), (2, "ok", ""), (3, "ok", ""), (4, "pruned", "pruned at step 1"),
    ]  # fmt: skip
    done = here.run("sweep", "--wait", *words, "loss=3,5,2,6,4,1,7")
    assert "0 of 1 points are done, 1 pruned" in here.status()["message"], "those of earlier runs count"


BOWL = """
import argparse, os, time
from pathlib import Path
import hpcml

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--kind")
chosen = parser.parse_args()
assert hpcml.run.point == {"x": chosen.x, "kind": int(chosen.kind) if chosen.kind == "8" else chosen.kind}
here = Path.cwd()
with (here / "begun").open("a") as file:
    file.write(f"{os.getppid()}\\n")
if not (here / "wait").exists():
    hpcml.run.report(loss=(chosen.x - 3) ** 2 + (chosen.kind == "b"))
while (here / "wait").exists() and len((here / "begun").read_text().split()) > 3:
    time.sleep(0.05)
hpcml.run.report(other=1)
if (here / "wait").exists():
    hpcml.run.report(loss=(chosen.x - 3) ** 2)
"""


def test_a_search_by_two_jobs_and_again_after_a_kill(here: Here) -> None:
    """Two jobs share a study; what a killed run left open is drawn anew, and the journal is one that Optuna reads."""
    (here.folder / "bowl.py").write_text(BOWL)
    (here.folder / "wait").touch()
    words = ("sweep", "bowl.py", "--metric", "loss", "--sampler", "tpe(n_startup_trials=4)", "--search")
    space = ("x=uniform(-10,10)", "kind=choice(8,b)")
    begun = here.folder / "begun"
    run = here.json(*words, "6", *space)
    here.until(lambda: begun.exists() and len(begun.read_text().split()) == 4)
    os.kill(int(begun.read_text().split()[-1]), signal.SIGKILL)  # what starts the points, and ends with them
    assert here.run("wait", run["run"]).returncode == 128 + signal.SIGKILL
    (here.folder / "wait").unlink()
    done = here.run(*words, "20", *space, "--wait", "--jobs", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "20 points, 3 done, 17 to run" in done.stderr
    journal = Path(here.status()["directory"]).parent / "sweeps/bowl/study.journal"
    study = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(journal))))
    states = Counter(trial.state.name for trial in study.trials)
    assert states == {"COMPLETE": 20, "FAIL": 1}, states
    rows = here.json("sweep", "table", "bowl")
    assert Counter(row["state"] for row in rows) == {"ok": 20}
    assert sorted(int(row["values"]["draw"]) for row in rows) == list(range(20))
    assert float(rows[0]["values"]["x"]) == study.best_params["x"]
    assert study.best_value < 16
    assert len({trial.params["x"] for trial in study.trials}) == 21, "no two jobs draw the same"
    done = here.run("sweep", "plot", "bowl", "-o", "bowl.svg")
    assert done.returncode == 0, done.stderr
    assert "bowl: loss, best" in (here.folder / "bowl.svg").read_text()


SLOW = """
import argparse, time
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--k", type=int)
k = parser.parse_args().k
here = Path.cwd()
with (here / "starts").open("a") as starts:
    starts.write(f"{k}\\n")
while k >= 2 and not (here / "go").exists():
    time.sleep(0.02)
with (here / "ends").open("a") as ends:
    ends.write(f"{k}\\n")
"""


def process_of(directory: Path, words: str, parent: int = 0) -> int:
    """Return the first process of a run, but its shells, whose command has these words, of a parent if one is given."""
    for pid in by_age(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        entry = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            of_run = f"HPCML_RUN_DIR={directory}".encode() in (entry / "environ").read_bytes().split(b"\0")
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if of_run and words in command and not command.startswith("/bin/sh ") and parent in (0, above):
                return pid
    return 0


@pytest.mark.parametrize(("victim", "number"), [
    ("supervisor", signal.SIGKILL), ("supervisor", signal.SIGTERM), ("forker", signal.SIGKILL), ("forker", signal.SIGTERM),
    ("resetter", signal.SIGKILL), ("worker", signal.SIGKILL),
])  # fmt: skip
def test_after_a_kill_no_point_is_lost_and_none_that_is_done_repeated(
    victim: str, number: signal.Signals, here: Here
) -> None:
    (here.folder / "slow.py").write_text(SLOW)
    words = ("sweep", "slow.py", "--grid", "k=range(0,5)")
    directory = Path(here.json(*words, "--set", "workers.per_node=1")["directory"])

    def lines(name: str) -> list[int]:
        path = here.folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    here.until(lambda: lines("starts") == [0, 1, 2] and len([*directory.glob("points/*.json")]) == 2)
    forker = process_of(directory, "node.sweep.forker")
    command, parent = {"supervisor": ("kinds supervisor", 0), "worker": ("kinds worker", 0)}.get(
        victim, ("node.sweep.forker", forker if victim == "resetter" else 0)
    )
    os.kill(process_of(directory, command, parent), number)
    if victim in ("resetter", "worker"):  # the point is not told
        (here.folder / "go").touch()
    assert (here.run("wait", "slow").returncode == 0) == (victim == "worker"), "another takes the place of a worker"
    here.until(lambda: not process_of(directory, "node.sweep.forker"))
    assert not process_of(directory, "slow.py"), "no point outlives the run"
    done = lines("ends")
    (here.folder / "go").touch()
    again = here.run(*words, "--wait", "--set", "workers.per_node=1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert sorted(lines("ends")) == [0, 1, 2, 3, 4], (done, again.stderr)
    assert Counter(lines("starts")) - Counter(range(5)) == Counter({2: 1} if 2 not in done else {})
