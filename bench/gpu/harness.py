"""What the sections of the GPU tier share: run a command or a submission under a deadline, and say where it hung."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lab_state import start_time
from results import Result, failure, result
from slurm import Lab, wait_for
from slurm_text import Shape

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPTS = HERE / "scripts"
JOB = "hpcml-gpu-tier"  # the Slurm name of every job of this tier
MARK = "HPCML_GPU_TIER"  # in the environment of every process that belongs to a command
SECTION = "HPCML_GPU_SECTION"  # and of every process that belongs to a section
HUNG = 124  # the exit status of what was ended at its deadline, as timeout(1) has it
ABORTED = 3.0  # seconds for Python to write where it was
LAST_LINES = 25
SELDOM = 0.5  # seconds between looks at the queue, which are not to disturb what is measured


class HarnessError(Exception):
    """A case cannot go on; the text is its result's error."""


class Done(NamedTuple):
    """A command that has ended: exit status, all it printed, seconds."""

    status: int
    output: str
    seconds: float


class Case(NamedTuple):
    """One thing to measure: its name, about how many seconds it takes, and what does it."""

    name: str
    seconds: float
    run: Callable[[], list[Result]]


@dataclass
class Run:
    """A run of hpcml that has ended: its exit status, what ``submit --wait`` printed, its directory and events."""

    status: int
    output: str
    seconds: float
    submitted: float
    directory: Path | None

    def events(self) -> list[dict[str, Any]]:
        """Return the run's events in order."""
        text = _read(self.directory, "events.jsonl")
        return [json.loads(line) for line in text.splitlines() if line]

    def when(self, event: str) -> float | None:
        """Return when an event first happened, in seconds since 1970."""
        return next((one["time"] for one in self.events() if one["event"] == event), None)

    def fact(self, event: str) -> dict[str, Any]:
        """Return what an event says, nothing if it did not happen."""
        return next((one for one in self.events() if one["event"] == event), {})

    def table(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run by its path in the run's directory, nothing if it is not there."""
        text = _read(self.directory, name)
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def why(self) -> str:
        """Return why it ended as it did, with the last lines of what it printed."""
        return f"exit status {self.status}: {self.table('status.json').get('message', '')}\n{last_lines(self.output)}"

    def must_be(self, status: int = 0) -> None:
        """Refuse a run that ended otherwise.

        Raises
        ------
        HarnessError
            If it did.
        """
        if self.status != status:
            raise HarnessError(self.why())


@dataclass
class World:
    """Where the sections run: the interpreter, its environment, Slurm, and how much time is left.

    Parameters
    ----------
    gpus
        How many GPUs the machine has, or is to use.
    options
        Options of ``hpcml submit`` that the site wants.
    lab
        Whether Slurm is this tier's own (slurm.py), which can be divided otherwise at will.
    cpu_only
        Whether CPU workers stand in for GPUs, to try the tier itself.
    image
        The image that the section of that name runs in, empty without one.
    ends
        When the time is over, in seconds since 1970.
    """

    top: Path
    python: str
    gpus: int
    memory_mib: int
    environment: dict[str, str]
    options: list[str] = field(default_factory=list)
    lab: bool = True
    slurm: str = ""
    cpu_only: bool = False
    ends: float = 0.0
    rounds: int = 3
    image: str = ""

    def save(self, path: Path) -> None:
        """Write it for a process that runs a section."""
        path.write_text(json.dumps(asdict(self) | {"top": str(self.top)}) + "\n")

    @classmethod
    def load(cls, path: Path) -> World:
        """Read what :meth:`save` wrote."""
        facts = json.loads(path.read_text())
        return cls(**facts | {"top": Path(facts["top"])})

    # -- time and places -------------------------------------------------------------------------------------------

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.ends - time.time()

    def folder(self, name: str) -> Path:
        """Return a fresh folder that all nodes see."""
        made = self.top / "work" / f"{name}-{secrets.token_hex(3)}"
        made.mkdir(parents=True)
        return made

    def shape(self, nodes: int, gpus: int, cpus: int = 0) -> None:
        """Have Slurm divide the machine so (``cpus`` of a node: default an equal share); on a site's own Slurm this does nothing."""
        if self.lab:
            cpus = cpus or max(1, (os.cpu_count() or 1) // nodes)
            Lab(self.top).up(Shape(nodes, gpus, cpus), Path(self.slurm) if self.slurm else None, fake=self.cpu_only)

    def shapes(self) -> list[tuple[int, int]]:
        """Return the pairs of nodes and GPUs per node that use all GPUs."""
        known = {1: [(1, 1)], 2: [(2, 1), (1, 2)], 4: [(2, 2)], 8: [(2, 4), (1, 8)]}
        return known.get(self.gpus, [(1, self.gpus)])

    @property
    def pool(self) -> int:
        """Half of a GPU's memory in whole GiB, as bytes: the memory pool of every worker that is compared."""
        return max(1, self.memory_mib // 2 // 1024) * 1024**3

    # -- commands --------------------------------------------------------------------------------------------------

    def command(
        self,
        words: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        node: str = "ctl",
    ) -> Done:
        """Run a command in the network of a node; at its deadline, find out where it hangs and end it.

        Its output goes through a file, so that what was printed before a hang is there.
        """
        with self.started(words, environment=environment, cwd=cwd, node=node) as running:
            return running.wait(min(timeout, max(self.left(), 5.0)))

    def measured(
        self, name: str, script: str, *, timeout: float, environment: Mapping[str, str] | None = None
    ) -> Result:
        """Run one of scripts/, which measures something and prints its figures last, as a line of JSON."""
        words = [self.python, str(SCRIPTS / script), *(["--cpu"] if self.cpu_only else [])]
        done = self.command(words, timeout=timeout, environment=environment)
        if done.status:
            return failure(name, f"exit status {done.status}:\n{last_lines(done.output)}")
        figures = json.loads(done.output.strip().splitlines()[-1])
        return {**result(name, ok=True, figures=figures), "seconds": round(done.seconds, 3)}

    @contextlib.contextmanager
    def started(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        node: str = "ctl",
    ) -> Iterator[Running]:
        """Run a command beside other things; it is ended with the block."""
        mark = secrets.token_hex(8)
        full = {**self.environment, **(environment or {}), MARK: mark}
        enter = Lab.enter(node) if self.lab else []
        log = self.folder("command") / "output.log"
        with log.open("wb") as file:
            process = subprocess.Popen([*enter, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       env=full, cwd=cwd or log.parent, start_new_session=True)  # fmt: skip
        running = Running(process, mark, log, time.monotonic())
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.end()

    def batch(self, words: Sequence[str], *, timeout: float, cwd: Path, environment: Mapping[str, str]) -> Done:
        """Run sbatch and wait for the end of its job; at the deadline, find out where it hangs and end it."""
        with self.started(words, environment=environment, cwd=cwd) as running:
            done = running.wait(30)
            timeout = min(timeout, max(self.left(), 5.0))
            if done.status == 0 and not wait_for(lambda: not self._queued(), timeout, poll=SELDOM):
                running.end()
                done = Done(HUNG, running.output(), timeout)
        self.clear(expect_empty=done.status != HUNG)
        return done

    def submit(
        self,
        script: Path,
        arguments: Sequence[str] = (),
        *,
        nodes: int,
        gpus: int,
        settings: Sequence[str] = (),
        protocol: str = "",
        timeout: float = 240,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Run:
        """Submit a script with ``hpcml submit --wait`` and return how it ended."""
        folder = self.folder(script.stem)
        words = self.submit_words(
            script, arguments, folder, nodes=nodes, gpus=gpus, settings=settings, protocol=protocol, options=options
        )
        submitted = time.time()
        done = self.command(words, timeout=timeout, cwd=folder, environment=environment)
        run = Run(done.status, done.output, done.seconds, submitted, run_directory(folder))
        if done.status == HUNG:
            run.output += "\n" + run_logs(run.directory)
        self.clear(expect_empty=done.status != HUNG)
        return run

    def submit_words(
        self, script: Path, arguments: Sequence[str], folder: Path, *, nodes: int, gpus: int, settings: Sequence[str],
        protocol: str, options: Sequence[str] = (),
    ) -> list[str]:  # fmt: skip
        """Return the command line of a submission whose run will be in a folder of its own."""
        chosen = [f"paths.runs={folder}/runs", *settings]
        words = [self.python, "-m", "hpcml", "submit", "--wait", "--name", JOB, "--nodes", str(nodes), "--time", "15"]
        if not self.cpu_only:
            words += ["--gpus-per-node", str(gpus)]
        words += [
            "--set",
            "network.private=true",
        ]  # nobody else is on the machine: auto takes UCX on two of its nodes too
        words += ["--set", f"network.protocol={'tls' if protocol == 'tcp' else protocol}"] if protocol else []
        words += [word for setting in chosen for word in ("--set", setting)]
        return [*words, *self.options, *options, str(script), *arguments]

    def clear(self, *, expect_empty: bool = True) -> None:
        """Wait until Slurm has done with the last job; what does not end is cancelled."""
        if not shutil.which("squeue", path=self.environment.get("PATH")) or not self._queued():
            return
        if not expect_empty or not wait_for(lambda: not self._queued(), 30):
            self._slurm("scancel", "--me", "--name", JOB)
            wait_for(lambda: not self._queued(), 30)

    def _queued(self) -> bool:
        return bool(self._slurm("squeue", "-h", "--me", "--name", JOB).strip())

    def _slurm(self, *words: str) -> str:
        enter = Lab.enter() if self.lab else []
        done = subprocess.run(
            [*enter, *words], env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout


@dataclass
class Running:
    """A command that runs, known by the mark in its environment and in that of all it started, also through Slurm."""

    process: subprocess.Popen[bytes]
    mark: str
    log: Path
    began: float
    name: str = MARK

    def wait(self, timeout: float) -> Done:
        """Wait for its end; one that is late is asked where it is, and ended with status 124."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            status = HUNG
            with self.log.open("a") as file:
                file.write(f"\nended at its deadline, after {timeout:.0f} s\n")
        return Done(status, self.output(), round(time.monotonic() - self.began, 3))

    def output(self) -> str:
        """Return what it has printed so far."""
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        """Have every Python that belongs to it write where it is (SIGABRT, PYTHONFAULTHANDLER), then kill what is left."""
        end_marked(self.name, self.mark)
        self.process.wait()


def end_marked(name: str, mark: str) -> None:
    """End the processes with a mark, Python's after they have written where they are."""
    members = [(pid, start_time(pid)) for pid in marked(name, mark)]
    for number in (signal.SIGABRT, signal.SIGKILL):
        alive = [pid for pid, began in members if start_time(pid) == began]
        chosen = [pid for pid in alive if number == signal.SIGKILL or _is_python(pid)]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        wait_for(lambda chosen=chosen: not any(start_time(pid) for pid in chosen), ABORTED)  # type: ignore[misc]


def marked(name: str, mark: str) -> list[int]:
    """Return the processes, but this one, that have a variable of this value in their environment."""
    wanted = f"{name}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


def run_directory(folder: Path) -> Path | None:
    """Return the directory of the only run below a runs folder."""
    found = [path for path in (folder / "runs").glob(f"{JOB}-*") if path.is_dir()]
    return found[0] if found else None


def run_logs(directory: Path | None) -> str:
    """Return the ends of a run's logs: there a hang of scheduler, worker or script has left its traces."""
    logs = sorted((directory / "logs").glob("*.log")) if directory else []
    return "\n".join(f"== {log.name}\n{last_lines(log.read_text(errors='replace'))}" for log in logs)


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """Return the last lines of a text that are not empty."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-count:])


def _read(directory: Path | None, name: str) -> str:
    try:
        return (directory / name).read_text() if directory else ""
    except FileNotFoundError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file that a script of ours has left.

    Raises
    ------
    HarnessError
        If it is not there.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise HarnessError(f"{path.name} was not written") from error
    return found
