"""plan → render → record → hand over → record: the one path from a request to a running job."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml import __version__, assets, files, kinds, schedulers, subprocesses, written
from hpcml.errors import HpcmlError, ImageError, SiteError, UsageError, did_you_mean, nearest
from hpcml.forms import Form
from hpcml.options import script_lines
from hpcml.options.reading import request_of
from hpcml.origins import TYPED
from hpcml.paths import RunPaths
from hpcml.plan.plan import Plan, RunLocation, plan
from hpcml.request.record import RunRequest, job_name
from hpcml.runs import (
    dask_named,
    directories,
    programs,
    project,
    ranks,
    rendezvous,
    script_checks,
    settling,
    snapshot,
)
from hpcml.runs import notes as notes_shown
from hpcml.schedulers import Submission
from hpcml.sites import layers, lookup
from hpcml.sites.lookup import LoadedSite, config_folders, why_ignored
from hpcml.sites.schema import Site

if TYPE_CHECKING:
    from hpcml.options.parser import Parser


class Prepared(NamedTuple):
    """A request on a site, its plan and script, with nothing written yet; ``notes`` are what its user should know.

    ``template`` is the file of a template other than hpcml's own; ``points`` are those of a sweep, as JSON. ``always``
    and ``project_notes`` are those of the notes that each submission shows (:func:`hpcml.runs.notes.show`).
    """

    loaded: LoadedSite
    spec: RunRequest
    plan: Plan
    script: str
    template: str = ""
    notes: tuple[str, ...] = ()
    points: str = ""
    always: tuple[str, ...] = ()
    project_notes: tuple[notes_shown.ProjectNote, ...] = ()


_ASKED_WITHIN = 2.0  # seconds for a question to the scheduler before a submission
EXCLUDE_FAILED = "slurm.exclude_failed"  # where an option of a request comes from


def script_request(given: dict[str, Any], arguments: list[str], parser: Parser) -> RunRequest:
    """Return the request for a script with its arguments; ``given`` gets the options in the script's own lines too."""
    here = layers.here()
    first = 1 if arguments[0] in ("-m", "--") and arguments[1:] else 0  # the words before the name
    if arguments[first + 1 : first + 2] == ["--"] and arguments[0] != "--":
        arguments = [*arguments[: first + 1], *arguments[first + 2 :]]  # all that follows is the script's
    file = here / arguments[first]
    if arguments[0] == "--" and arguments[2:] and programs.stays(programs.named(arguments, here)[0], here):
        file = here / arguments[2]  # as in: bash job.sh
    origins = script_lines.lay_below(given, file, parser)
    return request_of(given, programs.code(arguments, here))._replace(origins=origins)


def prepare_request(spec: RunRequest, *, by_hand: bool = False, dry_run: bool = False) -> Prepared:
    """Return what is to be submitted of a request on its site, with all notes on it.

    Parameters
    ----------
    by_hand
        Whether the user types the line that submits it.
    dry_run
        Whether nothing will be submitted. Then hpcml does not search ended runs for failed nodes, and a package that
        this machine lacks is a note.
    """
    place = spec.place
    loaded = lookup.load_here(place.site, spec.code.cwd, place.settings, place.line_settings)
    spec, notes = _without_bad_nodes(loaded.site, spec, learn=not dry_run)
    prepared = prepare(loaded, spec, dry_run=dry_run)
    _check_partition(prepared)
    notes += prepared.notes
    if ignored := schedulers.get(prepared.plan.scheduler).ignored_defaults():
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
    of_site, named = prepared.loaded.site.partitions, dict(prepared.plan.directives).get("--partition", "")
    scheduler = schedulers.get(prepared.plan.scheduler)
    for name in named.split(",") if of_site else ():
        if name and name not in of_site and not scheduler.has_partition(name, _ASKED_WITHIN):
            hint = did_you_mean(nearest(name, of_site), f"The profile has the partitions {', '.join(of_site)}.")
            raise SiteError(f"There is no partition '{name}'", place="--partition", hint=hint)


def _without_bad_nodes(site: Site, spec: RunRequest, *, learn: bool) -> tuple[RunRequest, list[str]]:
    """Return the request without the nodes that failed within a day, if the profile says so, and a note on them."""
    if site.scheduler != "slurm" or {"--exclude", "--nodelist"} & dict(spec.place.sbatch).keys():
        return spec, []  # there are no nodes to choose, or the user chooses them
    from hpcml.runs import bad_nodes

    now = time.time()
    if learn:
        bad_nodes.learn(directories.runs_folder(site.paths.runs, layers.process_environment()), site.name, now)
    if not (bad := bad_nodes.Memory(site.name).nodes(now)):
        return spec, []
    notes = [bad_nodes.sentence(bad)]
    if not site.slurm.exclude_failed:
        return spec, notes
    sites_own = [line.partition("=")[2] for line in site.slurm.extra if line.startswith("--exclude=")]
    names = ",".join([*sites_own, *(one.node for one in bad)])
    origin = (f"--exclude {names}", EXCLUDE_FAILED)
    return spec.changed(sbatch=(*spec.place.sbatch, ("--exclude", names)), origins=(*spec.origins, origin)), notes


