"""What is asked for beyond the command line when failed points are tried again, and of which kind a failure is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.cli import sweep as command
from hpcml.failures.cause import kind_of
from hpcml.failures.end import End, MemoryLimit, ProcessEnd
from hpcml.failures.point import PointEnd
from hpcml.node.sweep import points
from hpcml.paths import RunPaths
from hpcml.request.record import RunRequest
from hpcml.sites.schema import Partition
from hpcml.states import State
from hpcml.sweeps import record, submission
from hpcml.sweeps.submission import Fault
from hpcml.units import Memory, TimeLimit
from tests.said import says

GIB = 1 << 30
LIMITS = Partition(max_time=TimeLimit("2:00:00"), memory_per_node=Memory("100G"))


def more(faults: list[Fault], *, asked_for: bool = True, limits: Partition = LIMITS, memory: int = 60 * GIB,
         sbatch: tuple[tuple[str, str], ...] = ()) -> submission.More:  # fmt: skip
    spec = RunRequest.of(Path("job.py"), (), Path(), sbatch=sbatch)
    now = {"time": 3600, "memory": memory, "memory_limit": 0}
    return submission.more(spec, faults, limits, "boost", now, asked_for=asked_for)


def test_nothing_is_raised_beyond_the_partition() -> None:
    found = more([Fault("oom", ("--memory-per-node", "90G")), Fault("oom", ("--memory-per-node", "150G")),
                  Fault("timeout", ("--time", "3:00:00"))])  # fmt: skip
    assert (int(found.spec.size.memory_per_node), int(found.spec.size.time)) == (100 * GIB, 7200)
    assert found.words == (
        "hpcml raises the time limit from 01:00:00 to 02:00:00",
        "hpcml raises the memory per node from 60 GiB to 100 GiB",
    )
    full = more([Fault("oom", ("--memory-per-node", "150G"))], memory=100 * GIB)
    assert not full.spec.size.memory_per_node.text
    assert full.words == (says("not raise the memory per node: 100 GiB"),)
    enough = more([Fault("oom", ("--memory-per-node", "12G"))])
    assert enough.words == (says("memory per node: the request (60 GiB)"),)


def test_a_worker_s_share_and_nodes() -> None:
    found = more([Fault("oom", ("--set", "workers.memory_limit=3072M")), Fault("node", ("--exclude", "n1,n2"))])
    assert found.settings == ("workers.memory_limit=3072M",)
    assert found.spec.place.sbatch == (("--exclude", "n1,n2"),)
    unasked = more([Fault("oom", ("--memory-per-node", "90G")), Fault("node", ("--exclude", "n1"))], asked_for=False)
    assert unasked.words == (says("hpcml excludes n1"),)
    added = more([Fault("node", ("--exclude", "n1,n7"))], sbatch=(("--exclude", "n[1,3],m[1,3]"),))
    assert added.spec.place.sbatch == (("--exclude", "n[1,3],m[1,3],n7"),)
    kept = more([Fault("node", ("--exclude", "n7"))], sbatch=(("--exclude", "n[1-"),))  # what only Slurm may know
    assert kept.spec.place.sbatch == (("--exclude", "n[1-,n7"),)
    chosen = more([Fault("node", ("--exclude", "n1"))], sbatch=(("--nodelist", "n[1-2]"),))
    assert chosen.spec.place.sbatch == (("--nodelist", "n[1-2]"),)
    assert "--nodelist" in chosen.words[0]
    [told] = more([Fault("oom")]).words
    assert told.startswith("hpcml does not raise memory: ")


def test_of_which_kind_a_point_s_failure_is(tmp_path: Path, subtests: pytest.Subtests) -> None:
    run = RunPaths(tmp_path)
    run.logs.mkdir()
    run.point_records.mkdir()
    context: Any = SimpleNamespace(run=run, attempt=run.attempt(0))
    context.attempt.nodes.mkdir(parents=True)
    run.log("worker", "n2").touch()
    log = run.log_of("abc")
    killed = {"chain": [{"type": "KilledWorker", "message": "Attempted to run task 'f' on 4 different workers"}]}
    cuda = "cudaErrorECCUncorrectable: uncorrectable ECC error encountered"
    # When a worker ended that was over its memory limit, in seconds since the point began; None if none did.
    cases: tuple[tuple[int, dict[str, Any], float | None, str, str], ...] = (
        (1, {"chain": [{"type": "ValueError", "message": "no"}]}, None, "", "error"),
        (1, {"chain": [{"type": "MemoryError", "message": "Unable to allocate 3 GiB"}]}, None, "", "oom"),
        (1, killed, 10.0, "", "oom"),
        (1, killed, -3600.0, "", "unknown"),  # another point's
        (1, killed, None, "", "unknown"),
        (1, {"chain": [{"type": "RuntimeError", "message": cuda}]}, None, "", "node"),
        (1, {"chain": [{"type": "MemoryError", "message": "std::bad_alloc: out_of_memory: CUDA error"}]}, None, "", "oom"),
        (137, {}, None, "", "unknown"),
        (3, {}, None, "", "error"),
    )  # fmt: skip
    began = time.mktime(time.strptime("2026-11-21 08:00:00", "%Y-%m-%d %H:%M:%S"))
    for status, error, worker, printed, kind in cases:
        end = ProcessEnd("n2-1", "any clause", "worker-memory", 137, began + (worker or 0.0), 0)
        ends = [] if worker is None else [end._asdict()]
        context.attempt.mark_of("n2").write_text(json.dumps({"ends": ends}))
        log.write_text(printed)
        with subtests.test(error=error, worker=worker, status=status):
            found = points.cause_of(context, log, error, End(status, by="script"), began)
            assert found
            assert kind_of(found.rule, evident=found.known) == kind
    by_kernel = End(137, by="script", ended_as=State.OUT_OF_MEMORY, memory_limit=MemoryLimit.NODE)
    killed_for_memory = points.cause_of(context, log, {}, by_kernel, began)
    assert killed_for_memory
    assert kind_of(killed_for_memory.rule, evident=killed_for_memory.known) == "oom"


@pytest.mark.parametrize(("states", "ends", "status"), [
    (("ok", "ok"), [1, 0], 0), (("ok", "failed"), [0, 0], 1), (("ok", "pruned"), [0, 0], 0), (("ok",), [0, 86], 86),
])  # fmt: skip
def test_the_end_of_several_runs_is_that_of_their_points(
    states: tuple[str, ...], ends: list[int], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = {f"p{number}": PointEnd({}, state, 1.0, {}) for number, state in enumerate(states)}
    monkeypatch.setattr(record, "given", lambda _: record.Given(["p0", "p1"], ""))
    monkeypatch.setattr(record, "ends", lambda run: ended if run == "second" else {})
    assert command._end_of_all(["first", "second"], ends) == status  # type: ignore[list-item]


def test_a_point_that_another_run_computes_is_not_submitted() -> None:
    planned: list[Any] = [SimpleNamespace(key=key) for key in ("running", "ended", "new")]
    progress: Any = SimpleNamespace(under_way={"running": "r"}, ended={"ended": None})
    faults: Any = SimpleNamespace(of=lambda _: None)
    assert [one.key for one in submission._to_run(planned, progress, faults, ())] == ["new"]
