"""The lab as a fixture: started for the session, left as it was found, and `hpcml` run in it as a user would."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.fixtures import SubRequest
from _pytest.fixtures import pytest_fixture_setup as make_fixture

sys.path.insert(0, str(Path(__file__).resolve().parent))

import beside
import lab_image
import lab_ssh
import slurmd_crashes
from lab_state import PATIENCE, wait_for
from labs import Lab
from tests.looks import whole_lines

if TYPE_CHECKING:
    from laptop import Outside

ALL_NODES = ("n1", "n2", "n3", "n4")

BUSY = """
import time
import hpcml
client = hpcml.connect()
def slow(x):
    time.sleep(0.5)
    return x
while not hpcml.run.should_stop():
    client.gather(client.map(slow, range(4), pure=False))
"""


@dataclass
class Ended:
    """A submission that was waited for: what the command said, and what the run's files say."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "events.jsonl").read_text().splitlines()]

    def times(self) -> dict[str, float]:
        return {event["event"]: event["time"] for event in self.events}

    def log(self, name: str) -> str:
        return (self.directory / "logs" / name).read_text()


def together(processes: Iterable[subprocess.Popen[str]], timeout: float) -> list[subprocess.CompletedProcess[str]]:
    """Take processes one after another, so that they run beside each other, and wait for the end of each."""
    started: list[subprocess.Popen[str]] = []
    done = []
    try:
        started.extend(processes)
        for process in started:
            out, err = process.communicate(timeout=PATIENCE * timeout)
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return done


def directory_of(done: subprocess.CompletedProcess[str]) -> Path:
    """Return the run's directory from what `hpcml submit --wait` announced."""
    line = next((line for line in done.stderr.splitlines() if line.startswith("  run ")), None)
    assert line is not None, done.stderr
    return Path(line[line.index(" /") + 1 :])


# Homes last: what somebody configured by hand, and instances of containers whose test was killed, would change tests.
_MAKE_ROOM = "rm -rf .apptainer/instances; [ ! -e .config/hpcml ] || mv .config/hpcml .config/hpcml-$(date +%s)"


def left_of_containers(cluster: Cluster) -> list[str]:
    """Return processes of containers and mounts of images that are still there."""
    marks = ("Apptainer runtime parent", "squashfuse_ll")
    processes = [line for _, line in cluster.lab.processes("alice") if any(mark in line for mark in marks)]
    mounts = [
        f"{node}: {line}"
        for node in ALL_NODES
        for line in cluster.run("cat", "/proc/mounts", node=node).stdout.splitlines()
        if "squashfuse" in line or "/var/lib/apptainer/mnt" in line
    ]
    return processes + mounts


ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip


