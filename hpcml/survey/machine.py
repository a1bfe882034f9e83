"""Ask this machine, its Slurm, and a node by a short job; and put its profile in place."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import node_archive, safe_files, schedulers, subprocesses
from hpcml.config_trust import HPCML, Origin
from hpcml.errors import HpcmlError, SiteError, SlurmUnreachableError, StorageError, UsageError
from hpcml.node.hardware import record
from hpcml.node.hardware.record import Node
from hpcml.paths import LIBRARY
from hpcml.plan import make_plan
from hpcml.request.record import RunRequest
from hpcml.schedulers import UNREADABLE, AnswerLostError
from hpcml.sites.lookup import load_profile
from hpcml.sites.schema import Fact, Site
from hpcml.sites.settings_layers import Layers, build, process_environment, read_toml
from hpcml.survey import decide_profile
from hpcml.survey.decide_profile import QUICK
from hpcml.survey.node_tables import Login
from hpcml.survey.profile_draft import SCHEDULER, SLURM, Draft, How, keep_older
from hpcml.units import TimeLimit

_MODULES_SECONDS = 20.0  # for `module avail`, which reads a tree of files
_MOST_CHECKS = 8  # partitions of which a node is asked for with --test-only
_SIZES = ("--account", "--qos", "--nodes", "--cpus-per-task", "--gres", "--gpus-per-node", "--mem", "--time")
_MODULE = re.compile(r"(?im)^\s*(\S*(?:apptainer|singularity)/?[\w.+-]*)(?:\([\w, ]*\))?\s*$")


class Survey:
    """A machine asked on its login node; ``draft`` is its profile as far as it is known."""

    def __init__(self) -> None:
        self.tables = schedulers.machine_of(SCHEDULER).read(getpass.getuser())
        self.login = _login()
        self.date = datetime.datetime.now(tz=datetime.UTC).astimezone().date().isoformat()
        self.node: Node | None = None
        self.draft = self._write()

    def _write(self) -> Draft:
        return decide_profile.write(self.tables, self.login, self.node, self.date)

    def probe(self, account: str, partition: str, qos: str, seconds: float) -> None:
        """Look at a node by a job, which waits and runs no longer than this.

        Raises
        ------
        SiteError
            If the job is refused, does not end in time, or gives no answer.
        """
        table = tomllib.loads(self.draft.text(()))
        wanted = choose_job(table, account, partition, qos)
        try:
            self.node = run_job(wanted, seconds)
        except SiteError as error:
            if error.place != "sbatch" or wanted.gpu or wanted.partition in table.get("partitions", {}):
                raise
            self.node = run_job(wanted._replace(gpu="gpu:1"), seconds)  # a partition may take no job without
        self.draft = self._write()

    def keep_of(self, path: Path) -> list[str]:
        """Keep of an older profile what its user wrote, and what a node said if none was asked now; return the keys."""
        layers = Layers()
        layers.add(read_toml(path, obeyed=True), str(path), Origin.USER)
        nested = layers.nested().get("facts", {})
        tables = {name: table for name, table in nested.items() if isinstance(table, dict)} if nested else {}
        facts_by_key = {name: build(Fact, _only(table, str(path))) for name, table in tables.items()}
        return keep_older(self.draft, layers, facts_by_key, probed=self.node is not None)

    def check(self) -> None:
        """Ask Slurm, which starts nothing, whether it would take a node of each partition as the profile has it."""
        with self.on_disk(()) as path:
            site = load_profile(str(path), process_environment()).site
            for name, partition in list(site.partitions.items())[:_MOST_CHECKS]:
                nodes = max(1, partition.min_nodes)
                spec = RunRequest.of(
                    Path("/check.py"), (), Path("/"), nodes=nodes, partition=name, time=TimeLimit("10")
                )
                spec = spec.changed(gpus_per_node=partition.gpus_per_node)
                try:
                    if refused := self._try(site, spec, path.parent):
                        self.draft.ask(("partitions", name), refused)
                except SlurmUnreachableError:
                    return  # nothing is learnt, and nobody is to wait for the other partitions too
                except UsageError:
                    return  # no account is known
                except HpcmlError as error:
                    self.draft.ask(("partitions", name), f"hpcml would refuse a job for a whole node: {error.message}")

    def _try(self, site: Site, spec: RunRequest, folder: Path) -> str:
        """Ask Slurm about a job in a partition; set what cures its refusal, or return the refusal and what was asked.

        Without memory, with the other option for GPUs, or with the type of the partition's GPUs, Slurm may take what
        it has refused.
        """
        name, table = spec.place.partition, ("partitions", spec.place.partition)
        place = make_plan.RunLocation(folder / "check-20000101-000000-0000", "/usr/bin/python3", "0")
        directives = dict(make_plan.plan(site, spec, place).directives)
        if not (refused := _refused(directives, folder)):
            return ""
        how = How(SLURM, f"sbatch --test-only in {name}: {refused}")
        if "--mem" in directives and not _refused(_without(directives, "--mem"), folder):
            self.draft.set(table, "remove", ["--mem"], how)
            all_memory = f"partition {name} refuses a job that requests all memory of a node ({refused})"
            self.draft.ask(table, f"{all_memory}. How much memory may a job request?")
            return ""
        gpus = directives.get("--gres", "").removeprefix("gpu:")
        if gpus and not _refused({**_without(directives, "--gres"), "--gpus-per-node": gpus}, folder):
            self.draft.set(("slurm",), "gpu_request", "gpus-per-node", how)
            return ""
        types = [gpu_type for kind in self.tables.kinds if kind.partition == name for gpu_type, _ in kind.gpus_by_type]
        for gpu_type in filter(None, dict.fromkeys(types) if not spec.size.gpu_type else ()):
            typed = dict(make_plan.plan(site, spec.changed(gpu_type=gpu_type), place).directives)
            if not _refused(typed, folder):
                self.draft.set(table, "gpu_type", gpu_type, how)
                return ""
        asked = " ".join(f"{option}={value}" for option, value in directives.items() if option in _SIZES and value)
        return (
            f"sbatch --test-only refused a whole node of partition {name} ({asked}): {refused}. What may a job request?"
        )

    @contextlib.contextmanager
    def on_disk(self, heading: tuple[str, ...]) -> Iterator[Path]:
        """Give a file with the profile, for as long as it is looked at."""
        with tempfile.TemporaryDirectory(prefix="hpcml-site-") as folder:
            path = Path(folder, "now.toml")
            safe_files.write(path, self.draft.text(heading))
            yield path


def _only(table: Mapping[str, object], origin: str) -> Layers:
    layers = Layers()
    layers.add(table, origin, Origin.USER)
    return layers


def _without(directives: Mapping[str, str], removed: str) -> dict[str, str]:
    return {option: value for option, value in directives.items() if option != removed}


def _refused(directives: Mapping[str, str], folder: Path) -> str:
    """Return the reason for which Slurm would refuse a job, in its own or the site's words; empty if it accepts."""
    lines = [
        f"#SBATCH {option}{f'={value}' if value else ''}"
        for option, value in directives.items()
        if option != "--output"
    ]
    script = folder / "check.sh"
    safe_files.write(script, "\n".join(["#!/bin/sh", *lines, "true", ""]))
    try:
        schedulers.get(SCHEDULER).check(script)
    except SiteError as error:
        texts = (line.removeprefix("sbatch: error: ").removeprefix("allocation failure: ") for line in error.quote)
        return "; ".join(filter(None, (line.strip().rstrip(".") for line in texts))) or error.message
    return ""


