"""Every file of jobs/workloads/ is known to the tests that go across all jobs, explains itself."""

from __future__ import annotations

import contextlib
import importlib
import math
import pathlib

import pytest
from distributed import Client

import hpcml
import kmeans
from gallery import datasets, job
from tests.jobs.job_list import JOBS, TOOLS
from tests.jobs.job_tests import RunJob

FOLDER = pathlib.Path(kmeans.__file__).parent


assert {path.stem for path in FOLDER.glob("*.py")} == {*JOBS, *TOOLS}, (
    "give each job its line in tests/jobs/job_list.py"
)


def test_help_shows_what_all_jobs_have(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for name, listed in JOBS.items():
        with subtests.test(job=name):
            with pytest.raises(SystemExit) as ended:
                importlib.import_module(name).main(["--help"])
            assert ended.value.code == 0
            said = capsys.readouterr().out
            options = ("--out", "--seed", "--any-size", *(("--data",) if listed.kind else ()))
            assert not [option for option in options if option not in said]
            assert f"jobs/workloads/{name}.py" in said  # how to run it
            assert "Exit status: 0 done; 2 " in said
            assert max(map(len, said.splitlines())) <= 60


def test_what_is_printed_is_the_result_its_picture_and_the_time(
    run_job: RunJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "LONG", math.inf)  # a phase that is long has a line of its own
    found, out = run_job(kmeans, "--rows", "600", "--k", "3", "--elbow", "2-6")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-5] == found["notes"]
    *shown, time, figures = lines[-5:]
    title = f"k-means: 3 clusters, 600 rows, inertia {found['inertia']:.5g}"
    assert shown == [title, f"picture: {out / 'kmeans.png'}", f"picture: {out / 'elbow.png'}"]
    seconds = found["seconds"]
    longest = sorted(seconds, key=lambda phase: -seconds[phase])[:3]
    told = ", ".join(f"{phase} {seconds[phase]:,.1f}" for phase in longest)
    assert time == f"time: {sum(seconds.values()):,.1f} s ({told})"
    assert figures == f"all figures: {out / 'result.json'}"


def test_made_data_lies_where_all_nodes_see_it_and_goes_at_the_end(
    client: Client, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Beside the run's own folder for results, hidden in another one; also where the job fails or is told to stop."""
    options = job.Parser("test", "", rows=100).options([])
    seen: list[pathlib.Path] = []

    def work(running: job.Job) -> None:
        seen.append(pathlib.Path(datasets.made(running, "blobs", features=2)))
        assert (seen[-1] / "truth.json").exists()
        seen.append(running.out)
        raise endings[-1]

    monkeypatch.setattr(type(hpcml.run), "out", property(lambda _: tmp_path / "run/out"))
    endings: list[Exception] = []
    for ending, status in ((job.StopSoonError("read"), 3), (job.RefusedError("no."), 2), (ValueError("x"), None)):
        for out in (None, tmp_path / "elsewhere"):
            with subtests.test(ending=type(ending).__name__, out=out):
                endings.append(ending)
                options.out = out
                with contextlib.nullcontext() if status else pytest.raises(ValueError, match="x"):
                    assert job.run("test", options, work) == status
                made, results = seen[-2:]
                if out:
                    assert made.relative_to(results).parts[0].startswith(".test-data-")
                else:
                    assert made.relative_to(results.parent).parts[0].startswith("test-data-")
                assert not made.exists()
                assert {path.name for path in tmp_path.rglob("*")} <= {"run", "out", "elsewhere", "result.json"}


def test_a_wrong_option_is_one_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    """Each job has its options judged at one place; what describes made data is refused beside --data."""
    wrong = {
        "kmeans": "--tol 1, --tol x, --tol nan, --k 0, --k two, --seed -1, --seed 4294967296, --elbow 2-3, --rows 5 --data x",
        "dbscan": "--eps 0, --eps inf, --min-samples 0, --rows 5 --data x",
        "linear": "--what magic, --alpha 0, --c -1, --tol 0, --l1-ratio 1.1, --l1-ratio -0.1, --features 3 --data x",
        "naive_bayes": "--alpha 0, --words 9 --data x, --classes 2 --data x",
        "search": "--folds 1, --folds 256, --features 3 --data x, --tries 3",
        "to_torch": "--rate 0, --rate 1.1, --features 3 --data x",
        "xgboost_train": "--rate 0, --rate 1.1, --features 3 --data x",
        "etl": "--form csv --data x",
        "forest": "--features 3 --data x",
        "neighbors": "--features 3 --data x",
        "pca_svd": "--missing 1, --missing -0.1, --storage packed --dtype float32, --raw --what pca",
        "score": "--model m",
        "preprocess": "--nix",
    }
    for name, lines in wrong.items():
        for line in lines.split(", "):
            with subtests.test(job=name, line=line):
                with pytest.raises(SystemExit) as ended:
                    importlib.import_module(name).parse(line.split())
                said = capsys.readouterr().err
                assert ended.value.code == 2
                assert said.startswith(f"{name}: ")
                assert said.count("\n") == 1
                assert line.split()[0] in said or name == "score"
    assert kmeans.parse(["--tol", "0", "--seed", "4294967295", "--rows", "1_000", "--features", "3"]).rows == 1000
    importlib.import_module("linear").parse(["--l1-ratio", "1", "--tol", "1e-9"])
