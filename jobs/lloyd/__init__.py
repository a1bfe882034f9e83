"""Exact k-means (Lloyd's algorithm) on all GPUs of a run, in float32.

    model = KMeans(5, init=centres).fit(rows)     # rows: a Dask array
    model.cluster_centers_, model.n_iter_, model.inertia_, model.predict(rows), model.library

For few clusters, one CUDA kernel reads each row once per iteration: it finds the nearest centre and adds the row to the
centre's sum. For many clusters, float32 matrix products give the distances, and a second pass adds the rows. The order
of all sums is fixed: the same blocks on the same workers give the same centres, to the last digit. GPUs add their sums
by NCCL. A centre without rows stays where it is.

If the kernels cannot run, cuML does the work; on CPUs dask-ml, and without dask-ml scikit-learn. `library` says which.
"""

import functools
import importlib
import importlib.util
import pathlib

import numpy as np

FEW, WIDE = 64, 128  # the most clusters and features of the kernel that reads each row once
LAUNCH = 1 << 26  # rows per launch: a launch adds in float32, launches are added in float64
PRODUCTS = 1 << 27  # products of rows and centres per step (512 MB)
ONE_PASS = ("one_pass", "last_pass")
PIECE = 1024  # rows that one thread block adds


class KMeans:
    """K-means with the methods of cuML and dask-ml.

    Parameters
    ----------
    init
        The centres to start from.
    tol
        The iterations end when the squared moves of all centres sum to at most this. With 0 they end when no row
        changes its cluster (cuML and dask-ml need a tol above 0).

    Raises
    ------
    ValueError
        If init is not n_clusters rows of centres, or the rows are fewer than the clusters.
    """

    def __init__(self, n_clusters, init, max_iter=300, tol=1e-4):
        self.n_clusters, self.init, self.max_iter, self.tol = n_clusters, np.asarray(init), max_iter, tol

    def fit(self, rows):
        """Find the centres of a Dask array's rows."""
        if self.init.shape != (self.n_clusters, rows.shape[1]):
            raise ValueError(
                f"init must be the first centres, an array of {self.n_clusters} rows (n_clusters) and {rows.shape[1]} "
                f"columns, not {self.init!r}. Start from those of scikit-learn's KMeans on a sample, as kmeans.py does."
            )
        if rows.shape[0] < self.n_clusters:
            raise ValueError(
                f"{rows.shape[0]} rows cannot form {self.n_clusters} clusters. Choose a smaller n_clusters."
            )
        self.library, other = choose(rows, self.n_clusters)
        self._other = other and other(self.n_clusters, init=self.init, n_init=1, max_iter=self.max_iter, tol=self.tol)
        if self._other:
            self._other.fit(rows)
            self.cluster_centers_, self.n_iter_, self.inertia_ = (
                to_numpy(getattr(self._other, name)) for name in ("cluster_centers_", "n_iter_", "inertia_")
            )
            return self
        # float64 rows become float32 relative to the first centres' mean: float32 then resolves their differences.
        self._offset = np.zeros(rows.shape[1]) if rows.dtype == "float32" else self.init.mean(axis=0)
        start = self.init - self._offset
        centres, self.n_iter_, self.inertia_ = fit(rows.rechunk({1: -1}), self._offset, start, self.max_iter, self.tol)
        self.cluster_centers_ = centres + self._offset
        return self

    def predict(self, rows):
        """Return the number of each row's nearest centre, as a Dask array."""
        if self._other:
            return self._other.predict(rows)
        centres = self.cluster_centers_ - self._offset
        meta = np.empty_like(rows._meta, shape=0, dtype="int32")  # noqa: SLF001 - Dask's way to say what blocks are
        return rows.rechunk({1: -1}).map_blocks(label, centres, self._offset, drop_axis=1, meta=meta)


