"""One run that ends well, with all that goes well in it: workers, tasks, output, samples, its report, and hpcml top beside it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from homes import CONNECT, HPCML, Here, home, report
from hpcml import kinds, samples
from hpcml.paths import RunPaths
from tests.looks import without_late_report

pytestmark = pytest.mark.local

MIB = 1 << 20
SCRIPT = (
    CONNECT
    + """
import dask, json, pathlib
from distributed import LocalCluster, Scheduler, wait
from distributed.diagnostics.plugin import Environ
def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
def burn(seconds):
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass
    return seconds
def look():
    import hpcml
    return str(hpcml.run.out), hpcml.run.nodes, hpcml.connect().scheduler.address
def retired():
    (mark,) = pathlib.Path(os.environ["HPCML_RUN_DIR"]).glob("attempts/0/nodes/*.json")
    return sorted(json.loads(mark.read_text())["retired"])
def events():
    return [json.loads(line)["event"] for line in open(os.environ["HPCML_RUN_DIR"] + "/events.jsonl") if line.endswith("\\n")]
def hold(number):
    return bytes([number]) * (60 << 20)
def spilled(dask_scheduler):  # by its last heartbeat, as the samples have it
    return max(worker.metrics["spilled_bytes"]["disk"] for worker in dask_scheduler.workers.values())
client.wait_for_workers(4, timeout=120)
names = client.run(lambda dask_worker: dask_worker.name)
one, other, *rest = sorted(names)
facts = {"names": sorted(names.values())}
facts["ahead"] = [b"\\0HPCML_AHEAD=" in open("/proc/self/environ", "rb").read(), "HPCML_AHEAD" in os.environ]
seen = lambda: [entry for entry in __import__("sys").path if __import__("os").environ["TMPDIR"] in entry]
with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as mine:
    facts["folders"] = [mine.scheduler.local_directory, mine.workers[0].local_directory]
facts["folders"] += sum(client.run(seen).values(), [])
facts["folders"] += client.run(lambda: __import__("dask").config.get("temporary-directory")).values()
facts["scheduler's folder"] = client.run_on_scheduler(lambda: __import__("sys").path[0])
try:
    client.register_plugin(Environ({"A": "1"}))
except Exception as error:
    facts["nanny plugin"] = str(error)
data = client.submit(lambda: b"x" * (200 << 20), workers=[one])
part = client.submit(lambda whole: whole[: 30 << 20], data, workers=[one])
facts["moved"] = client.submit(len, part, workers=[other]).result()
facts["burnt"] = sum(client.gather(client.map(burn, [0.4, 0.5, 0.6, 0.7])))
facts["inside"] = client.submit(look).result() == (str(hpcml.run.out), 2, client.scheduler.address)
held = client.map(hold, range(12), workers=[other])
wait(held)
until(lambda: client.run_on_scheduler(spilled) > 100 << 20)
print(sum(client.gather(client.map(lambda number: number, range(40)))), flush=True)
until(pathlib.Path("seen").exists)
del data, part, held
client.retire_workers([one])
until(lambda: retired() == [names[one]])
facts["afterwards"] = client.submit(sum, [1, 2]).result()
until(lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))  # nobody could take them
client.retire_workers([other, *rest], remove=False)
until(lambda: retired() == facts["names"])
client.cluster = None  # as of a client that knows nothing of hpcml: what stands for the cluster there closes nothing
client.shutdown()
until(lambda: "scheduler-closed" in events())
time.sleep(1.5)
(hpcml.run.out / "facts.json").write_text(json.dumps(facts))
sys.stdout.buffer.write(bytes(range(256)) * 4000 + b"\\xff\\0\\r 50%\\r 99%")
"""
)
TASKS = 61  # 40 numbers, 12 held, 4 burnt, data, part, its length, one look, one sum
OPTIONS = ("--nodes", "2", "--own-clusters", "--set", "workers.per_node=2", "--set", "workers.on_loss=fail",
           "--set", "workers.memory_limit=900M", "--set", "report.sample_every=1s")  # fmt: skip


@dataclass
class Well:
    """A run that ended well, what its script found, and the views of hpcml top beside it."""

    here: Here
    done: subprocess.CompletedProcess[bytes]
    directory: Path
    facts: Any
    views: list[dict[str, Any]]


def is_whole(view: dict[str, Any]) -> bool:
    """Whether a view has all that the run tells of itself while the script waits."""
    nodes, work = view["nodes"], view["work"] or {}
    return bool(
        view["output"][-1:] == ["780"]
        and (work.get("done") or 0) >= TASKS - 1
        and nodes
        and all(node["sampled"] and node["cpu"] is not None and node["workers"] == 4 for node in nodes)
    )


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Well]:
    with home(tmp_path_factory.mktemp("well-in-a-folder-too-long-for-sockets")) as here:
        planted = here.common_folder() / "dask-scratch-space"
        planted.mkdir()
        planted.chmod(0o777)
        command = [HPCML, "submit", "--wait", *OPTIONS, here.script(SCRIPT)]
        started: dict[str, Any] = {"cwd": here.folder, "env": here.environment, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **started, stderr=subprocess.PIPE) as run:
            here.until(lambda: run.poll() is not None or list(here.folder.glob(".hpcml/runs/*/submission.json")), 60)
            views = []
            with subprocess.Popen([HPCML, "top", "--json", "--interval", "0.5s", "last"], **started, text=True) as top:
                assert top.stdout is not None
                for line in top.stdout:
                    views.append(json.loads(line))
                    if is_whole(views[-1]):
                        (here.folder / "seen").touch()
            assert top.returncode == 0
            stdout, stderr = run.communicate(timeout=240)
        done = subprocess.CompletedProcess(command, run.returncode, stdout, stderr)
        assert done.returncode == 0, stdout[-4000:] + stderr
        directory = Path(here.status()["directory"])
        yield Well(here, done, directory, json.loads((directory / "out/facts.json").read_text()), views)


def test_a_script_that_shuts_its_cluster_down(well: Well) -> None:
    """client.shutdown() is the script's right: its exit status counts, and what it prints afterwards comes."""
    assert well.here.status()["by"] == "script"


