"""What is read of a batch script before its submission: its lines for Slurm, and what of them hpcml cannot do."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from hpcml import safe_files
from hpcml.errors import NotFoundError, UsageError
from hpcml.request.record import NOT_SAID, RunRequest, job_name
from hpcml.schedulers import sbatch_lines
from hpcml.sites.schema import Site
from hpcml.units import TimeLimit

_PAGE = "hpcml help from-batch-scripts"
_DROPPED = {"--wait": "To wait for the run, use hpcml submit --wait.", "--test-only": "Use hpcml submit --check."}


def read(spec: RunRequest) -> tuple[RunRequest, list[str]]:
    """Return the request with the script's lines for Slurm, and notes.

    Raises
    ------
    HpcmlError
        If the script cannot be read, or a line asks for what hpcml does not do.
    """
    script = spec.code.script
    for option, value, hint in (
        ("--image", spec.image, "Start the image in the script: srun apptainer exec IMAGE PROGRAM."),
        ("--python", spec.python, "Activate the environment in the script, before srun."),
    ):
        if value:
            raise UsageError(f"{option} has no meaning for a batch script", place=option, hint=hint)
    try:
        text = script.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        where, hint = safe_files.denied(script)
        raise NotFoundError(f"The script cannot be read: {error.strerror}", place=where, hint=hint) from error
    sbatch_lines.check_line_breaks(script, text)
    numbered = list(sbatch_lines.of_script(text))
    for number, line in numbered:
        _check_line(f"line {number} of {script.name}", line)
    lines = tuple(line for _, line in numbered)
    stated = sbatch_lines.all_options(lines)
    notes = [f"hpcml ignores {option} in {script.name}. {way}" for option, way in _DROPPED.items() if option in stated]
    if not sbatch_lines.OUTPUT & stated.keys():
        notes.append(f"{script.name} has no --output line: hpcml logs RUN shows its output, not slurm-JOBID.out")
    here = spec.code.cwd / (stated["--chdir"].value if "--chdir" in stated else "")
    for output in filter(None, map(stated.get, sorted(sbatch_lines.OUTPUT))):
        notes += _check_folder(f"{output.typed} of {script.name}", spec.code.cwd, (here / output.value).parent)
    if "--comment" in stated:
        notes.append(
            f"hpcml replaces {stated['--comment'].typed} of {script.name}: by the comment it finds the job again"
        )
    return _named(spec.changed(lines=lines), stated), notes


def _check_line(place: str, line: str) -> None:
    """Refuse a line that asks for several components."""
    if sbatch_lines.is_for_another(line):
        hint = f"Submit it with sbatch, or each component as a run of its own. More: {_PAGE}."
        raise UsageError("hpcml starts no heterogeneous job, but the script asks for one", place=place, hint=hint)


def _check_folder(place: str, here: Path, folder: Path) -> list[str]:
    """Refuse a missing folder of the job's output, as Slurm fails the job; return a note if the nodes may have it."""
    if os.access(folder, os.X_OK) or "%" in str(folder):
        return []
    if not folder.is_relative_to(here):
        return [f"{place}: {folder} does not exist on this machine; the first node must have it"]
    name = shlex.quote(str(folder.relative_to(here)))
    problem = f"There is no folder {name} for the job's output, and Slurm does not create it"
    raise NotFoundError(problem, place=place, hint=f"Create the folder: mkdir -p {name}.")


def _named(spec: RunRequest, stated: dict[str, sbatch_lines.Option]) -> RunRequest:
    """Return the request with the name that the script gives to its job, if a run can have it."""
    name = stated.get("--job-name")
    if spec.name or name is None:
        return spec
    try:
        job_name(named := spec.changed(name=name.value))
    except UsageError:
        return spec
    return named


def sized(site: Site, spec: RunRequest) -> tuple[Site, RunRequest]:
    """Return the site without its defaults for sizes, and the request with those of the script's lines."""
    stated = sbatch_lines.all_options(spec.code.lines)
    size = spec.size
    if size.nodes == NOT_SAID:
        size = size._replace(nodes=sbatch_lines.nodes(stated))
    if size.gpus_per_node == NOT_SAID:
        size = size._replace(gpus_per_node=sbatch_lines.gpus(stated))
    if not size.time and "--time" in stated:
        with contextlib.suppress(ValueError):  # Slurm will refuse it
            size = size._replace(time=TimeLimit(stated["--time"].value))
    said = {
        name: stated[f"--{name}"].value for name in ("account", "partition", "qos", "clusters") if f"--{name}" in stated
    }
    without = site.resources._replace(cpus_per_node=0, memory_per_node=type(site.resources.memory_per_node)())
    site = site._replace(
        resources=without,
        defaults=site.defaults._replace(time=TimeLimit()),
        runtime=site.runtime._replace(kind="python"),
    )
    place = {name: value for name, value in said.items() if not spec.value(name)}
    return site, spec._replace(size=size).changed(**place)
