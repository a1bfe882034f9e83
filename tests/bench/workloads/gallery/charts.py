"""Panels that show how good a model is: confusion, predicted against true, ROC, bars."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gallery.picture import OKABE_ITO

WRITTEN = 12  # classes whose shares are written into the matrix; more would not be legible
Floats = npt.NDArray[np.floating[Any]]


def confusion(axes: Any, table: npt.NDArray[np.int64], labels: list[str]) -> None:
    """Draw a confusion matrix: the share of each true class (a line) that was given each class."""
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    axes.grid(visible=False)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    places = range(len(labels)) if len(labels) <= 3 * WRITTEN else []
    axes.set_xticks(places, [labels[place] for place in places], rotation=90 if len(labels) > WRITTEN else 0)
    axes.set_yticks(places, [labels[place] for place in places])
    axes.set(xlabel="predicted class", ylabel="true class")
    if len(labels) <= WRITTEN:
        for (true, given), share in np.ndenumerate(shares):
            shade = "white" if share > 0.6 else "black"
            axes.text(given, true, f"{share:.1%}", ha="center", va="center", color=shade, fontsize=9)


def predicted(axes: Any, true: Floats, told: Floats) -> None:
    """Draw predictions against true values, with the line where they agree."""
    axes.scatter(true, told, s=5, alpha=0.3, linewidths=0, rasterized=True)
    ends = [float(min(true.min(), told.min())), float(max(true.max(), told.max()))]
    axes.plot(ends, ends, color="black", linewidth=1, linestyle="--")
    axes.set(xlabel="true value", ylabel="predicted value")


def roc(axes: Any, is_class: dict[str, npt.NDArray[np.bool_]], score: dict[str, Floats]) -> None:
    """Draw a ROC curve for each class, against all others."""
    import sklearn.metrics

    for name, true in is_class.items():
        wrong, right, _ = sklearn.metrics.roc_curve(true, score[name])
        area = sklearn.metrics.auc(wrong, right)
        axes.plot(wrong, right, label=f"class {name}: area {area:.3f}")
    axes.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle="--")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(frameon=False, fontsize=9)


def bars(axes: Any, names: list[str], values: Floats, label: str, *, most: int = 20) -> None:
    """Draw the largest values as bars, the largest on top."""
    order = np.argsort(-values)[:most][::-1]
    axes.barh([names[place] for place in order], values[order], color=OKABE_ITO[0])
    axes.set(xlabel=label if len(order) == len(names) else f"{label} (the largest {len(order)} of {len(names)})")
