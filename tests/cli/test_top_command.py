"""hpcml top in a real terminal, in a pipe, and on a laptop: a run's life as it is seen, and the terminal as it was."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyte", reason="pyte, which draws the terminal, is not installed here")

from hpcml.paths import RunPaths
from planted import is_plain
from remote_world import Laptop
from screen import Result, run
from top_runs import dask_tables, lines, node_tables
from world import World, write_end

BASH = shutil.which("bash") or "/bin/bash"
STTY = shutil.which("stty") or "/bin/stty"
NODES = ("n1", "n2")


class Job:
    """A submitted run whose files the test writes."""

    def __init__(self, directory: Path, world: World) -> None:
        self.paths, self.world = RunPaths(directory), world
        self.times = 0

    def begin(self, nodes: Sequence[str] = NODES, gpus: int = 0) -> None:
        """Let the job start: its events, samples and output are there."""
        if self.world.jobs():
            self.world.set_job("101", state="RUNNING", reason="None")
        for event in (
            {"event": "allocated", "nodes": list(nodes)},
            {"event": "scheduler-up", "protocol": "tls", "because": "CPU workers"},
            {"event": "workers-ready"},
            {"event": "script-started"},
        ):
            self.event(**event)
        attempt = self.paths.attempt(0)
        for name in nodes:
            lines(attempt.samples_of(name), node_tables(name, gpus))
        lines(attempt.samples_of_kind("dask"), dask_tables([f"{name}-0" for name in nodes]))
        self.say("\x1b[2Jstep 1\n")

    def say(self, text: str) -> None:
        with self.paths.script_log.open("a") as log:
            log.write(text)

    def event(self, **facts: object) -> None:
        self.times += 1
        line = json.dumps({"time": time.time() - 60 + self.times, "attempt": 0, **facts})
        with self.paths.events.open("a") as file:
            file.write(f"{line}\n")

    def end(self, exit_status: int = 0) -> None:
        self.event(event="script-ended")
        self.event(event="torn-down")
        state = "FAILED" if exit_status else "COMPLETED"
        exits = self.paths.attempt(0).exits
        exits.mkdir(parents=True)
        (exits / "supervisor@n1").write_text(f"{exit_status}\n")
        write_end(self.paths.directory, exit_status)
        if self.world.jobs():
            self.world.set_job("101", state=state)


@pytest.fixture
def job(world: World) -> Job:
    return Job(world.submit("--name", "seen", "--nodes", "2"), world)


def see(world: World, *words: str, columns: int = 80, rows: int = 24, **options: Any) -> Result:
    return run([str(world.command), *words], columns, world.environment, world.project, rows=rows, **options)


def test_a_run_s_life(job: Job, world: World) -> None:
    """From the queue to its end in one view; a smaller terminal gets a smaller frame, and the last one stays."""
    seen = see(
        world, "top", "--interval", "0.5s", "seen",
        moments=["100/512 GiB", "q ends this view"],
        actions={"waiting for jobs with higher priority": lambda _: job.begin(), "all 2": lambda _: job.say("step 2\n"),
                 "step 2": lambda _: job.say("smaller now\n"), "smaller now": lambda _: job.end()},
        sizes={"step 2": (60, 10)},
    )  # fmt: skip
    assert seen.status == 0
    assert not seen.broken
    assert any("waiting for" in line for line in texts(seen, "waiting for jobs with higher priority"))
    first = texts(seen, "all 2")
    assert [line.split()[0] for line in first if "100/512 GiB" in line] == list(NODES)
    small = texts(seen, "smaller now")
    assert small[1].startswith("RUNNING   running for ")
    assert any(line.startswith("all 2") for line in small)
    assert small[-1].endswith("smaller now")  # the last of ten lines
    assert seen.text[0].startswith(job.paths.directory.name)
    assert seen.text[1].startswith("COMPLETED the script exited with status 0")
    assert seen.text[-1].endswith("smaller now")
    assert len(seen.text) == 9  # and a line for the shell
    assert not world.calls("scancel")
    assert len(world.calls("squeue")) < 10


def quoted(world: World) -> str:
    return str(world.command).replace("'", "'\\''")


def texts(seen: Result, moment: str) -> list[str]:
    return ["".join(cell.text for cell in line) for line in seen.moments[moment]]


@pytest.mark.parametrize(
    ("key", "status", "said"), [(b"q", 0, []), (b"\x03", 130, ["Stopped watching. The run continues."])]
)
def test_leaving_gives_the_terminal_back(job: Job, world: World, key: bytes, status: int, said: list[str]) -> None:
    job.begin()
    typed = f"modes=$({STTY} -g); echo before; '{quoted(world)}' top seen; echo status $?; [[ $modes == $({STTY} -g) ]] && echo same"
    seen = run([BASH, "-mc", typed], 80, world.environment, world.project, rows=24, keys={"q ends this view": key})
    assert seen.text == ["before", *said, f"status {status}", "same"]
    assert not world.calls("scancel")


def test_a_stop_gives_the_terminal_back_and_takes_it_again(job: Job, world: World) -> None:
    """Ctrl-Z and fg under a shell with job control; SIGTERM ends it as Ctrl-C does."""
    job.begin()
    typed = f"'{quoted(world)}' top seen; echo stopped; [[ $({STTY} -a) == *' icanon'*' echo'* ]] && echo cooked; fg >/dev/null; echo status $?"
    drawn: list[int] = []

    def terminate(pid: int) -> None:
        (child,) = (int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        drawn.append(child)
        os.kill(child, signal.SIGTERM)

    seen = run([BASH, "-mc", typed], 80, world.environment, world.project, rows=24, keys={"q ends this view": b"\x1a"},
               actions={"stopped": lambda _: job.say("fresh line\n"), "fresh line": terminate})  # fmt: skip
    assert drawn
    assert texts(seen, "stopped")[-1] == "stopped"
    assert not any("100/512" in line for line in texts(seen, "stopped"))
    assert seen.text[-3:] == ["cooked", "Stopped watching. The run continues.", "status 130"]


def test_a_run_that_has_ended_is_shown_with_its_cause(job: Job, world: World) -> None:
    job.begin(gpus=2)
    job.say("Traceback (most recent call last):\nMemoryError\n")
    job.end(1)
    for words in (("top", "seen"), ("top", "--once", "seen"), ("status", "-f", "seen")):
        seen = see(world, *words)
        assert seen.status == 0
        assert seen.text[1].startswith("FAILED    the script exited with status 1"), words
        assert any(line.startswith("cause     ") for line in seen.text)
        assert sum("71/141 GiB" in line for line in seen.text) == 4
        assert seen.text[-1] == "          MemoryError"


def test_a_pipe_gets_lines_and_a_program_json(job: Job, world: World) -> None:
    job.begin()
    once = world.run("top", "--once", "seen")
    assert once.returncode == 0
    assert is_plain(once.stdout)
    facts = json.loads(world.run("top", "--once", "--json", "seen").stdout)
    assert (facts["phase"], facts["output"], [node["name"] for node in facts["nodes"]]) == (
        "running",
        ["step 1"],
        list(NODES),
    )
    assert facts["nodes"][0]["memory_size"] == 512 << 30
    assert facts["work"]["known"] == 2000
    job.end()
    done = world.run("top", "seen")
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["state", "run", "node", "node"]
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d node n1 workers=1 cpu=24.0/48 memory=100GiB/512GiB .*", done.stdout.splitlines()[2]
    )


def test_a_laptop_draws_what_the_login_node_sees(laptop: Laptop) -> None:
    """The far end only reads; q ends both."""
    world = laptop.world
    assert laptop.run("submit", "--name", "seen", "--nodes", "2", "--detach", "job.py").returncode == 0
    far = World.__new__(World)
    far.state = world.state
    job = Job(laptop.far / ".hpcml/runs" / laptop.runs()[0], far)
    job.begin()
    laptop.tell("chatty")
    seen = see(world, "--host", "cluster", "top", "seen", keys={"q ends this view": b"q"})
    assert seen.status == 0
    shown = texts(seen, "q ends this view")
    assert [line.split()[0] for line in shown if "100/512 GiB" in line] == list(NODES)
    assert "output    step 1" in shown
    once = laptop.run("top", "--once", "seen")
    assert "100/512 GiB" in once.stdout
    job.end()
    for words in (("top", "seen"), ("status", "-f", "seen"), ("top", "--once", "seen")):
        seen = see(world, "--host", "cluster", *words)
        assert seen.status == 0
        assert seen.text[1].startswith("COMPLETED the script exited with status 0"), words
    absent = see(world, "--host", "cluster", "top", "nothing")
    assert absent.status == 66
    assert any(line.startswith("hpcml: ") for line in absent.text)  # behind what the shell printed