class Cluster:
    """What the tests do on the lab, as alice on the login node unless they say otherwise."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.home = lab.home("alice")
        self.work = self.home / "work" / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() // 1000 % 10**6:06}"
        self.count = 0
        self.numbers = itertools.count(1)  # tests may run beside each other
        self.own = threading.local()  # the jobs that a test's thread left running
        lab.exec(["mkdir", "-p", str(self.work)])
        lab.exec(["sh", "-c", _MAKE_ROOM])

    def write(self, name: str, text: str) -> Path:
        """Put a file of alice's in place."""
        path = self.work / name
        self.lab.exec(["mkdir", "-p", str(path.parent)])
        self.lab.exec(["tee", str(path)], input=text)
        return path

    def program(self, node: str, path: str | Path, lines: str) -> None:
        """Put a shell script of alice's on a node's own disk."""
        self.run("mkdir", "-p", str(Path(path).parent), node=node)
        self.lab.exec(["tee", str(path)], node=node, input=f"#!/bin/sh\n{lines}\n")
        self.run("chmod", "755", str(path), node=node)

    def run(self, *argv: str, node: str = "login", user: str = "alice", timeout: float = 120,
            cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:  # fmt: skip
        where = str(cwd or self.work) if user == "alice" else "/"
        return self.lab.exec(list(argv), node=node, user=user, timeout=timeout, cwd=where, env=env)

    def run_together(self, commands: Sequence[Sequence[str]], timeout: float) -> list[subprocess.CompletedProcess[str]]:
        """Run commands beside each other, started at the same moment, and wait for the end of each."""
        return together((self.lab.popen(list(command), cwd=self.work) for command in commands), timeout)

    def command(self, text: str, *options: str, arguments: tuple[str, ...] = ()) -> list[str]:
        """Return the submit command of a script with this text."""
        self.count = number = next(self.numbers)
        script = self.write(f"script{number}.py", text)
        return ["hpcml", "submit", *options, str(script), *arguments]

    def submit(self, text: str, *options: str, arguments: tuple[str, ...] = (), timeout: float = 150) -> Ended:
        """Submit a script with this text, wait for its end and return all there is to know."""
        command = self.command(text, "--wait", *options, arguments=arguments)
        done = self.run(*command, timeout=timeout)
        return Ended(done.returncode, done.stdout, done.stderr, directory_of(done))

    def directory(self, run: str) -> Path:
        """Return the directory of a run."""
        facts = self.run("hpcml", "status", run, "--json")
        assert facts.returncode == 0, facts.stderr
        return Path(json.loads(facts.stdout)["directory"])

    def detach(self, text: str, *options: str, arguments: tuple[str, ...] = ()) -> tuple[str, Path]:
        """Submit without waiting; return the job id and the run's directory."""
        done = self.run(*self.command(text, "--detach", "--json", *options, arguments=arguments))
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        self.own.jobs = [*getattr(self.own, "jobs", ()), facts["job"]]
        return facts["job"], Path(facts["directory"])

    def cancel_own(self) -> None:
        """Cancel what the test of this thread left running."""
        if jobs := getattr(self.own, "jobs", []):
            self.run("scancel", "--quiet", *jobs)
        self.own.jobs = []

    def wait_event(self, directory: Path, event: str, seconds: float = 30) -> dict[str, Any]:
        """Wait until the run's diary has an event; return it."""
        path = directory / "events.jsonl"

        def found() -> list[dict[str, Any]]:
            events = [json.loads(line) for line in whole_lines(path)]
            return [one for one in events if one["event"] == event]

        if not wait_for(lambda: bool(found()), seconds, 0.05):
            pytest.fail(f"no event {event} within {seconds} s: {path.read_text() if path.exists() else 'no diary'}")
        return found()[0]

    def wait_status(self, directory: Path, seconds: float = 60) -> dict[str, Any]:
        """Wait until the run has written its end; return it."""
        path = directory / "status.json"
        if not wait_for(lambda: path.exists() and json.loads(path.read_text())["over"], seconds, 0.05):
            pytest.fail(f"no end within {seconds} s; logs: {[p.read_text() for p in directory.glob('logs/*')]}")
        return dict(json.loads(path.read_text()))

    def job(self, job: str) -> dict[str, str]:
        """Return what scontrol knows of a job."""
        text = self.run("scontrol", "show", "job", "--oneliner", job).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def limit(self, directory: Path) -> None:
        """Have the time limit of a run's job come within a minute."""
        job = (directory / "job").readlink().name
        hours, minutes, _ = map(int, self.job(job)["RunTime"].split(":"))
        words = ("scontrol", "update", f"JobId={job}", f"TimeLimit={60 * hours + minutes + 1}")
        done = self.run(*words, user="root", node="ctl")
        assert done.returncode == 0, done.stderr

    def processes(self) -> list[tuple[int, str]]:
        """Return alice's processes that belong to runs (not those that a test itself started)."""
        return [
            (pid, line)
            for pid, line in self.lab.processes("alice")
            if "hpcml.kinds" in line or "hpcml.node" in line or "/code/" in line
        ]

    @contextlib.contextmanager
    def covered(self, node: str, cover: str, place: str) -> Iterator[None]:
        """Change a file of one node alone: what is mounted there is seen by nobody else."""
        made = self.run("sh", "-ec", cover, node=node, user="root")
        assert made.returncode == 0, made.stderr
        try:
            yield
        finally:
            self.run("umount", "--lazy", place, node=node, user="root")

    def wait_idle(self, seconds: float = 30) -> None:
        self.lab.wait_idle(seconds)

    def wait_gone(self, directory: Path, seconds: float = 30) -> str:
        """Wait until a run's job holds nothing any more; return the job."""
        job = str(json.loads((directory / "submission.json").read_text())["job"])
        self.job_end(job, seconds)
        return job

    def job_end(self, job: str, seconds: float = 30) -> dict[str, str]:
        """Wait until a job holds nothing any more; return what scontrol knows of it."""
        # All states: with some flags, as SIGNALING, a filter does not find a running job.
        asked = ("squeue", "--noheader", "--jobs", job, "--states", "all", "--format", "%T")

        def has_ended() -> bool:
            done = self.run(*asked)  # of a busy controller squeue learns nothing
            return {*done.stdout.split()} <= ENDED and (done.returncode == 0 or "Invalid job id" in done.stderr)

        if not wait_for(has_ended, seconds, 0.1):
            pytest.fail(f"job {job} holds its nodes: {self.job(job)}")
        return self.job(job)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    lab = Lab()
    if reason := lab.check():
        pytest.skip(reason)
    started = lab.up()
    yield lab
    if started:
        lab.down()


@pytest.fixture(scope="session")
def cluster(lab: Lab) -> Cluster:
    if lab.exec(["hpcml", "--version"]).returncode != 0:
        pytest.skip("hpcml is not installed in the lab: make lab")
    return Cluster(lab)


@pytest.fixture(scope="session")
def image(lab: Lab) -> Path:
    """Return the lab's image; `lab.py image` builds it, long before any test that looks at the clock."""
    if reason := lab_image.reason_against(lab.places):
        pytest.skip(reason)
    return lab_image.image(lab.places)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    beside.sort(items)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if beside.marked(pyfuncitem):
        beside.call(pyfuncitem)
        return True
    cluster: Any = pyfuncitem.funcargs.get("cluster")
    if cluster is None:
        return None
    words = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    logs = cluster.lab.places.log
    slurmd_crashes.survive(logs, lambda: pyfuncitem.obj(**words), lambda: clean(cluster))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: SubRequest) -> Any:
    """Make a fixture again from the start if a slurmd has died under it, as a test is called again."""
    if not {"cluster", "outside"} & set(fixturedef.argnames):
        return (yield)
    # Not `cluster`: after each test that has it, _clean() cancels all jobs, also a run that tests of tunnels share.
    lab: Lab = request.getfixturevalue("lab")
    before = slurmd_crashes.count(lab.places.log)
    try:
        return (yield)
    except slurmd_crashes.FAILED:
        if slurmd_crashes.count(lab.places.log) == before:
            raise
        slurmd_crashes.announce()
        lab.exec(["scancel", "--me", "--quiet"])
        lab.wait_idle(60)
        fixturedef.cached_result = None
        return make_fixture(fixturedef, request)


