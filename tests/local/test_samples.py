"""What a run says of its own use: samples that grow and add up, and whose loss changes nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hpcml import samples
from hpcml.paths import RunPaths
from test_local import CONNECT, Here, here  # noqa: F401 - the fixture

pytestmark = pytest.mark.local

MIB = 1 << 20


def of_the_run(directory: Path) -> tuple[samples.NodeSeries, samples.DaskSeries]:
    attempt = RunPaths(directory).attempt(0)
    (series,) = samples.nodes(attempt).values()
    dask = samples.dask(attempt)
    assert dask is not None
    return series, dask


def directory(here: Here) -> Path:  # noqa: F811
    return Path(here.status()["directory"])


def test_spilled_bytes_of_a_worker_over_its_limit(here: Here) -> None:  # noqa: F811
    text = CONNECT + (
        "def hold(number):\n    return bytes([number]) * (60 << 20)\n"
        "held = client.map(hold, range(12))\nfrom distributed import wait\nwait(held)\n"
        "deadline = time.monotonic() + 60\n"
        "def spilled(dask_worker):\n    return dask_worker.data.spilled_total.disk\n"
        "while not sum(client.run(spilled).values()) > 100 << 20 and time.monotonic() < deadline:\n    time.sleep(0.1)\n"
        "time.sleep(2.5)\n"
    )
    done = here.submit(text, "--set", "workers.threads=1", "--set", "workers.memory_limit=900M")
    assert done.returncode == 0, done.stderr
    _, dask = of_the_run(directory(here))
    assert max(worker.spilled or 0 for sample in dask.samples for worker in sample.workers.values()) > 100 * MIB
    assert dask.samples[-1].metrics["spill_bytes"] > 100 * MIB


def test_without_samples(here: Here) -> None:  # noqa: F811
    done = here.submit(CONNECT + "print(1)\n", "--set", "report.sample_every=0s")
    assert done.returncode == 0, done.stderr
    assert not RunPaths(directory(here)).attempt(0).samples.exists()


@pytest.mark.parametrize("way", ["removed", "a file", "a pipe"])
def test_a_folder_of_samples_that_vanishes(here: Here, way: str) -> None:  # noqa: F811
    """The run ends as ever; a folder that was removed is made again, what stands in its way is left alone."""
    text = CONNECT + (
        "import pathlib\ngone = pathlib.Path('gone')\ndeadline = time.monotonic() + 60\n"
        "while not gone.exists() and time.monotonic() < deadline:\n    time.sleep(0.1)\n"
        "time.sleep(2.5)\nprint(client.submit(lambda: 6 * 7).result())\n"
    )
    _, run = here.detach(text)
    attempt = RunPaths(run).attempt(0)
    here.until(lambda: samples.nodes(attempt) and samples.dask(attempt))
    shutil.rmtree(attempt.samples)
    if way == "a file":
        attempt.samples.write_text("in the way")
    elif way == "a pipe":
        attempt.samples.mkdir()
        os.mkfifo(attempt.dask_samples)
        (attempt.samples / "nodes").write_text("in the way")
    (here.folder / "gone").touch()
    done = here.run("wait", "last")
    assert done.returncode == 0, done.stderr
    assert "42" in (run / "logs/driver.log").read_text()
    here.until(lambda: not here.left(), 10)
    if way == "removed":
        assert samples.nodes(attempt)
    if way == "a file":
        assert attempt.samples.read_text() == "in the way"
        assert "no samples are written" in "".join(path.read_text() for path in (run / "logs").glob("worker-*.log"))
