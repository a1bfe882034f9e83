"""Failures on a GPU, caused in runs on the local site: does hpcml name the cause and the remedy.

failures.toml has the failures, and the words by which a machine can judge the answer. A verdict is one of

named
    the cause, the next step and the rank have the words of failures.toml.
raw
    they have not: often the program's own text is all there is.
misleading
    words of another cause, or of the wrong rank.
silent
    no cause.
right, wrong
    what is to work works, or does not.

A person still reads the causes: the table and the JSON have them.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import machine
from harness import HERE, HUNG, JOB, Case, Running, World, last_lines, run_directory
from results import Result, result, skipped

FILE = HERE / "failures.toml"
SECONDS = {1: 20, 2: 45, 3: 40, 4: 140, 5: 70}  # that a wave takes, about
DEADLINE = 170  # seconds of a run
ASKED = 60  # seconds of one of hpcml's other commands
LOOKS = 6  # times that hpcml is asked while a run hangs, some seconds apart
APART = 3.0
NAMED = 20  # of 22 counted failures, at least
STUBS = ("/usr/local/cuda*/lib64/stubs/libcuda.so", "/usr/local/cuda*/targets/*/lib/stubs/libcuda.so")
SMALL_POOL = "gpu.rmm_pool_size=2G"
SUCCEEDED = re.compile(r"no failure to explain|The run succeeded")
KEPT = ("state", "exit_status", "cause", "rank", "node", "log", "at_fault", "message", "warnings", "notes", "times")


@dataclass(frozen=True)
class Failure:
    """A row of failures.toml, where the keys are explained."""

    name: str
    wave: int
    run: list[str]
    code: str
    status: list[int]
    file: str = ""
    cause: list[str] = field(default_factory=list)
    remedy: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    clean: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    rank: int | None = None
    start: float = 0.0
    at: str = ""
    cancel: bool = False
    pool: bool = False
    counted: bool = True

    @property
    def script(self) -> str:
        """The name of its file."""
        return self.file or f"{'_'.join(re.findall('[a-z]+', self.name.lower()))}.py"


@dataclass
class Answer:
    """What hpcml said of a failure."""

    status: int
    seconds: float
    output: str
    why: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)  # status --json
    live: dict[str, Any] = field(default_factory=dict)  # why --json while the run lived
    stacks: str = ""
    cancel_s: float | None = None

    @property
    def cause(self) -> str:
        """The sentence; that of the refusal if there was no run."""
        return str(self.why.get("cause") or "") if self.why else last_lines(self.output, 4)

    @property
    def remedy(self) -> str:
        """The next step."""
        return str(self.why.get("next_step") or "") if self.why else last_lines(self.output, 4)

    @property
    def said(self) -> str:
        """All that ``submit --wait`` and ``status --json`` say."""
        return f"{self.output}\n{json.dumps(self.state, ensure_ascii=False)}"


def read_failures(path: Path = FILE) -> list[Failure]:
    """Return the failures, those of a wave next to each other."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    every = table["every"]["wrong"]
    known = {one.name for one in fields(Failure)}
    found = []
    for row in table["failure"]:
        if strange := set(row) - known:
            raise ValueError(f"{path.name}: {row['name']}: there is no key {min(strange)}")
        found.append(Failure(**row | {"wrong": [*every, *row.get("wrong", [])]}))
    return sorted(found, key=lambda one: one.wave)


def cases(world: World) -> list[Case]:
    """Return a case for each wave."""
    here = replace(world, lab=False)  # the local site is in no node's network
    known = read_failures()
    waves = {number: [one for one in known if one.wave == number] for number in sorted({one.wave for one in known})}
    found: list[Result] = []
    tried = [
        Case("; ".join(one.name for one in wave), SECONDS[number], partial(_wave, here, wave, found))
        for number, wave in waves.items()
    ]
    return [*tried, Case("all", 0, partial(_count, found))]


def _wave(world: World, wave: list[Failure], found: list[Result]) -> list[Result]:
    with ThreadPoolExecutor(len(wave)) as pool:
        results = list(pool.map(partial(_try, world), wave))
    found += results
    return results


