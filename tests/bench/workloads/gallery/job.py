"""The frame of every job: its options, its phases with their times, result.json and the exit status."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.metadata
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import dask
import numpy as np
from distributed import KilledWorker

import hpcml
from gallery import spill
from hpcml.help_layout import HelpLayout
from hpcml.terminal import say

LONG = 20  # seconds of a phase after which it is told at its end, so that a run cut short tells how far it came
DONE, REFUSED, STOPPED, LOST = 0, 2, 3, 4
GOES_ON = 92  # hpcml's own: saved, to be continued (hpcml submit --until-done)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
VERSIONED = ("dask", "distributed", "numpy", "pandas", "pyarrow", "scikit-learn", "dask-ml", "cuml-cu12", "cuml-cu13",
             "cudf-cu12", "cudf-cu13", "cuml", "cudf", "xgboost", "xgboost-cpu", "skops", "zarr", "torch")  # fmt: skip
TOLD = 3  # phases, the longest, whose seconds are printed
# docs/exit-status.md has the same table.
MEANING = {
    DONE: "done",
    REFUSED: "the input or an option is wrong, or the data cannot fit",
    STOPPED: 'told to stop soon: it ended after a phase, and result.json says "complete": false',
    LOST: "the work was broken off, most often because workers were lost for want of memory",
}
STATUSES = "Exit status: " + "; ".join(f"{status} {meaning}" for status, meaning in MEANING.items()) + "."


class RefusedError(Exception):
    """The input cannot be used; the message is a sentence with the place and a next step."""


class BrokenOffError(Exception):
    """The work ended before its end through no fault of the input; the message says why, with a next step."""


class StopSoonError(Exception):
    """The run was told to stop; the phase that is named has ended."""


def value(kind: Callable[[str], Any], what: str, fits: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return a reader of an option's value, for ``type=``: argparse refuses what it cannot read or does not fit.

    Parameters
    ----------
    kind
        int or float: how the text is read.
    what
        What a value must be, for the message: "a number above 0".
    fits
        Whether a value that was read is one.
    """

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if fits(found := kind(text)):
                return found
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return read


count = value(int, "a whole number of at least 1", lambda number: number >= 1)
seed = value(int, "a whole number from 0 to 4294967295", lambda number: 0 <= number < 2**32)  # as scikit-learn takes it
positive = value(float, "a number above 0", lambda number: 0 < number < math.inf)
share = value(float, "a share from 0 to below 1", lambda number: 0 <= number < 1)
rate = value(float, "a number above 0 and at most 1", lambda number: 0 < number <= 1)


def names(text: str) -> list[str]:
    """Read column names, separated by commas."""
    return [name for name in text.split(",") if name]


