"""Draw results without a display: the figure that all pictures share, and clusters as histogram or scatter."""

from __future__ import annotations

from typing import Any

import matplotlib
import matplotlib.colors
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gallery.job import Job

Floats = npt.NDArray[np.floating[Any]]
# Colour-blind safe: Okabe and Ito's, its yellow and black replaced by shades that show on white.
OKABE_ITO = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#332288", "#B8A900"]

LANES = 40  # threads in a timeline


def flatten(sample: Floats, centres: Floats, features: list[str]) -> tuple[Floats, Floats, list[str]]:
    """Return points and centres in two dimensions, and what the axes are."""
    if len(features) <= 2:
        return sample, centres, features
    middle = sample.mean(axis=0)
    _, strength, directions = np.linalg.svd(sample - middle, full_matrices=False)
    shares = strength**2 / max((strength**2).sum(), 1e-300)
    names = [f"principal axis {axis} ({shares[axis - 1]:.0%} of the variance)" for axis in (1, 2)]
    return (sample - middle) @ directions[:2].T, (centres - middle) @ directions[:2].T, names


def figure(title: str, *, panels: int = 1, rows: int = 1, height: float = 6.4) -> tuple[Figure, list[Any]]:
    """Return a figure and its panels, side by side, in the gallery's style; the title says what was found.

    Parameters
    ----------
    panels
        Side by side, in each of ``rows`` rows of this ``height`` in inches.
    """
    width = 8 if panels == 1 else (5.6 if rows == 1 else 4.6) * panels
    drawn = Figure(figsize=(width, height * rows), dpi=150, layout="constrained")
    axes = list(drawn.subplots(rows, panels, squeeze=False).ravel())
    drawn.suptitle(title, x=0.01, ha="left", fontsize=12)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(color="#e6e6e6", linewidth=0.6)
        one.set_axisbelow(True)
        one.margins(0.03)
        one.set_prop_cycle(color=OKABE_ITO)
    return drawn, axes


def save(job: Job, name: str, drawn: Figure) -> None:
    """Write a figure into the results, whole or not at all; its title is what the job says that it found."""
    with job.file(name) as path:
        drawn.savefig(path)
    job.pictures[name] = drawn.get_suptitle()


def matrix(drawn: Figure, axes: Any, values: Any, title: str) -> None:
    """Draw a frame of values from -1 to 1 as a coloured square with its names."""
    image = axes.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r")
    ticks = range(len(values))
    axes.set(title=title, xticks=ticks, yticks=ticks, yticklabels=values.index)
    axes.set_xticklabels(values.columns, rotation=90)
    axes.grid(visible=False)
    drawn.colorbar(image, ax=axes, shrink=0.8)


def spans(tasks: list[dict[str, Any]]) -> list[tuple[tuple[str, int], float, float]]:
    """Return what a task stream of Dask says was computed: the thread, start and stop in seconds from the first on."""
    known = [((task["worker"], task["thread"]), span["start"], span["stop"])
             for task in tasks for span in task["startstops"] if span["action"] == "compute"]  # fmt: skip
    begin = min((start for _, start, _ in known), default=0.0)
    return [(thread, start - begin, stop - begin) for thread, start, stop in known]


def timeline(axes: Any, tasks: list[dict[str, Any]]) -> None:
    """Draw when each thread of the workers computed, of a task stream of Dask; of many, the first threads."""
    known = spans(tasks)
    threads = {thread: lane for lane, thread in enumerate(sorted({thread for thread, *_ in known}))}
    shown = [(threads[thread], start, stop) for thread, start, stop in known if threads[thread] < LANES]
    lanes, starts, stops = (np.array(column) for column in zip(*shown, strict=True)) if shown else ((), (), ())
    colour = [OKABE_ITO[int(lane) % len(OKABE_ITO)] for lane in lanes]
    axes.barh(lanes, np.subtract(stops, starts), left=starts, height=0.8, color=colour or None, linewidth=0)
    many = f"{LANES} of {len(threads)}" if len(threads) > LANES else f"{len(threads)}"
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="seconds", ylabel="thread", title=f"{many} threads: a bar is a task, white is waiting")


def colours(k: int) -> list[str]:
    """Return k colours that people with colour blindness tell apart, as far as there are so many."""
    if k <= len(OKABE_ITO):
        return OKABE_ITO[:k]
    return [matplotlib.colors.to_hex(shade) for shade in matplotlib.colormaps["viridis"](np.linspace(0, 0.95, k))]


def clusters(
    job: Job, name: str, sample: Floats, labels: npt.NDArray[np.intp], centres: Floats, features: list[str], title: str
) -> None:
    """Write a sample coloured by cluster: a histogram of one feature, else a scatter on two or the principal axes.

    Labels are 0 … k-1; a label below 0 is noise and drawn in grey.
    """
    k = max(len(centres), int(labels.max(initial=-1)) + 1)
    palette = [*colours(k), "#bbbbbb"]  # the last, [-1], is noise
    drawn, (axes,) = figure(title)
    points, marks, axis_names = flatten(sample, centres, features)
    if len(features) == 1:
        groups = [points[labels == cluster, 0] for cluster in range(k)]
        axes.hist(groups, bins=100, stacked=True, color=palette[:k])
        for mark in marks[:, 0]:
            axes.axvline(mark, color="black", linewidth=1, linestyle="--")
        axes.set(xlabel=axis_names[0], ylabel="rows of the sample")
    else:
        shade = np.array(palette)[np.maximum(labels, -1)]
        axes.scatter(points[:, 0], points[:, 1], c=shade, s=6, alpha=0.35, linewidths=0, rasterized=True)
        large = len(marks) <= 50
        axes.scatter(marks[:, 0], marks[:, 1], s=230 if large else 40, color="white", edgecolors="black", zorder=3)
        for cluster, (x, y) in enumerate(marks if large else []):
            axes.annotate(str(cluster), (x, y), ha="center", va="center_baseline", fontsize=9, fontweight="bold")
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1])
    save(job, name, drawn)
