"""The patches of docs/upstream: they apply to the releases that hpcml uses, and do what their notes say."""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import importlib.util
import os
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import distributed
import numpy as np
import pytest
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_serialize

from hpcml.node.hardware.spilling import Cyclic

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/upstream"
VERSIONS = tomllib.loads((ROOT / "containers/versions.toml").read_text())
# Of which package each is, and its version; that of RAPIDS' own is that of RAPIDS.
PATCHES = {
    "rapids-dask-dependency.patch": ("rapids-dask-dependency", VERSIONS["rapids"]),
    "dask-cuda-pinned.patch": ("dask-cuda", VERSIONS["dask-cuda"]),
    "dask-cuda-order.patch": ("dask-cuda", VERSIONS["dask-cuda"]),
    "distributed-close.patch": ("distributed", VERSIONS["distributed"]),
}


def apply(name: str, folder: Path, *options: str) -> None:
    """Apply a patch to a folder, which is in no repository for Git."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(["git", "apply", *options, str(FOLDER / name)], cwd=folder, env=environment, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def touched(name: str) -> list[str]:
    """Return the files that a patch changes, without those that it adds."""
    return re.findall(r"^--- a/(\S+)", (FOLDER / name).read_text(), re.MULTILINE)


def copied(name: str, folder: Path) -> Path:
    """Copy the installed files that a patch changes; skip the test where its release is not installed."""
    package, version = PATCHES[name]
    try:
        found = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if not f"{found.version}.".startswith(f"{version}."):
        pytest.skip(f"{package} {found.version} is installed, the patch is for {version}")
    for path in touched(name):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(Path(str(found.locate_file(path))).read_text())
    return folder


def added(name: str, path: str, folder: Path) -> ModuleType:
    """Import a file that a patch adds: it needs nothing of the package."""
    apply(name, folder, f"--include={path}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, folder / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_patch_has_its_note_with_the_release() -> None:
    notes = (FOLDER / "README.md").read_text()
    assert {path.name for path in FOLDER.glob("*.patch")} == set(PATCHES)
    for name, (package, version) in PATCHES.items():
        note = next(text for text in notes.split("\n## ") if f"({name})" in text)
        assert note.startswith(f"{package}: ")
        assert f"*{version};" in note


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_applies_to_the_installed_release(name: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    before = {path: (folder / path).read_text() for path in touched(name)}
    apply(name, folder)
    for path, text in before.items():
        assert (folder / path).read_text() != text
    for file in folder.rglob("*.py"):
        compile(file.read_text(), str(file), "exec")


def test_both_patches_of_dask_cuda_apply_together(tmp_path: Path) -> None:
    folder = copied("dask-cuda-order.patch", tmp_path)
    apply("dask-cuda-order.patch", folder)
    apply("dask-cuda-pinned.patch", folder)


def test_the_order_is_that_of_hpcml(tmp_path: Path) -> None:
    kept = added("dask-cuda-order.patch", "dask_cuda/kept.py", tmp_path)
    weights = dict(enumerate(random.Random(1).choices(range(1, 40), k=60)))
    both = [kind({}, {}, 300, weight=lambda key, _: weights[key]) for kind in (Cyclic, kept.KeptBuffer)]
    choice = random.Random(2)
    passes = [("get", key) for _ in range(4) for key in range(50)]
    anyhow = [(choice.choice(["get", "get", "set", "delete"]), choice.randrange(60)) for _ in range(2_000)]
    for what, key in [*(("set", key) for key in range(50)), *passes, *anyhow, *passes]:
        for data in both:
            if what == "set":
                data[key] = key
            elif key in data and what == "get":
                assert data[key] == key
            elif key in data:
                del data[key]
        ours, theirs = both
        assert list(ours.fast.d) == list(theirs.fast.d)
        assert set(ours.slow) == set(theirs.slow)
    assert both[1].fast.came > 0


class OnGpu:
    """Bytes that have an address, as libraries for GPUs have them."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data
        self.ptr, self.nbytes = data.ctypes.data, data.nbytes
        self.__cuda_array_interface__ = {"data": (self.ptr, False), "shape": data.shape, "typestr": "|u1", "version": 3}