def prepare(loaded: LoadedSite, spec: RunRequest, run_id: str = "", *, dry_run: bool = False) -> Prepared:
    """Plan and render a request without touching the disk; the run gets ``run_id``, or an id of its own.

    Raises
    ------
    HpcmlError
        Whatever is wrong with the request, the site or the template.
    """
    from hpcml.plan import batch_script  # Jinja2, the longest import of all: after all that is cheap to refuse

    if spec.code.form.traits.is_script:
        _check_script(loaded.site, spec)
    run_id = run_id or directories.new_id(job_name(spec))
    folder = directories.runs_folder(loaded.site.paths.runs, layers.process_environment())
    directory = folder / run_id
    spec = schedulers.get(loaded.site.scheduler).with_variables(spec, loaded.is_from_this_call)
    own_templates, always = template_folders(spec.code.cwd)
    always += directories.check_folder(folder, loaded.site.paths.trust)
    notes = list(always)
    if spec.place.after:
        from hpcml.runs import waiting  # what only few submissions need

        open_runs, ended = waiting.resolve(folder, loaded.site, spec.place.after)
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
    made = plan(
        _with_start(loaded.site, spec), staged, RunLocation(directory, sys.executable, __version__, layers.user_umask())
    )
    if spec.code.form.traits.is_main:
        set_here = {*loaded.site.environment, *(name for name, _ in spec.environment)}
        set_here |= ranks.VARIABLES if _is_prepared(loaded.site) else set()
        python, job = made.steps[-1].command[0], made.inside.job
        nodes, late = 1 if job.one_machine else job.nodes, made.inside.workers.late
        notes += ranks.check_script(spec, python, made.inside.worker_count, set_here, nodes, late=late)
        notes += _check_code(loaded, spec, made, dry_run=dry_run)
    if spec.code.form in (Form.MODULE, Form.PROGRAM):
        notes += ranks.check_program(spec, made)
    open_to_others = rendezvous.check(loaded.site, spec, made)
    always += open_to_others
    notes += open_to_others
    notes += _two_pythons(spec, made)
    notes += _check_python(loaded.site, spec, made)
    kinds.get(spec.kind).check(made.inside, made.scheduler)
    script = batch_script.render(made, own_templates)
    prepared = Prepared(loaded, spec, made, script, template, tuple(notes), always=tuple(always))
    return prepared._replace(project_notes=project_notes)


def _check_python(site: Site, spec: RunRequest, made: Plan) -> list[str]:
    """Refuse a Python that lacks what the request needs; return a note of one for another processor."""
    python = made.steps[-1].command[0]
    if made.inside.job.image:
        return []
    notes = _check_processor(python)
    if not _is_prepared(site):
        for option, packages in kinds.get(spec.kind).packages(made.inside).items():
            script_checks.check_packages(packages, python, option)
        script_checks.check_packages(spec.code.form.traits.packages, python, "extra 'jupyter'", sure=True)
    return notes


def _with_start(site: Site, spec: RunRequest) -> Site:
    """Return the site with the decision when a Dask cluster starts, where the site leaves it to the script's text."""
    is_open = site.workers.start == "auto" and kinds.get(spec.kind).has_cluster and spec.code.form.traits.is_script
    start = "late" if is_open and not dask_named.names_dask(spec) else site.workers.start
    return site._replace(workers=site.workers._replace(start=start))


def _with_project(loaded: LoadedSite, spec: RunRequest, target: Path) -> tuple[LoadedSite, RunRequest, list[str]]:
    """Return site and request as the paths in the script's code need them, and a note where they need more."""
    if spec.code.staged:  # the laptop has sent what is needed
        return loaded, spec, []
    decision = project.decide(spec.code, loaded.site.code, target)
    if decision.in_place:
        loaded = loaded._replace(site=loaded.site._replace(code=loaded.site.code._replace(snapshot="none")))
    return loaded, decision.applied(spec), [decision.note] if decision.note else []


