"""Scripts that open their own Dask cluster, unchanged on four nodes: what they give alone, and a note for each opening."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent / "idioms"
ELSEWHERE = Path(__file__).parents[1] / "local" / "idioms"  # what cannot run alone tells itself whether it is right
SALLOC = ("salloc", "--quiet", "--partition=boost", "--nodes=4", "--time=10", "--mem=3000M")
GIVEN = "this run's 4 workers on 4 nodes are used."
# What is noted of each: what was called, in which line. A task's own client is the run's, without a note.
NOTES = {
    "futures": ["Client 90", "Client 84"],
    "clusters": ["LocalCluster 11", "scale 12", "LocalCluster 25", "adapt 26", "Client 34", "Client 36"],
    "learning": ["Client 18"],
    "event_loop": ["LocalCluster 12", "Client 16"],
    "unguarded": ["LocalCluster 6"],
    "slurm_cluster": ["SLURMCluster 30", "scale 40"],
    "slurm_runner": ["SLURMRunner 6"],
    "mpi": ["dask_mpi.initialize 6"],
    "scheduler_file": ["Client 7"],
    "old_address": ["Client 6"],
    "site_cluster": ["SiteCluster 11", "scale 15", "SpecCluster 21"],
}
ALONE = ("futures", "clusters", "learning", "event_loop")
IN_THE_IMAGE = ("clusters", "slurm_runner", "mpi")
ARGUMENTS = {"scheduler_file": "of-last-week.json"}


@dataclass
class Outcome:
    """What a script gave: its exit status, and the lines that it and hpcml wrote."""

    status: int
    lines: list[str]

    def said(self, word: str) -> list[str]:
        return [line.removeprefix(word).strip() for line in self.lines if line.startswith(word)]


def run_all(cluster: Cluster, folder: str, names: tuple[str, ...], command: str) -> dict[str, Outcome]:
    """Run scripts one after another in one shell, each with its own output and status."""
    lines = []
    for name in names:
        source = next(path for path in (HERE / f"{name}.py", ELSEWHERE / f"{name}.py") if path.exists())
        path = cluster.write(f"{folder}/{name}.py", source.read_text())
        lines.append(f"{command} {name}.py {ARGUMENTS.get(name, '')} >{name}.out 2>&1; echo $? >{name}.status")
    words = ("bash", "-c", "\n".join(lines))
    done = cluster.run(*(SALLOC if "hpcml" in command else ()), *words, cwd=path.parent, timeout=240 + 60 * len(names))
    assert done.returncode == 0, done.stderr
    found = {}
    for name in names:
        text = cluster.run("cat", f"{name}.status", f"{name}.out", cwd=path.parent).stdout.splitlines()
        found[name] = Outcome(int(text[0]), text[1:])
    return found


@pytest.fixture(scope="module")
def on_nodes(cluster: Cluster) -> dict[str, Outcome]:
    """One allocation of four nodes for all scripts."""
    return run_all(cluster, "idioms/nodes", tuple(NOTES), "hpcml run")


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> dict[str, Outcome]:
    return run_all(cluster, "idioms/alone", ALONE, "python")


@pytest.fixture(scope="module")
def in_the_image(cluster: Cluster, image: Path) -> dict[str, Outcome]:
    return run_all(cluster, "idioms/image", IN_THE_IMAGE, f"hpcml run --image {shlex.quote(str(image))}")


def check(outcome: Outcome, notes: list[str]) -> None:
    text = "\n".join(outcome.lines)
    assert outcome.status == 0, text
    assert not re.search("WARNING|Traceback|Exception", text), text
    other = re.compile(": the (scheduler that answers there|workers do not get)|: clusters opened before have the same")
    said = [note for note in outcome.said("hpcml:") if not other.search(note)]
    assert all(note.endswith(GIVEN) for note in said), said
    assert [re.sub(r"\(.*\) in line", "", note.rpartition(": this")[0]) for note in said] == notes


@pytest.mark.parametrize("name", NOTES)
def test_a_script_on_four_nodes(on_nodes: dict[str, Outcome], name: str) -> None:
    check(on_nodes[name], NOTES[name])
    (result,) = on_nodes[name].said("result ")
    assert name in ALONE or result == "True"


@pytest.mark.parametrize("name", ALONE)
def test_the_result_is_that_of_plain_python(on_nodes: dict[str, Outcome], alone: dict[str, Outcome], name: str) -> None:
    """Not its status: Dask's own cluster gives its workers 5 s to end, which on a busy machine fails."""
    assert alone[name].said("result "), alone[name].lines
    assert on_nodes[name].said("result ") == alone[name].said("result ")


def test_the_work_is_on_all_nodes(on_nodes: dict[str, Outcome]) -> None:
    assert on_nodes["futures"].said("places ") == ["4 4"]


@pytest.mark.parametrize("name", IN_THE_IMAGE)
def test_a_script_in_the_image(in_the_image: dict[str, Outcome], on_nodes: dict[str, Outcome], name: str) -> None:
    check(in_the_image[name], NOTES[name])
    assert in_the_image[name].said("result ") == on_nodes[name].said("result ")
