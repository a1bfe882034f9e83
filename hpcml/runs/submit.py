"""plan → render → record → hand over → record: the one path from a request to a running job."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml import (
    __version__,
    assets,
    features_by_point,
    kinds,
    outputs_brought_back,
    safe_files,
    schedulers,
    subprocesses,
    typed_json,
)
from hpcml.errors import ANSWER_LOST, HpcmlError, SiteError, UsageError, did_you_mean, nearest
from hpcml.options import script_lines
from hpcml.options.reading import request_of
from hpcml.paths import RunPaths
from hpcml.plan.make_plan import Plan, RunLocation, plan
from hpcml.request.record import RunRequest, job_name
from hpcml.runs import (
    copied_project,
    dask_named,
    directories,
    files_of_killed_runs,
    packages,
    pythons,
    script_or_program,
    snapshot,
)
from hpcml.runs import notes as notes_shown
from hpcml.schedulers import Submission
from hpcml.sites import lookup, settings_layers
from hpcml.sites.lookup import LoadedSite, config_folders, why_ignored
from hpcml.sites.schema import Site
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from hpcml.options.parser import Parser


class Prepared(NamedTuple):
    """A request on a site and its plan, with nothing written yet; ``notes`` are what its user should know.

    ``templates`` are the folders of templates other than hpcml's own, ``template`` the file that the script is made
    from if it is in one of them; ``points`` are those of a sweep, as JSON. ``always`` and ``project_notes`` are those
    of the notes that each submission shows (:func:`hpcml.runs.notes.show`).
    """

    loaded: LoadedSite
    spec: RunRequest
    plan: Plan
    templates: tuple[Path, ...] = ()
    template: str = ""
    notes: tuple[str, ...] = ()
    points: str = ""
    always: tuple[str, ...] = ()
    project_notes: tuple[notes_shown.ProjectNote, ...] = ()

    @property
    def script(self) -> str:
        """The batch script, rendered on each access: most dry runs show none, and Jinja2 takes longest to import."""
        from hpcml.plan import batch_script

        return batch_script.render(self.plan, self.templates)


class Checked(NamedTuple):
    """What a check of a plan tells: ``notes`` for the user, of which each submission shows those of ``always``."""

    notes: list[str]
    always: list[str] = []


_ASKED_WITHIN = 2.0  # seconds for a question to the scheduler before a submission
EXCLUDE_FAILED = "slurm.exclude_failed"  # where an option of a request comes from


def script_request(given: dict[str, Any], arguments: list[str], parser: Parser) -> RunRequest:
    """Return the request for a script with its arguments; ``given`` gets the options in the script's own lines too."""
    here = settings_layers.here()
    first = 1 if arguments[0] in ("-m", "--") and arguments[1:] else 0  # the words before the name
    if arguments[first + 1 : first + 2] == ["--"] and arguments[0] != "--":
        arguments = [*arguments[: first + 1], *arguments[first + 2 :]]  # all that follows is the script's
    file = here / arguments[first]
    if (
        arguments[0] == "--"
        and arguments[2:]
        and script_or_program.stays(script_or_program.named(arguments, here)[0], here)
    ):
        file = here / arguments[2]  # as in: bash job.sh
    code = script_or_program.code(arguments, here)
    if code.form is Form.SCRIPT and not code.interpreter and not given.get("ranks") and "grid" not in given:
        code = script_or_program.as_batch_script(code)
    origins = script_lines.lay_below(given, file, parser, as_is=code.form is Form.BATCH)
    return request_of(given, code)._replace(origins=origins)


