"""Every file of jobs/workloads/ is known to the tests that go across all jobs, explains itself and has its page."""

from __future__ import annotations

import importlib
import pathlib

import pytest

import kmeans
from gallery import job
from tests.jobs.job_list import JOBS, TOOLS

FOLDER = pathlib.Path(kmeans.__file__).parent
PAGES = FOLDER.parent.parent / "docs/gallery"


def test_the_list_holds_every_job() -> None:
    files = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert files == sorted([*JOBS, *TOOLS]), "give each job its line in tests/jobs/job_list.py"


@pytest.mark.parametrize("name", JOBS)
def test_help_shows_what_all_jobs_have(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    options = ("--out", "--seed", "--any-size", *(("--data",) if JOBS[name].kind else ()))
    assert not [option for option in options if option not in said]
    assert f"jobs/workloads/{name}.py" in said  # how to run it
    assert "Exit status: 0 done; 2 " in said
    assert max(map(len, said.splitlines())) <= 60


@pytest.mark.parametrize("name", JOBS)
def test_each_has_its_page(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    assert f"jobs/workloads/{name}.py" in page
    assert "GPU" in page  # whether it ran on some


def test_what_is_printed_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"input_bytes": 26_548_942, "memory_needed": 3 << 30, "times_the_memory": 1.5, "rows": 1_000_000}
    result |= {"size": 2 << 30, "largest_result": 32}
    job.show({**result, "complete": True, "spilled": {"memory": 0, "disk": 0}, "table": [1, 2]}, pathlib.Path("there"))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "  input bytes      25 MiB",
        "  memory needed    3.0 GiB",
        "  times the memory 1.5",
        "  rows             1,000,000",
        "  size             2.0 GiB",
        "  largest result   32 B",
        "  complete         yes",
        "  spilled          nothing",
        "  results          there",
    ]
