"""plan → render → record → hand over → record: the one path from a request to a running job."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import hpcml
from hpcml import assets, jobs, render, runs, shell, slurm
from hpcml.errors import ANSWER_LOST, HpcmlError, StorageError
from hpcml.layout import RunPaths
from hpcml.plan import Place, Plan, plan
from hpcml.sites import LoadedSite, config_folders


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan and its script, with nothing written yet."""

    plan: Plan
    script: str


def prepare(loaded: LoadedSite, spec: jobs.JobSpec, environment: Mapping[str, str]) -> Prepared:
    """Plan and render a request without touching the disk.

    Raises
    ------
    HpcmlError
        Whatever is wrong with the request, the site or the template.
    """
    jobs.check_script(spec.script)
    run_id = runs.new_id(jobs.job_name(spec))
    directory = runs.runs_folder(loaded.site.paths.runs, environment) / run_id
    made = plan(loaded.site, spec, Place(run_id, directory, sys.executable, hpcml.__version__))
    return Prepared(made, render.render(made, template_folders(environment, spec.cwd)))


def template_folders(environment: Mapping[str, str], cwd: Path) -> list[Path]:
    """Return where a site or user may keep a template of their own, most special first."""
    folders = [cwd / "templates" / "hpcml", *(place / "templates" for place in reversed(config_folders(environment)))]
    return [folder for folder in folders if folder.is_dir()]


def check(prepared: Prepared, environment: Mapping[str, str]) -> str:
    """Ask Slurm whether it would take the script, leaving nothing behind; return its estimate.

    Raises
    ------
    SlurmRefusedError, SlurmUnreachableError
        As Slurm answers.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hpcml-check-") as folder:
        script = Path(folder) / "job.sh"
        script.write_text(prepared.script)
        return slurm.test_only(str(script), environment)


def submit(prepared: Prepared, loaded: LoadedSite, spec: jobs.JobSpec, environment: Mapping[str, str]) -> runs.Run:
    """Write the run's directory, hand the script over and record the answer.

    Raises
    ------
    StorageError
        If the directory cannot be written; nothing is left and nothing was submitted.
    SlurmRefusedError, SlurmUnreachableError
        If Slurm did not take it; the directory is kept, with the answer in submission.json.
    HpcmlError
        With status ``ANSWER_LOST`` if it is not known whether the job exists.
    """
    made = prepared.plan
    paths = _write(prepared, loaded, spec)
    record: dict[str, object] = {"site": made.site, "time": round(time.time(), 3), "slurm": made.slurm}
    try:
        record |= _hand_over(made, paths, environment)
    except HpcmlError as error:
        runs.write_json(paths.submission, {**record, **error.as_json()})
        raise
    runs.write_json(paths.submission, record)
    return runs.load(paths.directory)


def _write(prepared: Prepared, loaded: LoadedSite, spec: jobs.JobSpec) -> RunPaths:
    import json

    made = prepared.plan
    origins = {key.replace("\0", "."): dataclasses.asdict(value) for key, value in loaded.layers.values.items()}
    request = {"version": made.version, "spec": dataclasses.asdict(spec), "site": origins}
    step = (assets.folder("templates") / "step.sh").read_text()
    paths = runs.create(Path(made.directory), {
        "request.json": json.dumps(request, indent=1, default=str) + "\n",
        "plan.json": json.dumps(dataclasses.asdict(made), indent=1) + "\n",
        "job.sh": prepared.script,
        "step.sh": step,
    })  # fmt: skip
    try:
        left_out = runs.snapshot(spec.script, paths.code, loaded.site.code)
    except StorageError:
        import shutil

        shutil.rmtree(paths.directory, ignore_errors=True)
        raise
    if left_out:
        runs.write(paths.code / ".hpcml-left-out", left_out + "\n")
    return paths


def _hand_over(made: Plan, paths: RunPaths, environment: Mapping[str, str]) -> dict[str, object]:
    if not made.slurm:
        clean = slurm.clean_environment(environment)
        pid = shell.start_in_background(["bash", str(paths.script)], clean, paths.job_log)
        return {"pid": pid, "started": shell.start_time(pid)}
    try:
        job, cluster = slurm.submit(str(paths.script), environment)
    except slurm.AnswerLostError as lost:
        found = find_again(made.run_id, environment)
        if found is None:
            hint = f"It was not sent twice. When Slurm answers again: hpcml status {made.run_id}."
            raise HpcmlError("It is not known whether Slurm took the job", place="sbatch", hint=hint,
                             status=ANSWER_LOST, quote=lost.quote) from lost  # fmt: skip
        return {"job": found, "cluster": "", "found_again": True}
    return {"job": job, "cluster": cluster}


def find_again(run_id: str, environment: Mapping[str, str], seconds: float = 20.0) -> str | None:
    """Look for the job of a run by its comment, a few times within a deadline; None if it is not there.

    A request whose answer was lost may still be on its way, so one look that finds nothing proves nothing.
    """
    deadline = time.monotonic() + seconds
    pause = 0.5
    while True:
        try:
            found = slurm.find_by_comment(f"hpcml:{run_id}", environment)
        except HpcmlError:
            found = None  # the controller does not answer: the deadline decides
        if found or time.monotonic() + pause > deadline:
            return found
        time.sleep(pause)
        pause = min(pause * 2, 5.0)
