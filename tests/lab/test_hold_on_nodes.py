"""A kept allocation on nodes: runs beside each other and after each other, what is left of them, its ends, and another account."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import mallory
from conftest import Cluster, directory_of, together
from hpcml import errors
from lab_state import wait_for
from test_attacks_nodes import NODES, clean, read_files_and_processes, send_junk_to_link, tries
from test_inventory import NVML
from test_losses import environment, roles

pytestmark = pytest.mark.lab

WORD_OF_ALICE = "alices-password-0123456789"
ASKED = (
    "--nodes",
    "2",
    "--nodelist",
    "n1,n2",
    "--cpus-per-node",
    "2",
    "--mem",
    "1500M",
    "--time",
    "20m",
    "--idle",
    "off",
)
MEETS = """
import os, pathlib, sys, time
from distributed import Client
if __name__ == "__main__":
    client = Client()
    nodes = sorted({worker["name"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()})
    pathlib.Path(sys.argv[1], os.environ["HPCML_RUN_DIR"].rpartition("/")[2]).touch()
    until = time.monotonic() + 300
    while len(os.listdir(sys.argv[1])) < int(sys.argv[2]) and time.monotonic() < until:
        time.sleep(0.05)
    print(len(os.listdir(sys.argv[1])), *nodes, flush=True)
"""
LEAVES = """
import os, socket, subprocess, sys
subprocess.Popen(["setsid", "sleep", "1234"])
taken = socket.create_server(("127.0.0.1", 23456))
os.environ["LEFT"] = "1"
print(os.environ.get("PASSWORD"), os.environ.get("LEFT"), flush=True)
os.kill(os.getpid(), int(sys.argv[1])) if int(sys.argv[1]) else sys.exit(int(sys.argv[2]))
"""
USES_HELPER = """
import helper
from distributed import Client
if __name__ == "__main__":
    client = Client()
    print(client.submit(helper.value).result(), len(client.run(helper.value)), flush=True)
"""
SHARES = """
import os, pathlib, sys, time
place = pathlib.Path(sys.argv[1], os.environ["HPCML_RUN_DIR"].rpartition("/")[2])
place.write_text(" ".join(os.environ.get(name, "-") for name in ("CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE")))
until = time.monotonic() + 300
while len(os.listdir(sys.argv[1])) < int(sys.argv[2]) and time.monotonic() < until:
    time.sleep(0.05)
print(len(os.listdir(sys.argv[1])), flush=True)
"""
POINT = """
import sys, hpcml
if __name__ == "__main__":
    workers = hpcml.connect().scheduler_info(n_workers=-1)["workers"].values()
    threads, memory = (sum(worker[name] for worker in workers) for name in ("nthreads", "memory_limit"))
    hpcml.run.report(k=int(sys.argv[2]), threads=threads, memory=memory // 2**20)
"""
WAITS = "print('waits', flush=True)\nimport time\ntime.sleep(600)\n"


@pytest.fixture(scope="module", autouse=True)
def _planted_is_removed(cluster: Cluster) -> Iterator[None]:
    clean(cluster)
    yield
    clean(cluster)
    cluster.run("scancel", "--me", "--quiet")
    cluster.wait_idle(60)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the hold of this module outlives its tests."""


@pytest.fixture(scope="module")
def hold(cluster: Cluster) -> Path:
    return started(cluster)


def started(cluster: Cluster, *asked: str) -> Path:
    """Start a hold, and return its directory when it takes runs."""
    done = cluster.run("hpcml", "hold", "--json", *(asked or ASKED))
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    cluster.wait_event(directory, "script-started", 60)
    return directory


def start(cluster: Cluster, text: str, *options: str, env: dict[str, str] | None = None) -> Path:
    words = cluster.command(text)[2:]
    done = cluster.run("hpcml", "run", "--in", "last", "--detach", "--json", *options, *words, env=env)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["run"] == Path(facts["directory"]).name
    return Path(facts["directory"])


def test_two_runs_are_beside_each_other_and_one_has_all_nodes(cluster: Cluster, hold: Path) -> None:
    """Each of the two has a node of its own, which the other's workers are not on."""
    place, alone = (cluster.work / name for name in ("meet", "alone"))
    cluster.run("mkdir", "-p", str(place), str(alone))
    command = ["hpcml", "run", "--in", hold.name]
    script = cluster.command(MEETS)[2:]
    both = together(
        (cluster.lab.popen([*command, "--nodes", "1", *script, str(place), "2"], cwd=cluster.work) for _ in "ab"), 150
    )
    assert [done.returncode for done in both] == [0, 0], [done.stderr for done in both]
    said = sorted(done.stdout.split() for done in both)
    assert [words[0] for words in said] == ["2", "2"], said
    assert len({words[1] for words in said}) == 2, said
    assert [len(words) for words in said] == [2, 2]
    whole = cluster.run(*command, *script, str(alone), "1")
    assert len(whole.stdout.split()) == 3, whole.stdout + whole.stderr
    assert directory_of(whole).exists()


def test_nothing_of_a_run_is_left_for_the_next(cluster: Cluster, hold: Path) -> None:
    """Processes that left the script's group, ports, variables, shared memory and files in /tmp, however it ended."""
    script = cluster.command(LEAVES)[2:]

    def files() -> dict[str, str]:
        return {node: cluster.run("sh", "-c", "ls -A /tmp /dev/shm", node=node).stdout for node in NODES}

    before = files()
    for number, status in (("0", "0"), ("0", "7"), ("11", "0"), ("9", "0")):
        done = cluster.run("hpcml", "run", "--in", hold.name, *script, number, status, env={"PASSWORD": WORD_OF_ALICE})
        assert done.returncode == (128 + int(number) if number != "0" else int(status)), done.stderr
        assert done.stdout.startswith(f"{WORD_OF_ALICE} 1\n")
        left = [line for _, line in cluster.lab.processes("alice") if "sleep 1234" in line or "/code/" in line]
        assert left == []
        assert files() == before
    states = json.loads(cluster.run("hpcml", "status", hold.name, "--json").stdout)
    assert (states["state"], states["runs"], states["nodes_free"]) == ("RUNNING", [], 2)


def test_another_account_gets_nothing_in_or_out(cluster: Cluster, hold: Path) -> None:
    """While one run is in it and one waits: folders, entries with the shell's variables, processes, steps, the port."""
    first = start(cluster, WAITS, env={"PASSWORD": WORD_OF_ALICE})
    assert wait_for(lambda: "waits" in cluster.run("cat", str(first / "logs/script.log")).stdout, 60)
    second = start(cluster, WAITS, env={"PASSWORD": WORD_OF_ALICE})
    entry = hold / "hold/queue" / second.name
    assert WORD_OF_ALICE in entry.read_text()
    assert (hold / "hold/runs" / first.name).read_text() == ""
    modes = {
        str(path.relative_to(hold)): oct(path.stat().st_mode & 0o777) for path in (entry, *(hold / "hold").iterdir())
    }
    assert {mode for name, mode in modes.items() if name.count("/") == 1} == {"0o700"}
    assert modes[str(entry.relative_to(hold))] == "0o600"
    new, ended = hold / "hold/queue/x-20260101-000000-0000", hold / "hold/told" / first.name
    job = json.loads((hold / "submission.json").read_text())["job"]
    tried = [f"cat {entry}", f"ls {hold / 'hold'}", f"ls {hold / 'hold/queue'}", f"touch {new}", f"rm -f {entry}", f"mv {entry} {new}",
             f"touch {ended}", f"chmod 777 {hold / 'hold'}", f"ln -s /etc/passwd {new}", f"mkdir {hold / 'hold/closed'}",
             f"hpcml run --set paths.runs={hold.parent} --in {hold.name} {cluster.work}/script1.py",
             f"srun --jobid={job} --overlap --nodes=1 --ntasks=1 true", f"scancel {job}"]  # fmt: skip
    for node in ("login", *NODES):
        for command in tried:
            done = cluster.lab.exec(["sh", "-c", command], node=node, user="mallory", timeout=60)
            assert done.returncode != 0, (node, command)
            assert WORD_OF_ALICE not in done.stdout + done.stderr
    shown = [["scontrol", "show", "step", job], ["scontrol", "write", "batch_script", job, "-"], ["ps", "eww", "-e"]]
    for node in ("login", *NODES):
        for words in shown:
            assert WORD_OF_ALICE not in cluster.lab.exec(words, node=node, user="mallory").stdout, (node, words)
    read_files_and_processes(cluster, hold, "agent", "supervisor")
    send_junk_to_link(cluster, hold)
    assert all(roles(cluster, hold, "agent", node) for node in NODES)
    assert (hold / "hold/queue" / second.name).exists()
    assert not (first / "status.json").exists()


def test_scancel_ends_the_hold_and_its_runs(cluster: Cluster, hold: Path) -> None:
    """What ran has its end, and what waited never starts; the run's files say so, not only Slurm's answer."""
    runs = [path for path in sorted(hold.parent.iterdir()) if not (path / "status.json").exists() and path != hold]
    first, second = (path for path in runs if (path / "submission.json").exists() and _is_in(path, hold))
    job = json.loads((hold / "submission.json").read_text())["job"]
    cluster.run("scancel", job)
    ends = [cluster.wait_status(path, 90) for path in (hold, first, second)]
    assert [(end["exit_status"], end["state"]) for end in ends] == [(errors.CANCELLED, "CANCELLED")] * 3, ends
    late = cluster.run("hpcml", "run", "--in", hold.name, *cluster.command(WAITS)[2:])
    assert late.returncode == errors.REFUSED, late.stderr
    assert cluster.run("hpcml", "why", second.name).returncode == 0


def _is_in(path: Path, hold: Path) -> bool:
    submission: dict[str, str] = json.loads((path / "submission.json").read_text())
    return submission.get("hold") == str(hold)


def interpreters(cluster: Cluster, ahead: Path) -> list[int]:
    """Return the pids of scripts' interpreters that have started ahead in a folder."""
    found = [pid for pid, line in cluster.processes() if line.endswith("launcher import main; main()")]
    return [pid for pid in found if environment(pid).get("HPCML_RUN_DIR") == str(ahead)]


def test_processes_that_start_ahead_have_no_secret_and_none_of_the_last_run_s_code(cluster: Cluster) -> None:
    """Mallory finds no port and no file of theirs. The next run has them, and the module that was edited meanwhile."""
    hold = started(cluster, *ASKED, "--keep-cluster")
    script = cluster.command(USES_HELPER)[2:]
    helper = cluster.write("helper.py", "def value():\n    return 1\n")
    try:
        first = cluster.run("hpcml", "run", "--in", hold.name, *script, env={"PASSWORD": WORD_OF_ALICE})
        assert (first.returncode, first.stdout) == (0, "1 2\n"), first.stderr
        ahead = hold / "hold/ahead/1"
        wanted = [("scheduler", "n1"), ("supervisor", "n1"), ("worker", "n1"), ("worker", "n2")]
        assert wait_for(lambda: all(roles(cluster, ahead, *pair) for pair in wanted), 60)
        assert wait_for(lambda: len(interpreters(cluster, ahead)) == 1, 60)
        pids = {pid for pair in wanted for pid in roles(cluster, ahead, *pair)} | {*interpreters(cluster, ahead)}
        listeners = "".join(cluster.lab.exec(["ss", "-Hltnp"], node=node, user="root").stdout for node in NODES)
        assert [pid for pid in pids if f"pid={pid}," in listeners] == []
        assert [*ahead.glob("attempts/*/secret/*")] == []
        read_files_and_processes(cluster, ahead, "scheduler", "supervisor", "worker")
        tries(cluster, mallory.READ, str(ahead), "--", *map(str, interpreters(cluster, ahead)), node="n1")
        for command in (f"touch {ahead}/terminate", f"mv {ahead} {ahead}.away", f"echo /tmp > {ahead}/logs/script.log"):
            assert cluster.lab.exec(["sh", "-c", command], node="n1", user="mallory").returncode != 0
        helper.write_text("def value():\n    return 2\n")
        second = cluster.run("hpcml", "run", "--in", hold.name, *script, env={"PASSWORD": WORD_OF_ALICE})
        assert (second.returncode, second.stdout) == (0, "2 2\n"), second.stderr
        assert "started before the run" in second.stderr
        ids = cluster.run("hpcml", "status", directory_of(second).name, "--json").stdout
        assert json.loads(ids)["ahead"] is True
        ahead = hold / "hold/ahead/2"
        assert wait_for(lambda: all(roles(cluster, ahead, *pair) for pair in wanted), 60)
    finally:
        cluster.run("hpcml", "cancel", hold.name)
    assert cluster.wait_status(hold, 90)["exit_status"] == errors.CANCELLED
    assert wait_for(lambda: not any(roles(cluster, ahead, *pair) for pair in wanted), 30)
    assert wait_for(lambda: not interpreters(cluster, ahead), 30)


@pytest.fixture
def with_gpus(cluster: Cluster) -> Iterator[Path]:
    """A hold with all of n1, whose GPUs a stand-in for their driver shows."""
    stand_in = cluster.write("stand_in.py", NVML)
    place = cluster.run("python", "-c", "import pynvml; print(pynvml.__file__)").stdout.strip()
    if not place:
        pytest.skip("the lab's environment has no nvidia-ml-py: lab.py env")
    all_of_n1 = "--nodelist n1 --cpus-per-node 8 --gpus-per-node 4 --mem 3200M --time 20m --idle off"
    with cluster.covered("n1", f"mount --bind {stand_in} {place}", place):
        hold = started(cluster, *all_of_n1.split())
        yield hold
        cluster.run("hpcml", "cancel", hold.name)
        assert cluster.wait_status(hold, 90)["exit_status"] == errors.CANCELLED


def test_four_runs_share_a_node_and_each_has_a_gpu_of_its_own(cluster: Cluster, with_gpus: Path) -> None:
    """With a quarter of its CPUs and memory each; a run that has no place waits, or is refused at once."""
    place = cluster.work / "share"
    cluster.run("mkdir", "-p", str(place))
    command = ["hpcml", "run", "--in", with_gpus.name, "--gpus-per-node", "1", "--ranks", "1"]
    script = [*cluster.command(SHARES)[2:], str(place)]
    four = together((cluster.lab.popen([*command, *script, "4"], cwd=cluster.work) for _ in range(4)), 200)
    assert [(done.returncode, done.stdout) for done in four] == [(0, "4\n")] * 4, [done.stderr for done in four]
    assert sorted(path.read_text().split() for path in place.iterdir()) == [[str(gpu), "2", "800"] for gpu in range(4)]
    assert (directory_of(four[0]) / "logs/rank-n1.log").exists()
    cluster.run("rm", "-r", str(place))
    cluster.run("mkdir", "-p", str(place))
    sizes = ("--gpus-per-node", "3", "--cpus-per-node", "2", "--memory-per-node", "2G", "--ranks", "1")
    large = start(cluster, WAITS, *sizes)
    assert wait_for(lambda: "waits" in cluster.run("cat", str(large / "logs/script.log")).stdout, 60)
    late = cluster.run(*command, "--gpus-per-node", "2", "--no-wait", *script, "1")
    assert late.returncode == errors.REFUSED, late.stderr
    beside = cluster.run(*command, *script, "1")
    assert (beside.returncode, beside.stdout) == (0, "1\n"), beside.stderr
    facts = json.loads(cluster.run("hpcml", "status", with_gpus.name, "--json").stdout)
    assert (facts["runs"], facts["nodes_free"]) == ([large.name], 0)
    for words in (["--nodes", "2"], ["--memory-per-node", "4G"], ["--cpus-per-node", "9"]):
        assert cluster.run(*command, *words, *script, "1").returncode == errors.USAGE, words


def test_a_part_of_a_node_is_its_run_s_alone(cluster: Cluster, with_gpus: Path) -> None:
    """Another run of the hold gets none of its GPUs, whatever its shell's variables name; another account gets nothing."""
    place = cluster.work / "apart"
    cluster.run("mkdir", "-p", str(place))
    first = start(cluster, WAITS, "--gpus-per-node", "2", "--ranks", "1", env={"PASSWORD": WORD_OF_ALICE})
    assert wait_for(lambda: "waits" in cluster.run("cat", str(first / "logs/script.log")).stdout, 60)
    job = json.loads((with_gpus / "submission.json").read_text())["job"]
    all_of_them = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "NVIDIA_VISIBLE_DEVICES": "all", "SLURM_OVERLAP": "1", "SLURM_STEP_GPUS": "0,1,2,3",
                   "SLURM_GRES": "gpu:4", "SLURM_MEM_PER_CPU": "1", "SRUN_CPUS_PER_TASK": "8", "SLURM_WHOLE": "1"}  # fmt: skip
    script = [*cluster.command(SHARES)[2:], str(place), "1"]
    for number, gpus in (("1", {"2"}), ("0", {"-", "", "NoDevFiles"})):
        sizes = ("--gpus-per-node", number, "--cpus-per-node", "1", "--memory-per-node", "500M", "--ranks", "1")
        done = cluster.run("hpcml", "run", "--in", with_gpus.name, *sizes, *script, env=all_of_them)
        assert done.returncode == 0, done.stderr
        seen, *amounts = (place / directory_of(done).name).read_text().split(" ")
        assert (seen in gpus, amounts) == (True, ["1", "500"]), (number, seen, amounts)
        cluster.run("rm", str(place / directory_of(done).name))
    steps = {
        row
        for row in cluster.run("squeue", "--steps", "--noheader", "--job", job, "--format=%i").stdout.split()
        if row[-1].isdigit()
    }
    assert steps
    for step in steps:
        for words in (
            ["scancel", step],
            ["srun", f"--jobid={job}", "--exact", "--gres=gpu:1", "true"],
            ["sattach", step],
        ):
            done = cluster.lab.exec(words, node="n1", user="mallory", timeout=60)
            assert done.returncode != 0 or done.stdout == "", words
    read_files_and_processes(cluster, first, "rank", "supervisor")
    send_junk_to_link(cluster, first)
    assert not (first / "status.json").exists()
    assert json.loads(cluster.run("hpcml", "status", with_gpus.name, "--json").stdout)["runs"] == [first.name]


def test_a_session_and_a_sweep_share_a_node(cluster: Cluster) -> None:
    """Each has a Dask cluster of its own, with the CPUs and the memory of its part."""
    shared = started(cluster, "--nodelist", "n1", "--cpus-per-node", "8", "--mem", "3200M", "--idle", "off")
    part = ("--in", shared.name, "--cpus-per-node", "2", "--memory-per-node", "1500M")
    done = cluster.run("hpcml", "jupyter", "--json", "--detach", *part)
    assert done.returncode == 0, done.stderr
    session = Path(json.loads(done.stdout)["directory"])
    script = cluster.command(POINT)[-1]
    swept = cluster.run("hpcml", "sweep", *part, "--wait", "--yes", "--grid", "k=1,2", script, timeout=240)
    assert swept.returncode == 0, swept.stderr
    rows = json.loads(cluster.run("hpcml", "sweep", "table", Path(script).stem, "--json").stdout)
    assert [(row["state"], row["metrics"]) for row in rows] == [
        ("ok", {"k": k, "threads": 2.0, "memory": 1500.0}) for k in (1.0, 2.0)
    ]
    assert wait_for((session / "attempts/0/services/jupyter.json").exists, 120)
    assert json.loads(cluster.run("hpcml", "status", shared.name, "--json").stdout)["runs"] == [session.name]
    cluster.run("hpcml", "cancel", shared.name)
    assert [cluster.wait_status(one, 90)["exit_status"] for one in (shared, session)] == [errors.CANCELLED] * 2


def test_a_hold_outlives_one_of_its_nodes(cluster: Cluster) -> None:
    """The run on the dead node ends, the hold names the node, and the next run has what is left."""
    hold = started(cluster)
    first = start(cluster, WAITS, "--ranks", "1")
    assert wait_for(lambda: "waits" in cluster.run("cat", str(first / "logs/script.log")).stdout, 60)
    cluster.lab.node_down("n2", crash=True, tell=True)
    try:
        status = cluster.wait_status(first, 120)
        assert status["lost_nodes"] == ["n2"], status["message"]
        cluster.wait_event(hold, "warning", 120)
        done = cluster.run("hpcml", "run", "--in", hold.name, *cluster.command("print('goes on')\n")[2:])
        assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
        facts = json.loads(cluster.run("hpcml", "status", hold.name, "--json").stdout)
        assert (facts["state"], facts["nodes_lost"], facts["nodes_free"]) == ("RUNNING", ["n2"], 1)
        assert "n2" in facts["warnings"][0]
        whole = cluster.run("hpcml", "run", "--in", hold.name, "--nodes", "2", *cluster.command(WAITS)[2:])
        assert whole.returncode == errors.USAGE, whole.stderr
    finally:
        cluster.run("hpcml", "cancel", hold.name)
        cluster.lab.node_up("n2")
    assert cluster.wait_status(hold, 90)["exit_status"] == errors.CANCELLED