def test_what_script_and_tasks_find(well: Well) -> None:
    """No folder that others can plant: Dask's own is $TMPDIR/dask-scratch-space, whoever it belongs to."""
    assert well.facts["names"] == ["local-0", "local-1", "local-2", "local-3"]
    assert well.facts["inside"]
    assert well.facts["ahead"] == [True, False]  # its interpreter began before the scheduler had an address
    assert "have no Nanny" in well.facts["nanny plugin"]
    assert well.facts["afterwards"] == 3
    assert b"lost" not in well.done.stderr, "workers that the script retires are no loss"
    common = well.here.folder / "tmp"
    assert well.facts["scheduler's folder"].startswith("/tmp/hpcml_")  # a socket lies beside it: the path must be short
    assert len(well.facts["folders"]) == 2 + 4 + 4
    assert not [path for path in well.facts["folders"] if not path.startswith(f"{common}/hpcml_")]
    assert list((common / "dask-scratch-space").iterdir()) == []
    well.here.until(
        lambda: not list(common.glob("**/hpcml_*"))
    )  # the supervisor's own goes after the run's end is known


def test_output_passes_byte_for_byte(well: Well) -> None:
    """Bytes that are no text, long lines, progress bars, no line break at the end; one line is hpcml's."""
    note, _, output = well.done.stdout.partition(b"\n")
    assert note.startswith(b"hpcml: LocalCluster(n_workers=1, processes=False, dashboard_address=None) in line 35: ")
    # A LocalCluster may log while it closes that a worker's connection is closed.
    output = re.sub(
        rb"\A\d{4}-[^\n]* - distributed\.batched - INFO - .*?CommClosedError\n", b"", output, flags=re.DOTALL
    )
    assert output == b"780\n" + bytes(range(256)) * 4000 + b"\xff\0\r 50%\r 99%"


def test_samples_of_processors_memory_tasks_and_bytes_add_up(well: Well) -> None:
    attempt = RunPaths(well.directory).attempt(0)
    (node,) = samples.nodes(attempt).values()
    dask = samples.of_kind(attempt, kinds.get("dask"))
    assert dask is not None
    times = [sample.t for sample in node.samples]
    assert times == sorted(times)
    used = sum(
        sample.cpu * (sample.t - before.t)
        for before, sample in zip(node.samples, node.samples[1:], strict=False)
        if sample.cpu is not None
    )
    assert used > well.facts["burnt"] == pytest.approx(2.2)
    done = max(dask.samples, key=lambda sample: sample.tasks.done or 0)
    assert (done.tasks.known, done.tasks.done, done.tasks.erred) == (TASKS, TASKS, 0)
    assert 2.2 < done.seconds.execute <= 4 * (times[-1] - times[0] + 2 * node.header.every)  # of four workers
    assert max(worker.memory or 0 for sample in dask.samples for worker in sample.workers.values()) > 200 * MIB
    assert 30 * MIB <= done.moved.transfer < 35 * MIB
    assert well.facts["moved"] == 30 * MIB
    assert max(worker.spilled or 0 for sample in dask.samples for worker in sample.workers.values()) > 100 * MIB
    assert done.moved.spill > 100 * MIB


def test_the_report_of_a_run_that_ended_well(well: Well) -> None:
    late = without_late_report(well.here.status()["warnings"]) != well.here.status()["warnings"]
    for title, file in (("results", "out"), ("report", "report.html"))[: 1 if late else 2]:
        assert f"  {title:<10} {well.directory}/{file}\n" in well.done.stderr.decode()
    found = report(well.directory)
    assert (found["ending"]["state"], found["ending"]["cause"]) == ("COMPLETED", "")
    # Which of these hold depends on the speed of the machine and its disk.
    of_this_run = {"no-tasks", "idle-tail", "few-tasks", "straggler", "spilling"}
    assert {one["rule"] for one in found["advice"]} <= of_this_run
    assert found["functions"]


def test_hpcml_top_until_the_end(well: Well) -> None:
    """What the run writes of itself is what is shown."""
    assert any(map(is_whole, well.views)), well.views[-1]
    (node,) = next(view for view in well.views if is_whole(view))["nodes"]
    assert 0 < node["memory"] < node["memory_size"]
    last = well.views[-1]
    assert (last["over"], last["state"], last["exit_status"], last["work"]["done"]) == (True, "COMPLETED", 0, TASKS)
