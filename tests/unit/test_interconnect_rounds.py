"""The order of the interconnect check: all open each other's memory, then all are timed, then NCCL; and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcml.kinds.dask.node import interconnect
from node_settings import settings as settings_of

WORKERS = {"n1": [("n1-0", "a"), ("n1-1", "b")], "n2": [("n2-0", "c"), ("n2-1", "d")]}
ANSWERS: dict[str, Any] = {
    "hpcml_warm": {"moved": 10},
    "hpcml_fetch": {"bytes": 100, "seconds": 0.5, "moved": 200},
    "hpcml_counters": {"time": 0.0, "infiniband": {}, "interfaces": {}, "nvlink": None, "nvlink_why": ""},
    "hpcml_facts": {"gpu": "0"},
    "hpcml_release": None,
    "hpcml_nccl_id": b"id",
    "hpcml_nccl_join": {"start": 0.5},
    "hpcml_nccl": {"bytes": 1000, "seconds": 0.1, "right": True, "log": {"version": "2"}},
}


class Scheduler:
    """In the scheduler's place: workers that answer as they are told, and a diary of who was asked what."""

    def __init__(self, answers: dict[tuple[str, str], Any]) -> None:
        self.answers, self.diary = answers, []  # type: ignore[var-annotated]

    def rpc(self, address: str) -> Any:
        def handler(name: str) -> Callable[..., Awaitable[Any]]:
            async def ask(**_: Any) -> Any:
                self.diary.append(name)
                await asyncio.sleep(0)
                answer = self.answers.get((address, name), ANSWERS[name])
                if isinstance(answer, Exception):
                    raise answer
                if callable(answer):
                    await answer()
                return answer

            return ask

        return SimpleNamespace(**{name: handler(name) for name in ANSWERS})


def measure(answers: dict[tuple[str, str], Any] | None = None, *, gpus: bool = True) -> tuple[Any, list[str]]:
    scheduler = Scheduler(answers or {})
    deadline = 2.0 if _never in (answers or {}).values() else 240.0
    settings = settings_of(
        workers__gpu=object() if gpus else None, interconnect__nccl=True, deadlines__interconnect=deadline
    )
    attempt = SimpleNamespace(probe_of=lambda _: Path("/nowhere/probe.json"))
    context = SimpleNamespace(settings=settings, attempt=attempt)
    found = asyncio.run(interconnect.measure(scheduler, context, "ucx", WORKERS))  # type: ignore[arg-type]
    return found, scheduler.diary


def test_nobody_is_timed_while_another_opens_memory() -> None:
    found, diary = measure()
    last = {name: len(diary) - 1 - diary[::-1].index(name) for name in ANSWERS}
    assert max(last["hpcml_warm"], last["hpcml_nccl_join"]) < diary.index("hpcml_fetch")
    assert last["hpcml_fetch"] < diary.index("hpcml_nccl")
    assert diary.count("hpcml_counters") == 4  # before and after, on each node
    assert {(pair.source, pair.target, pair.scope) for pair in found.pairs} == {
        ("n1-1", "n1-0", "within"), ("n1-0", "n1-1", "within"), ("n2-1", "n2-0", "within"), ("n2-0", "n2-1", "within"),
        ("n2-0", "n1-0", "across"), ("n2-1", "n1-1", "across"), ("n1-0", "n2-0", "across"), ("n1-1", "n2-1", "across"),
    }  # fmt: skip
    assert {pair.moved for pair in found.pairs} == {210}
    assert found.nccl["bandwidth"] == pytest.approx(2 * 3 / 4 * 1000 / 0.1)
    assert found.nccl["start"] == 0.5
    assert not found.nccl["error"]


def test_cpu_workers_are_not_asked_for_nccl() -> None:
    found, diary = measure(gpus=False)
    assert found.nccl is None
    assert not [name for name in diary if "nccl" in name]


def test_a_pair_that_cannot_talk() -> None:
    found, _ = measure({("a", "hpcml_warm"): OSError("no way"), ("d", "hpcml_fetch"): OSError("broke off")})
    errors = {(pair.target, pair.scope): pair.error for pair in found.pairs if pair.error}
    assert errors == {(name, scope): error for scope in ("within", "across") for name, error in (
        ("n1-0", "OSError: no way"), ("n2-1", "OSError: broke off"))}  # fmt: skip