def _check_script(site: Site, spec: RunRequest) -> None:
    """Refuse what cannot be run, before anything is written."""
    if spec.code.form is Form.PROGRAM:
        in_image = site.runtime.kind == "image" or bool(spec.image)
        path = None if in_image else layers.process_environment().get("PATH", "")
        if not (in_image and spec.code.in_place):  # the image has other files
            script_checks.check_program(spec.code.script, path, prepared=_is_prepared(site))
        if programs.is_python(spec.code.script) and (not spec.code.arguments or spec.code.arguments[-1] == "-"):
            hint = f"Name the script: hpcml submit -- {spec.code.script.name} SCRIPT."
            raise UsageError("Python needs a script: a run has no standard input", place="--", hint=hint)
    elif spec.code.form is Form.NOTEBOOK:
        script_checks.check_notebook(spec.code.script, spec.code.arguments)
    elif spec.code.form is Form.SCRIPT:
        script_checks.check_file(spec.code.script)
    if spec.code.interpreter and not (site.runtime.kind == "image" or spec.image):
        path = layers.process_environment().get("PATH", "")
        script_checks.check_program(Path(spec.code.interpreter[0]), path, prepared=_is_prepared(site))


def _check_processor(python: str) -> list[str]:
    """Return a note if the interpreter's file is for another processor than this machine's: the nodes' may differ."""
    if python == sys.executable or not (kind := files.architecture_of(Path(python))) or kind == os.uname().machine:
        return []
    here = os.uname().machine
    return [f"runtime.python ({python}) is for {kind}, but this machine is {here}: the run works only on {kind} nodes"]


def _is_prepared(site: Site) -> bool:
    """Whether the site changes the environment before the roles start."""
    changed = {"PATH", "PYTHONPATH"} & site.environment.keys()
    return bool(site.runtime.modules or site.runtime.setup or changed)


def _check_code(loaded: LoadedSite, spec: RunRequest, made: Plan, *, dry_run: bool) -> list[str]:
    """Return what is to be noted of the script's code, as the run's interpreter will see it."""
    base = spec.code.script.parent if spec.code.staged else spec.code.cwd
    python = made.steps[-1].command[0]
    named = loaded.layers.named("runtime", "python")
    image, prepared = bool(made.inside.job.image), _is_prepared(loaded.site)
    if spec.code.interpreter:
        python, named = shutil.which(spec.code.interpreter[0]) or spec.code.interpreter[0], TYPED
    if spec.code.form is Form.MODULE:
        return script_checks.check_module_code(
            spec.code.script, python, named=named, image=image, prepared=prepared, dry_run=dry_run
        )
    notes = script_checks.check_code(
        spec.code.script, base, python, named=named, image=image, prepared=prepared, dry_run=dry_run
    )
    if not spec.code.interpreter and not image:
        notes += script_checks.unused_first_line(spec.code.script, base, python)
    notes += script_checks.missing_argument(spec.code.script, base, len(spec.code.arguments))
    return notes + script_checks.lost_input(spec.code.script, base)


def _two_pythons(spec: RunRequest, made: Plan) -> list[str]:
    """Return a note where the script runs by another Python than the workers, whose packages tasks import."""
    program = Path(spec.code.interpreter[0]) if spec.code.interpreter else spec.code.script
    if made.inside.job.image or not (
        spec.code.interpreter or (spec.code.form is Form.PROGRAM and programs.is_python(program))
    ):
        return []
    workers = made.steps[-1].command[0]
    interpreter = shutil.which(program) or str(program)
    if Path(interpreter).parent == Path(workers).parent:
        return []
    note = f"{interpreter} runs the script, but {workers} (runtime.python) runs the workers"
    return [f"{note}: tasks import the packages of the workers' Python"]


def _templates_of(cwd: Path) -> Path:
    return cwd / "templates" / "hpcml"


