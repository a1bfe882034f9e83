"""``--profile``: which profilers are asked for, what is refused, and what opens what they recorded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.errors import ScriptError, UsageError
from hpcml.kinds.dask.login import plan as workers
from hpcml.node import profilers
from hpcml.plan.make_plan import RunLocation, plan
from hpcml.request.record import RunRequest
from hpcml.runs import packages
from matrix import site_of
from node_settings import settings as settings_of


def spec(profile: str, gpus: int = 0) -> RunRequest:
    return RunRequest.of(Path("/x/job.py"), (), Path("/x"), profile=profile, gpus_per_node=gpus)


def test_the_words(subtests: pytest.Subtests) -> None:
    for text, expected in (
        ("", ()),
        ("memray, dask,dask", ("dask", "memray")),
        ("rmm,nsys,memray,dask", ("dask", "memray", "nsys", "rmm")),
    ):
        with subtests.test(text=text):
            assert workers.profilers(spec(text, gpus=1)) == expected
    for text, words in (
        ("memory", "Unknown profiler 'memory'"),
        ("dask,", "Unknown profiler ''"),
        ("rmm", "rmm needs GPUs"),
        ("ncu", "ncu needs GPUs"),
        ("ncu,nsys", "cannot profile the same process"),
    ):
        with subtests.test(text=text), pytest.raises(UsageError, match=words):
            workers.profilers(spec(text, gpus="nsys" in text))


def test_the_plan_has_rmm_log_into_the_run() -> None:
    site = site_of({"scheduler": "slurm", "name": "one", "partitions": {"gpu": {"gpus_per_node": 4}}})
    place = RunLocation(Path("/runs/job-20261121-074500-1a2b"), "/usr/bin/python3", "0")
    made: Any = plan(site, spec("rmm", gpus=2), place).inside
    assert made.report.profilers == ("rmm",)
    assert made.workers.gpu.rmm_log_directory == f"{place.directory}/profiles"


def test_the_program_around_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is started once, refused with a sentence if it is missing or cannot start, and is no matter of the workers."""
    started: list[list[str]] = []
    monkeypatch.setattr(
        "os.execvpe", lambda _, command, environment: started.append([environment["HPCML_NSYS"], *command])
    )
    for name, output in (("ncu", "--export"), ("nsys", "--output")):
        context: Any = SimpleNamespace(settings=settings_of(report__profilers=(name,)), node="n1", number=0)
        context.run = SimpleNamespace(profiles=tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path / "none"))
        assert f"needs NVIDIA's {name} on PATH" in profilers.missing(context)
        monkeypatch.setenv("PATH", str(tmp_path))
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o700)
        assert profilers.missing(context) == ""
        assert profilers.enter(context) == ""
        inside, program, *words = started.pop()
        assert (inside, program) == ("1", name)
        assert f"{output}={tmp_path}/{name}-n1.0" in words
        assert sys.executable in words
        monkeypatch.setenv("HPCML_NSYS", "1")
        assert profilers.enter(context) == ""
        assert not started
        assert "HPCML_NSYS" not in os.environ
    monkeypatch.undo()
    context.settings = settings_of(report__profilers=("ncu",))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert profilers.enter(context) == "ncu cannot be started: No such file or directory"


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(settings=settings_of(report__profilers=("dask", "memray")))
    for name in ("bokeh", "memray"):
        monkeypatch.setitem(sys.modules, name, None)
        assert f"the package {name}, which" in profilers.missing(context)
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__spec__=1))
    assert profilers.missing(context) == ""
    closed = SimpleNamespace(
        readable=True, certain=True, lacking=lambda names: [name for name in names if name != "bokeh"]
    )
    monkeypatch.setattr(packages, "Environment", lambda _: closed)
    packages.check_packages(["bokeh"], "/usr/bin/python3", "--profile")
    with pytest.raises(ScriptError, match="lacks the package memray"):
        packages.check_packages(["bokeh", "memray"], "/usr/bin/python3", "--profile")
    closed.certain = False  # the nodes will tell
    packages.check_packages(["memray"], "/usr/bin/python3", "--profile")


def test_a_place_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memray = SimpleNamespace(set_log_level=lambda _: None, FileDestination=lambda path, **_: path)
    memray.Tracker = lambda destination: open(destination, "wb")  # noqa: SIM115 - it is a context manager too
    monkeypatch.setitem(sys.modules, "memray", memray)
    with profilers.allocations(tmp_path / "none" / "x.bin"):
        print("goes on")
    with pytest.raises(KeyError), profilers.allocations(tmp_path / "x.bin"):
        raise KeyError
    said = capsys.readouterr()
    assert said.out == "goes on\n"
    assert said.err.startswith("hpcml: memray does not record into ")
    assert (tmp_path / "x.bin").exists()