def _count(found: list[Result]) -> list[Result]:
    """Return how many failures have which verdict."""
    words = [one["figures"]["verdict"] for one in found if one["figures"].get("counted")]
    counts = {word: words.count(word) for word in ("named", "raw", "misleading", "silent")}
    wrong = [one["name"] for one in found if one["figures"].get("verdict") == "wrong"]
    ok = counts["named"] >= NAMED and not counts["misleading"] and not wrong
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    return [
        result(
            "all",
            ok=ok,
            figures={"verdict": f"of {len(words)}: {told}"},
            error="" if ok else f"asked: {NAMED} named, 0 misleading",
        )
    ]


def _try(world: World, failure: Failure) -> Result:
    try:
        folder = world.folder("failure")
        words = {"python": world.python, **_libraries(world, folder)}
        if "{stubs}" in " ".join(failure.run) and not words["stubs"]:
            return skipped(failure.name, "the machine has no stub of CUDA's driver")
        found = _judged(failure, _cause(world, failure, folder, words), gpu=not world.cpu_only)
    except Exception as error:  # noqa: BLE001 - the other failures of the wave are tried
        found = result(
            failure.name,
            ok=False,
            figures={"verdict": "not tried", "counted": failure.counted},
            error=f"{type(error).__name__}: {error}",
        )
    print(f"   {failure.name}: {found['figures'].get('verdict')} {found['error']}", flush=True)
    return found


def _libraries(world: World, folder: Path) -> dict[str, str]:
    """Return the paths with CUDA's stub before the driver, and an nvJitLink older than RAPIDS's; empty: the pack's is not loaded before it."""
    stub = next((path for pattern in STUBS for path in sorted(Path("/").glob(pattern.lstrip("/")))), None)
    stubs = ""
    if stub:
        (folder / "stubs").mkdir()
        shutil.copy(stub, folder / "stubs/libcuda.so.1")
        stubs = ":".join(filter(None, [str(folder / "stubs"), world.environment.get("LD_LIBRARY_PATH", "")]))
    older = Path(machine.python_facts(world.python)["purelib"]) / "nvidia/cu13/lib/libnvJitLink.so.13"
    return {"stubs": stubs, "older": str(older) if older.exists() else ""}


def submit_words(failure: Failure, folder: Path, known: dict[str, str], *, gpu: bool) -> list[str]:
    """Return the words after ``hpcml``; without a GPU, those that ask for none."""
    run = [word.format(**known) for word in failure.run]
    if not gpu:
        while "--gpus-per-node" in run:
            place = run.index("--gpus-per-node")
            run = [*run[:place], *run[place + 2 :]]
        run = ["1" if word == "gpu" else word for word in run]
    script = str(folder / failure.script)
    run = [script if word == "SCRIPT" else word for word in run]
    settings = [f"paths.runs={folder}/runs", *([] if failure.pool else [SMALL_POOL])]
    words = ["submit", "--site", "local", "--wait", "--name", JOB]
    words += [word for setting in settings for word in ("--set", setting)]
    return [*words, *run, *([] if script in run else [script])]


def _cause(world: World, failure: Failure, folder: Path, known: dict[str, str]) -> Answer:
    """Run it, and ask hpcml about it."""
    (folder / failure.script).write_text(failure.code)
    path = f"{Path(world.python).parent}:{world.environment.get('PATH', '')}"
    hpcml = [world.python, "-m", "hpcml"]
    words = submit_words(failure, folder, known, gpu=not world.cpu_only)
    deadline = time.monotonic() + min(DEADLINE, max(world.left(), 5.0))
    answer = Answer(HUNG, 0.0, "")
    with world.started([*hpcml, *words], cwd=folder, environment={"PATH": path}) as running:
        if failure.at and _seen(running, folder, failure.at, deadline):
            _look(world, failure, folder, answer)
        done = running.wait(max(deadline - time.monotonic(), 1.0))
    answer.status, answer.seconds, answer.output = done.status, done.seconds, done.output
    if run_directory(folder):
        answer.why, answer.state = (_asked(world, folder, command) for command in ("why", "status"))
    return answer


def _seen(running: Running, folder: Path, pattern: str, deadline: float) -> bool:
    """Wait until a pattern stands in a log of the run; whether it does."""
    while running.process.poll() is None and time.monotonic() < deadline:
        logs = (run_directory(folder) or folder / "none").glob("logs/*.log")
        if any(re.search(pattern, path.read_text(errors="replace")) for path in logs):
            return True
        time.sleep(0.5)
    return False