def choose(rows, k):
    """Return the name of the library that clusters these rows, and its class unless it is this module."""
    if isinstance(rows._meta, np.ndarray):  # noqa: SLF001
        if importlib.util.find_spec("dask_ml"):
            return "dask-ml", importlib.import_module("dask_ml.cluster").KMeans
        return "scikit-learn", OneNode
    from distributed import get_client

    if (client := get_client(), rows.shape[1], k) not in checked:
        try:
            client.submit(compiled, rows.shape[1], k, pure=False).result()
        except Exception as error:  # noqa: BLE001 - whatever the reason, cuML brings kernels of its own
            print(f"lloyd's CUDA kernels cannot run: {type(error).__name__}: {error}")
            return "cuML", importlib.import_module("cuml.dask.cluster").KMeans
        checked.add((client, rows.shape[1], k))
    return "CUDA kernels", None


checked = set()  # clients with a number of features and of clusters whose kernels ran


class OneNode:
    """scikit-learn's KMeans for Dask arrays that fit in the memory of one node."""

    def __init__(self, n_clusters, **options):
        import sklearn.cluster

        self.model = sklearn.cluster.KMeans(n_clusters, **options)

    def fit(self, rows):
        self.model.fit(rows.compute())
        for name in ("cluster_centers_", "n_iter_", "inertia_"):
            setattr(self, name, getattr(self.model, name))

    def predict(self, rows):
        return rows.map_blocks(self.model.predict, drop_axis=1, dtype="int32")


def compiled(d, k):
    """Compile the kernels for d features and k clusters on a worker, and run them."""
    state = OnGpu(np.zeros((k, d)))
    state.add(state.cupy.zeros((1, d), dtype="float32"))
    state.move()


def fit(rows, offset, start, most, tol):
    """Return the centres, the number of iterations and the inertia; each worker computes on its own blocks.

    Within a fit workers exchange the sums directly: a task per iteration would take longer than the iteration.
    """
    from distributed import futures_of, get_client, wait

    client, wanted = get_client(), {key for line in rows.__dask_keys__() for key in line}
    futures = {future.key: future for future in futures_of(rows)}
    if futures.keys() != wanted:
        futures = {future.key: future for future in futures_of(rows.persist())}
    wait(list(futures.values()))
    blocks = {}
    for key, workers in sorted(client.who_has(list(futures.values())).items()):
        blocks.setdefault(min(workers), []).append(key)
    group = client.submit(new_group, workers=min(blocks), pure=False).result() if len(blocks) > 1 else None
    tasks = [
        client.submit(
            on_worker, blocks[worker], offset, start, most, tol, (group, len(blocks), rank), workers=worker, pure=False
        )
        for rank, worker in enumerate(sorted(blocks))
    ]
    results = client.gather(tasks)
    return *results[0][:2], sum(inertia for *_, inertia in results)


def on_worker(keys, *arguments):
    """Iterate over this worker's blocks. As a task's inputs they would have to fit in the worker's host memory."""
    from distributed import get_worker

    return iterate([get_worker().data[key] for key in keys], *arguments)


def iterate(blocks, offset, start, most, tol, ranks=(None, 1, 0)):
    """Return the centres, the number of iterations, and the inertia of these blocks. Every rank calls this."""
    blocks = [ready(block, offset) for block in blocks]
    state = (OnCpu if isinstance(blocks[0], np.ndarray) else OnGpu)(start)
    add_ranks, iterations, moved = adder(*ranks), 0, np.inf
    while iterations < most and moved > tol:
        for block in blocks:
            state.add(block)
        add_ranks(state.total)
        moved, iterations = state.move(), iterations + 1
    return state.centres(), iterations, sum(map(state.inertia, blocks))


def new_group():
    from cupy.cuda import nccl

    return nccl.get_unique_id()


def adder(group, size, rank):
    """Return a function that adds the arrays of all ranks, in place."""
    if size == 1:
        return lambda _: None
    import cupy
    from cupy.cuda import nccl

    comm = nccl.NcclCommunicator(size, group, rank)

    def add(total):
        place, stream = total.data.ptr, cupy.cuda.get_current_stream().ptr
        comm.allReduce(place, place, total.size, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, stream)

    return add