@pytest.fixture(scope="module", autouse=True)
def _group(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a file of which some tests ran beside each other: none of them runs on, whatever ended the file."""
    yield
    if group := beside.of(request.node):
        group.end()
        clean(group.cluster)


def clean(cluster: Cluster) -> None:
    """End all jobs and wait until all nodes are idle; no process of a run may be left."""
    cluster.run("scancel", "--me", "--quiet")
    cluster.wait_idle(60)
    # A run of the local site sweeps up behind itself after it has written its end.
    assert wait_for(lambda: not cluster.processes(), 20, 0.1), cluster.processes()


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, or the last of those that run beside each other: no job, all nodes idle, no process of a run left."""
    yield
    group = beside.of(request.node) if beside.marked(request.node) else None
    if "cluster" in request.fixturenames and (group is None or group.over):
        clean(request.getfixturevalue("cluster"))


@pytest.fixture(scope="module")  # the lab may have been started anew by another module
def outside(lab: Lab) -> Iterator[Outside]:
    """The lab with its laptop; runs of one test module are shared, so nothing is cancelled after each test."""
    from laptop import Outside

    if reason := lab_ssh.missing():
        pytest.skip(reason)
    if lab.exec(["hpcml", "--version"]).returncode != 0 or not lab.places.laptop_venv.exists():
        pytest.skip("hpcml is not installed in the lab: make lab")
    lab.add_laptop()
    found = Outside(lab)
    found.forget()
    yield found
    found.close_connection()


@pytest.fixture(autouse=True)
def _no_tunnel_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: its tunnels are closed, and alice has nothing on the laptop but the shared connection."""
    yield
    if "outside" not in request.fixturenames:
        return
    outside: Outside = request.getfixturevalue("outside")
    for tunnel in outside.tunnels:
        tunnel.stop()
    outside.tunnels.clear()


@pytest.fixture(scope="module")
def dashboard(outside: Outside) -> Iterator[tuple[str, Path]]:
    """A run of two nodes that goes on for a whole module: its id and directory."""
    with outside.going_on("dash", BUSY) as run:
        yield run