async def _never() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(("answers", "error"), [
    ({("a", "hpcml_nccl_id"): ImportError("no cupy")}, "ImportError: no cupy"),
    ({("c", "hpcml_nccl_join"): {"error": "NcclError: x"}}, "n2-0: NcclError: x"),
    ({("c", "hpcml_nccl_join"): _never}, "no communicator within 1 s"),
    ({("b", "hpcml_nccl"): _never}, "no all-reduce within 1 s"),
    ({("b", "hpcml_nccl"): {"error": "NcclError: y", "log": {}}}, "n1-1: NcclError: y"),
    ({("b", "hpcml_nccl"): {**ANSWERS["hpcml_nccl"], "right": False}}, "the all-reduce returned a wrong sum"),
])  # fmt: skip
def test_nccl_that_fails(answers: dict[tuple[str, str], Any], error: str) -> None:
    found, _ = measure(answers)
    assert found.nccl["error"] == error
    assert not [pair for pair in found.pairs if pair.error]


def test_a_large_transfer_that_takes_longer_than_expected_counts_against_the_budget() -> None:
    worker: Any = object.__new__(interconnect.Transfers)

    async def one(_: str, size: int) -> float:
        return 0.001 if size == interconnect.FIRST else 5.0

    worker._one = one
    found = asyncio.run(worker.fetch("n1", 3.0))
    assert (found["bytes"], found["seconds"]) == (interconnect.LARGEST, 5.0)


@pytest.mark.parametrize("short", [0, 1])
def test_a_transfer_that_comes_short_is_no_bandwidth(short: int) -> None:
    async def give(size: int) -> dict[str, bytes]:
        return {"data": bytes(size - short)}

    worker: Any = object.__new__(interconnect.Transfers)
    worker.worker = SimpleNamespace(rpc=lambda _: SimpleNamespace(hpcml_give=give))
    with (
        pytest.raises(ValueError, match="n1 sent 99 bytes, but 100 bytes were requested")
        if short
        else contextlib.nullcontext()
    ):
        asyncio.run(worker._one("n1", 100))


@pytest.mark.parametrize(("answers", "status"), [({}, 0), ({("a", "hpcml_warm"): OSError("no way")}, 1)])
def test_the_status_of_hpcml_interconnect_says_whether_all_workers_can_talk(
    answers: dict[tuple[str, str], Any], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = measure(answers)
    client = SimpleNamespace(run_on_scheduler=lambda _: found)
    monkeypatch.setattr(interconnect, "Client", lambda: contextlib.nullcontext(client))
    monkeypatch.setattr(interconnect, "load", lambda: SimpleNamespace(run=SimpleNamespace(out=tmp_path)))
    monkeypatch.setenv("HPCML_RUN_DIR", str(tmp_path))
    assert interconnect.main() == status


class _DeviceBuffer:
    """In the place of RMM's, in the host's memory."""

    def __init__(self, size: int) -> None:
        self.memory = ctypes.create_string_buffer(size)
        self.ptr = ctypes.addressof(self.memory)


@pytest.mark.parametrize(("slowest", "wrong", "right", "sizes"), [
    (0.001, range(0), True, [4, 16 << 20, 4, *[32 << 20] * 5]),
    (99.0, range(0), True, [4, 16 << 20, 4, 16 << 20]),  # a slow network is asked once more, for little
    (0.001, range(16 << 20, 17 << 20), False, [4, 16 << 20, 4, *[32 << 20] * 5]),
])  # fmt: skip
def test_an_all_reduce_is_of_the_size_that_the_slowest_rank_expects_and_its_sum_is_compared(
    monkeypatch: pytest.MonkeyPatch, slowest: float, wrong: range, right: bool, sizes: list[int]
) -> None:
    found = []

    def all_reduce(values: int, total: int, count: int, _kind: int, operation: str, _stream: int) -> None:
        """Do so for rank 0 of 3, which fills its memory with ones."""
        found.append(count * 4)
        given, result = (np.ctypeslib.as_array((ctypes.c_float * count).from_address(one)) for one in (values, total))
        with np.errstate(all="ignore"):  # what the rank has not filled yet
            result[:] = slowest if operation == "max" else given * 6
        result[wrong.start // 4 : wrong.stop // 4] = 0

    def memcpy(target: int, source: int, size: int, _: int) -> None:
        ctypes.memmove(target, source, size)

    nccl = SimpleNamespace(NCCL_SUM="sum", NCCL_MAX="max", NCCL_FLOAT32=7)
    runtime = SimpleNamespace(memcpy=memcpy, memcpyHostToDevice=1, memcpyDeviceToHost=2, memcpyDeviceToDevice=3)
    stream = SimpleNamespace(ptr=0, synchronize=lambda: None)
    cuda = SimpleNamespace(nccl=nccl, runtime=runtime, get_current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace(DeviceBuffer=_DeviceBuffer))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(interconnect, "NCCL_BYTES", 32 << 20)
    made = interconnect._all_reduce(SimpleNamespace(allReduce=all_reduce), 0, 3)
    assert (made["right"], made["bytes"], found) == (right, sizes[-1], sizes)
