"""What another account can try against a batch script that runs as it is: its copy, its output, its steps, hpcml's agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Cluster
from lab_state import wait_for
from test_attacks_nodes import NODES, clean, read_files_and_processes, refused, send_junk_to_link
from test_losses import roles
from tests.looks import without_late_report

pytestmark = pytest.mark.lab

WORD_OF_ALICE = "alices-password-0123456789"
SCRIPT = """#!/bin/bash
#SBATCH --time=10 --mem=900M --cpus-per-task=2 {lines}
trap 'echo told to end; exit 9' TERM
echo before
{step}
touch "$HPCML_RUN_DIR/out/began"
until [ -e "$HPCML_RUN_DIR/out/enough" ]; do sleep 0.1; done
echo after
"""
TWO_NODES = "--nodes=2 --nodelist=n1,n2 --ntasks-per-node=1 --output=%x.txt"
STEP = "srun sh -c 'while :; do echo tick; sleep 0.5; done' &"
# Replaces files of the victim's, once each has a line: by a FIFO, by a link, by a file of hers. Arguments: FILE KIND WHAT...
SWAP = r"""
import json, os, sys, time
os.umask(0)
left, end, tries = [sys.argv[n:n + 3] for n in range(1, len(sys.argv), 3)], time.monotonic() + 120, 0
print("planted", flush=True)
while left and time.monotonic() < end:
    for one in list(left):
        path, kind, what = one
        if not os.path.lexists(path): continue
        os.unlink(path)
        os.mkfifo(path) if kind == "pipe" else os.symlink(what, path)
        tries += 1
        left.remove(one)
print(json.dumps({"tries": tries, "won": [f"{one} never came" for one in left]}))
"""


@pytest.fixture(scope="module", autouse=True)
def _planted_is_removed(cluster: Cluster) -> Iterator[None]:
    clean(cluster)
    yield
    clean(cluster)
    cluster.run("scancel", "--me", "--quiet")
    cluster.wait_idle(60)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: a run of this module outlives its tests."""


@pytest.fixture
def open_to_all(cluster: Cluster) -> Iterator[Path]:
    """A folder of root's in which everybody may replace what others have."""
    place = cluster.lab.places.top / "open-to-all"
    cluster.run("rm", "-rf", str(place), user="root")
    cluster.run("mkdir", "-m", "777", str(place), user="root")
    yield place
    cluster.run("rm", "-rf", str(place), user="root")


