"""``--profile``: which profilers are asked for, what is refused, and what opens what they recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.cli import submit
from hpcml.cli.commands import build_parser
from hpcml.errors import ScriptError, UsageError
from hpcml.kinds.dask import plan as workers
from hpcml.kinds.dask.options import asked
from hpcml.node import profilers
from hpcml.paths import RunPaths
from hpcml.plan.plan import RunLocation, plan
from hpcml.report import attempts
from hpcml.request.record import RunRequest
from hpcml.runs import script_checks
from hpcml.sites import schema
from matrix import site_of
from node_settings import settings as settings_of

PLACE = RunLocation(Path("/runs/job-20261121-074500-1a2b"), "/usr/bin/python3", "0")


def spec(profile: str, gpus: int = 0) -> RunRequest:
    return RunRequest.of(Path("/x/job.py"), (), Path("/x"), profile=profile, gpus_per_node=gpus)


def site() -> schema.Site:
    return site_of({"scheduler": "slurm", "name": "one", "partitions": {"gpu": {"gpus_per_node": 4}}})


def test_the_words(subtests: pytest.Subtests) -> None:
    for text, expected in (
        ("", ()),
        ("dask", ("dask",)),
        ("memray, dask,dask", ("dask", "memray")),
        ("rmm,nsys,memray,dask", ("dask", "memray", "nsys", "rmm")),
    ):
        with subtests.test(text=text):
            assert workers.profilers(spec(text, gpus=1)) == expected
    for text, words in (
        ("memory", "Unknown profiler 'memory'"),
        ("dask,", "Unknown profiler ''"),
        ("rmm", "needs GPUs"),
    ):
        with subtests.test(text=text), pytest.raises(UsageError, match=words):
            workers.profilers(spec(text))


def test_a_repeated_option_and_what_slurm_calls_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text("#SBATCH --profile=task\n")
    monkeypatch.chdir(tmp_path)
    for words, expected in ((["--profile", "rmm", "--profile=dask"], "rmm,dask"), ([], "")):
        options = build_parser("submit").parse_args(words)
        options.caller, options.script_words, options.parser = None, ["job.py"], build_parser("submit")
        assert asked(submit.script_spec(options)).profile == expected


def test_the_plan_has_rmm_log_into_the_run() -> None:
    made: Any = plan(site(), spec("rmm", gpus=2), PLACE).inside
    assert made.report.profilers == ("rmm",)
    assert made.workers.gpu.rmm_log_directory == f"{PLACE.directory}/profiles"
    assert plan(site(), spec("dask", gpus=2), PLACE).inside.workers.gpu == made.workers.gpu._replace(
        rmm_log_directory=""
    )


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(settings=settings_of(report__profilers=("dask", "memray")))
    for name in ("bokeh", "memray"):
        monkeypatch.setitem(sys.modules, name, None)
        assert f"the package {name}, which" in profilers.missing(context)
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__spec__=1))
    assert profilers.missing(context) == ""
    closed = SimpleNamespace(readable=True, certain=True, has=lambda name: name == "bokeh")
    monkeypatch.setattr(script_checks, "_Environment", lambda _: closed)
    script_checks.check_packages(["bokeh"], "/usr/bin/python3", "--profile")
    with pytest.raises(ScriptError, match="lacks the package memray"):
        script_checks.check_packages(["bokeh", "memray"], "/usr/bin/python3", "--profile")
    closed.certain = False  # the nodes will tell
    script_checks.check_packages(["memray"], "/usr/bin/python3", "--profile")


def test_a_place_that_cannot_be_written_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkey = SimpleNamespace(set_log_level=lambda _: None, FileDestination=lambda path, **_: path)
    monkey.Tracker = lambda destination: open(destination, "wb")  # noqa: SIM115 - it is a context manager too
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "memray", monkey)
        with profilers.allocations(tmp_path / "none" / "x.bin"):
            print("goes on")
        with pytest.raises(KeyError), profilers.allocations(tmp_path / "x.bin"):
            raise KeyError
    said = capsys.readouterr()
    assert said.out == "goes on\n"
    assert said.err.startswith("hpcml: memray does not record into ")
    assert (tmp_path / "x.bin").exists()


def test_the_commands(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "a b")
    assert attempts.profile_commands(run) == []
    run.profiles.mkdir(parents=True)
    for name in ("dask.html", "memray-script.0.bin", "memray-worker-n1.7.bin", "memray-worker-n2.8.bin", "other"):
        (run.profiles / name).write_text("")
    (run.profiles / "rmm_log_x.txt").symlink_to("/etc/passwd")
    folder = run.profiles
    assert attempts.profile_commands(run) == [
        f"python -m webbrowser '{folder}/dask.html'",
        f"memray flamegraph '{folder}/memray-script.0.bin'",
        f"memray flamegraph '{folder}/memray-worker-n1.7.bin'  # and 1 more",
    ]
