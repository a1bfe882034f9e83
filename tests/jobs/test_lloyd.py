"""jobs/lloyd: its kernels on CPUs, a thread for each thread of a block, and its work on Dask's workers, against scikit-learn.

No GPU is needed. cuda_on_cpu.h has what the kernels use of CUDA; bench/gpu (section lloyd) runs them on GPUs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.cluster
from distributed import Client

AT = 1e6  # where the rows are: there float32 has steps of 0.06
HERE = Path(__file__).resolve().parent
JOBS = HERE.parents[1] / "jobs"
LAUNCHES = """
#ifdef FUSED
extern "C" void on_cpu_one_pass(int grid, const float* x, whole n, const float* c, const float* h, double* s, unsigned* r)
{ launch(grid, 1, THREADS, [=] { one_pass(x, n, c, h, s, r); }); }
extern "C" void on_cpu_last_pass(int grid, const float* x, whole n, const float* c, const float* h, int* l, double* s)
{ launch(grid, 1, THREADS, [=] { last_pass(x, n, c, h, l, s); }); }
extern "C" void on_cpu_fold(int grid, int blocks, const double* s, const unsigned* r, double* t)
{ launch(grid, 1, 256, [=] { fold(blocks, s, r, t); }); }
#endif
extern "C" void on_cpu_nearest(int grid, int m, const float* d, const float* h, int* l)
{ launch(grid, 1, 256, [=] { nearest(m, d, h, l); }); }
extern "C" void on_cpu_sum_pieces(int grid, int down, const float* x, const whole* o, const whole* f, double* p)
{ launch(grid, down, 256, [=] { sum_pieces(x, o, f, p); }); }
extern "C" void on_cpu_fold_pieces(int grid, const int* b, const whole* e, const double* p, double* t)
{ launch(grid, 1, 128, [=] { fold_pieces(b, e, p, t); }); }
extern "C" void on_cpu_move(int grid, const double* t, float* c, float* h, double* m)
{ launch(grid, 1, 128, [=] { move(t, c, h, m); }); }
extern "C" void on_cpu_squares(int grid, const float* x, whole n, const float* c, const int* l, double* s)
{ launch(grid, 1, 128, [=] { squares(x, n, c, l, s); }); }
"""


@pytest.fixture(scope="module")
def lloyd() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(JOBS)
        import lloyd

        yield lloyd
        sys.modules.pop("lloyd")


class Compiled:
    """The kernels for one shape, compiled by g++: arrays become pointers, and numbers what the kernel takes."""

    def __init__(self, folder: Path, macros: dict[str, int], *, fused: bool) -> None:
        kernels = (JOBS / "lloyd/kernels.cu").read_text().replace("extern __shared__", "extern")
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(f'#include "{HERE}/cuda_on_cpu.h"\n{kernels}\n{LAUNCHES}')
        flags = [*(f"-D{name}={value}" for name, value in macros.items()), *["-DFUSED"] * fused]
        words = [
            "g++",
            "-std=c++20",
            "-O1",
            "-w",
            "-shared",
            "-fPIC",
            "-pthread",
            *flags,
            str(source),
            "-o",
            str(library),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr
        self.library = ctypes.CDLL(str(library))

    def __call__(self, name: str, *arguments: Any) -> None:
        kinds: dict[type, Callable[[Any], Any]] = {
            np.ndarray: lambda value: ctypes.c_void_p(value.ctypes.data),
            np.int64: ctypes.c_longlong,
            int: ctypes.c_int,
        }
        getattr(self.library, f"on_cpu_{name}")(*(kinds[type(one)](one) for one in arguments))


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
@pytest.mark.parametrize(("d", "k", "n"), [(32, 16, 1_000), (2, 5, 1_100), (3, 7, 600), (17, 33, 300), (64, 64, 300), (1, 1, 600),
                                           (100, 40, 150), (20, 100, 400), (130, 20, 200)])  # fmt: skip
def test_kernels_against_numpy(lloyd: ModuleType, tmp_path: Path, d: int, k: int, n: int) -> None:
    """Labels, sums, numbers, moves and inertia of an iteration; the last centre is far away, and stays where it is."""
    macros, memory = lloyd.shape(d, k)
    fused = k <= lloyd.FEW and d <= lloyd.WIDE
    assert memory <= 99 * 1024 or not fused  # what every GPU since the A100 has
    kernels = Compiled(tmp_path, macros, fused=fused)
    rng = np.random.default_rng(d)
    rows = rng.normal(size=(n, d)).astype("float32")
    start = rows[:k].copy()
    start[-1] += 50 * (k > 1)
    centres, half = np.zeros((macros["KP"], d), "float32"), np.full(macros["KP"], np.inf, "float32")
    centres[:k], half[:k] = start, (start.astype("float64") ** 2).sum(axis=1) / 2
    twin, number, whole = lloyd.OnCpu(start), np.int64(n), 3
    twin.add(rows)
    total, labels, squares, moved = np.zeros(k * d + k), np.full(n, -1, "int32"), np.full(whole, np.nan), np.zeros(k)
    if fused:
        sums, counts = np.full((whole, k * d), np.nan), np.zeros((whole, k), "uint32")
        kernels("one_pass", whole, rows, number, centres, half, sums, counts)
        kernels("fold", -(-total.size // 32), whole, sums, counts, total)
        kernels("last_pass", whole, rows, number, centres, half, labels, squares)
    else:
        dots = np.ascontiguousarray(rows @ centres.T)
        kernels("nearest", -(-n // 8), n, dots, half, labels)
        order = labels.argsort(kind="stable")
        edges = np.searchsorted(labels[order], np.arange(k + 1))
        first, begin = lloyd.pieces(edges)
        sums = np.full((len(first) - 1, d), np.nan)
        kernels("sum_pieces", len(sums), -(-d // 32), rows, order, first, sums)
        kernels("fold_pieces", k, begin, edges, sums, total)
        kernels("squares", whole, rows, number, centres, labels, squares)
    assert (labels == twin.labels(rows)).all()
    assert np.allclose(total, twin.total, rtol=1e-5, atol=1e-4)
    assert total[k * d :].tolist() == twin.total[k * d :].tolist()
    assert squares.sum() == pytest.approx(twin.inertia(rows), rel=1e-6)
    kernels("move", k, total, centres, half, moved)
    assert moved.sum() == pytest.approx(twin.move(), rel=1e-5, abs=1e-9)
    assert np.allclose(centres[:k], twin.centres(), atol=1e-5)
    assert (centres[k - 1] == start[-1]).all() or k == 1
    assert np.allclose(half[:k], (twin.centres() ** 2).sum(axis=1) / 2, rtol=1e-5)
    assert np.isinf(half[k:]).all()


def test_pieces_of_a_sorted_order(lloyd: ModuleType) -> None:
    """No piece has rows of two centres, or more than PIECE; centres without rows have none."""
    edges = np.array([0, 0, 2500, 2500, 2501, 2501 + lloyd.PIECE])
    first, begin = lloyd.pieces(edges)
    assert first.tolist() == [0, 1024, 2048, 2500, 2501, 2501 + lloyd.PIECE]
    assert begin.tolist() == [0, 0, 3, 3, 4, 5]


@pytest.fixture
def rows() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(3)
    return AT + rng.normal(size=(4_000, 5)) + 6 * rng.integers(0, 3, (4_000, 1))


@pytest.mark.parametrize("chunks", [(1_000, 5), (4_000, 2)])
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lloyd_on_a_worker(
    lloyd: ModuleType, client: Client, monkeypatch: pytest.MonkeyPatch, rows: Any, chunks: Any, lazy: bool, dtype: str
) -> None:
    """All blocks on one worker, computed before or not: scikit-learn's centres, labels, iterations and inertia."""
    monkeypatch.setattr(lloyd, "choose", lambda *_: ("CUDA kernels", None))
    rows = (rows - AT).astype(dtype) if dtype == "float32" else rows
    blocks = da.from_array(rows, chunks=chunks)
    worker = min(client.scheduler_info()["workers"])
    blocks = client.persist(blocks, workers=worker) if not lazy else blocks.rechunk((4_000, 5))
    model = lloyd.KMeans(3, init=rows[:3], tol=0).fit(blocks)
    other = sklearn.cluster.KMeans(3, init=rows[:3], n_init=1, tol=0).fit(rows)
    assert abs(model.cluster_centers_ - other.cluster_centers_).max() < 1e-4
    assert model.inertia_ == pytest.approx(other.inertia_, rel=1e-5)
    assert (model.predict(blocks).compute() == other.labels_).all()
    assert (model.n_iter_, model.library) == (other.n_iter_, "CUDA kernels")


