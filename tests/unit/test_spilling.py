"""What a GPU worker keeps on its GPU, and pinned memory: dictionaries and arrays of the host stand in for GPU and bus."""

from __future__ import annotations

import ctypes
import gc
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed.metrics import context_meter
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_serialize

from hpcml.kinds.dask.node.state_samples import activity_of
from hpcml.repairs.spilling import AHEAD, BACK, BLOCK, OUT, PATIENCE, Cyclic, Mover, PinnedPool, Timed


def cyclic(fits: int) -> tuple[Cyclic, Timed]:
    host = Timed((OUT, BACK), pickle.dumps, pickle.loads, {})
    return Cyclic({}, host, fits, lambda *_: 1), host


def passes(data: Cyclic, host: Timed, keys: int, count: int) -> list[int]:
    """Read all keys again and again; return how many came back in each pass."""
    came = []
    for _ in range(count):
        before = data.fast.came
        assert [data[key] for key in range(keys)] == list(range(keys))
        came.append(int(data.fast.came - before))
    return came


def test_of_passes_over_more_than_fits_a_fixed_part_stays() -> None:
    data, host = cyclic(100)
    for key in range(150):
        data[key] = key
    assert passes(data, host, 150, 4)[1:] == [60, 60, 60]  # all but 90; with the least recently used first all 150
    assert len(data.fast) == 100
    assert len(data) == 150
    assert data.fast.away_weight == 50


def test_what_is_read_no_more_makes_room(subtests: pytest.Subtests) -> None:
    data, host = cyclic(100)
    for key in range(200):
        data[key] = key
    with subtests.test("the first half is read no more, and 90 of it were on the GPU"):
        for _ in range(4):
            assert [data[key] for key in range(80)] == list(range(80))
        assert passes(data, host, 80, 2)[1] == 0
    with subtests.test("what is deleted is gone, wherever it was"):
        for key in range(200):
            del data[key]
        assert (len(data), data.fast.away, data.fast.back, data.fast.read) == (0, {}, {}, {})
        assert (data.fast.away_weight, data.fast.back_weight) == (0, 0)
    with subtests.test("as before"):
        for key in range(150):
            data[key] = key
        assert passes(data, host, 150, 3)[-1] == 60


def test_seconds_and_bytes_are_counted_as_spilling() -> None:
    data, host = cyclic(1)
    with context_meter.add_callback(lambda label, _, unit: told.append((label, unit))):
        told: list[Any] = []
        data["a"], data["b"] = b"x" * 1000, b"y" * 1000
        assert data["a"] == b"x" * 1000
    assert {(OUT, "seconds"), (OUT, "bytes"), (BACK, "seconds"), (BACK, "bytes")} == set(told)
    assert {activity_of(("execute", "sum", label, unit)) for label, unit in told} == {"spill"}
    assert (host.moved[OUT][0], host.moved[BACK][0]) == (2000, 1000)


def test_a_block_that_nobody_uses_makes_room_for_another() -> None:
    pool = PinnedPool(5 << 20, bytearray)
    array = pool.take(3 << 20)
    assert array is not None
    assert pool.take(2 << 20) is None  # beyond the bound
    del array
    gc.collect()
    assert pool.take(2 << 20) is not None


