"""What a section of the GPU tier leaves behind: its results with the machine, the versions and the command, as JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from figures import read_figures

SCHEMA = 1
# In the order in which they run.
SECTIONS = ("smoke", "kernels", "topology", "verdict", "kmeans", "auth", "bringup", "merge", "image", "gallery",
            "headlines", "memory", "killed", "tasks", "idioms", "examples", "sweep", "polars", "samples", "rates", "chunks", "jobs", "lloyd", "estimators", "first", "startup", "failures")  # fmt: skip
# What a section measures, by place: its documents have the digests of it (figures.measured).
_BY_HAND, _WORKLOADS = "bench/gpu/scripts/by_hand.py", "bench/workloads"
MEASURED = {
    "bringup": ("bench/gpu/scripts/open_cluster.py",),
    "estimators": ("bench/gpu/scripts/estimators.py",),
    "gallery": tuple(f"{_WORKLOADS}/{name}.py" for name in (
        "arrays", "dbscan", "etl", "forest", "join", "kmeans", "naive_bayes", "pca_svd", "pipeline", "preprocess", "search",
        "xgboost_train")),
    "headlines": (*(f"{_BY_HAND}:{name}" for name in ("array", "csv", "join", "kmeans", "svd")),
                  *(f"{_WORKLOADS}/{name}.py" for name in ("arrays", "etl", "join", "pca_svd", "search"))),
    "idioms": ("bench/gpu/scripts/idioms.py",),
    "killed": ("bench/gpu/scripts/killed.py",),
    "lloyd": ("jobs/kmeans.py", "jobs/lloyd/__init__.py"),
    "memory": ("bench/gpu/scripts/spill_passes.py",),
    "merge": ("bench/gpu/scripts/merge.py",),
}  # fmt: skip

Result = dict[str, Any]
Document = dict[str, Any]

_RESULT: dict[str, Any] = {"name": str, "ok": bool, "figures": dict, "seconds": (int, float), "error": str}
_DOCUMENT: dict[str, Any] = {"schema": int, "section": str, "gpus": int, "cpu_only": bool, "date": str, "command": str, "versions": dict,
             "machine": dict, "seconds": (int, float), "error": str, "results": list}  # fmt: skip


def result(name: str, *, ok: bool, figures: dict[str, Any], ratio: float | None = None, error: str = "") -> Result:
    """Return one result; ``seconds`` is filled in by who timed it.

    Parameters
    ----------
    figures
        What was measured; the keys are the columns of the table (table.py).
    ratio
        What the section compares, over what it is compared with.
    """
    return {"name": name, "ok": ok, "figures": figures, "ratio": ratio, "seconds": 0.0, "error": error}


def failure(name: str, error: str) -> Result:
    """Return the result of what could not be measured."""
    return result(name, ok=False, figures={}, error=error)


def skipped(name: str, reason: str) -> Result:
    """Return the result of what was not tried; it is neither good nor bad, and its table row says why."""
    return {**result(name, ok=True, figures={}, error=f"skipped: {reason}"), "skipped": True}


def problems(document: Document) -> list[str]:
    """Return what is wrong with a document's form; nothing if it is as it should be."""
    found = [f"{key} is missing or of another kind" for key, kind in _DOCUMENT.items()
             if not isinstance(document.get(key), kind)]  # fmt: skip
    if document.get("schema") != SCHEMA:
        found.append(f"schema is {document.get('schema')}, not {SCHEMA}")
    if document.get("section") not in SECTIONS:
        found.append(f"there is no section {document.get('section')}")
    for number, one in enumerate(document.get("results") or []):
        found += [f"results[{number}].{key} is missing or of another kind" for key, kind in _RESULT.items()
                  if not isinstance(one.get(key), kind)]  # fmt: skip
        ratio = one.get("ratio")
        if ratio is not None and not isinstance(ratio, int | float):
            found.append(f"results[{number}].ratio is no number")
    return found


def file_name(document: Document) -> str:
    """Return the name of a document's file: one for each section, choice of cases and size of machine."""
    words = re.findall(r"\w+", document.get("case", ""))
    kind = "cpu" if document["cpu_only"] else "gpu"
    return f"{'-'.join([kind, str(document['gpus']), document['section'], *words])}.json"


def write(folder: Path, document: Document) -> Path:
    """Write a document whole or not at all; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(document)
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)
    return path


def read(folder: Path) -> list[Document]:
    """Return the documents of a folder, by section, size of machine and date.

    Raises
    ------
    ValueError
        If one is not as it should be.
    """
    found = []
    for path in folder.glob("gpu-*.json"):
        document = read_figures(path)
        if wrong := problems(document):
            raise ValueError(f"{path}: {'; '.join(wrong)}")
        found.append(document)
    return sorted(found, key=lambda document: (SECTIONS.index(document["section"]), document["gpus"], document["date"]))


def passed(results: list[Result]) -> bool:
    """Whether no result is bad."""
    return all(one["ok"] for one in results)
