"""The end at a real time limit. Slurm's shortest is a minute and it looks twice a minute, so all runs share one minute."""

from __future__ import annotations

import time

import pytest

import lab_image
from conftest import Cluster, Ended, directory_of, left_of_containers
from hpcml import errors
from lab_state import wait_for
from test_exit_status import CONNECT, slurm_exit

pytestmark = pytest.mark.lab

UNTIL_TOLD = CONNECT + "while not hpcml.run.should_stop():\n    time.sleep(0.2)\n"
STAYS = UNTIL_TOLD + "print('told', flush=True)\ntime.sleep(300)\n"
HEEDS = UNTIL_TOLD + "print('stopped in time')\n"
# Two runs fit on a node beside each other.
ASKED = ("--wait", "--nodes", "2", "--cpus-per-node", "4", "--memory-per-node", "1900M", "--time", "1")


@pytest.fixture(scope="module")
def ended(cluster: Cluster) -> dict[str, Ended]:
    """All runs of this module, started at the same moment and each waited for to its end."""
    cluster.wait_idle(30)
    asked: dict[str, tuple[str, ...]] = {
        "stays": (STAYS, "--set", "slurm.signal_lead=30s"),
        "heeds": (HEEDS, "--set", "slurm.signal_lead=50s"),
    }
    if not lab_image.reason_against(cluster.lab.places):
        image = lab_image.image(cluster.lab.places)
        asked["stays inside"] = (STAYS, "--set", "slurm.signal_lead=30s", "--image", str(image))
    commands = [cluster.command(text, *ASKED, *options) for text, *options in asked.values()]
    began = time.monotonic()
    together = zip(asked, cluster.run_together(commands, timeout=200), strict=True)
    took = time.monotonic() - began
    return {name: Ended(done.returncode, done.stdout, done.stderr, directory_of(done), took) for name, done in together}


@pytest.mark.parametrize("where", ["", " inside"])
def test_the_time_limit(cluster: Cluster, ended: dict[str, Ended], where: str, request: pytest.FixtureRequest) -> None:
    """The script is told before (should_stop), then ended by Slurm; the run says it was the time limit."""
    if where:
        request.getfixturevalue("image")  # or the reason why there is none
    stays = ended[f"stays{where}"]
    assert stays.code == errors.TIME_LIMIT, stays.err
    assert "told" in stays.out
    assert stays.status["message"] == "the time limit was reached"
    assert "Ask for more with --time" in stays.err
    assert slurm_exit(cluster, stays.directory).startswith("TIMEOUT")
    cluster.wait_idle(60)
    assert wait_for(lambda: not left_of_containers(cluster), 10), left_of_containers(cluster)


def test_a_script_that_heeds_the_time_limit_ends_well(cluster: Cluster, ended: dict[str, Ended]) -> None:
    heeds = ended["heeds"]
    assert heeds.code == 0, heeds.err
    assert "stopped in time" in heeds.out
    assert slurm_exit(cluster, heeds.directory) == "COMPLETED 0:0"