def template_folders(cwd: Path) -> tuple[list[Path], list[str]]:
    """Return where a site or user keeps a template of their own, most special first, and which do not count."""
    from hpcml.plan.batch_script import TEMPLATE

    folders = [
        _templates_of(cwd),
        *(place / "templates" for place in reversed(config_folders(layers.process_environment()))),
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
    """Write the run's directory, hand the script over and record the answer.

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
    paths = RunPaths(Path(made.directory))
    scheduler = schedulers.get(made.scheduler)
    line = scheduler.line(paths) if by_hand else ""
    notes = [*prepared.notes, *_write(prepared, check_image(prepared))]
    begun = round(time.time(), 3)

    def write(answer: Submission) -> directories.Run:
        bash_env = layers.process_environment().get("BASH_ENV", "")  # it may end bash before the batch script
        record = answer._replace(site=made.site, time=begun, scheduler=made.scheduler, requeue=made.may_start_again)
        record = record._replace(notes=(*notes, *answer.notes), bash_env=bash_env)
        directories.write_json(paths.submission, record.as_json())
        return directories.Run(made.run_id, paths, record)

    if by_hand:
        return write(Submission(line=line))
    with subprocesses.signals_held(second_counts=True) as signals:
        try:
            run = write(scheduler.submit(prepared.loaded.site, paths))
        except HpcmlError as error:
            refusal = Submission(error=error.message, place=error.place, hint=error.hint, exit_status=error.exit_status)
            write(refusal._replace(quote=error.quote))
            raise
    try:
        for number in signals:
            signal.raise_signal(number)
    except BaseException:  # the handler ends this program, and with it the only one who knows of the job
        from hpcml.runs import handle

        handle.cancel(run)
        raise
    return run


def check_image(prepared: Prepared) -> dict[str, object]:
    """Refuse an image in which the run could not work, before nodes are asked for; return what is known of it.

    Raises
    ------
    ImageError, NotFoundError
        If it is missing, unreadable, no image, of another architecture, or does not fit the run.
    """
    settings = prepared.plan.inside
    if not settings.job.image:
        return {}
    from hpcml.images import sif as images  # some milliseconds that only runs inside images need

    inspection = images.inspect(Path(settings.job.image))
    gpus, cuda = settings.workers.gpu.count if settings.workers.gpu else 0, prepared.loaded.site.gpu.cuda
    problems = images.problems(inspection, cuda=cuda, gpus=gpus, machine=images.machine())
    if fatal := [problem for problem in problems if problem.fatal]:
        raise ImageError(f"The image cannot be used: {fatal[0].what}", place=str(inspection.path), hint=fatal[0].hint)
    image = {
        "path": str(inspection.path),
        "size": inspection.size,
        "modified": inspection.modified,
        "labels": inspection.labels,
    }
    return {**image, "digest": images.known_digest(inspection), "notes": [problem.what for problem in problems]}


def _write(prepared: Prepared, image: dict[str, object]) -> list[str]:
    """Write the run's directory; return what the user should know of its copy of the code."""
    loaded, spec, made = prepared.loaded, prepared.spec, prepared.plan
    origins = {key.replace("\0", "."): layers.as_table(value) for key, value in loaded.layers.values.items()}
    request = {
        "version": made.version,
        "spec": layers.as_table(spec.given()),
        "site": origins,
        "project": loaded.project.path,
    }
    request["template"] = prepared.template
    if image:
        request["image"] = image
    else:
        request["modules"] = " ".join(script_checks.installed(made.steps[-1].command[0]))
    with directories.creating(Path(made.directory), loaded.site.paths.trust) as paths:
        directories.write_json(paths.request, request)
        directories.write_json(paths.plan, layers.as_table(made))
        files.write(paths.script, prepared.script)
        if prepared.points:
            files.write(paths.points, prepared.points)
        if spec.environment:
            lines = (f"export {name}={shlex.quote(value)}\n" for name, value in spec.environment)
            files.write(paths.variables, "".join(lines).encode(errors="surrogateescape"))
        if made.inside.report.profilers:
            paths.profiles.mkdir(mode=0o700)
        group = stat.S_IMODE(paths.out.stat().st_mode) & 0o7000  # set-group-id of the runs folder
        paths.out.chmod(group | 0o777 & ~made.inside.code.umask)
        for name in made.scripts:
            files.write(paths.directory / name, (assets.folder("templates") / name).read_text(encoding="utf-8"))
        if not spec.code.copied:
            return []
        lasting = not spec.code.staged  # what a laptop sent is copied whole: where it lies now, it is removed
        module = spec.code.form is Form.MODULE
        rules = loaded.site.code
        script, root = spec.code.script, spec.code.root
        taken = snapshot.take(script, paths.code, rules, linked=lasting, limited=lasting, module=module, root=root)
        if needed := snapshot.needed(taken, paths.code):
            hint = "Increase the named limit (--set code.…=…), or run the script in its own folder "
            hint += "(--set code.snapshot=none)."
            raise UsageError("The copy of the code would lack required files", place=snapshot.listed(needed), hint=hint)
        if rules.snapshot != "none":
            why = "the script is a link" if script.is_symlink() else ""
            home = spec.code.top.resolve() if not why else script.parent
            settling.begin(paths, Path(made.directory), home, written.FROM_LAPTOP if spec.code.staged else why)
        if made.inside.job.image:
            linked = taken.places if loaded.site.code.snapshot != "none" else spec.code.sources
            files.write(paths.sources, "".join(f"{folder}\n" for folder in linked if folder != spec.code.cwd))
        return taken.notes()
