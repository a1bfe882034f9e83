"""Draw clusters: a histogram for one feature, else a scatter on the two features or the first two principal axes."""

from __future__ import annotations

import pathlib
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

Floats = npt.NDArray[np.floating[Any]]
# Colour-blind safe: Okabe and Ito's, its yellow and black replaced by shades that show on white.
OKABE_ITO = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#332288", "#B8A900"]


def flatten(sample: Floats, centres: Floats, features: list[str]) -> tuple[Floats, Floats, list[str]]:
    """Return points and centres in two dimensions, and what the axes are."""
    if len(features) <= 2:
        return sample, centres, features
    middle = sample.mean(axis=0)
    _, strength, directions = np.linalg.svd(sample - middle, full_matrices=False)
    shares = strength**2 / max((strength**2).sum(), 1e-300)
    names = [f"principal axis {axis} ({shares[axis - 1]:.0%} of the variance)" for axis in (1, 2)]
    return (sample - middle) @ directions[:2].T, (centres - middle) @ directions[:2].T, names


def draw(
    path: pathlib.Path, sample: Floats, labels: npt.NDArray[np.intp], centres: Floats, features: list[str], title: str
) -> None:
    """Write the picture of a sample coloured by cluster; the figure needs no display."""
    k = len(centres)
    colours = OKABE_ITO[:k] if k <= len(OKABE_ITO) else list(matplotlib.colormaps["viridis"](np.linspace(0, 0.95, k)))
    figure = Figure(figsize=(8, 6.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    points, marks, names = flatten(sample, centres, features)
    if len(features) == 1:
        groups = [points[labels == cluster, 0] for cluster in range(k)]
        axes.hist(groups, bins=100, stacked=True, color=colours)
        for mark in marks[:, 0]:
            axes.axvline(mark, color="black", linewidth=1, linestyle="--")
        axes.set(xlabel=names[0], ylabel="rows of the sample")
    else:
        shade = np.array(colours)[labels]
        axes.scatter(points[:, 0], points[:, 1], c=shade, s=6, alpha=0.35, linewidths=0, rasterized=True)
        size = 230 if k <= 50 else 40
        axes.scatter(marks[:, 0], marks[:, 1], s=size, color="white", edgecolors="black", linewidths=1.2, zorder=3)
        for cluster, (x, y) in enumerate(marks if k <= 50 else []):
            axes.annotate(str(cluster), (x, y), ha="center", va="center_baseline", fontsize=9, fontweight="bold")
        axes.set(xlabel=names[0], ylabel=names[1])
    axes.set_title(title, loc="left", fontsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(0.03)
    unfinished = path.with_name(f".unfinished-{path.name}")
    figure.savefig(unfinished)
    unfinished.replace(path)
