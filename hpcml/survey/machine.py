"""Ask this machine, its Slurm, and a node by a job; and put its profile in place."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import os
import re
import shutil
import socket
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcml import files, subprocesses
from hpcml.errors import HpcmlError, SiteError, SlurmUnreachableError, StorageError, UsageError
from hpcml.node.hardware.record import Node
from hpcml.plan import plan
from hpcml.request.record import RunRequest
from hpcml.schedulers import slurm, slurm_tables
from hpcml.sites.layers import Layers, build, process_environment, read_toml
from hpcml.sites.lookup import load_profile
from hpcml.sites.schema import Fact
from hpcml.survey import node_job, profile, renewal
from hpcml.survey.draft import SLURM, Draft, How
from hpcml.units import TimeLimit

_MODULES_SECONDS = 20.0  # for `module avail`, which reads a tree of files
_MOST_CHECKS = 8  # partitions of which a node is asked for with --test-only
_MODULE = re.compile(r"(?im)^\s*(\S*(?:apptainer|singularity)/?[\w.+-]*)(?:\([\w, ]*\))?\s*$")


class Survey:
    """A machine asked on its login node; ``draft`` is its profile as far as it is known."""

    def __init__(self) -> None:
        self.tables = slurm_tables.read(getpass.getuser())
        self.login = _login()
        self.date = datetime.datetime.now(tz=datetime.UTC).astimezone().date().isoformat()
        self.node: Node | None = None
        self.draft = self._write()

    def _write(self) -> Draft:
        return profile.write(self.tables, self.login, self.node, self.date)

    def probe(self, account: str, partition: str, qos: str, seconds: float) -> None:
        """Look at a node by a job, which waits and runs no longer than this.

        Raises
        ------
        SiteError
            If the job is refused, does not end in time, or gives no answer.
        """
        table = tomllib.loads(self.draft.text(()))
        wanted = node_job.choose(table, account, partition, qos)
        try:
            self.node = node_job.run(wanted, seconds)
        except SiteError as error:
            if error.place != "sbatch" or wanted.gpu or wanted.partition in table.get("partitions", {}):
                raise
            self.node = node_job.run(wanted._replace(gpu="gpu:1"), seconds)  # a partition may take no job without
        self.draft = self._write()

    def keep_of(self, path: Path) -> list[str]:
        """Keep of an older profile what its user wrote, and what a node said if none was asked now; return the keys."""
        layers = Layers()
        layers.add(read_toml(path, obeyed=True), str(path))
        nested = layers.nested().get("facts", {})
        tables = {name: table for name, table in nested.items() if isinstance(table, dict)} if nested else {}
        known = {name: build(Fact, _only(table, str(path))) for name, table in tables.items()}
        return renewal.keep(self.draft, layers, known, probed=self.node is not None)

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
                    place = plan.RunLocation(path.parent / "check-20000101-000000-0000", "/usr/bin/python3", "0")
                    directives = dict(plan.plan(site, spec, place).directives)
                    refused = _refused(directives, path.parent)
                    if refused and "--mem" in directives:
                        less = {option: value for option, value in directives.items() if option != "--mem"}
                        if not _refused(less, path.parent):
                            self._forgo_memory(name, refused)
                            continue
                except SlurmUnreachableError:
                    return  # nothing is learnt, and nobody is to wait for the other partitions too
                except UsageError:
                    return  # no account is known
                except HpcmlError as error:
                    refused = error.message
                if refused:
                    self.draft.ask(
                        ("partitions", name), f"a whole node of {name} is refused: {refused}. What is too much?"
                    )

    def _forgo_memory(self, name: str, refused: str) -> None:
        how = How(SLURM, f"sbatch --test-only in {name}: {refused}")
        self.draft.set(("slurm",), "remove", ["--mem"], how)
        self.draft.ask(
            ("slurm",), f"{name} takes no job that asks for all memory of a node ({refused}): may a job ask for less?"
        )

    @contextlib.contextmanager
    def on_disk(self, heading: tuple[str, ...]) -> Iterator[Path]:
        """Give a file with the profile, for as long as it is looked at."""
        with tempfile.TemporaryDirectory(prefix="hpcml-site-") as folder:
            path = Path(folder, "now.toml")
            files.write(path, self.draft.text(heading))
            yield path


def _only(table: Mapping[str, object], origin: str) -> Layers:
    layers = Layers()
    layers.add(table, origin)
    return layers


def _refused(directives: Mapping[str, str], folder: Path) -> str:
    """Return why Slurm would not take a job, in its own words; nothing if it would."""
    lines = [
        f"#SBATCH {option}{f'={value}' if value else ''}"
        for option, value in directives.items()
        if option != "--output"
    ]
    script = folder / "check.sh"
    files.write(script, "\n".join(["#!/bin/sh", *lines, "true", ""]))
    try:
        slurm.check(script)
    except SiteError as error:
        return (error.quote or (error.message,))[0].removeprefix("sbatch: error: ").removeprefix("allocation failure: ")
    return ""


def _login() -> profile.Login:
    environment = process_environment()
    programs = tuple(name for name in ("apptainer", "singularity") if shutil.which(name))
    modules: tuple[str, ...] = ()
    if not programs and shutil.which("bash"):
        command = ["bash", "-lc", "module -t avail apptainer; module -t avail singularity"]
        answer = subprocesses.run(command, _MODULES_SECONDS)
        modules = tuple(dict.fromkeys(_MODULE.findall(answer.text)))[:6]
    groups = tuple(files.group(gid) for gid in os.getgroups())
    return profile.Login(socket.gethostname(), groups, environment, programs, modules, _mounts())


def _mounts() -> dict[str, str]:
    """Return the kinds of what is mounted here, by place; nothing on a system without /proc."""
    try:
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {words[1]: words[2] for line in lines if len(words := line.split(" ")) > 2}


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
            files.write(path.with_name(f"{path.name}.old"), files.read_setting(path), 0o644)
        files.write(path, text, 0o644)
    except OSError as error:
        hint = "Let yourself write there, or take --print and put it elsewhere."
        raise StorageError(f"The profile cannot be written: {error.strerror}", place=str(path), hint=hint) from error