def _look(world: World, failure: Failure, folder: Path, answer: Answer) -> None:
    """Ask about a run that lives until the answer has the words; then cancel it, if that is to be."""
    for _ in range(LOOKS):
        time.sleep(APART)
        if failure.stacks:
            answer.stacks = _command(world, folder, "stacks").output
        answer.live = _asked(world, folder, "why")
        if not lacking(failure.stacks, answer.stacks) and not lacking(failure.live, json.dumps(answer.live)):
            break
    if failure.cancel:
        answer.cancel_s = _command(world, folder, "cancel").seconds


def _command(world: World, folder: Path, *words: str) -> Any:
    directory = run_directory(folder)
    assert directory
    run = [world.python, "-m", "hpcml", *words, "--site", "local", "--set", f"paths.runs={folder}/runs", directory.name]
    return world.command(run, timeout=ASKED, cwd=folder)


def _asked(world: World, folder: Path, command: str) -> dict[str, Any]:
    """Return what a command says as JSON; its text under ``unread`` if that is none."""
    done = _command(world, folder, command, "--json")
    try:
        found: dict[str, Any] = json.loads(done.output[done.output.index("{") :])
    except ValueError:
        return {"unread": last_lines(done.output)}
    return found


def lacking(patterns: Iterable[str], text: str) -> list[str]:
    """Return the patterns that a text does not have."""
    return [pattern for pattern in patterns if not re.search(pattern, text)]


def verdict(failure: Failure, answer: Answer) -> tuple[str, list[str]]:
    """Return the verdict, and what is missing or wrong."""
    problems = [] if answer.status in failure.status else [f"exit status {answer.status}"]
    fails = bool(failure.cause) or bool(failure.live)
    problems += [f"not printed: {one}" for one in lacking(failure.output, answer.said)]
    problems += [f"printed: {one}" for one in failure.clean if one not in lacking([one], answer.output)]
    problems += [f"not in stacks: {one}" for one in lacking(failure.stacks, answer.stacks)]
    if not fails:
        if failure.counted:
            return ("silent" if problems else "named"), problems
        return ("wrong" if problems else "right"), problems
    if not answer.cause or SUCCEEDED.search(answer.cause):
        return "silent", [*problems, "no cause"]
    both, rank = f"{answer.cause}\n{answer.remedy}", answer.why.get("rank")
    misleading = [f"says {one}" for one in failure.wrong if re.search(one, both)]
    if failure.rank is not None and rank not in (None, failure.rank):
        misleading.append(f"rank {rank}, not {failure.rank}")
    if misleading:
        return "misleading", [*problems, *misleading]
    problems += [f"cause lacks {one}" for one in lacking(failure.cause, answer.cause)]
    problems += [f"next step lacks {one}" for one in lacking(failure.remedy, answer.remedy)]
    problems += [f"why lacks {one}" for one in lacking(failure.facts, json.dumps(answer.why, ensure_ascii=False))]
    problems += [f"while it lived why lacked {one}" for one in lacking(failure.live, json.dumps(answer.live))]
    if failure.rank is not None and (rank is None or not answer.why.get("node")):
        problems.append("no rank or node")
    return ("raw" if problems else "named"), problems


def _judged(failure: Failure, answer: Answer, *, gpu: bool) -> Result:
    """Return the result of a failure: what was said, and the verdict."""
    started = re.search(r"^started ([\d.]+)", answer.output, re.MULTILINE)
    allocated = (answer.state.get("times") or {}).get("allocated")
    start_s = round(float(started[1]) - allocated, 2) if started and allocated else None
    word, problems = verdict(failure, answer)
    if failure.start and gpu and (start_s is None or start_s > failure.start):
        word, problems = "wrong", [*problems, f"the script began {start_s} s after the job"]
    figures = {
        "verdict": word, "counted": failure.counted, "status": answer.status, "cause": answer.cause, "remedy": answer.remedy,
        "rule": answer.why.get("rule"), "rank": answer.why.get("rank"), "node": answer.why.get("node"), "seconds": answer.seconds,
        "start_s": start_s, "cancel_s": answer.cancel_s, "why": answer.why, "state": {key: answer.state[key] for key in KEPT if key in answer.state},
        "live": answer.live, "stacks": last_lines(answer.stacks, 40)}  # fmt: skip
    kept = {key: value for key, value in figures.items() if value not in (None, {}, "")}
    return result(failure.name, ok=word in ("named", "right"), figures=kept, error="; ".join(problems))