def prepare_request(
    spec: RunRequest, *, by_hand: bool = False, dry_run: bool = False, may_choose_gpus: bool = False
) -> Prepared:
    """Return the prepared submission of a request on its site, with all notes on it.

    Parameters
    ----------
    by_hand
        Whether the user types the line that submits it.
    dry_run
        Whether nothing will be submitted. Then hpcml does not search ended runs for failed nodes, and a package that
        this machine lacks is a note.
    may_choose_gpus
        Whether the script's text may choose GPUs (:mod:`hpcml.runs.gpus_chosen`), if the request does not.
    """
    place = spec.place
    loaded = lookup.load_here(place.site, spec.code.cwd, place.settings, place.line_settings)
    notes: list[str] = []
    if spec.code.form is not Form.BATCH or schedulers.get(loaded.site.scheduler).BATCH_SCRIPTS:  # else refused below
        spec, notes = kinds.get(spec.kind).with_script(spec)
    for adapt in features_by_point.added("change of a request"):
        spec, more = adapt(loaded.site, spec, look=not dry_run)
        notes += more
    prepared = prepare(loaded, spec, dry_run=dry_run, may_choose_gpus=may_choose_gpus)
    _check_partition(prepared)
    notes += prepared.notes
    adviser = schedulers.find_adviser(prepared.plan.scheduler)
    if ignored := adviser.ignored_defaults() if adviser else []:
        if by_hand:
            notes.append(f"when you run the sbatch command, sbatch also reads the variables {', '.join(ignored)}")
        else:
            hint = "use hpcml's option instead, or set [defaults] in the site's settings"
            notes.append(f"hpcml ignores {', '.join(ignored)}: {hint}")
    if prepared.loaded.chosen_because == lookup.BY_DEFAULT:
        nodes = prepared.plan.inside.job.nodes
        which = f"; all {nodes} nodes of the run are this machine" if nodes > 1 else ""
        notes.append(f"sbatch was not found, so the run uses this machine{which}")
    return prepared._replace(notes=(*notes, *prepared.plan.notices))


def _check_partition(prepared: Prepared) -> None:
    """Refuse a partition that neither the site's profile nor the scheduler has, with the nearest name."""
    directives = dict(prepared.plan.directives)
    of_site, named = prepared.loaded.site.partitions, directives.get("--partition", "")
    adviser = schedulers.find_adviser(prepared.plan.scheduler)
    if adviser is None or "--clusters" in directives:  # of which the profile need not be
        return
    for name in named.split(",") if of_site else ():
        if name and name not in of_site and not adviser.has_partition(name, _ASKED_WITHIN):
            hint = did_you_mean(nearest(name, of_site), f"The profile has the partitions {', '.join(of_site)}.")
            raise SiteError(f"There is no partition '{name}'", place="--partition", hint=hint)


def prepare(
    loaded: LoadedSite, spec: RunRequest, run_id: str = "", *, dry_run: bool = False, may_choose_gpus: bool = False
) -> Prepared:
    """Plan a request without touching the disk; the run gets ``run_id``, or an id of its own.

    A template of the user's own is tried: it can be wrong in any way. With hpcml's own the values are looked at.

    Raises
    ------
    HpcmlError
        Whatever is wrong with the request, the site or the template.
    """
    from hpcml.plan import batch_script

    chosen = pythons.typed(loaded, spec, dry_run=dry_run)
    for check_request in features_by_point.added("check of a request"):
        check_request(chosen.loaded.site, chosen.spec)
    if not spec.python:
        is_late = _with_start(loaded.site, spec).workers.start == "late"
        chosen = pythons.choose(loaded, spec, is_late, dry_run=dry_run)
    loaded, spec = chosen.loaded, chosen.spec
    run_id = run_id or directories.new_id(job_name(spec))
    folder = directories.runs_folder(loaded.site.paths.runs, settings_layers.process_environment())
    directory = folder / run_id
    spec = schedulers.with_variables(loaded.site.scheduler, spec, loaded.is_from_this_call)
    own_templates, always = template_folders(spec.code.cwd)
    always += [*directories.check_folder(folder, loaded.site.paths.trust), *chosen.always]
    notes = [*dict.fromkeys((*always, *chosen.notes))]
    if may_choose_gpus:
        from hpcml.runs import gpus_chosen  # what a repeated run or a session does without

        spec, on_gpus = gpus_chosen.choose(loaded, spec, loaded.site.runtime.python or sys.executable)
        notes += on_gpus
    if spec.place.after:
        from hpcml.runs import waiting  # what only few submissions need

        open_runs, ended = waiting.resolve(folder, loaded.site, spec.place.after, spec.place.clusters)
        spec, notes = spec.changed(after=open_runs), notes + ended
    loaded, spec, of_code = _with_project(loaded, spec, RunPaths(directory).code)
    always += of_code
    notes += of_code
    template = next((str(path) for folder in own_templates if (path := folder / batch_script.TEMPLATE).is_file()), "")
    of_project = next((folder for folder in own_templates if template and folder == _templates_of(spec.code.cwd)), None)
    project_notes = notes_shown.of_project(loaded.project, spec.code, of_project)
    notes += [note.text for note in project_notes]
    if template and Path(template).parent != of_project:
        notes.append(f"the batch script uses the template {template}")
    staged = spec
    if spec.code.staged:
        folder_of_run = RunPaths(directory).code
        staged = spec.changed(cwd=folder_of_run / spec.code.cwd.relative_to(spec.code.root or spec.code.cwd))
    started = _with_start(loaded.site, spec)
    made = plan(
        started,
        staged,
        RunLocation(directory, sys.executable, __version__, settings_layers.user_umask(), pythons.origin(loaded)),
    )
    made = _with_reason(made, loaded.site, started)
    for check_plan in features_by_point.added("check of a plan"):
        with _noted(chosen.notes):
            checked: Checked = check_plan(loaded, spec, made, dry_run=dry_run)
        always += checked.always
        notes += checked.notes
    kinds.get(spec.kind).check(made.inside, made.scheduler)
    if template:
        batch_script.render(made, own_templates)
    else:
        batch_script.check(made)
    prepared = Prepared(loaded, spec, made, tuple(own_templates), template, tuple(notes))
    return prepared._replace(project_notes=project_notes, always=(*always, *made.ignored))