def ready(block, offset):
    """Return a block as float32, row by row in memory, without the offset; an unchanged block is not copied."""
    moved = block - np.asarray(offset, like=block) if offset.any() else block
    return np.ascontiguousarray(moved.astype("float32", copy=False), like=block)


def label(block, centres, offset):
    """Return the number of the nearest centre of each row."""
    block = ready(block, offset)
    return (OnCpu if isinstance(block, np.ndarray) else OnGpu)(centres).labels(block)


def to_numpy(value):
    return value.get() if hasattr(value, "get") else value


class OnCpu:
    """The algorithm in NumPy, the reference for the kernels."""

    def __init__(self, centres):
        self._centres = np.array(centres, dtype="float32")
        self.total = np.zeros(self._centres.size + len(centres))

    def centres(self):
        return self._centres

    def labels(self, block):
        half = ((self._centres.astype("float64") ** 2).sum(axis=1) / 2).astype("float32")
        step = PRODUCTS // len(half)
        parts = [(half - block[at : at + step] @ self._centres.T).argmin(axis=1) for at in range(0, len(block), step)]
        return np.concatenate([np.empty(0, dtype=int), *parts]).astype("int32")

    def add(self, block):
        labels, (k, d) = self.labels(block), self._centres.shape
        for feature in range(d):
            self.total[feature : k * d : d] += np.bincount(labels, block[:, feature], k)
        self.total[k * d :] += np.bincount(labels, minlength=k)

    def move(self):
        before, (k, d) = self._centres, self._centres.shape
        sums, rows = self.total[: k * d].reshape(k, d), self.total[k * d :, None]
        self._centres = np.where(rows, sums / np.maximum(rows, 1), before).astype("float32")
        self.total[:] = 0
        return float(((self._centres.astype("float64") - before) ** 2).sum())

    def inertia(self, block):
        return float(((block - self._centres[self.labels(block)]) ** 2).sum(dtype="float64"))


