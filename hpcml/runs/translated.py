"""A batch script submitted as the line of hpcml's that does the same (``--translate``); nothing of it runs here."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml import kinds, safe_files, schedulers
from hpcml.errors import UsageError
from hpcml.options import sbatch_tasks, script_lines
from hpcml.options.reading import request_of
from hpcml.options.translate.batch_script import Translation, translate
from hpcml.options.translate.directives import Taken
from hpcml.options.translate.shell_syntax import UntranslatedError
from hpcml.request.record import RunRequest, job_name
from hpcml.runs import dask_named, script_or_program
from hpcml.schedulers import batch_variables, sbatch_lines
from hpcml.sites import lookup, settings_layers
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from hpcml.options.parser import Parser

_MOST = 1 << 16  # bytes of a batch script
_PAGE = "hpcml help from-batch-scripts"


def of_file(
    script: Path, arguments: Sequence[str], typed: Mapping[str, Any], partition: str, *, slurm: bool
) -> Translation:
    """Return the translation into hpcml's options that does the same as a batch script, with what is typed beside it.

    ``partition`` is the site's default, in which the script runs as it is if it names none.

    Raises
    ------
    UntranslatedError
        The first line that hpcml has no word for.
    """
    try:
        content = safe_files.read(script, _MOST, ours=False, follow=True)
    except safe_files.ForeignError as error:
        raise UntranslatedError(1, error.why) from error
    except OSError as error:
        raise UntranslatedError(1, f"it cannot be read: {error.strerror}") from error
    variables = {
        name: value for name, value in settings_layers.process_environment().items() if name in ("HOME", "USER")
    }
    if script.is_relative_to(here := settings_layers.here()):  # one that a laptop sent was submitted in another folder
        variables[batch_variables.FOLDER] = str(here)
    exported = settings_layers.process_environment().keys()
    text = content.decode(errors="surrogateescape")
    sbatch_lines.check_line_breaks(script, text)
    made = translate(text, arguments, typed, variables, slurm=slurm, exported=exported)
    _check_files(made)
    if (
        slurm
        and partition
        and not typed.get("partition")
        and all(taken.words[0] != "--partition" for taken in made.options)
    ):
        made = made._replace(options=(*made.options, Taken(("--partition", partition))))
    return made


def _place(taken: Taken, script: Path) -> str:
    return f"line {taken.number} of {script.name}" if taken.number else "defaults.partition"


def _check_files(made: Translation) -> None:
    """Refuse a file that a line reads and that starts tasks: in hpcml's job it would start others."""
    for row in made.rows:
        match = re.fullmatch(r"(?:source|\.) ([\w./~-]+)", row.text)
        if not match:
            continue
        with contextlib.suppress(OSError, RuntimeError):  # on the nodes alone, or nobody's home
            path = settings_layers.here() / Path(match[1]).expanduser()
            text = safe_files.read(path, _MOST, ours=False, follow=True).decode(errors="replace")
            if found := next(sbatch_tasks.launchers(text), ""):
                raise UntranslatedError(row.number, f"{match[1]}, which has a line with {found}")


def in_words(script: Path, arguments: Sequence[str], typed: Mapping[str, Any], partition: str) -> str:
    """Return hpcml's line for a batch script, or the first line of it that hpcml has no word for."""
    try:
        made = of_file(script, arguments, typed, partition, slurm=True)
    except UntranslatedError as error:
        return f"hpcml cannot translate line {error.number} of {script.name}: it has {error.what}"
    given = {*filter(typed.get, typed), *(taken.words[0].removeprefix("--") for taken in made.options)}
    if given & {"ranks", "python"}:
        return made.line
    problem = _lacks_python(
        made, RunRequest(script_or_program.code(["--", *made.command], settings_layers.here())), script
    )
    return f"hpcml cannot translate line {made.number} of {script.name}: {problem}" if problem else made.line


def _lacks_python(made: Translation, spec: RunRequest, script: Path) -> str:
    """Return the problem of workers that would not have the Python of a script's lines, empty if there is none."""
    prepares = any("runtime.setup" in word for taken in made.options for word in taken.words)
    if not (prepares and not spec.python and kinds.get(spec.kind).has_cluster and dask_named.names_dask(spec)):
        return ""
    uses = f"{spec.code.script.name} uses Dask, or hpcml cannot read it as Python"
    return f"{uses}. Dask's workers would not have the Python that {script.name} prepares"


def hint(script: Path, arguments: Sequence[str]) -> str:
    """Return the line to type on a site without Slurm."""
    try:
        made = of_file(script, arguments, {}, "", slurm=False)
    except UntranslatedError as error:
        why = f"hpcml has no line that does the same: line {error.number} has {error.what}."
        return f"{why} To start it on one node: hpcml submit -- bash {shlex.quote(script.name)}. More: {_PAGE}."
    if any(taken.words[0] == "--mpi" for taken in made.options):  # which the site would refuse
        way = "Choose a site with Slurm (--site), or start mpirun: hpcml submit -- mpirun -n N PROGRAM"
        return f"Only Slurm's srun connects the MPI tasks of line {made.number}. {way}. More: {_PAGE}."
    line = made.line
    return f"Add --translate, or type: {line}. More: {_PAGE}."


def request(
    given: dict[str, Any], arguments: Sequence[str], parser: Parser, folder: Path | None = None
) -> tuple[RunRequest, Translation]:
    """Return the request for the line that does the same as a batch script, and the translation.

    Parameters
    ----------
    given
        The typed options, which count more; it gets those of the script's lines.
    arguments
        The batch script and its arguments.
    folder
        Of a script that a laptop sent: the folder that it runs in.

    Raises
    ------
    UsageError
        If the script is none, or a line of it has no word of hpcml's.
    """
    here = folder or settings_layers.here()
    script = here / arguments[0]
    if script_or_program.as_batch_script(script_or_program.code([str(script)], here)).form is not Form.BATCH:
        problem = "--translate is for a batch script with #SBATCH lines"
        raise UsageError(problem, place=arguments[0], hint="Remove --translate.")
    origins = script_lines.lay_below(given, script, parser, as_is=True)
    site = lookup.load_here(given.get("site") or "", here, given.get("set") or (), given.get("line_set") or ()).site
    slurm = schedulers.get(site.scheduler).BATCH_SCRIPTS
    try:
        made = of_file(script, arguments[1:], given, site.defaults.partition, slurm=slurm)
    except UntranslatedError as error:
        way = "To run the script as it is, remove --translate. " if slurm else ""
        problem = f"hpcml cannot translate {script.name}: {error.what}"
        raise UsageError(problem, place=f"line {error.number} of {script.name}", hint=f"{way}More: {_PAGE}.") from error
    lines = [(_place(taken, script), shlex.join(taken.words)) for taken in made.options]
    origins += script_lines.lay_translated(given, lines, parser)
    code = script_or_program.code(["--", *made.command], here)
    if folder and not (code.script.is_absolute() and code.script.is_relative_to(folder)):
        refused = f"A laptop sends only a script or a program of its folder, but {script.name} starts {code.script}"
        way = "Copy the folder to the cluster, and submit there."
        raise UsageError(refused, place=f"line {made.number} of {script.name}", hint=way)
    if made.command[0] == "bash" and not given.get("name"):
        given["name"] = job_name(RunRequest.of(script))
    spec = request_of(given, code._replace(batch_words=(str(script), *arguments[1:])))._replace(origins=origins)
    if problem := _lacks_python(made, spec, script):
        raise UsageError(problem, place=f"line {made.number} of {script.name}", hint="Add --python PATH or NAME.")
    return spec, made
