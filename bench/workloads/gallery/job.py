"""The frame of every workload: its options, its phases with their times, result.json and the exit status."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import numpy as np

import hpcml
from gallery import spill

DONE, REFUSED = 0, 2
VERSIONED = ("dask", "distributed", "numpy", "pandas", "pyarrow", "scikit-learn", "dask-ml", "cuml-cu12", "cuml-cu13",
             "cudf-cu12", "cudf-cu13", "cuml", "cudf", "xgboost", "xgboost-cpu", "zarr", "torch")  # fmt: skip


class RefusedError(Exception):
    """The input cannot be used; the message is a sentence with the place and a next step."""


class WrongResultError(Exception):
    """The work's result is wrong; the message says why."""


def names(text: str) -> list[str]:
    """Read column names, separated by commas."""
    return [name for name in text.split(",") if name]


class Parser(argparse.ArgumentParser):
    """A parser with the options that all workloads have.

    Parameters
    ----------
    rows
        The default of ``--rows``, for made data.
    data
        Whether the workload reads files at all.
    """

    def __init__(self, name: str, description: str | None, *, rows: int, data: bool = True) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(name, description=description, formatter_class=layout)
        self.set_defaults(data=None)
        add = self.add_argument
        if data:
            add("--data", help="a file, a folder or a quoted glob (default: made data)")
        add("--rows", type=int, default=rows, help=f"rows of made data (default {rows:,})")
        add("--seed", type=int, default=0, help="for made data and all that is drawn (default 0)")
        add("--out", type=pathlib.Path, help="folder for the results (default: the run's; outside a run: out)")
        add("--any-size", action="store_true", help="start even where the data seems not to fit")


class Job:
    """A workload that runs: the client of its cluster, its options, and its result so far.

    Attributes
    ----------
    result
        The content of result.json; ``result["seconds"]`` has a time for each phase.
    out
        The folder for results, absolute; it exists.
    """

    def __init__(self, name: str, options: argparse.Namespace, client: Any, out: pathlib.Path) -> None:
        self.name, self.options, self.client, self.out = name, options, client, out
        self._ends = contextlib.ExitStack()
        given = {key: value for key, value in vars(options).items() if key not in ("out", "any_size")}
        given["data"] = options.data or "made"
        workers = client.nthreads()
        self.result: dict[str, Any] = {"job": name, "complete": False, **given, "notes": [], "seconds": {}}
        self.result |= {"workers": len(workers), "threads": sum(workers.values())}
        self.result |= {"backend": dask.config.get("array.backend"), "versions": versions()}

    @property
    def rows(self) -> int:
        """How many rows to make where no data is given."""
        return int(self.options.rows)

    @property
    def threads(self) -> int:
        """The threads of all workers: how many partitions can be worked on at once."""
        return int(self.result["threads"])

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        start = time.perf_counter()
        yield
        self.result["seconds"][name] = round(time.perf_counter() - start, 4)

    def note(self, sentence: str) -> None:
        """Print a sentence for the reader of the result, and keep it in result.json."""
        print(sentence, flush=True)
        self.result["notes"].append(sentence)

    def leave_out(self, *unused: str) -> None:
        """Take options that this run does not use out of the result."""
        for name in unused:
            self.result.pop(name, None)

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the results."""
        (self.out / name).write_text(text)

    def finish(self) -> None:
        """Write result.json, and print the time of each phase."""
        self.result["complete"] = True
        self.write_text("result.json", json.dumps(self.result, indent=1, allow_nan=False, default=plain) + "\n")
        print(f"{self.name}: {json.dumps(self.result['seconds'])}", flush=True)

    def folder_for_data(self) -> pathlib.Path:
        """Return a new folder for made data, which all nodes see and which is removed at the job's end."""
        made = tempfile.TemporaryDirectory(prefix=f".{self.name}-data-", dir=self.out)
        return pathlib.Path(self._ends.enter_context(made))

    def close(self) -> None:
        """Remove the data that the job made for itself."""
        self._ends.close()


@contextlib.contextmanager
def whole_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Give a folder beside another to write into; at the end it takes its place, or, if that fails, is removed."""
    unfinished = folder.absolute().with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def versions() -> dict[str, str]:
    """Return the versions of those libraries that are installed."""
    found = {}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def run(name: str, options: argparse.Namespace, work: Callable[[Job], None]) -> int:
    """Run a workload on the cluster of ``hpcml.connect()``; write its result; return the exit status.

    Parameters
    ----------
    work
        Does the phases and fills ``job.result``.
    """
    out = (options.out or hpcml.run.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").unlink(missing_ok=True)  # an earlier run must not speak for this one
    with hpcml.connect(backend="auto") as client, contextlib.closing(Job(name, options, client, out)) as job:
        before = spill.counts(client)
        try:
            work(job)
        except RefusedError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            return REFUSED
        job.result["spilled"] = spill.since(before, spill.counts(client))
        if words := spill.sentence(job.result["spilled"]):
            job.note(words)
        job.finish()
    return DONE


def plain(found: Any) -> Any:
    """Return what JSON can hold for NumPy's and CuPy's scalars and arrays, paths and sets.

    Raises
    ------
    TypeError
        For anything else.
    """
    if isinstance(found, pathlib.Path):
        return str(found)
    if isinstance(found, set | frozenset | tuple):
        return sorted(found)
    if hasattr(found, "get") and hasattr(found, "dtype"):  # CuPy's
        found = found.get()
    if isinstance(found, np.generic | np.ndarray):
        return found.tolist()
    raise TypeError(f"{type(found).__name__} in result.json: {found!r}")