def _login() -> Login:
    environment = process_environment()
    programs = tuple(name for name in ("apptainer", "singularity") if shutil.which(name))
    modules: tuple[str, ...] = ()
    if not programs and shutil.which("bash"):
        command = ["bash", "-lc", "module -t avail apptainer; module -t avail singularity"]
        answer = subprocesses.run(command, _MODULES_SECONDS, program=HPCML)
        modules = tuple(dict.fromkeys(_MODULE.findall(answer.text)))[:6]
    groups = tuple(safe_files.group(gid) for gid in os.getgroups())
    return Login(socket.gethostname(), groups, environment, programs, modules, _mounts())


def _mounts() -> dict[str, str]:
    """Return the kinds of what is mounted here, by place; nothing on a system without /proc."""
    try:
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {fields[1]: fields[2] for line in lines if len(fields := line.split(" ")) > 2}


def put(path: Path, text: str, *, old: bool = False) -> None:
    """Write a profile to its place, readable by all; with ``old`` the one before stays beside it, as ``NAME.toml.old``.

    Raises
    ------
    StorageError
        If that cannot be done; then nothing has changed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if old:
            safe_files.write(path.with_name(f"{path.name}.old"), safe_files.read_setting(path), 0o644)
        safe_files.write(path, text, 0o644)
    except OSError as error:
        hint = "Give yourself write permission, or use --print and save the output elsewhere."
        raise StorageError(f"The profile cannot be written: {error.strerror}", place=str(path), hint=hint) from error


# -- the short job that looks at a node: waited for by a deadline, and gone whatever happens --------------------------


MINUTES = 2  # that the job may take; it needs some seconds, and a shared file system that is cold a minute
_LOOK = 2.0  # seconds between two looks for the answer
_ASK = 10.0  # seconds between two questions to Slurm
_LATE = 30.0  # seconds that a network file system may take to show what the job has written
_ANSWER = "answer.json"


class JobRequest(NamedTuple):
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


def choose_job(table: Mapping[str, Any], account: str, partition: str, qos: str) -> JobRequest:
    """Return the partition and QoS in which the job starts soonest: with GPUs if possible, and a QoS for debugging."""
    partitions: Mapping[str, Any] = table.get("partitions", {})
    every: Mapping[str, Any] = table.get("qos", {})
    by_use = sorted(partitions, key=lambda name: (not partitions[name].get("gpus_per_node"), not QUICK.search(name)))
    name = partition or next(iter(by_use), "")
    quick = [one for one, limits in every.items() if QUICK.search(one) and name in limits.get("partitions", [name])]
    chosen = qos or ("" if partition and QUICK.search(partition) else next(iter(quick), ""))
    chosen = chosen or partitions.get(name, {}).get("qos", "")
    limits = (partitions.get(name, {}), every.get(chosen, {}))
    least = max([1, *(limit.get("min_nodes", 1) for limit in limits)])
    two = name in partitions and all(limit.get("max_nodes", 2) > 1 for limit in limits)  # ssh is tried between two
    gpu = "gpu:1" if partitions.get(name, {}).get("gpus_per_node") else ""
    paying = account or table.get("defaults", {}).get("account", "")
    return JobRequest(paying, name, chosen, max(least, 2 if two else 1), gpu)


def run_job(wanted: JobRequest, seconds: float) -> Node:
    """Run the job, and return the probe of its first node.

    Raises
    ------
    SiteError
        If Slurm refuses the job, it does not end in time, or it ends without an answer.
    StorageError
        If the job's files cannot be written.
    """
    top = Path(process_environment().get("HOME", "")) / ".hpcml"
    name = f"site-init-{os.getpid()}-{os.urandom(4).hex()}"
    folder = top / name
    try:
        top.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
        safe_files.write(folder / LIBRARY, node_archive.node_archive())
        safe_files.write(folder / "job.sh", _script(wanted, name, folder, seconds))
    except OSError as error:
        hint = "hpcml writes the job's files into this folder. Free some space, or give yourself write permission."
        raise StorageError(f"A file cannot be written: {error.strerror}", place=str(folder), hint=hint) from error
    try:
        job = schedulers.other_jobs(SCHEDULER).submit_script(folder / "job.sh").key
        return _answer(folder, job, seconds)
    except AnswerLostError as error:
        message, hint = (
            "It is unknown whether Slurm accepted the job",
            "hpcml cancelled the job by its name. Try again in some minutes.",
        )
        raise SiteError(message, place="sbatch", hint=hint, quote=error.quote) from error
    finally:  # also after Ctrl-C, and where the job's number is not known
        with contextlib.suppress(SlurmUnreachableError):  # its time limit ends it then
            schedulers.other_jobs(SCHEDULER).cancel_named(name)
        shutil.rmtree(folder, ignore_errors=True)


def _script(wanted: JobRequest, name: str, folder: Path, seconds: float) -> str:
    """Return the job's script. Slurm itself takes it from the queue when nobody waits any more, if we were killed."""
    last = f"--deadline=now+{round(seconds) + 60 * (MINUTES + 1)}seconds"
    log = schedulers.other_jobs(SCHEDULER).log_pattern(folder / "job.log")
    options = (f"--job-name={name}", f"--output={log}", last)
    lines = [f"#SBATCH {shlex.quote(option)}" for option in (*options, *wanted.directives())]
    argv = (sys.executable, "-P", "-m", "hpcml.node.hardware.probe", "--thorough", "--job", str(folder / _ANSWER))
    command = f"PYTHONPATH={shlex.quote(str(folder / LIBRARY))} exec {shlex.join(argv)}"
    return "\n".join(["#!/bin/bash", *lines, command, ""])


