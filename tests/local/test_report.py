"""The report of real runs, of each end that a run can have, and its page in a real browser."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pictures"))

import browser

import report_samples
from hpcml.report.make import make

pytestmark = pytest.mark.local

HPCML = str(Path(sys.executable).with_name("hpcml"))
PATIENCE = 120  # seconds
WORK = """
import time
import hpcml
client = hpcml.connect()
end = time.monotonic() + {seconds}
print("works", flush=True)
while time.monotonic() < end:
    client.gather(client.map(lambda x: sum(range(x)), range(100_000, 100_020), pure=False))
"""
BROWSER = pytest.mark.skipif(not shutil.which("chromium") or importlib.util.find_spec("playwright") is None,
                             reason="Chromium or Playwright for Python is not installed")  # fmt: skip


class Place:
    """A home and a folder with a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HPCML_SITE": "local", "LANG": "C.UTF-8"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([HPCML, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              timeout=240, check=False)  # fmt: skip

    def submit(self, text: str, *options: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "job.py").write_text(text)
        return self.run("submit", *options, "job.py")

    def directory(self) -> Path:
        (found,) = (self.folder / ".hpcml/runs").glob("job-*")
        return found

    def until(self, name: str, words: str) -> None:
        """Wait until a file of the run holds some words."""
        path, end = self.directory() / name, time.monotonic() + PATIENCE
        while not path.exists() or words not in path.read_text():
            assert time.monotonic() < end, f"{words} did not come in {path}"
            time.sleep(0.05)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def facts(directory: Path) -> Any:
    """Return report.json, whose ledger adds up."""
    found = json.loads((directory / "report.json").read_text())
    ledger = found["ledger"]
    assert sum(ledger["parts"].values()) == pytest.approx(ledger["paid"], rel=0.01)
    assert ledger["paid"] == pytest.approx(ledger["number"] * (found["end"] - found["began"]) / 3600)
    return found


def test_a_run_that_ended_well(place: Place) -> None:
    done = place.submit(WORK.format(seconds=3), "--wait", "--nodes", "2")
    directory = place.directory()
    assert f"report     {directory}/report.html" in done.stderr
    found = facts(directory)
    assert (found["ending"]["state"], found["ending"]["cause"], found["advice"]) == ("COMPLETED", "", [])
    assert [phase["title"] for phase in found["phases"]] == ["Starting", "Importing", "Interconnect", "Script", "End"]
    assert str(directory / "report.html") in place.run("status").stdout
    assert not (directory / "logs/job.log").exists() or "report" not in (directory / "logs/job.log").read_text()


def test_a_run_whose_script_failed(place: Place) -> None:
    done = place.submit("print(1 / 0)\n", "--wait")
    assert done.returncode == 1
    found = facts(place.directory())
    assert "division by zero" in found["ending"]["cause"]
    assert found["ending"]["evidence"]


def test_a_run_that_failed_in_its_bring_up(place: Place) -> None:
    done = place.submit(WORK.format(seconds=1), "--wait", "--set", "runtime.python=/nowhere/python")
    assert done.returncode == 80
    assert place.run("report").returncode == 0
    found = facts(place.directory())
    assert (found["ending"]["state"], found["ending"]["exit_status"]) == ("FAILED", 80)
    assert found["ending"]["cause"]


def test_a_run_that_was_cancelled(place: Place) -> None:
    place.submit(WORK.format(seconds=600), "--detach")
    place.until("logs/driver.log", "works")
    assert place.run("cancel", "last").returncode == 0
    place.run("wait", "last")
    found = facts(place.directory())
    assert found["ending"]["state"] == "CANCELLED"
    assert [phase["kind"] for phase in found["phases"]][-2:] == ["script", "tail"]


def test_a_run_that_reached_its_time_limit(place: Place) -> None:
    done = place.submit(WORK.format(seconds=600), "--wait", "--time", "10s")
    assert done.returncode == 85
    assert facts(place.directory())["ending"]["state"] == "TIMEOUT"


def test_a_run_whose_supervisor_was_killed(place: Place) -> None:
    place.submit(WORK.format(seconds=600), "--detach")
    place.until("logs/driver.log", "works")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, run = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if words.endswith(b"hpcml.node\0driver\0") and str(place.directory()).encode() in run:
            os.kill(int(process.name), signal.SIGKILL)
    place.run("wait", "last")
    assert not (place.directory() / "report.html").exists()
    done = place.run("report")
    assert done.stdout.strip() == str(place.directory() / "report.html"), done.stderr
    found = facts(place.directory())
    assert found["ending"]["exit_status"] != 0
    assert found["ending"]["cause"]


@BROWSER
@pytest.mark.parametrize("shape", [report_samples.EXAMPLE, report_samples.Shape(nodes=4, gpus=0), report_samples.Shape(samples=False)],
                         ids=["8 GPUs", "CPUs", "no samples"])  # fmt: skip
def test_the_page_in_a_browser(tmp_path: Path, shape: report_samples.Shape) -> None:
    """It asks for nothing, complains of nothing, fits narrow and wide windows, shows values, and prints."""
    page = make(report_samples.write(tmp_path / "run", shape), 0)
    with browser.page(1400, 900) as shown:
        said: list[str] = []
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("request", lambda request: said.append(request.url) if request.url != page.as_uri() else None)
        for width in (600, 1400):
            shown.set_viewport_size({"width": width, "height": 900})
            shown.goto(page.as_uri())
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert shown.evaluate(
            "[...document.querySelectorAll('svg.lines')].every(s => s.querySelector('polyline, circle'))"
        )
        plots = shown.locator("svg.lines")
        assert bool(plots.count()) == shape.samples
        if plots.count():
            plots.first.hover()
            assert " %" in shown.locator("#tip").inner_text() or shape.gpus == 0
            assert shown.locator("#tip").is_visible()
        colours = []
        for scheme in ("light", "dark"):
            shown.emulate_media(color_scheme=scheme)
            colours.append(shown.evaluate("getComputedStyle(document.body).backgroundColor"))
        shown.emulate_media(color_scheme="dark", media="print")
        colours.append(shown.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert colours == ["rgb(255, 255, 255)", "rgb(13, 17, 23)", "rgb(255, 255, 255)"]
        names = "[...document.querySelectorAll('.key')].map(one => getComputedStyle(one).backgroundColor)"
        printed = shown.evaluate(names)
        shown.emulate_media(color_scheme="light", media="screen")
        assert shown.evaluate(names) == printed
        assert said == []
