#!/usr/bin/env python3
"""Run the gallery's jobs on this machine, and put their pictures and what they print into docs/gallery.

tests/pictures/gallery_pages.py [PAGE…] those of all pages, or of some

In a page the block that begins with ``$ COMMAND`` is written anew: the lines that the job printed, and some figures of
its result.json.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/gallery"
DPI = 2 / 3  # of the size that a job writes
COLOURS = 256
LONGEST = 900  # seconds of a job


class Shown(NamedTuple):
    """A command of a page, the figures of result.json that the page shows, and its pictures' names there."""

    command: str
    figures: str = ""
    renamed: dict[str, str] = {}


RUNS = {
    "arrays": [Shown("arrays --size 8GB", "chunks times_the_memory sum_sigmas variance_sigmas gigabytes_per_second")],
    "dbscan": [Shown("dbscan", "eps neighbours_per_row clusters noise core_rows adjusted_rand_index")],
    "etl": [Shown("etl --rows 300_000", "rows_read rows_dropped broken gigabytes_per_second")],
    "forest": [
        Shown("forest --rows 20_000 --trees 100", "leaves_per_tree deepest portable_agrees",
              {"forest.png": "forest_classes.png"}),
        Shown("forest --what regressor --rows 20_000 --trees 40", "leaves_per_tree deepest portable_agrees"),
    ],
    "join": [Shown("join --rows 10_000_000 --right 100_000 --keys 50_000", "rows_joined right_result")],
    "kmeans": [Shown("kmeans --rows 200_000 --features 4 --k 8 --elbow 2-14", "silhouette truth_distance")],
    "linear": [
        Shown("linear --what lasso --alpha 0.1 --rows 200_000", "iterations truth_distance portable_agrees"),
        Shown("linear --what logistic --rows 200_000", "iterations portable_agrees", {"linear.png": "logistic.png"}),
    ],
    "naive_bayes": [Shown("naive_bayes", "metrics portable_agrees")],
    "neighbors": [Shown("neighbors", "recall queries_per_second")],
    "pca_svd": [Shown("pca_svd", "explained_by_all missing_elements svd_passes")],
    "pipeline": [Shown("pipeline", "prepared_columns model best_score export_difference")],
    "preprocess": [Shown("preprocess --rows 100_000 --rare 500", "missing categories rare_categories portable_agrees")],
    "search": [
        Shown("search --compare", "candidates fits data_bytes bytes_moved_to_place bytes_moved_by_fits"),
        Shown("search --model forest --rows 3000 --trees 10 --folds 4", "candidates fits data_bytes",
              {"search.png": "search_forest.png"}),
    ],
    "xgboost_train": [Shown("xgboost_train --rows 100_000", "rounds_kept stopped_early metrics export_difference")],
    "score": [Shown("score --model model --data fresh", "estimator metrics rows_without_prediction")],
}  # fmt: skip
# What must be there before, in the same folder.
BEFORE = {"score": ["linear --what lasso --alpha 0.1 --rows 200_000 --out .", "make_data regression --rows 50_000 --out fresh"]}  # fmt: skip


def run(words: str, folder: Path) -> str:
    """Run a job in a folder and return what it printed, with paths as seen from there."""
    name, *options = shlex.split(words)
    typed = [sys.executable, str(ROOT / f"jobs/workloads/{name}.py"), *options]
    done = subprocess.run(typed, cwd=folder, capture_output=True, text=True, check=False, timeout=LONGEST)
    if done.returncode:
        raise SystemExit(f"{words}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout.replace(f"{folder}/", "")


def block(shown: Shown, folder: Path) -> str:
    """Return what the page's block says of a run."""
    printed = run(shown.command, folder)
    name, _, options = shown.command.partition(" ")
    lines = [f"$ python jobs/workloads/{name}.py {options}".rstrip(), *printed.splitlines()]
    result = json.loads((folder / "out/result.json").read_text())
    figures = [f'  "{figure}": {json.dumps(rounded(result[figure]))}' for figure in shown.figures.split()]
    return "\n".join([*lines, *figures]) + "\n"


def rounded(value: object) -> object:
    """Return figures with four digits, also those in a dictionary."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def keep(picture: Path, place: Path) -> None:
    """Write a picture for a page: smaller, and of few colours."""
    with Image.open(picture) as drawn:
        size = (round(drawn.width * DPI), round(drawn.height * DPI))
        small = drawn.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.quantize(COLOURS, kmeans=3, dither=Image.Dither.NONE).save(place, optimize=True)


def page(name: str) -> None:
    """Run a page's commands, and write its pictures and blocks."""
    path = PAGES / f"{name}.md"
    for shown in RUNS[name]:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            for words in BEFORE.get(name, []):
                run(words, folder)
            text = block(shown, folder)
            for picture in (folder / "out").glob("*.png"):
                keep(picture, PAGES / shown.renamed.get(picture.name, picture.name))
        first, page_text = text.splitlines()[0], path.read_text()
        old = re.findall(rf"(?<=```text\n){re.escape(first)}\n(?:(?!```).*\n)*", page_text)
        if len(old) != 1:
            raise SystemExit(f"{path}: {len(old)} blocks begin with {first!r}, not one")
        path.write_text(page_text.replace(old[0], text))
        print(path.relative_to(ROOT), first, flush=True)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or RUNS:
        page(chosen)