def _answer(folder: Path, job: str, seconds: float) -> Node:
    ends = time.monotonic() + seconds
    asked, over, state = 0.0, 0.0, ""
    while time.monotonic() < ends:
        if _ANSWER in os.listdir(folder):  # listing is what makes a network file system look again
            try:
                return record.from_json(safe_files.read_json(folder / _ANSWER))
            except (OSError, ValueError) as error:
                hint = "Report this to the developers of hpcml, with the output of hpcml --version."
                raise SiteError(f"The job's output cannot be read: {error}", place=f"job {job}", hint=hint) from error
        if over and time.monotonic() > over:
            raise _no_answer(folder, job, state)
        if not over and time.monotonic() >= asked:
            with contextlib.suppress(SlurmUnreachableError):  # the deadline decides
                job_state = schedulers.get(SCHEDULER).states([job])[job]
                state = f"{job_state.state}{': ' if job_state.reason else ''}{job_state.reason}"
                if not (job_state.pending or job_state.active or job_state.state == UNREADABLE):
                    over = time.monotonic() + _LATE
            asked = time.monotonic() + _ASK
        time.sleep(_LOOK)
    hint = "hpcml cancelled the job. Increase --deadline, or choose another --partition or --qos."
    raise SiteError(
        f"The job on a node did not end in time; its state was {state or 'unknown'}",
        place=f"job {job}",
        hint=hint,
    )


def _no_answer(folder: Path, job: str, state: str) -> SiteError:
    hint = f"The nodes may lack {sys.executable}, which the job ran. To submit no job, omit --probe."
    return SiteError(
        f"The job on a node ended without a result ({state})",
        place=f"job {job}",
        hint=hint,
        quote=safe_files.tail(folder / "job.log", 6),
    )