@contextlib.contextmanager
def _noted(notes: Sequence[str]) -> Iterator[None]:
    """Add notes to a refusal: they say which other Python the run could have."""
    try:
        yield
    except HpcmlError as error:
        for text in notes:
            error.add_note(text)
        raise


def _with_start(site: Site, spec: RunRequest) -> Site:
    """Return the site with the Dask cluster's start, if the script's text decides it; a sweep then has no GPU pool."""
    is_open = site.workers.start == "auto" and kinds.get(spec.kind).has_cluster and spec.code.form.traits.is_script
    if not is_open or dask_named.names_dask(spec):
        return site
    pool = "none" if spec.points.sweep and site.gpu.rmm_pool_size == "auto" else site.gpu.rmm_pool_size
    gpu, workers = site.gpu._replace(rmm_pool_size=pool), site.workers._replace(start="late")
    return site._replace(workers=workers, gpu=gpu)


def _with_reason(made: Plan, site: Site, started: Site) -> Plan:
    """Return the plan with the reason why the Dask cluster starts late, if it does; a sweep's has notes instead."""
    nodes = made.inside.job.nodes
    if made.inside.points.sweep and started != site:  # the script's text does not name Dask
        notices, first = list(made.notices), "the code does not name Dask. "
        if nodes > 1:
            idle = f"{first}Each point runs on the first of {nodes} nodes. The other nodes are idle"
            notices.append(f"{idle}. To use {nodes} nodes, type --nodes 1 --jobs {nodes} (hpcml help sweeps)")
        if made.inside.workers.gpu and started.gpu != site.gpu:
            no_pool = f"{first}Therefore the workers reserve no GPU memory (gpu.rmm_pool_size)"
            notices.append(f"{no_pool}. If a package of the script uses Dask: --set workers.start=early")
        return made._replace(notices=tuple(notices))
    if not made.inside.workers.late:
        return made
    why = "workers.start is late" if site.workers.start == "late" else "the code does not name Dask"
    return made._replace(reasons=(*made.reasons, f"the Dask cluster starts only with the script's client: {why}"))


def _with_project(loaded: LoadedSite, spec: RunRequest, target: Path) -> tuple[LoadedSite, RunRequest, list[str]]:
    """Return site and request as the paths in the script's code need them, and a note where they need more."""
    if spec.code.staged:  # the laptop has sent what is needed
        return loaded, spec, []
    decision = copied_project.decide(spec.code, loaded.site.code, target)
    if decision.in_place:
        loaded = loaded._replace(site=loaded.site._replace(code=loaded.site.code._replace(snapshot="none")))
    return loaded, decision.applied(spec), [decision.note] if decision.note else []


def _templates_of(cwd: Path) -> Path:
    return cwd / "templates" / "hpcml"


def template_folders(cwd: Path) -> tuple[list[Path], list[str]]:
    """Return the folders of a site's or user's own templates, most special first, and those that do not count."""
    from hpcml.plan.batch_script import TEMPLATE

    folders = [
        _templates_of(cwd),
        *(place / "templates" for place in reversed(config_folders(settings_layers.process_environment()))),
    ]
    usable, ignored = [], []
    for folder in folders:
        if not folder.is_dir():
            continue
        if (path := folder / TEMPLATE).is_file() and (why := why_ignored(path)):
            ignored.append(why)
        else:
            usable.append(folder)
    return usable, ignored