def test_several_threads_pin_ahead_of_what_is_taken(
    subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[int] = []
    together = threading.Barrier(4)

    def allocate(size: int) -> np.ndarray[Any, Any]:
        made.append(size)
        if len(made) <= 4:
            together.wait(PATIENCE)  # an error if fewer than four threads come
        return np.empty(size, dtype="u1")  # which takes no memory until it is written to

    def refuse(size: int) -> Any:
        raise MemoryError(f"no {size} bytes more")

    with subtests.test("what is expected, all that there may be, and no more"):
        pool = PinnedPool(20 * BLOCK, allocate, threads=4)
        pool.expect(8 * BLOCK - 1)
        assert pool.held == 8 * BLOCK
        blocks = [pool.take(BLOCK) for _ in range(20)]
        assert not any(block is None for block in blocks)
        assert pool.take(BLOCK) is None
        assert made == [BLOCK] * 20
        pool.expect(1 << 50)
        assert pool.held == pool.most
    with subtests.test("nothing that nobody takes or expects, and little more than is taken"):
        pool = PinnedPool(1 << 50, allocate, threads=4)
        assert pool.held == 0
        blocks = [pool.take(BLOCK) for _ in range(40)]
        assert pool.held <= 40 * BLOCK + AHEAD
        assert capsys.readouterr().err == ""
    with subtests.test("a refusal is told once, and the rest of what is expected is not asked for"):
        pool = PinnedPool(1 << 50, refuse, threads=4)
        pool.expect(64 * BLOCK)
        assert pool.take(BLOCK) is None
        assert (pool.held, pool.take(BLOCK)) == (0, None)
        assert capsys.readouterr().err.count("bytes more") == 1


class OnGpu:
    """A value of a library for GPUs, which a task returns: bytes that have an address."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.data.ctypes.data, False), "shape": self.data.shape, "typestr": "|u1", "version": 3}

    @property
    def ptr(self) -> int:
        return int(self.data.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class Host:
    """The bus, with the host's memory at both ends."""

    def __init__(self) -> None:
        self.begun = 0

    def allocate(self, size: int) -> bytearray:
        return bytearray(size)

    def device_buffer(self, size: int) -> OnGpu:
        return OnGpu(np.zeros(size, dtype="u1"))

    def out(self, host: np.ndarray[Any, Any], pointer: int) -> None:
        self.begun += 1
        host[:] = self.at(pointer, host.nbytes)

    def back(self, pointer: int, host: np.ndarray[Any, Any]) -> None:
        self.begun += 1
        self.at(pointer, host.nbytes)[:] = host

    def at(self, pointer: int, size: int) -> np.ndarray[Any, Any]:

        memory: Any = (ctypes.c_char * size).from_address(pointer)
        return np.frombuffer(memory, dtype="u1")

    def wait(self) -> None:
        self.begun = 0


@pytest.fixture(scope="module", autouse=True)
def serializers() -> None:
    cuda_serialize.register(OnGpu, lambda value: ({}, [value]))
    cuda_deserialize.register(OnGpu, lambda _, frames: OnGpu(frames[0].data))
    dask_serialize.register(OnGpu, pytest.fail)  # by which Dask knows what to look for in a list


def test_values_go_out_and_come_back_whole() -> None:
    bus = Host()
    pool = PinnedPool(1 << 30, bus.allocate)
    mover = Mover(pool, bus, lambda header, frames: SimpleNamespace(header=header, frames=frames))
    large = np.random.default_rng(1).integers(0, 256, BLOCK + 1_000_000, dtype="u1")
    values = {"large": OnGpu(large), "text": "beside it", "little": OnGpu(large[:100])}
    packed = mover.out(values)
    assert bus.begun == 0
    assert pool.held == BLOCK + (1 << 20)  # a block and the rest; little ones go without
    packed.frames = [bytes(frame) if len(frame) < BLOCK else frame for frame in packed.frames]  # it was on disk
    for _ in range(2):  # what is too large to stay comes back more than once
        back = mover.back(packed)
        assert (list(back), back["text"]) == (["large", "text", "little"], "beside it")
        assert np.array_equal(back["large"].data, large)
        assert np.array_equal(back["little"].data, large[:100])
    del packed
    gc.collect()
    mover.out(values)
    assert pool.held == BLOCK + (1 << 20)  # the same blocks
    gc.collect()
    pool.trim()
    assert pool.held == 0
    unpinned = Mover(PinnedPool(0, bus.allocate), bus, mover.pack)
    assert np.array_equal(unpinned.back(unpinned.out(values))["large"].data, large)