def test_ranks_add_their_sums(lloyd: ModuleType, client: Client, monkeypatch: pytest.MonkeyPatch, rows: Any) -> None:
    """Blocks on two workers give what one worker gives: each iterates over its own blocks, and adds the other's sums."""
    import threading

    both, totals, lock = threading.Barrier(2, timeout=60), {}, threading.Lock()

    def adder(group: str, size: int, rank: int) -> Any:
        assert (group, size) == ("group", 2)

        def add(total: Any) -> None:
            with lock:
                totals[rank] = total.copy()
            both.wait()
            total[:] = totals[0] + totals[1]
            both.wait()

        return add

    monkeypatch.setattr(lloyd, "choose", lambda *_: ("CUDA kernels", None))
    monkeypatch.setattr(lloyd, "adder", adder)
    monkeypatch.setattr(lloyd, "new_group", lambda: "group")
    workers = sorted(client.scheduler_info()["workers"])
    halves = [
        client.scatter(half.astype("float32"), workers=[worker])
        for half, worker in zip(np.split(rows - AT, 2), workers, strict=True)
    ]
    blocks = da.concatenate([da.from_delayed(half, (2_000, 5), "float32") for half in halves])
    blocks = client.persist(blocks)
    whole = (rows - AT).astype("float32")
    model = lloyd.KMeans(3, init=whole[:3], tol=0).fit(blocks)
    other = sklearn.cluster.KMeans(3, init=whole[:3], n_init=1, tol=0).fit(whole)
    assert len(totals) == 2
    assert np.allclose(model.cluster_centers_, other.cluster_centers_, atol=1e-4)
    assert model.inertia_ == pytest.approx(other.inertia_, rel=1e-5)