def check(prepared: Prepared) -> str:
    """Ask the scheduler whether it would take the script, leaving nothing behind; return its estimate.

    Raises
    ------
    SiteError, SlurmUnreachableError
        As Slurm answers.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hpcml-check-") as folder:
        script = Path(folder) / "job.sh"
        script.write_text(prepared.script)
        return schedulers.get(prepared.plan.scheduler).check(script)


def submit(prepared: Prepared, *, by_hand: bool = False) -> directories.Run:
    """Submit one run as :func:`submit_all` does; UsageError for a job array."""
    if prepared.plan.array:
        hint = f"Use the command: hpcml submit {prepared.spec.code.typed}."
        raise UsageError("The script asks for a job array, which is several runs", place="--array", hint=hint)
    [run] = submit_all(prepared, by_hand=by_hand)
    return run


def submit_all(prepared: Prepared, *, by_hand: bool = False) -> list[directories.Run]:
    """Write the directory of the run, or of each task of an array, hand the script over and record the answer.

    With ``by_hand`` nothing is handed over: the record holds the line with which a person does it. A signal that comes
    while Slurm takes the job is handled after its answer; if that ends the program, the job is cancelled. A second one
    is handled at once.

    Raises
    ------
    StorageError, UsageError
        If the directory cannot be written, or the copy of the code would lack a module; nothing is left and nothing was
        submitted.
    SiteError, SlurmUnreachableError
        If Slurm did not take it; the directory is kept, with the answer in submission.json.
    HpcmlError
        With status ``ANSWER_LOST`` if it is not known whether the job exists.
    """
    made = prepared.plan
    runs = _of_array(prepared) if made.array else [prepared]
    paths = RunPaths(Path(runs[0].plan.directory))
    scheduler = schedulers.get(made.scheduler)
    line = scheduler.line(paths) if by_hand else ""
    notes = [*prepared.notes, *_write_all(runs, check_image(prepared))]
    if made.array:
        paths = _write_array(prepared, paths)
    begun = round(time.time(), 3)

    def write(answer: Submission) -> list[directories.Run]:
        bash_env = settings_layers.process_environment().get("BASH_ENV", "")  # it may end bash before the batch script
        record = answer._replace(site=made.site, time=begun, scheduler=made.scheduler, requeue=made.may_start_again)
        record = record._replace(notes=tuple(notes), bash_env=bash_env)
        return _write_answer(made, runs, record)

    if by_hand:
        return write(Submission(line=line))
    with subprocesses.signals_held(second_counts=True) as signals:
        try:
            submitted = write(scheduler.submit(prepared.loaded.site, paths))
        except HpcmlError as error:
            refusal = Submission(error=error.message, place=error.place, hint=error.hint, exit_status=error.exit_status)
            _, *others = write(refusal._replace(quote=error.quote))
            for run in others if error.exit_status != ANSWER_LOST else ():  # of a refused array one record is enough
                shutil.rmtree(run.paths.directory, ignore_errors=True)
            raise
    try:
        for number in signals:
            signal.raise_signal(number)
    except BaseException:  # the handler ends this program, and with it the only one who knows of the job
        from hpcml.runs import handle

        for run in submitted:
            handle.cancel(run)
        raise
    return submitted


def _write_answer(made: Plan, runs: Sequence[Prepared], record: Submission) -> list[directories.Run]:
    """Write the answer of the scheduler into the directories of a plan's run or tasks, and return the runs."""
    submitted = []
    for one, index in zip(runs, made.array or ("",), strict=True):
        own = record
        if made.array:
            job = f"{record.job}_{index}" if record.job else ""
            own = record._replace(job=job, run=one.plan.run_id, array=made.run_id)
        run = directories.Run(one.plan.run_id, RunPaths(Path(one.plan.directory)), own)
        directories.write_json(run.paths.submission, own.as_json())
        submitted.append(run)
    return submitted


def _of_array(prepared: Prepared) -> list[Prepared]:
    """Return the tasks of an array as runs, each of which asks for itself alone when it is run again."""
    others = [pair for pair in prepared.spec.place.sbatch if pair[0] != "--array"]
    return [
        prepared._replace(
            spec=prepared.spec.changed(sbatch=(*others, ("--array", str(index)))), plan=prepared.plan.of_task(index)
        )
        for index in prepared.plan.array
    ]


def _write_array(prepared: Prepared, first: RunPaths) -> RunPaths:
    """Write what is submitted of an array into the directory of its first task; return its files."""
    paths = RunPaths(first.directory / "array" / prepared.plan.run_id)
    with directories.storage(paths.directory):
        paths.directory.mkdir(mode=0o700, parents=True)
        directories.write_json(paths.plan, typed_json.plain(prepared.plan))
        safe_files.write(paths.script, prepared.script)
    return paths


