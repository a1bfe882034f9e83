"""The short job that looks at a node: handed to Slurm, waited for by a deadline, and gone whatever happens."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import assets, files
from hpcml.errors import SiteError, SlurmUnreachableError, StorageError
from hpcml.node.hardware import record
from hpcml.node.hardware.record import Node
from hpcml.paths import LIBRARY
from hpcml.schedulers import UNREADABLE, slurm, slurm_options
from hpcml.sites.layers import process_environment
from hpcml.survey.profile import QUICK

MINUTES = 2  # that the job may take; it needs some seconds, and a shared file system that is cold a minute
_LOOK = 2.0  # seconds between two looks for the answer
_ASK = 10.0  # seconds between two questions to Slurm
_LATE = 30.0  # seconds that a network file system may take to show what the job has written
_ANSWER = "answer.json"


class Wanted(NamedTuple):
    """Where the job is to run; ``gpu`` is one GPU's request, empty where none is asked for."""

    account: str = ""
    partition: str = ""
    qos: str = ""
    nodes: int = 1
    gpu: str = ""

    def directives(self) -> Iterator[str]:
        """Yield sbatch's options for it."""
        for name in ("account", "partition", "qos", "nodes"):
            if value := getattr(self, name):
                yield f"--{name}={value}"
        if self.gpu:
            yield f"--gres={self.gpu}"
        yield from (f"--time={MINUTES}", "--ntasks-per-node=1", "--no-requeue")


def choose(table: Mapping[str, Any], account: str, partition: str, qos: str) -> Wanted:
    """Return where the job starts soonest: a partition with GPUs, if there is one, and a QoS for debugging."""
    partitions: Mapping[str, Any] = table.get("partitions", {})
    every: Mapping[str, Any] = table.get("qos", {})
    by_use = sorted(partitions, key=lambda name: (not partitions[name].get("gpus_per_node"), not QUICK.search(name)))
    name = partition or next(iter(by_use), "")
    quick = [one for one, limits in every.items() if QUICK.search(one) and name in limits.get("partitions", [name])]
    chosen = qos or ("" if partition and QUICK.search(partition) else next(iter(quick), ""))
    chosen = chosen or partitions.get(name, {}).get("qos", "")
    limits = (partitions.get(name, {}), every.get(chosen, {}))
    least = max([1, *(one.get("min_nodes", 1) for one in limits)])
    two = name in partitions and all(one.get("max_nodes", 2) > 1 for one in limits)  # ssh is tried between two
    gpu = "gpu:1" if partitions.get(name, {}).get("gpus_per_node") else ""
    paying = account or table.get("defaults", {}).get("account", "")
    return Wanted(paying, name, chosen, max(least, 2 if two else 1), gpu)


def run(wanted: Wanted, seconds: float) -> Node:
    """Run the job, and return the probe of its first node.

    Raises
    ------
    SiteError
        If Slurm refuses the job, it does not end in time, or it ends without an answer.
    """
    top = Path(process_environment().get("HOME", "")) / ".hpcml"
    name = f"site-init-{os.getpid()}-{os.urandom(4).hex()}"
    folder = top / name
    try:
        top.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
        files.write(folder / LIBRARY, assets.node_archive())
        files.write(folder / "job.sh", _script(wanted, name, folder, seconds))
    except OSError as error:
        hint = "The job's files lie there: make room, or let yourself write."
        raise StorageError(f"A file cannot be written: {error.strerror}", place=str(folder), hint=hint) from error
    try:
        job = slurm.sbatch(str(folder / "job.sh")).job
        return _answer(folder, job, seconds)
    except slurm.AnswerLostError as error:
        message, hint = (
            "It is not known whether Slurm took the job",
            "It is cancelled by its name. Try again in some minutes.",
        )
        raise SiteError(message, place="sbatch", hint=hint, quote=error.quote) from error
    finally:  # also after Ctrl-C, and where the job's number is not known
        with contextlib.suppress(SlurmUnreachableError):  # its time limit ends it then
            slurm.ask(["scancel", "--quiet", f"--user={os.getuid()}", f"--name={name}"], 20.0)
        shutil.rmtree(folder, ignore_errors=True)


def _script(wanted: Wanted, name: str, folder: Path, seconds: float) -> str:
    """Return the job's script. Slurm itself takes it from the queue when nobody waits any more, if we were killed."""
    last = f"--deadline=now+{round(seconds) + 60 * (MINUTES + 1)}seconds"
    options = (f"--job-name={name}", f"--output={slurm_options.filename_pattern(folder / 'job.log')}", last)
    lines = [f"#SBATCH {shlex.quote(option)}" for option in (*options, *wanted.directives())]
    words = (sys.executable, "-P", "-m", "hpcml.node.hardware.probe", "--thorough", "--job", str(folder / _ANSWER))
    command = f"PYTHONPATH={shlex.quote(str(folder / LIBRARY))} exec {shlex.join(words)}"
    return "\n".join(["#!/bin/bash", *lines, command, ""])


def _answer(folder: Path, job: str, seconds: float) -> Node:
    ends = time.monotonic() + seconds
    asked, over, state = 0.0, 0.0, ""
    while time.monotonic() < ends:
        if _ANSWER in os.listdir(folder):  # listing is what makes a network file system look again
            try:
                return record.from_json(files.read_json(folder / _ANSWER))
            except (OSError, ValueError) as error:
                hint = "Report it with hpcml --version."
                raise SiteError(f"The job's answer cannot be read: {error}", place=f"job {job}", hint=hint) from error
        if over and time.monotonic() > over:
            raise _no_answer(folder, job, state)
        if not over and time.monotonic() >= asked:
            with contextlib.suppress(SlurmUnreachableError):  # the deadline decides
                known = slurm.states([job])[job]
                state = f"{known.state}{': ' if known.reason else ''}{known.reason}"
                if not (known.pending or known.active or known.state == UNREADABLE):
                    over = time.monotonic() + _LATE
            asked = time.monotonic() + _ASK
        time.sleep(_LOOK)
    hint = "It is cancelled. Give --deadline more time, or another --partition or --qos."
    raise SiteError(
        f"The job on a node had not ended in time, it was {state or 'not known'}", place=f"job {job}", hint=hint
    )


def _no_answer(folder: Path, job: str, state: str) -> SiteError:
    hint = (
        f"It ran {sys.executable}, which the nodes must have too; without --probe the profile is written nevertheless."
    )
    return SiteError(
        f"The job on a node ended without an answer ({state})",
        place=f"job {job}",
        hint=hint,
        quote=files.tail(folder / "job.log", 6),
    )
