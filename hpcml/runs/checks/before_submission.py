"""All checks of what a run starts, before it is submitted: script, interpreter, packages, launchers of ranks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcml import config_trust, kinds, safe_files, schedulers
from hpcml.config_trust import TYPED
from hpcml.errors import ScriptError, UsageError
from hpcml.options import sbatch_tasks
from hpcml.plan.make_plan import Plan
from hpcml.request.record import RunRequest
from hpcml.runs import packages, script_or_program, uv_environments
from hpcml.runs.checks import expects_ranks, script_checks, unsafe_rendezvous
from hpcml.runs.submit import Checked
from hpcml.sites import settings_layers
from hpcml.sites.lookup import LoadedSite
from hpcml.sites.schema import Site
from hpcml.workload_forms import Form


def check_request(site: Site, spec: RunRequest) -> None:
    """Raise an HpcmlError if a script cannot be run, before anything is planned."""
    if not spec.code.form.traits.is_script:
        return
    if spec.code.form is Form.PROGRAM:
        in_image = site.runtime.kind == "image" or bool(spec.image)
        path = None if in_image else settings_layers.process_environment().get("PATH", "")
        if not (in_image and spec.code.in_place):  # the image has other files
            script_checks.check_program(spec.code.script, path, prepared=_is_prepared(site))
        if script_or_program.is_python(spec.code.script) and (
            not spec.code.arguments or spec.code.arguments[-1] == "-"
        ):
            hint = f"Name the script at the end: -- {spec.code.script.name} SCRIPT."
            raise UsageError("Python needs a script: a run has no standard input", place="--", hint=hint)
    elif spec.code.form is Form.BATCH:
        _check_batch_script(site, spec.code.script, spec.code.arguments)
    elif spec.code.form is Form.NOTEBOOK:
        script_checks.check_notebook(spec.code.script, spec.code.arguments)
    elif spec.code.form is Form.SCRIPT:
        script_checks.check_file(spec.code.script)
    if spec.code.interpreter and not (site.runtime.kind == "image" or spec.image):
        path = settings_layers.process_environment().get("PATH", "")
        script_checks.check_program(Path(spec.code.interpreter[0]), path, prepared=_is_prepared(site))


def _check_batch_script(site: Site, script: Path, arguments: Sequence[str]) -> None:
    """Refuse a site that does not read the lines of a batch script."""
    if not schedulers.get(site.scheduler).BATCH_SCRIPTS:
        who = f"The site '{site.name}'" if schedulers.get(site.scheduler).ONE_MACHINE else "hpcml run"
        sbatch_tasks.check_array(script, who)
        from hpcml.runs import translated  # what only few submissions need

        problem = f"{script.name} is a batch script for Slurm, but the site '{site.name}' does not use sbatch"
        raise UsageError(problem, place="SCRIPT", hint=translated.hint(script, arguments))


def check_plan(loaded: LoadedSite, spec: RunRequest, made: Plan, *, dry_run: bool) -> Checked:
    """Refuse what a plan's script cannot be run with; return the notes on it.

    Raises
    ------
    HpcmlError
        Whatever is certain to fail: the script's syntax, a package that is missing, ranks without ``--ranks``.
    """
    notes = _check_python(loaded.site, spec, made, dry_run=dry_run)
    if spec.code.form.traits.is_main:
        set_here = {*loaded.site.environment, *(name for name, _ in spec.environment)}
        set_here |= expects_ranks.VARIABLES if _is_prepared(loaded.site) else set()
        python, job = made.steps[-1].command[0], made.inside.job
        nodes, srun, late = 1 if job.one_machine else job.nodes, not job.one_machine, made.inside.workers.late
        workers = made.inside.worker_count
        notes += expects_ranks.check_script(spec, python, workers, set_here, nodes, late=late, srun=srun)
        notes += _check_code(loaded, spec, made, dry_run=dry_run)
    if spec.code.form in (Form.MODULE, Form.PROGRAM):
        notes += expects_ranks.check_program(spec, made)
    open_to_others = unsafe_rendezvous.check(loaded.site, spec, made)
    notes += [*open_to_others, *_two_pythons(loaded.site, spec, made)]
    return Checked(notes, always=open_to_others)


def _check_code(loaded: LoadedSite, spec: RunRequest, made: Plan, *, dry_run: bool) -> list[str]:
    """Return the notes on the script's code, as the run's interpreter will see it."""
    base = spec.code.script.parent if spec.code.staged else spec.code.cwd
    python = made.steps[-1].command[0]
    named = loaded.layers.named("runtime", "python")
    image, prepared = bool(made.inside.job.image), _is_prepared(loaded.site)
    needs = () if made.inside.workers.late else kinds.get(spec.kind).needs
    if spec.code.interpreter:
        python, named = shutil.which(spec.code.interpreter[0]) or spec.code.interpreter[0], TYPED
    if spec.code.batch_words:  # perhaps another user's, and only its job starts what it names
        named = config_trust.of_line(spec.code.batch_words[0])
    if spec.code.form is Form.MODULE:
        return script_checks.check_module_code(
            spec.code.script, python, named=named, image=image, prepared=prepared, dry_run=dry_run
        )
    notes = script_checks.check_code(
        spec.code.script, base, python, named=named, needs=needs, image=image, prepared=prepared, dry_run=dry_run
    )
    if not spec.code.interpreter and not image:
        notes += script_checks.unused_first_line(spec.code.script, base, python)
    notes += script_checks.missing_argument(spec.code.script, base, len(spec.code.arguments))
    return notes + script_checks.lost_input(spec.code.script, base)


def _two_pythons(site: Site, spec: RunRequest, made: Plan) -> list[str]:
    """Return a note where the script runs by another Python than the workers, whose packages tasks import."""
    program = Path(spec.code.interpreter[0]) if spec.code.interpreter else spec.code.script
    if (
        made.inside.job.image
        or not kinds.get(spec.kind).has_cluster
        or not (spec.code.interpreter or (spec.code.form is Form.PROGRAM and script_or_program.is_python(program)))
    ):
        return []
    workers = made.steps[-1].command[0]
    interpreter = str(program) if _is_prepared(site) else shutil.which(program) or str(program)
    if Path(interpreter).parent == Path(workers).parent:
        return []
    note = f"{interpreter} runs the script, but {workers} (runtime.python) runs the workers"
    return [f"{note}: tasks import the packages of the workers' Python"]


def _check_python(site: Site, spec: RunRequest, made: Plan, *, dry_run: bool) -> list[str]:
    """Refuse a Python that lacks what the request needs; return a note of one for another processor."""
    python = made.steps[-1].command[0]
    if made.inside.job.image:
        return []
    notes = [*_check_access(python, made.python_from), *_check_processor(python)]
    needs = () if made.inside.workers.late else kinds.get(spec.kind).needs
    for name, folder in packages.Environment(python).hidden(needs):
        how = "remove this folder from PYTHONPATH before you submit"
        notes.append(f"PYTHONPATH has {folder}, whose {name} hides the {name} of the run's Python: {how}")
    if not _is_prepared(site):
        needs, named_by = (*needs, *spec.code.form.traits.packages), made.python_from or "the Python that runs hpcml"
        try:
            packages.check_packages(needs, python, named_by, sure=True)
        except ScriptError as error:
            error.hint += " A sweep needs Dask also for a script that does not use Dask." if spec.points.sweep else ""
            if not dry_run:
                raise
            notes.append(f"{error.message[:1].lower()}{error.message[1:]}: the submission would be refused")
        for option, needed in kinds.get(spec.kind).packages(made.inside).items():
            packages.check_packages(needed, python, option)
    return notes


def _check_access(python: str, named_by: str) -> list[str]:
    """Refuse an interpreter that this user may not execute; return a note of one that is not on this machine."""
    try:
        denied = not os.access(python, os.X_OK) and Path(python).stat() is not None
    except PermissionError:
        denied = True
    except OSError:
        if uv_environments.FOLDER in Path(python).parts:  # uv makes it at the submission
            return []
        return [f"{python} ({named_by}) does not exist on this machine; the nodes must have it"]
    if denied:
        what, step = safe_files.denied(Path(python))
        hint = f"Nothing was submitted. {step} To use another Python: --python PATH."
        raise ScriptError(f"Permission denied: {what}", place=named_by, hint=hint)
    return []


def _check_processor(python: str) -> list[str]:
    """Return a note if the interpreter's file is for another processor than this machine's: the nodes' may differ."""
    if python == sys.executable or not (kind := safe_files.architecture_of(Path(python))) or kind == os.uname().machine:
        return []
    here = os.uname().machine
    return [f"runtime.python ({python}) is for {kind}, but this machine is {here}: the run works only on {kind} nodes"]


def _is_prepared(site: Site) -> bool:
    """Whether the site changes the environment before the roles start."""
    changed = {"PATH", "PYTHONPATH"} & site.environment.keys()
    return bool(site.runtime.modules or site.runtime.setup or changed)