def submit(cluster: Cluster, name: str, lines: str, *options: str, step: str = "") -> tuple[str, Path]:
    script = cluster.write(f"{name}/job.sh", SCRIPT.format(lines=lines, step=step))
    words = ("hpcml", "submit", "--json", "--detach", *options, str(script))
    done = cluster.run(*words, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    return facts["job"], Path(facts["directory"])


def wait_began(cluster: Cluster, directory: Path) -> None:
    cluster.wait_event(directory, "script-ready", 90)
    assert wait_for((directory / "out/began").exists, 60)


# -- its output in a folder that others may write --------------------------------------------------------------------------


def test_output_that_is_swapped_is_copied_and_holds_up_nothing(cluster: Cluster, open_to_all: Path) -> None:
    """At once when Slurm has made the files: a FIFO in the place of one, a link to a secret in that of the other.

    The script's own lines are copied. At a cancellation hpcml looks for Slurm's reason there, and does not wait.
    """
    secret = cluster.write("secret", WORD_OF_ALICE)
    out, err = open_to_all / "job.out", open_to_all / "job.err"
    words = ["python3", "-c", SWAP, str(out), "pipe", "", str(err), "link", str(secret)]
    thief = cluster.lab.popen(words, user="mallory")
    assert thief.stdout is not None
    assert thief.stdout.readline() == "planted\n"
    job, directory = submit(cluster, "swapped", f"--nodes=1 --output={out} --error={err}", step="echo problem >&2")
    try:
        wait_began(cluster, directory)
        said, _ = thief.communicate(timeout=150)
        assert refused(said)["tries"] == 2
    finally:
        thief.kill()
        cluster.run("scancel", job)
    end = cluster.wait_status(directory)
    assert end["state"] == "CANCELLED", end
    log = (directory / "logs/script.log").read_text()
    assert sorted(line for line in log.splitlines() if "slurmstepd" not in line) == ["before", "problem", "told to end"]
    assert WORD_OF_ALICE not in "".join(path.read_text() for path in directory.glob("logs/*"))
    assert cluster.run("cat", str(secret)).stdout == WORD_OF_ALICE


def test_output_in_a_file_of_mallory_s_does_not_fill_the_run(cluster: Cluster, open_to_all: Path) -> None:
    """She lets it grow to a terabyte while the script runs: nothing is copied, and the run says so."""
    out = open_to_all / "job.out"
    cluster.run("sh", "-c", f"umask 0; : >{out}", user="mallory")
    _, directory = submit(cluster, "hers", f"--nodes=1 --open-mode=append --output={out}")
    wait_began(cluster, directory)
    grown = cluster.run("truncate", "--size=1T", str(out), user="mallory")
    assert grown.returncode == 0, grown.stderr
    (directory / "out/enough").touch()
    end = cluster.wait_status(directory)
    assert end["exit_status"] == 0, end
    log = directory / "logs/script.log"
    assert not log.exists() or log.stat().st_size == 0
    warning = f"hpcml logs has no copy of the output in {out}. The file belongs to another user."
    assert warning in end["warnings"], end


# -- while a run is up -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def up(cluster: Cluster) -> Iterator[tuple[str, Path]]:
    """A script on two nodes with a step of its own, which survives what is tried until the last test."""
    found = submit(
        cluster,
        "up",
        TWO_NODES,
        "--env",
        f"PASSWORD={WORD_OF_ALICE}",
        step=STEP,
    )
    wait_began(cluster, found[1])
    assert wait_for(lambda: all(roles(cluster, found[1], "agent", node) for node in NODES), 60)
    yield found
    (found[1] / "out/enough").touch()
    end = cluster.wait_status(found[1])
    assert end["exit_status"] == 0, end
    assert not without_late_report(end.get("warnings", ())), end
    assert list(found[1].glob("attempts/*/secret/*")) == []


def test_files_and_processes_of_a_batch_script(cluster: Cluster, up: tuple[str, Path]) -> None:
    """The copy of the script, the environment, the link's key, the log, and both agents."""
    _, directory = up
    modes = {
        name: oct((directory / name).stat().st_mode & 0o777) for name in ("slurm_script", "environment.sh", "agents.sh")
    }
    assert modes == {"slurm_script": "0o700", "environment.sh": "0o600", "agents.sh": "0o600"}
    assert (directory / "attempts/0/secret/link.key").stat().st_mode & 0o777 == 0o600
    read_files_and_processes(cluster, directory, "agent", "supervisor")


def test_junk_at_the_port_for_a_batch_script_s_agents(cluster: Cluster, up: tuple[str, Path]) -> None:
    send_junk_to_link(cluster, up[1])


def test_nobody_else_joins_or_signals_its_steps(cluster: Cluster, up: tuple[str, Path]) -> None:
    """Neither the step that overlaps all others nor the script's own."""
    job, directory = up
    tried = [["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "true"],
             *(["scancel", *words] for words in ([job], [f"{job}.0"], [f"{job}.1"], ["--batch", "--signal=TERM", job]))]  # fmt: skip
    for words in tried:
        done = cluster.lab.exec(words, user="mallory", timeout=60)
        assert done.returncode != 0, words
    for step in ("0", "1"):  # its status is 0, also where Slurm lets her see no task
        done = cluster.lab.exec(["sattach", f"{job}.{step}"], user="mallory", timeout=60)
        assert done.stdout == "", step
        assert "no tasks running" in done.stderr, (step, done.stderr)
    assert all(roles(cluster, directory, "agent", node) for node in NODES)
    assert not (directory / "status.json").exists()


def test_no_secret_of_a_batch_script_in_what_is_public(cluster: Cluster, up: tuple[str, Path]) -> None:
    job, directory = up
    keys = [WORD_OF_ALICE, (directory / "attempts/0/secret/link.key").read_bytes().hex()]
    asked = [["scontrol", "show", "job", "-dd", job], ["squeue", "-j", job, "-O", "ALL"], ["scontrol", "show", "step", job],
             ["scontrol", "write", "batch_script", job, "-"], ["ps", "-eww", "-o", "args"], ["ps", "eww", "-e"]]  # fmt: skip
    for node in (*NODES, "login"):
        for words in asked:
            for user in ("mallory", "root") if words[-1] != "-e" else ("mallory",):
                done = cluster.lab.exec(words, node=node, user=user)
                assert not [key for key in keys if key in done.stdout + done.stderr], f"{words} on {node}"
    logs = b"".join(path.read_bytes() for path in (directory / "logs").iterdir())
    assert not [key for key in keys if key.encode() in logs]


# -- job arrays ------------------------------------------------------------------------------------------------------------


# Her directory of a run, $0, whose script leaves a file in $1.
HERS = """
mkdir -p "$0/logs"; chmod 755 "${0%/*}" "$0"; chmod 777 "$0/logs"
echo "touch $1/hers-ran" >"$0/job.sh"; chmod 755 "$0/job.sh"
"""


def test_what_is_hers_in_the_place_of_a_task_never_starts(cluster: Cluster) -> None:
    """The second task waits for the first. Meanwhile its directory is swapped for a link to mallory's script."""
    hers = cluster.lab.home("mallory") / "array"
    cluster.run("sh", "-c", HERS, str(hers), str(cluster.work), user="mallory")
    lines = "--array=0-1%1 --nodes=1 --nodelist=n1"
    script = cluster.write("array/parts.sh", SCRIPT.format(lines=lines, step="").replace("sleep 0.1", "sleep 0.2"))
    done = cluster.run("hpcml", "submit", "--json", "--detach", str(script), cwd=script.parent)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["runs"]
    wait_began(cluster, Path(first["directory"]))
    assert {path.stat().st_mode & 0o777 for path in (Path(one["directory"]) for one in (first, second))} == {0o700}
    for job in (first["job"], second["job"]):  # neither that which runs nor that which waits is hers to end or to join
        for words in (
            ["scancel", job],
            ["scontrol", "update", f"jobid={job}", "timelimit=1"],
            ["scontrol", "hold", job],
        ):
            assert cluster.lab.exec(words, user="mallory", timeout=60).returncode != 0, words
    place = Path(second["directory"])
    cluster.run("mv", str(place), f"{place}.away")
    cluster.run("ln", "-s", str(hers), str(place))
    (Path(first["directory"]) / "out/enough").touch()
    end = cluster.wait_status(Path(first["directory"]))
    assert end["exit_status"] == 0, end
    facts = cluster.job_end(second["job"], 60)
    assert facts["ExitCode"] == "74:0", facts
    assert not (cluster.work / "hers-ran").exists()
    cluster.run("rm", str(place))
    cluster.run("mv", f"{place}.away", str(place))
    cluster.run("chmod", "700", str(hers.parent), user="mallory")
