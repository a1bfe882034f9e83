"""Mean and standard deviation of a stack of images larger than memory, with Dask arrays.

Your own data: frames = da.from_zarr("frames.zarr"), an array of (frames, rows, columns) in chunks of some frames.
Then remove error: its computation needs the true image (signal).
"""

import json
import time

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np

import hpcml

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
count, side = 400, 256  # 210 MB; with 400,000 frames, memory contains only one chunk per thread
across, down = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side))
signal = 0.4 * np.cos(12 * np.hypot(across, down)) ** 2
noise = da.random.default_rng(0).standard_normal(size=(count, side, side), chunks=(50, side, side))
frames = noise + da.from_array(signal, chunks=-1).to_backend()

start = time.perf_counter()
first, mean, deviation = dask.compute(
    *(part.to_backend("numpy") for part in (frames[0], frames.mean(axis=0), frames.std(axis=0)))
)
seconds = time.perf_counter() - start

error = float(np.sqrt(np.mean((mean - signal) ** 2)))  # of one frame: 1; of n frames: 1 / sqrt(n)
result = {"shape": frames.shape, "bytes": frames.nbytes, "mean": float(mean.mean()), "noise": float(deviation.mean())}
result |= {"error": error, "expected_error": len(frames) ** -0.5, "gigabytes_per_second": frames.nbytes / 1e9 / seconds}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
np.save(out / "mean.npy", mean)
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, panels = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
for axes, image, title in zip(panels, (first, mean), ("one frame", f"the mean of {len(frames)}"), strict=True):
    figure.colorbar(axes.imshow(image, cmap="gray"), ax=axes, label="brightness")
    axes.set(title=title, xlabel="column", ylabel="row")
figure.savefig(out / "arrays.png", dpi=150)
print(f"{frames.nbytes / 1e9:.2f} GB in {seconds:.1f} s; error of the mean image {error:.4f} (one frame: 1)")
print(f"picture: {out / 'arrays.png'}")
