"""SVD of genotypes in a Zarr array on disk, loaded and computed apart: plain bytes, Blosc, or four genotypes in a byte.

Your own data: da.from_zarr("matrix.zarr") in place of stored, if its values are 0 to 3. It needs the package zarr.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import zarr
from distributed import wait

import hpcml


def made(block_info):  # values 0, 1 and 2, of five populations
    (first, last), (_, columns) = block_info[None]["array-location"]
    chance = np.random.default_rng(1).uniform(0.05, 0.5, (5, columns)).astype("float32")[np.arange(first, last) % 5]
    rng = np.random.default_rng([2, first])
    return sum((rng.random(chance.shape, dtype="float32") < chance).astype("uint8") for _ in range(2))


def packed(block):
    return block[:, 0::4] | block[:, 1::4] << 2 | block[:, 2::4] << 4 | block[:, 3::4] << 6


def unpacked(block):
    return np.stack([block >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1).reshape(len(block), 4 * block.shape[1])


def svd(x):  # the persisted bytes become floats again in each pass, so that memory never contains all floats
    if x.shape[1] < options.columns:
        x = x.map_blocks(unpacked, chunks=(x.chunks[0], (options.columns,)), dtype="uint8")
    centred = x.astype("float32") - x.astype("float32").mean(axis=0).persist()
    return da.linalg.svd_compressed(centred, k=4, n_power_iter=2, seed=0, compute=True)[1].compute().tolist()


parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=20_000)
parser.add_argument("--columns", type=int, default=400, help="a multiple of 4")
options = parser.parse_args()
client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
rows = max(min(100_000_000 // options.columns, options.rows // 8), 1)  # of a chunk: 100 MB
chunks = da.core.normalize_chunks((rows, -1), (options.rows, options.columns))
plain = da.map_blocks(made, chunks=chunks, dtype="uint8", meta=np.empty((0, 0), "uint8"))
four = plain.map_blocks(packed, chunks=(chunks[0], (options.columns // 4,)), dtype="uint8")
blosc = zarr.codecs.BloscCodec(cname="zstd", shuffle="bitshuffle")
sizes, seconds, values = {}, {}, {}
for name, source, codec in (("plain", plain, None), ("Blosc", plain, blosc), ("packed", four, None)):
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="matrix-") as folder:  # a file system that all nodes share
        shape = {"shape": source.shape, "chunks": source.chunksize, "dtype": "uint8"}
        stored = zarr.create_array(f"{folder}/matrix.zarr", compressors=codec, **shape)
        da.store(source, stored, lock=False)
        svd(da.from_zarr(stored)[:1000].to_backend())  # load libraries and compile kernels before the clock starts
        for path in filter(Path.is_file, Path(folder, "matrix.zarr/c").rglob("*")):
            sizes[name] = sizes.get(name, 0) + path.stat().st_size
            with path.open("rb") as file:  # read from the disk, not from this node's page cache
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        x = da.from_zarr(stored).to_backend().persist()
        wait(x)
        loaded = time.perf_counter()
        values[name] = svd(x)
        seconds |= {f"{name}: load": loaded - start, f"{name}: compute": time.perf_counter() - loaded}
        del x
result = {"shape": plain.shape, "disk_bytes": sizes, "singular_values": values["plain"], "seconds": seconds}
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
axes.barh(list(seconds), list(seconds.values()))
axes.set(xlabel="seconds", title=", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in sizes.items()))
figure.savefig(out / "zarr_svd.png", dpi=150)
print("; ".join(f"{name} {took:.1f} s" for name, took in seconds.items()))
print(f"picture: {out / 'zarr_svd.png'}")