class Parser(argparse.ArgumentParser):
    """A parser with the options that all jobs have: --data, --rows, --out, --seed and --any-size.

    Parameters
    ----------
    name
        The job's: it begins every message.
    description
        The module's docstring, which ``--help`` shows in lines that fit the terminal; the exit statuses are added.
    rows
        The default of ``--rows``, for made data; None for a job that makes none.
    data
        Whether the job reads files at all.
    """

    def __init__(self, name: str, description: str | None, *, rows: int | None, data: bool = True) -> None:
        super().__init__(name, description=f"{description}\n{STATUSES}", formatter_class=HelpLayout)
        self.of_made: list[str] = []
        self.set_defaults(default_rows=rows, data=None, rows=None)
        add = self.add_argument
        if data:
            add("--data", help="a file, a folder or a quoted glob (default: data made for the purpose)")
        if rows is not None:
            self.add_made("--rows", type=count, help=f"rows of made data (default {rows:,})")
        add("--seed", type=seed, default=0, help="for made data and all that is drawn (default 0)")
        add("--out", type=pathlib.Path,
            help="folder for the results (default: the run's output directory; outside a run: out)")  # fmt: skip
        add("--any-size", action="store_true", help="start even where the data seems not to fit")

    def add_made(self, option: str, **how: Any) -> None:
        """Add an option that describes made data, so that it is refused beside --data; it has no default."""
        self.add_argument(option, **how)
        self.of_made.append(option)

    def options(self, arguments: list[str] | None) -> argparse.Namespace:
        """Return the options of a command line, or end with status 2 and a sentence."""
        found = self.parse_args(arguments)
        given = [option for option in self.of_made if getattr(found, option[2:]) is not None]
        if found.data and given:
            self.error(f"{given[0]} describes made data. Leave it out, or leave out --data.")
        return found

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one sentence, without the usage, which is as long as the help."""
        say(f"{self.prog}: {message.removesuffix('.')}. {self.prog}.py --help lists the options.", sys.stderr)
        raise SystemExit(REFUSED)


class Job:
    """A job that runs: the client of its cluster, its options, and what it has found out so far.

    Parameters
    ----------
    beside
        Whether data that the job makes for itself may lie beside ``out``: where that is the run's own.

    Attributes
    ----------
    result
        What result.json will say, in this order; ``result["seconds"]`` has a time per phase.
    out
        The folder for results, absolute; it exists.
    pictures
        What was found, in a line, by the name of the picture or report that shows it.
    """

    def __init__(self, name: str, options: argparse.Namespace, client: Any, *, beside: bool = False) -> None:
        self.name, self.options, self.client = name, options, client
        self.out: pathlib.Path = options.out
        self.pictures: dict[str, str] = {}
        self._beside, self._ends = beside, contextlib.ExitStack()
        given = {key: value for key, value in vars(options).items() if key not in ("out", "default_rows", "any_size")}
        given["data"] = options.data or "made"
        if options.rows is None:
            del given["rows"]
        workers = client.nthreads()
        self.result: dict[str, Any] = {"job": name, "complete": False, **given, "notes": [], "seconds": {}}
        self.result |= {"workers": len(workers), "threads": sum(workers.values())}
        self.result |= {"backend": dask.config.get("array.backend"), "versions": versions()}

    @property
    def rows(self) -> int:
        """How many rows to make where no data is given."""
        return int(self.options.rows or self.options.default_rows)

    @property
    def threads(self) -> int:
        """The threads of all workers: how many partitions can be worked on at once."""
        return int(self.result["threads"])

    @contextlib.contextmanager
    def phase(self, name: str, *, last: bool = False) -> Iterator[None]:
        """Time a phase, and say so if it was long; after any but the last, stop if the run is about to be stopped.

        Raises
        ------
        StopSoonError
            At the phase's end; :func:`run` turns it into exit status 3.
        """
        start = time.perf_counter()
        yield
        self.result["seconds"][name] = took = round(time.perf_counter() - start, 4)
        if took > LONG:
            say(f"{name}: {took:,.0f} s")
        if not last and hpcml.run.should_stop():
            raise StopSoonError(name)

    def note(self, sentence: str) -> None:
        """Say something that the reader of the result must know, on the terminal and in result.json."""
        say(sentence)
        self.result["notes"].append(sentence)

    def leave_out(self, *unused: str) -> None:
        """Take options that this run does not use out of the result, which would read as if they had counted."""
        for name in unused:
            self.result.pop(name, None)

    def save(self, name: str, state: Any) -> None:
        """Save what JSON can hold, or a booster, for when the run goes on; nothing outside a run: nobody continues."""
        if hpcml.run.directory is not None:
            model = hasattr(state, "save_model")
            hpcml.run.save(name, state.save_model if model else lambda path: path.write_text(json.dumps(state)))

    def saved(self, name: str) -> pathlib.Path | None:
        """Return what an earlier attempt of this run saved under a name, None if nothing."""
        return None if hpcml.run.directory is None else hpcml.run.saved(name)

    def on_stop(self, save: Callable[[], None], every: str = "") -> None:
        """Have a run save before it ends, and then end with status 92 wherever it is."""
        if hpcml.run.directory is not None:
            hpcml.run.on_stop(save, every=every)

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the results, whole or not at all."""
        with self.file(name) as unfinished:
            unfinished.write_text(text)

    def finish(self) -> None:
        """Write result.json, and print what was found, where the pictures are and how long it took."""
        self.write_text("result.json", json.dumps(self.result, indent=1, allow_nan=False, default=plain) + "\n")
        names = sorted(self.pictures, key=lambda name: name != f"{self.name}.png")
        if names:
            say(self.pictures[names[0]])
        for name in names:
            say(f"{'report' if name.endswith('.html') else 'picture'}: {self.out / name}")
        seconds: dict[str, float] = self.result["seconds"]
        longest = sorted(seconds, key=lambda phase: -seconds[phase])[:TOLD]
        said = ", ".join(f"{phase} {seconds[phase]:,.1f}" for phase in longest)
        say(f"time: {sum(seconds.values()):,.1f} s ({said})")
        say(f"all figures: {self.out / 'result.json'}")

    def folder_for_data(self) -> pathlib.Path:
        """Return a new folder for data that the job makes for itself, which all nodes see and which goes at its end.

        It stands beside the run's output directory; in a folder of ``--out`` it is inside and hidden, as nothing is
        known of what is beside.
        """
        prefix, place = ("", self.out.parent) if self._beside else (".", self.out)
        made = tempfile.TemporaryDirectory(prefix=f"{prefix}{self.name}-data-", dir=place)
        return pathlib.Path(self._ends.enter_context(made))

    def close(self) -> None:
        """Remove the data that the job made for itself."""
        self._ends.close()

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[pathlib.Path]:
        """Give a folder to write into, which takes its name, and the place of an older one, when it is whole."""
        with whole_folder(self.out / name) as unfinished:
            yield unfinished

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[pathlib.Path]:
        """Give a path to write to, which takes its name when it is whole; its suffix is that of the name."""
        unfinished = self.out / f".unfinished-{name}"
        try:
            yield unfinished
            unfinished.replace(self.out / name)
        finally:
            unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Give a folder beside another to write into; at the end it takes its place, or, if that fails, goes."""
    unfinished = folder.absolute().with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def telling_spilled(job: Job) -> Iterator[None]:
    """Put into the result what was spilled meanwhile, and say so if anything was; also when told to stop."""
    before, stopped = spill.counts(job.client), None
    try:
        yield
    except StopSoonError as stop:
        stopped = stop
    job.result["spilled"] = spill.since(before, spill.counts(job.client))
    if words := spill.sentence(job.result["spilled"]):
        job.note(words)
    if stopped is not None:
        raise stopped


def versions() -> dict[str, str]:
    """Return the versions of the libraries that make the numbers, of those that are installed."""
    found = {}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def run(
    name: str,
    options: argparse.Namespace,
    work: Callable[[Job], None],
    check: Callable[[], None] | None = None,
    *,
    resumes: bool = False,
) -> int:
    """Run a job on the cluster that ``hpcml.connect()`` gives; write and show its result; return the exit status.

    Parameters
    ----------
    work
        Does the phases and fills ``job.result``.
    check
        What can be refused before a cluster is asked for, for example a path that is not there.
    resumes
        Whether the job goes on where it was told to stop, when its run goes on: its status is 92 then.
    """
    beside = options.out is None
    options.out = (options.out or hpcml.run.out).absolute()
    status, job = DONE, None
    try:
        if check is not None:
            check()
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "result.json").unlink(missing_ok=True)  # an earlier run must not speak for this one
        with hpcml.connect(backend="auto") as client:
            job = Job(name, options, client, beside=beside)
            with contextlib.closing(job), telling_spilled(job):
                work(job)
        job.result["complete"] = True
        job.finish()
    except (RefusedError, FileExistsError, NotADirectoryError, PermissionError) as error:
        say(f"{name}: {error}", sys.stderr)
        return REFUSED
    except (StopSoonError, SystemExit) as stop:
        status = told_to_stop(name, stop, goes_on=resumes and hpcml.run.directory is not None)
    except KilledWorker as error:
        say(f"{name}: {error.last_worker.address} and those before it died of task {error.task}, most often for want "
              "of memory. See the workers' logs; ask for more nodes or fewer rows.", sys.stderr)  # fmt: skip
        status = LOST
    except Exception as error:
        if why := no_room(error):
            say(f"{name}: what is written does not go to disk: {why}. Make room in {options.out} and the workers' "
                  "scratch, or give --out another folder.", sys.stderr)  # fmt: skip
            return REFUSED
        if not isinstance(error, BrokenOffError):
            raise
        say(f"{name}: {error}", sys.stderr)
        status = LOST
    if job is not None and status != DONE:
        job.finish()
    return status


def told_to_stop(name: str, stop: StopSoonError | SystemExit, *, goes_on: bool) -> int:
    """Return the status of a job that was told to stop; hpcml.run.on_stop has saved, and ends it by SystemExit."""
    if isinstance(stop, SystemExit):
        if stop.code != GOES_ON:
            raise stop
        return GOES_ON
    rest = "It goes on when the run does" if goes_on else "Submit again for the rest"
    say(f"{name}: told to stop soon; ended after phase '{stop}'. {rest}.", sys.stderr)
    return GOES_ON if goes_on else STOPPED


def no_room(error: BaseException | None) -> str:
    """Return why a disk took no more, if that is what an error, or one that it comes from, says; else nothing."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return os.strerror(error.errno)
        if "FileStream.Write incomplete" in str(error):  # XGBoost's
            return os.strerror(errno.ENOSPC)
        error = error.__cause__ or error.__context__
    return ""


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
