"""What the scheduler's samples say: its own counters, added up by kind, at a cost that does not grow with the tasks."""

from __future__ import annotations

import asyncio
import fcntl
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.kinds.dask.node import performance_report, state_samples
from hpcml.kinds.dask.node.state_samples import ON_FILES, SENT, Measurement, activity_of
from hpcml.kinds.dask.samples import (
    FunctionSample,
    Moved,
    Tasks,
    ThreadSeconds,
    WorkerSample,
)
from hpcml.node.sampling.sampler import SampleFile
from hpcml.paths import AttemptPaths
from node_settings import settings as settings_of


def prefix(now: Mapping[str, int], entered: Mapping[str, int], seconds: float = 0.0) -> Any:
    counts = {"states": defaultdict(int, now), "state_counts": defaultdict(int, entered)}
    return SimpleNamespace(**counts, all_durations={"compute": seconds}, max_exec_time=seconds / 2 if seconds else -1)


def worker(name: str, processing: int = 0, **metrics: Any) -> Any:
    return SimpleNamespace(name=name, processing=dict.fromkeys(range(processing)), metrics=metrics, nthreads=4)


def scheduler(tasks: int, **facts: Any) -> Any:
    facts = {"task_prefixes": {}, "workers": {}, "cumulative_worker_metrics": {}, **facts}
    return SimpleNamespace(tasks=range(tasks), **facts)


def test_tasks_that_are_gone_are_counted() -> None:
    dask = scheduler(5, task_prefixes={
        "a": prefix({"processing": 2, "memory": 1, "forgotten": 3}, {"memory": 4, "forgotten": 3, "processing": 9, "released": 9}, 6),
        "b": prefix({"waiting": 1, "queued": 1, "erred": 0}, {"erred": 1}),
    })  # fmt: skip
    state = Measurement(dask)
    assert state.sample().tasks == Tasks(known=8, done=4, processing=2, waiting=1, queued=1, erred=1)
    dask.tasks, dask.task_prefixes = range(1), {"a": prefix({"memory": 1}, {"memory": 1})}  # client.restart()
    assert state.sample().tasks == Tasks(known=9, done=5, processing=0, waiting=0, queued=0, erred=1)
    dask.task_prefixes = {"a": prefix({"memory": 1}, {"memory": 90}, 2)}  # lost and computed again and again
    sample = state.sample()
    assert sample.tasks.done == 9
    assert sample.functions == {"a": FunctionSample(94, 8, 3)}  # those before the restart are not lost


def test_workers_also_those_that_have_said_nothing_yet() -> None:
    known = worker("n1-0", 3, memory=100, spilled_bytes={"memory": 9, "disk": 7}, cpu=99.96, **{SENT: 50, ON_FILES: 2})
    dask = scheduler(0, workers={"tls://1": known, "tls://2": worker("n2")})
    state = Measurement(dask)
    sample = state.sample()
    assert sample.workers == {"n1-0": WorkerSample(3, 100, 7, 100.0, 4, 2), "n2": WorkerSample(0, 0, 0, 0.0, 4)}
    assert sample.moved.transfer == 50
    del dask.workers["tls://1"]
    dask.workers["tls://3"] = worker("n1-0", **{SENT: 5})
    assert state.sample().moved.transfer == 55  # a worker that has gone has sent what it has sent


def test_fine_metrics_by_kind(subtests: pytest.Subtests) -> None:
    """Names as distributed 2026.7 gives them."""
    names = {
        ("execute", "inc", "thread-cpu", "seconds"): "execute",
        ("execute", "inc", "thread-noncpu", "seconds"): "execute",
        ("execute", "inc", "executor", "seconds"): "other",
        ("execute", "inc", "disk-read", "bytes"): "spill",
        ("execute", "inc", "disk-read", "count"): "",
        ("execute", "inc", "deserialize", "seconds"): "serialize",
        ("gather-dep", "network", "seconds"): "transfer",
        ("get-data", "network", "seconds"): "",
        ("memory-monitor", "disk-write", "seconds"): "spill",
        ("p2p", "background-comms", "process", "bytes"): "transfer",
        ("p2p", "background-disk", "disk-write", "bytes"): "spill",
        ("p2p", "background-comms", "send", "seconds"): "",
    }
    for name, activity in names.items():
        with subtests.test(str(name)):
            assert activity_of(name) == activity
    values: dict[object, int] = {**dict.fromkeys(names, 2), "latency": 7}
    sample = Measurement(scheduler(0, cumulative_worker_metrics=values)).sample()
    assert sample.seconds == ThreadSeconds(execute=4.0, transfer=2.0, spill=2.0, serialize=2.0, other=2.0)
    assert sample.moved == Moved(transfer=2, spill=4)


def test_a_file_system_that_stands_still_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thaws, written = threading.Event(), list[bytes]()

    class Frozen(SampleFile):
        def append(self, text: bytes) -> None:
            thaws.wait(60)
            written.append(text)

    monkeypatch.setattr(state_samples, "SampleFile", Frozen)
    monkeypatch.setattr(state_samples, "interval", lambda *_, **__: 0.001)
    settings = settings_of(job__nodes=1)
    context: Any = SimpleNamespace(settings=settings, attempt=AttemptPaths(tmp_path))

    async def main() -> None:
        task = asyncio.create_task(state_samples.watch(context, [scheduler(7)]))
        for _ in range(50):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 50))
    assert not written
    thaws.set()


def test_a_dask_of_another_kind_ends_the_samples_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    context: Any = SimpleNamespace(settings=settings_of(job__nodes=1), attempt=AttemptPaths(tmp_path))
    asyncio.run(state_samples.watch(context, [SimpleNamespace()]))
    assert "AttributeError" in capfd.readouterr().err


def test_only_threads_that_wait_for_a_file_count_as_such(tmp_path: Path) -> None:
    """A task that waits for a lock of a file does; one that waits for another thread does not."""
    held, other, done = (tmp_path / "file").open("w"), (tmp_path / "file").open("w"), threading.Event()
    fcntl.flock(held, fcntl.LOCK_EX)
    threads = [threading.Thread(target=fcntl.flock, args=(other, fcntl.LOCK_EX)), threading.Thread(target=done.wait)]
    for thread in threads:
        thread.start()
    workers: list[Any] = [SimpleNamespace(active_threads={thread.ident: "task"}) for thread in threads]
    deadline = time.monotonic() + 60
    while [state_samples.threads_on_files(one) for one in workers] != [1, 0]:
        assert time.monotonic() < deadline
    held.close()
    done.set()
    for thread in threads:
        thread.join(60)
    other.close()
    assert [state_samples.threads_on_files(one) for one in workers] == [0, 0]


def test_dask_s_report_is_made_without_the_profiles_of_workers_that_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Scheduler:
        """One of its workers is silent."""

        monitor = SimpleNamespace(count=0)

        def get_task_stream(self, **_: object) -> None: ...

        async def get_profile(self) -> None:
            raise OSError("no answer")

        async def performance_report(self, *_: object, **__: object) -> str:
            await self.get_profile()
            return "the page"

    async def write() -> None:
        await performance_report.PerformanceReport(context, Scheduler(), tmp_path).write()

    context: Any = SimpleNamespace(settings=settings_of(), run=SimpleNamespace(profiles=tmp_path))
    monkeypatch.setattr(performance_report, "importlib", SimpleNamespace(import_module=lambda _: None))
    monkeypatch.setattr(tempfile, "tempdir", None)
    asyncio.run(write())
    assert (tmp_path / "dask.html").read_text() == "the page"
    assert "the workers' profiler output: OSError" in capfd.readouterr().err