class OnGpu:
    """Centres on this GPU, with the sums and numbers of the rows that are nearest to each."""

    def __init__(self, centres):
        import cupy

        self.cupy, (self.k, self.d) = cupy, centres.shape
        self.kernels = kernels(self.d, self.k)
        self.padded = cupy.zeros((self.kernels.macros["KP"], self.d), dtype="float32")
        self.padded[: self.k] = cupy.asarray(centres)
        self.half = cupy.full(len(self.padded), np.inf, dtype="float32")
        self.half[: self.k] = (self.padded[: self.k].astype("float64") ** 2).sum(axis=1) / 2
        self.total = cupy.zeros(self.k * self.d + self.k)
        self.moved = cupy.zeros(self.k)
        blocks = self.kernels.blocks
        self.sums = cupy.empty((blocks, self.k * self.d)), cupy.empty((blocks, self.k), dtype="uint32")
        self.squares = cupy.empty(blocks or 1024)

    def centres(self):
        return self.padded[: self.k].get()

    def add(self, block):
        """Add the rows of a block to the sums of their nearest centres."""
        if not self.kernels.blocks:
            self._add_sorted(block, self.labels(block))
            return
        sums, counts = self.sums
        for at in range(0, len(block), LAUNCH):
            self._pass("one_pass", block[at : at + LAUNCH], sums, counts)
            self.kernels("fold", -(-self.total.size // 32), 256, np.int32(len(sums)), sums, counts, self.total)

    def labels(self, block):
        """Return the number of the nearest centre of each row."""
        labels = self.cupy.empty(len(block), dtype="int32")
        if self.kernels.blocks:
            self._pass("last_pass", block, labels, self.squares)
            return labels
        step = PRODUCTS // len(self.half)
        products = self.cupy.empty((min(step, len(block)), len(self.half)), dtype="float32")
        for at in range(0, len(block), step):
            part = block[at : at + step]
            dots = self.cupy.matmul(part, self.padded.T, out=products[: len(part)])
            self.kernels("nearest", -(-len(part) // 8), 256, np.int32(len(part)), dots, self.half, labels[at:])
        return labels

    def move(self):
        """Move each centre to the mean of its rows, or keep it if it has none; return the sum of the squared moves."""
        self.kernels("move", self.k, 128, self.total, self.padded, self.half, self.moved)
        self.total.fill(0)
        return float(self.moved.get().sum())

    def inertia(self, block):
        """Return the sum of the squared distances of the rows to their nearest centres."""
        labels = self.labels(block)
        if not self.kernels.blocks:
            rows = np.int64(len(block))
            self.kernels("squares", len(self.squares), 128, block, rows, self.padded, labels, self.squares)
        return float(self.squares.get().sum())

    def _pass(self, name, block, *results):
        rows, threads = np.int64(len(block)), self.kernels.macros["THREADS"]
        self.kernels(name, self.kernels.blocks, threads, block, rows, self.padded, self.half, *results)

    def _add_sorted(self, block, labels):
        order = labels.argsort(kind="stable")
        edges = self.cupy.searchsorted(labels[order], self.cupy.arange(self.k + 1, dtype="int32"))
        first, begin = pieces(edges.get())
        sums = self.cupy.empty((len(first) - 1, self.d))
        if len(sums):
            grid = (len(sums), -(-self.d // 32))
            self.kernels("sum_pieces", grid, 256, block, order, self.cupy.asarray(first), sums)
        self.kernels("fold_pieces", self.k, 128, self.cupy.asarray(begin), edges, sums, self.total)


def pieces(edges):
    """Return where the pieces of a sorted order begin, with its end; and the number of each centre's first piece."""
    counts = -(-np.diff(edges) // PIECE)
    begin = np.concatenate([[0], np.cumsum(counts)])
    centre = np.repeat(np.arange(len(counts)), counts)
    first = edges[centre] + (np.arange(begin[-1]) - begin[centre]) * PIECE
    return np.append(first, edges[-1]), begin.astype("int32")


def shape(d, k, **chosen):
    """Return the macros of kernels.cu, and the bytes of shared memory of one_pass: what was fastest on an H200."""
    wide, together = -(-d // 4) * 4, 8 if d <= 32 else 16
    macros = {
        "D": d, "K": k, "KC": together, "KP": -(-k // together) * together, "DC": wide,
        "V": next(size for size in (4, 2, 1) if d % size == 0),
        "DS": wide + (4 if wide % 8 == 0 else 0),  # the rows that threads read together are in different banks
        "LANES": min(1 << (wide // 4 - 1).bit_length(), 32),
        "THREADS": 64 if k <= 16 else 128,
        "R": 8 if d <= 8 else 4 if d <= 16 else 2 if d <= 32 else 1,
        **chosen,
    }  # fmt: skip
    rows = macros["THREADS"] * macros["R"]
    floats = max(rows * macros["DS"], k * (wide + 4)) + macros["KP"] * (wide + 1) + rows // 32 * k
    return macros, 4 * floats


class Kernels:
    """The kernels for d features and k clusters, compiled for this GPU; ``blocks`` is 0 without one_pass."""

    def __init__(self, d, k):
        import cupy

        self.macros, self.memory = shape(d, k)
        limits = cupy.cuda.Device().attributes
        few = k <= FEW and d <= WIDE and self.memory <= limits["MaxSharedMemoryPerBlockOptin"]
        options = [f"-D{name}={value}" for name, value in self.macros.items()] + ["-DFUSED"] * few
        source = pathlib.Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")
        module = cupy.RawModule(code=source, options=("--std=c++14", *options))
        self.function, self.blocks = functools.cache(module.get_function), 0
        if few:
            for name in ONE_PASS:
                self.function(name).max_dynamic_shared_size_bytes = self.memory
            count = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            resident = count(self.function("one_pass").kernel.ptr, self.macros["THREADS"], self.memory)
            self.blocks = resident * limits["MultiProcessorCount"]

    def __call__(self, name, grid, threads, *arguments):
        grid = grid if isinstance(grid, tuple) else (grid,)
        self.function(name)(grid, (threads,), arguments, shared_mem=self.memory if name in ONE_PASS else 0)


kernels = functools.cache(Kernels)