@pytest.mark.parametrize("library", ["dask-ml", "scikit-learn"])
def test_without_gpus(
    lloyd: ModuleType, client: Client, monkeypatch: pytest.MonkeyPatch, rows: Any, library: str
) -> None:
    if library == "scikit-learn":
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "dask_ml" else find(name, *rest)
        )
    rows = rows - AT
    blocks = da.from_array(rows, chunks=(1_000, 5))
    model = lloyd.KMeans(3, init=rows[:3]).fit(blocks)
    other = sklearn.cluster.KMeans(3, init=rows[:3], n_init=1).fit(rows)
    assert model.library == library
    assert np.allclose(model.cluster_centers_, other.cluster_centers_, rtol=1e-3)
    assert (model.predict(blocks).compute() == other.labels_).all()


def test_what_cannot_be_clustered(lloyd: ModuleType, subtests: pytest.Subtests) -> None:
    rows = da.zeros((4, 2))
    for name, k, init, words in (
        ("a method in place of centres", 3, "k-means++", "array of 3 rows .n_clusters. and 2 columns, not"),
        ("too few centres", 3, np.zeros((2, 2)), "array of 3 rows"),
        ("more clusters than rows", 5, np.zeros((5, 2)), "4 rows cannot form 5 clusters"),
    ):
        with subtests.test(name), pytest.raises(ValueError, match=words):
            lloyd.KMeans(k, init=init).fit(rows)


def test_without_kernels_cuml_does_it(
    lloyd: ModuleType, client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPU arrays, but kernels that cannot be compiled: cuML has the same calls, and the reason is printed."""
    cuml = ModuleType("cuml.dask.cluster")
    cuml.KMeans = sklearn.cluster.KMeans  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuml.dask.cluster", cuml)
    monkeypatch.setattr(lloyd, "compiled", lambda *_: ctypes.CDLL("libnvrtc-of-nowhere.so"))

    class Blocks:
        shape, _meta = (10, 2), object()

    assert lloyd.choose(Blocks(), 3) == ("cuML", sklearn.cluster.KMeans)
    said = capsys.readouterr().out
    assert said.startswith("lloyd's CUDA kernels cannot run: OSError: libnvrtc-of-nowhere.so")
    monkeypatch.setattr(lloyd, "compiled", lambda *_: None)
    assert lloyd.choose(Blocks(), 3) == ("CUDA kernels", None)