def test_values_go_to_pinned_memory_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []

    def pin(size: int) -> bytearray:
        pinned.append(size)
        return bytearray(size)

    runtime = SimpleNamespace(memcpyAsync=lambda to, at, size, *_: ctypes.memmove(to, at, size), memcpyDeviceToHost=2,
                              memcpyHostToDevice=1, streamSynchronize=lambda _: None, CUDARuntimeError=MemoryError)  # fmt: skip
    cuda = SimpleNamespace(runtime=runtime, PinnedMemory=pin, PinnedMemoryPointer=lambda memory, _: memory)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setitem(
        sys.modules, "rmm", SimpleNamespace(DeviceBuffer=lambda size: OnGpu(np.zeros(size, dtype="u1")))
    )
    cuda_serialize.register(OnGpu, lambda value: ({}, [value]))
    cuda_deserialize.register(OnGpu, lambda _, frames: OnGpu(frames[0].data))
    dask_serialize.register(OnGpu, pytest.fail)  # by which Dask knows what to look for in a dictionary
    module = added("dask-cuda-pinned.patch", "dask_cuda/pinned.py", tmp_path)

    def pack(header: dict[str, Any], frames: list[Any]) -> SimpleNamespace:
        return SimpleNamespace(header=header, frames=frames)

    assert module.mover(pack) is None, "it is asked for"
    with dask.config.set({"dask-cuda.spill-pinned-memory": "66 MiB"}):
        mover = module.mover(pack)
    data = np.random.default_rng(1).integers(0, 256, module.BLOCK + 2_000_000, dtype="u1")
    values: dict[str, Any] = {
        "large": OnGpu(data),
        "text": "beside it",
        "little": OnGpu(data[:100]),
        "none": OnGpu(data[:0]),
    }
    for _ in range(3):
        packed = mover.device_to_host(values)
        for _ in range(2):
            back = mover.host_to_device(packed)
            assert list(back) == list(values)
            assert all(np.array_equal(back[key].data, values[key].data) for key in ("large", "little", "none"))
        del packed
        gc.collect()
    assert pinned == [module.BLOCK, 2 << 20], "the same blocks each time"
    more = [mover.device_to_host(values) for _ in range(2)]
    assert np.array_equal(mover.host_to_device(more[1])["large"].data, data), "beyond the limit in ordinary memory"
    assert pinned == [module.BLOCK, 2 << 20]


CLOSED = """
import asyncio, os
from distributed import Scheduler, Worker

async def main():
    told = []
    async with Scheduler(dashboard_address=":0", host="127.0.0.1") as scheduler:
        workers = [await Worker(scheduler.address, nthreads=1, host="127.0.0.1", dashboard_address=":0") for _ in range(4)]
        send = scheduler.worker_send
        scheduler.worker_send = lambda worker, msg: (told.append(msg["op"]), send(worker, msg))
        await workers.pop().close()
        print(told.count("remove-worker"))
        told.clear()
        await scheduler.close()
        print(told.count("remove-worker"), flush=True)
        os._exit(0)  # workers in the scheduler's own process would wait for it

asyncio.run(main())
"""


def test_a_scheduler_that_closes_tells_nobody_of_each_worker_that_goes(tmp_path: Path) -> None:
    folder = copied("distributed-close.patch", tmp_path)
    for path in Path(distributed.__file__).parent.iterdir():
        if not (folder / "distributed" / path.name).exists():
            (folder / "distributed" / path.name).symlink_to(path)
    told = {}
    for state in ("release", "patched"):
        done = subprocess.run([sys.executable, "-c", CLOSED], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, "PYTHONPATH": str(folder)})  # fmt: skip
        told[state] = done.stdout.split()
        assert done.returncode == 0, done.stderr
        if state == "release":
            apply("distributed-close.patch", folder)
    assert told["patched"] == ["3", "0"]
    assert told["release"][0] == "3"
    assert int(told["release"][1]) > 0
