"""Runs whose files are damaged in every way: each command says so in a sentence, or does without the file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pytest

import planted
from hpcml import errors
from hpcml.cli import main
from hpcml.schedulers import slurm
from world import World, write_end, write_events

COMMANDS = (("status",), ("why",), ("ls", "--all"), ("report",), ("top", "--once"), ("rerun", "--dry-run"), ("logs",), ("stacks",),
            ("why", "--bundle"))  # fmt: skip
FILES = ("submission.json", "plan.json", "request.json", "status.json", "events.jsonl", "points.json", "written.json", "copied.json",
         "attempts/0/end.json", "attempts/0/ledger.json", "attempts/0/script-error.json",
         "attempts/1/nodes/n1.json", "attempts/1/exit/supervisor@n1", "attempts/1/interconnect.json")  # fmt: skip
WRONG: tuple[Any, ...] = (
    None,
    "x\x1b[2J",
    -1,
    10**400,
    1.5e308,
    True,
    [],
    [[]],
    ["x", 3],
    [["x"]],
    {},
    {"a": {"b": 1}},
    "",
)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if path.exists() else b'{"a": [')


def _text(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


def _bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00\x01" * 100)


def _missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def _folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _unreadable(path: Path) -> None:
    path.touch()
    path.chmod(0)


def _foreign(path: Path) -> None:
    path.touch()
    if os.getuid() == 0:
        os.chown(path, planted.STRANGER, planted.STRANGER)


def _loop(path: Path) -> None:
    planted.put(path, planted.ring)


def _hole(path: Path) -> None:
    planted.put(path, planted.hole)


def _deep(path: Path) -> None:
    planted.put(path, planted.deep_table)


DAMAGES = (_text(""), _cut, _text("no JSON\n"), _text("[]\n"), _text("null\n"), _text('"x"\n'), _text("{}\n"), _text('{"a": NaN}\n'), _bytes, _missing,
           _folder, _unreadable, _foreign, _loop, _hole, _deep)  # fmt: skip


@pytest.fixture
def run(world: World) -> Path:
    """Return a run with two attempts, of which the second has failed."""
    directory = world.submit("--until-done", "--time", "10")
    for number in (0, 1):
        attempt = directory / "attempts" / str(number)
        for name in ("nodes", "exit", "stacks", "samples/nodes"):
            (attempt / name).mkdir(parents=True)
        (attempt / "ledger.json").write_text(
            json.dumps({"unit": "core", "number": 2, "paid": 1.0, "parts": {"useful": 0.5}})
        )
    write_events(
        directory,
        {"event": "allocated", "nodes": ["n1"], "job": "1", "began": 1790000000, "time": 1790000001.0, "attempt": 0},
        {"event": "script-started", "pid": 7, "time": 1790000002.0, "attempt": 0},
        {"event": "allocated", "nodes": ["n1"], "job": "1", "began": 1790000100, "time": 1790000101.0, "attempt": 1},
        {"event": "interconnect-checked", "line": "TCP", "ok": False, "problem": "no RDMA", "time": 1790000102.0, "attempt": 1},
        {"event": "warning", "sentence": "a warning", "time": 1790000103.0, "attempt": 1},
        {"event": "script-started", "pid": 7, "time": 1790000104.0, "attempt": 1},
        {"event": "torn-down", "seconds": 1.0, "time": 1790000110.0, "attempt": 1},
    )  # fmt: skip
    write_end(directory, 3, attempt=1, quote=["ValueError: x"], cause="", warnings=["a warning"], time=1790000110.0)
    shutil.copy(directory / "status.json", directory / "attempts/0/end.json")
    (job,) = world.jobs()
    world.set_job(job, state="FAILED")
    (directory / "logs/script.log").write_text("Traceback (most recent call last):\nValueError: x\n")
    return directory


def _tables(directory: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield each file of JSON with the keys of each of its values."""

    def walk(value: Any, keys: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        for key, part in value.items() if isinstance(value, dict) else ():
            yield (*keys, key)
            if len(keys) < 2:
                yield from walk(part, (*keys, key))

    for name in FILES:
        if (directory / name).is_file() and name.endswith(".json"):
            yield from ((name, keys) for keys in walk(json.loads((directory / name).read_text()), ()))


class Commands:
    """Runs commands on a run in this process, which starts no other for each, and keeps what is wrong with answers."""

    def __init__(self, world: World, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.world, self.run, self.capfd = world, run, capfd
        self.wrong: list[str] = []

    def look(self, what: object, commands: Sequence[tuple[str, ...]] = COMMANDS) -> None:
        for command in commands:
            status = main.main([*command] if command[0] == "ls" else [*command, self.run.name])
            out, err = self.capfd.readouterr()
            if status in (errors.INTERNAL, 1) or "Traceback" in err or not planted.is_plain(out + err):
                self.wrong.append(f"{what}: {' '.join(command)}: status {status}: {(out + err)[-600:]}")
            elif status == errors.STORAGE and (self.run.name not in err or "Error:" in err):
                self.wrong.append(f"{what}: {' '.join(command)}: no place, or a word of Python's: {err[-600:]}")
            for bundle in self.world.project.glob("*.tar.gz"):
                bundle.unlink()


def once(function: Callable[..., Any], known: Callable[..., Hashable]) -> Callable[..., Any]:
    """Return a function that calls another once for what ``known`` makes of its arguments, and then knows the answer."""
    answers: dict[Hashable, Any] = {}

    def ask(*words: Any, **options: Any) -> Any:
        if (key := known(*words, **options)) not in answers:
            answers[key] = function(*words, **options)
        return answers[key]

    return ask


@pytest.fixture
def hpcml(
    world: World, run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Commands]:
    """Return what runs commands on the run."""
    for name in {*os.environ} - {*world.environment}:
        monkeypatch.delenv(name)
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(world.project)
    umask = os.umask(0o077)
    # Nothing that Slurm answers changes in a test, nor does a template: most of the time went into asking and compiling.
    monkeypatch.setattr(slurm, "ask", once(slurm.ask, lambda command, *_, **__: tuple(command)))
    compiled = once(jinja2.Environment.compile, lambda self, source, *rest, **_: (type(self), source, rest))
    monkeypatch.setattr(jinja2.Environment, "compile", compiled)
    commands = Commands(world, run, capfd)
    yield commands
    os.umask(umask)
    assert not commands.wrong, "\n".join(commands.wrong)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_run_is_damaged(hpcml: Commands, run: Path, name: str) -> None:
    kept = run.with_name("kept")
    shutil.copytree(run, kept, symlinks=True)
    for number, damage in enumerate(DAMAGES):
        shutil.rmtree(run)
        shutil.copytree(kept, run, symlinks=True)
        damage(run / name)
        hpcml.look((name, number, damage.__name__))


@pytest.mark.parametrize("part", range(4))
def test_a_value_of_a_run_s_file_is_missing_or_of_another_type(hpcml: Commands, run: Path, part: int) -> None:
    kept = {name: (run / name).read_bytes() for name in FILES if (run / name).is_file()}
    for number, (name, keys) in enumerate([*_tables(run)][part::4]):
        for value in (WRONG[(number + part) % len(WRONG)], WRONG):  # the second: no value
            table = json.loads(kept[name])
            holder = table
            for key in keys[:-1]:
                holder = holder[key]
            if value is WRONG:
                del holder[keys[-1]]
            else:
                holder[keys[-1]] = value
            (run / name).write_text(json.dumps(table))
            commands = COMMANDS[number % 2 :: 2] if number % 5 else COMMANDS
            hpcml.look((name, keys, "missing" if value is WRONG else value), commands)
        (run / name).write_bytes(kept[name])


@pytest.mark.parametrize(
    "key", ["event", "time", "attempt", "nodes", "job", "began", "line", "ok", "problem", "sentence", "pid", "seconds"]
)
def test_a_value_of_an_event_is_of_another_type(hpcml: Commands, run: Path, key: str) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for value in WRONG:
        write_events(run, *[event | ({key: value} if key in event else {}) for event in events])
        hpcml.look((key, value), (("status",), ("ls", "--all"), ("why",), ("report",), ("logs",)))


def test_rerun_does_not_guess_the_site(hpcml: Commands, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = json.loads((run / "plan.json").read_text())
    del plan["site"]
    (run / "plan.json").write_text(json.dumps(plan))
    assert main.main(["rerun", "--dry-run", run.name]) == errors.STORAGE
    assert "The file is damaged: site is missing" in capfd.readouterr().err
    assert main.main(["rerun", "--dry-run", "--site", "slurm", run.name]) == 0
    capfd.readouterr()


def test_nothing_is_imported_from_a_damaged_library(world: World, subtests: pytest.Subtests) -> None:
    """The batch script ends the run before any process of it starts, and why names the reason by its rule."""
    damages: dict[str, Callable[[bytes], bytes] | None] = {
        "intact": lambda archive: archive,
        "one byte": lambda archive: archive[:5000] + bytes([archive[5000] ^ 1]) + archive[5001:],
        "its end": lambda archive: archive[:-1] + b"g",
        "cut": lambda archive: archive[:-4096],
        "short": lambda archive: archive[:10],
        "zeros": lambda archive: bytes(len(archive)),
        "empty": lambda archive: archive[:0],
        "missing": None,
        "folder": None,
        "pipe": None,
    }
    for name, damage in damages.items():
        with subtests.test(name):
            directory = world.submit("--ranks", "1")
            library = directory / "lib.zip"
            archive = library.read_bytes()
            library.unlink()
            if damage:
                library.write_bytes(damage(archive))
            elif name == "folder":
                library.mkdir()
            elif name == "pipe":
                os.mkfifo(library)
            srun = world.top / f"srun-{name}"
            srun.mkdir()
            (srun / "srun").write_text('#!/bin/sh\n: >"$0-began"\nexit 3\n')
            (srun / "srun").chmod(0o755)
            (job,) = [key for key, facts in world.jobs().items() if facts["script"] == str(directory / "job.sh")]
            environment = {
                "SLURM_JOB_ID": job,
                "SLURM_CPUS_ON_NODE": "1",
                "SLURM_JOB_NODELIST": "n1",
                "PATH": f"{srun}:/usr/bin:/bin",
            }
            done = subprocess.run(
                ["bash", directory / "job.sh"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=240,
            )
            world.set_job(job, state="FAILED")
            assert (srun / "srun-began").exists() == (name == "intact"), done.stderr
            if name == "intact":
                continue
            assert done.returncode == errors.STORAGE
            assert "hpcml: damaged or missing: " in done.stderr
            facts = world.answers("why", directory.name)
            assert facts["rule"] == "damaged-library", facts
            assert f"hpcml rerun {directory.name}" in facts["next_step"]
            assert world.answers("status", directory.name)["exit_status"] == errors.STORAGE
