"""The same batch script under plain bash, with real Dask: the script's own status, starts that fail, and the interconnect."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from homes import CONNECT, Here, here, report
from hpcml import errors
from test_repairs import SCRIPT, assert_repaired

__all__ = ["here"]  # the fixture

pytestmark = pytest.mark.local


def test_the_script_s_own_status(here: Here) -> None:
    done = here.submit(
        f"{SCRIPT}    print(facts['sum'])\n    sys.exit(3)\n", "--set", "repairs=true", "--set", "workers.per_node=2"
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == "780\n"
    assert here.json("status")["by"] == "script"
    assert_repaired(here)


# What the machine lacks: options, variables, the exit status, and what is said.
STARTS: dict[str, tuple[tuple[str, ...], dict[str, str], int, tuple[str, ...]]] = {
    "a private folder": ((), {"TMPDIR": "tmp"}, errors.START_FAILED,
                         ("other users may replace the contents of", "Set paths.scratch in the profile, or TMPDIR")),
    "open files": (('runtime.setup=["ulimit -n 100"]', "workers.per_node=16"), {}, errors.START_FAILED,
                   ("can open only 100 files (ulimit -Hn), but 16 workers need 112 open files: use at most 12 workers",)),
    # What a worker needs is measured on the node: Dask gives it no task above a fraction of its limit, here 1 %.
    "memory": (("workers.memory_limit=1GiB",), {"DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "0.01"}, errors.WORKERS_NEVER_CAME,
               ("workers.memory_limit is 1024 MiB, but a worker needs",)),
    "time": (("deadlines.scheduler=0.01s",), {}, errors.START_FAILED, ("did not start within",)),
    "a module": (('runtime.modules=["nope/1"]',), {}, errors.START_FAILED, ("Cannot load the module nope/1",)),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_what_the_machine_lacks_ends_the_start(here: Here, name: str) -> None:
    """And the reason is not in the script's output."""
    options, variables, status, words = STARTS[name]
    (here.folder / "tmp").mkdir()
    (here.folder / "tmp").chmod(0o777)
    here.environment |= {key: value.replace("tmp", str(here.folder / "tmp")) for key, value in variables.items()}
    done = here.submit("print('never')", *(word for option in options for word in ("--set", option)))
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert all(text in done.stderr for text in words), done.stderr
    assert not any(
        one in done.stderr for one in ("without writing a status", "before hpcml recorded how the run ended")
    ), done.stderr
    assert "times" not in done.stderr  # no worker was started to die of it
    said = here.run("logs")
    assert said.stdout == ""
    assert name in ("a module", "a private folder") or words[0] in said.stderr
    if name == "time":
        assert "hpcml: the Dask scheduler" in here.run("logs", "last", "job").stdout


@pytest.mark.skipif(shutil.which("nsys") is not None, reason="nsys is installed")
def test_a_profiler_that_is_not_there(here: Here) -> None:
    done = here.submit("print('never')", "--profile", "nsys")
    assert (done.returncode, done.stdout) == (errors.WORKERS_NEVER_CAME, "")
    assert "needs NVIDIA's nsys on PATH" in done.stderr
    assert not here.events(Path(here.status()["directory"]), "driver-started")


def test_an_interpreter_that_hangs(here: Here) -> None:
    """Also what never became a role is gone in the end."""
    slow = here.folder / "python"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *worker) echo thinking; sleep 1000;; esac\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    done = here.submit(CONNECT, "--set", f"runtime.python='''{slow}'''", "--set", "deadlines.workers=3s")
    assert done.returncode == errors.WORKERS_NEVER_CAME, done.stderr
    assert "local: the workers' parent process did not start" in done.stderr
    assert "thinking" in done.stderr


def test_an_import_that_fails_is_told_by_its_own_words(here: Here) -> None:
    """Not by a question for the interpreter, which is there."""
    broken = here.folder / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("")
    (broken / "cryptography.py").write_text("")
    (broken / "importlib_metadata.py").write_text("")
    (broken / "tempfile.py").write_text("raise ImportError('tempfile is broken here')\n")
    here.environment["PYTHONPATH"] = str(broken)
    done = here.run("submit", "--wait", "--set", f"environment.PYTHONPATH={broken}", here.script("print(1)"))
    assert done.returncode != 0
    assert "tempfile is broken here" in done.stderr
    assert "Check that the interpreter exists" not in done.stderr


def test_an_interpreter_for_another_processor_is_told(here: Here) -> None:
    program = bytearray(Path("/bin/true").read_bytes())
    other, kind = ("x86_64", 62) if os.uname().machine == "aarch64" else ("aarch64", 183)
    program[18:20] = kind.to_bytes(2, "little")
    python = here.folder / "python"
    python.write_bytes(program)
    python.chmod(0o755)
    done = here.submit("print(1)", "--set", f"runtime.python={python}")
    assert done.returncode == errors.START_FAILED, done.stderr
    note, _, end = done.stderr.partition("\n  run ")
    assert f"runtime.python ({python}) is for {other}, but this machine is {os.uname().machine}" in note
    assert f"its interpreter {python} is built for {other}, but local is {os.uname().machine}" in end
    assert here.run("report").returncode == 0
    ending = report(Path(here.status()["directory"]))["ending"]
    assert (ending["state"], ending["exit_status"]) == ("FAILED", errors.START_FAILED)
    assert ending["cause"]


def test_hpcml_fabric_measures_writes_and_draws(here: Here) -> None:
    (here.folder / "json.py").write_text("raise RuntimeError('a module of the user')\n")
    done = here.run("fabric", "--nodes", "1", "--set", "workers.per_node=2", "--set", "network.protocol=ucx")
    assert done.returncode == 0, done.stderr
    run = here.status()
    facts = json.loads((Path(run["directory"]) / "out/fabric.json").read_text())
    assert facts["measurement"]["protocol"] == "ucx"
    assert all(pair["seconds"] > 0 and not pair["error"] for pair in facts["measurement"]["pairs"])
    assert (Path(run["directory"]) / "out/fabric.svg").read_text().startswith("<svg")
    assert facts["verdict"]["line"] in done.stdout
    assert "GiB/s from row to column" in done.stdout
    assert not list((Path(run["directory"]) / "code").glob("**/*.py"))