def check_image(prepared: Prepared) -> dict[str, object]:
    """Refuse an image in which the run could not work, before nodes are asked for; return the facts of it.

    Raises
    ------
    ImageError, NotFoundError
        If it is missing, unreadable, no image, of another architecture, or does not fit the run.
    """
    settings = prepared.plan.inside
    if not settings.job.image:
        return {}
    gpus, cuda = settings.workers.gpu.count if settings.workers.gpu else 0, prepared.loaded.site.gpu.cuda
    return dict(features_by_point.only("check of an image")(Path(settings.job.image), cuda=cuda, gpus=gpus))


def _write_all(runs: Sequence[Prepared], image: dict[str, object]) -> list[str]:
    """Write the directories of runs, all or none; return the notes on their copies of the code."""
    from hpcml.plan import batch_script

    render, notes = batch_script.renderer(runs[0].templates), list[str]()
    like = RunPaths(Path(runs[0].plan.directory))
    with contextlib.ExitStack() as made:
        for prepared in runs:
            notes = _write(prepared, render(prepared.plan), image, like)
            made.callback(shutil.rmtree, prepared.plan.directory, ignore_errors=True)
        made.pop_all()
    return notes


def _write(prepared: Prepared, script: str, image: dict[str, object], like: RunPaths) -> list[str]:
    """Write the run's directory with its batch script; return the notes on its copy of the code.

    ``like``: a run that this process has just made, if there is one, with the same modules for the nodes.
    """
    loaded, spec, made = prepared.loaded, prepared.spec, prepared.plan
    origins = {key.replace("\0", "."): typed_json.plain(value) for key, value in loaded.layers.values.items()}
    request = {
        "version": made.version,
        "spec": typed_json.plain(spec.given()),
        "site": origins,
        "project": loaded.project.path,
    }
    request["template"] = prepared.template
    if image:
        request["image"] = image
    else:
        request["modules"] = " ".join(packages.modules(made.steps[-1].command[0]))
    with directories.creating(Path(made.directory), loaded.site.paths.trust, like) as paths:
        directories.write_json(paths.request, request)
        directories.write_json(paths.plan, typed_json.plain(made))
        safe_files.write(paths.script, script)
        if prepared.points:
            safe_files.write(paths.points, prepared.points)
        if spec.environment:
            lines = (f"export {name}={shlex.quote(value)}\n" for name, value in spec.environment)
            safe_files.write(paths.variables, "".join(lines).encode(errors="surrogateescape"))
        if made.inside.report.profilers:
            paths.profiles.mkdir(mode=0o700)
        if spec.code.form is Form.HOLD:
            paths.queue.mkdir(mode=0o700, parents=True)
        group = stat.S_IMODE(paths.out.stat().st_mode) & 0o7000  # set-group-id of the runs folder
        paths.out.chmod(group | 0o777 & ~made.inside.code.umask)
        for name in made.scripts:
            safe_files.write(paths.directory / name, (assets.folder("templates") / name).read_text(encoding="utf-8"))
        return _copy_code(prepared, paths)


def _copy_code(prepared: Prepared, paths: RunPaths) -> list[str]:
    """Copy what the run starts into its directory; return notes on what is not copied."""
    loaded, spec, made = prepared.loaded, prepared.spec, prepared.plan
    if spec.code.form is Form.BATCH:
        safe_files.write(paths.batch_script, spec.code.script.read_bytes(), 0o700)
    if not spec.code.copied or made.code_of not in ("", made.run_id):
        return []
    lasting = not spec.code.staged  # what a laptop sent is copied whole: where it lies now, it is removed
    module = spec.code.form is Form.MODULE
    rules = loaded.site.code
    file, root = spec.code.script, spec.code.root
    taken = snapshot.take(file, paths.code, rules, linked=lasting, limited=lasting, module=module, root=root)
    if needed := snapshot.needed(taken, paths.code):
        hint = "Increase the named limit (--set code.…=…), or run the script in its own folder "
        hint += "(--set code.snapshot=none)."
        raise UsageError("Files that the script needs would not be copied", place=snapshot.listed(needed), hint=hint)
    if rules.snapshot != "none":
        why = "the script is a link" if file.is_symlink() else ""
        home = spec.code.top.resolve() if not why else file.parent
        why = outputs_brought_back.FROM_LAPTOP if spec.code.staged else why
        files_of_killed_runs.begin(paths, Path(made.directory), home, why)
    if made.inside.job.image:
        linked = taken.places if loaded.site.code.snapshot != "none" else spec.code.sources
        safe_files.write(paths.sources, "".join(f"{folder}\n" for folder in linked if folder != spec.code.cwd))
    return taken.notes()
