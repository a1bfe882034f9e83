"""What a batch script asks of Slurm: its own lines as they are, and what hpcml adds without changing what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcml import units
from hpcml.errors import UsageError
from hpcml.kind import Role
from hpcml.paths import task_of_array
from hpcml.request.options import OPTIONS
from hpcml.request.record import RunRequest
from hpcml.schedulers import JobLayout, JobRequest, Launcher, partition_fit, sbatch_lines, slurm_options
from hpcml.schedulers.slurm_options import Directive, filename_pattern
from hpcml.sites.schema import Site
from hpcml.sites.settings_layers import process_environment

# By default nothing takes notice of this signal, and few scripts have a trap for it.
SIGNAL = "URG"
FORWARDED = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM")  # that sbatch's script would get, as its own shell
_DROPPED = (
    "--comment",
    "--clusters",
    "--wait",
    "--quiet",
    "--parsable",
    "--test-only",
)  # hpcml's own, or for who types sbatch
# What requests GPUs, or nodes that have some, as OPTION=VALUE; SBATCH_GPUS and the like are sbatch's own defaults.
_FOR_GPUS = re.compile(r"--(gpus|constraint|\S+-per-gpu=|[gt]res\S*=.*gpu)|SBATCH_(GPUS|CONSTRAINT|[GT]RES\S*=.*gpu)")


def lay_out(site: Site, request: JobRequest) -> JobLayout:
    """Return Slurm's part of the script that hpcml submits in the place of a batch script."""
    directives, lines, reasons = _merged(site, request)
    stated = sbatch_lines.all_options(lines)
    if "--nodes" not in dict(directives) and (chosen := sbatch_lines.decides_nodes(stated)):
        least = units.counted(sbatch_lines.nodes(stated), "node")
        reasons.append(f"at least {least} for {chosen.typed}: Slurm chooses the number")
    array = _array(request)
    has_account = "--account" in stated or "--account" in dict(directives)
    has_partition = "--partition" in stated or bool(request.asked.place.partition)
    notices = [] if has_partition else _on_default_partition(site, request.spec, stated, reasons)
    if site.slurm.account_required and not has_account:
        needs = f"site {site.name} needs an account, but the script has no --account line"
        notices.append(f"{needs}. {slurm_options.ADD_ACCOUNT}".removesuffix("."))
    return JobLayout(
        directives=directives,
        directive_word="#SBATCH",
        lines=lines,
        warning=SIGNAL,
        forwarded=FORWARDED,
        may_start_again="--no-requeue" not in stated,
        prologue=(slurm_options.NAMES_OF_TASK if array.tasks else slurm_options.NAMES,),
        launchers={role.name: _launcher(role) for role in request.roles},
        nodes_word='"$SLURM_JOB_NUM_NODES"',
        starts_word=slurm_options.STARTS,
        job_word=slurm_options.TASK if array.tasks else '"$SLURM_JOB_ID"',
        follow_up=slurm_options.FOLLOW_UP_HERE if request.spec.place.clusters else slurm_options.FOLLOW_UP,
        forget="scancel",
        may_put_back=slurm_options.MAY_PUT_BACK,
        put_back=slurm_options.PUT_BACK,
        reasons=tuple(reasons),
        notices=tuple(notices),
        array=array.tasks,
        at_once=array.at_once,
        index_word='"$SLURM_ARRAY_TASK_ID"',
    )


def _on_default_partition(
    site: Site, spec: RunRequest, stated: Mapping[str, sbatch_lines.Option], reasons: list[str]
) -> list[str]:
    """Return a note if the profile's default partition has GPUs that the script does not request; add it as reason."""
    name = site.defaults.partition
    if not name or spec.place.partition != name or "--partition" in dict(spec.place.sbatch):
        return []
    reasons.append(f"partition {name}: the site's default (defaults.partition), because the script names none")
    said = [(option.name, option.value) for option in stated.values()]
    requests = map("=".join, (*said, *spec.place.sbatch, *process_environment().items()))
    if spec.size.gpus_per_node or any(map(_FOR_GPUS.match, requests)):
        return []
    if not partition_fit.gpus_of_node(site, name, spec):
        return []
    others = [other for other in site.partitions if not partition_fit.gpus_of_node(site, other, spec)]
    fitting = next((other for other in others if not partition_fit.misfit(site, other, spec)), "")
    way = f". Choose a partition without GPUs: --partition {fitting}" if fitting else ""
    return [f"the nodes of partition {name} have GPUs, and the script requests none{way}"]


def of_hold(layout: JobLayout, request: JobRequest) -> JobLayout:
    """Return Slurm's part for a kept allocation: hpcml's processes take nothing, and the job begins once.

    The job does not end with one of its nodes: runs start on the others.
    """
    kept = [option for option in layout.directives if option[0] not in ("--requeue", "--no-requeue")]
    return layout._replace(
        directives=(*kept, ("--no-requeue", ""), ("--no-kill", "")),
        may_start_again=False,
        prologue=(slurm_options.NAMES,),
        launchers={role.name: _launcher(role) for role in request.roles},
    )


def _array(request: JobRequest) -> sbatch_lines.Array:
    """Return the tasks of the array that a request asks for, none without one."""
    spec = request.spec
    options = [option for line in spec.code.lines for option in sbatch_lines.options(line) if option.name == "--array"]
    text, place = dict(spec.place.sbatch).get("--array", ""), "--sbatch"
    if not text and options:
        text, place = options[-1].value, f"{options[-1].typed} of {spec.code.script.name}"
    if not text:
        return sbatch_lines.Array()
    if spec.attempts.several_jobs:
        hint = "Remove --until-done. To continue one task later: hpcml rerun RUN."
        raise UsageError("A job array cannot be continued by other jobs", place="--until-done", hint=hint)
    try:
        return sbatch_lines.array(text)
    except ValueError as error:
        hint = f"hpcml makes a run of each task. For larger arrays: sbatch {spec.code.typed}."
        raise UsageError(f"hpcml cannot submit the job array {text}: {error}", place=place, hint=hint) from error


def _folder(request: JobRequest, array: sbatch_lines.Array) -> Path:
    """Return the folder in which the script begins: for all tasks of a laptop's array, it is the first task's copy."""
    code, directory = request.spec.code, request.paths.directory
    if not (code.staged and array.tasks):
        return code.cwd
    return directory.with_name(task_of_array(directory.name, array.tasks[0])) / code.cwd.relative_to(directory)


def _log(request: JobRequest, array: sbatch_lines.Array) -> str:
    """Return the pattern of the job's log; each task of an array has its own, in the directory of its run."""
    log, directory = request.paths.job_log, request.paths.directory
    if not array.tasks:
        return filename_pattern(log)
    task = task_of_array(directory.name, "%a")
    return f"{filename_pattern(directory.parent)}/{task}/{filename_pattern(log.relative_to(directory))}"


def _merged(site: Site, request: JobRequest) -> tuple[tuple[Directive, ...], tuple[str, ...], list[str]]:
    """Return the directives that hpcml adds, the script's lines without what options of hpcml's replace, and these."""
    spec, typed = request.spec, slurm_options.typed_options(request.asked)
    before = sbatch_lines.all_options(spec.code.lines)
    passed = dict(spec.place.sbatch)
    if "--exclude" in passed and "--exclude" in before:
        passed["--exclude"] = f"{before['--exclude'].value},{passed['--exclude']}"
    if (name := before.get("--job-name")) and name.value == spec.name:
        typed.pop("--job-name", None)
    given = {**typed, **{option: option for option in passed}}
    lines = sbatch_lines.without(spec.code.lines, {*given, *_DROPPED})
    stated = sbatch_lines.all_options(lines)
    by_user = dict(_asked(site, request, typed))
    own = {**by_user, **dict(_added(site, request, stated)), **passed}
    removed = {*site.slurm.remove} - {*by_user, *passed}
    directives = tuple((option, value) for option, value in own.items() if option not in removed)
    replaced = [
        f"{word} replaces {before[option].typed} of the script"
        for option, word in given.items()
        if option in before and option not in stated and option != "--exclude"
    ]
    return directives, lines, replaced


def _asked(site: Site, request: JobRequest, typed: dict[str, str]) -> Iterator[Directive]:
    """Yield the options of sbatch for what hpcml's options say."""
    spec, asked = request.spec, request.asked
    if "--cpus-per-task" in typed:
        hint = "Change the line of the script: #SBATCH --cpus-per-task=N."
        problem = f"A batch script decides itself about its tasks: {OPTIONS['cpus_per_node'].word} has no meaning"
        raise UsageError(problem, place=OPTIONS["cpus_per_node"].word, hint=hint)
    rows = (
        ("--job-name", spec.name if "--job-name" in typed else ""),
        ("--account", asked.place.account),
        ("--partition", asked.place.partition),
        ("--qos", asked.place.qos),
        ("--clusters", spec.place.clusters),  # in the form in which a run's job is looked for
        ("--nodes", str(spec.size.nodes) if "--nodes" in typed else ""),
        *(slurm_options.gpu_directives(site, spec.size.gpus_per_node, spec.size.gpu_type) if "--gpus" in typed else ()),
        ("--mem", units.format_memory_for_slurm(asked.size.memory_per_node) if "--mem" in typed else ""),
        ("--time", units.format_time_limit(spec.size.time) if "--time" in typed else ""),
        ("--dependency", slurm_options.dependency(spec)),
        ("--kill-on-invalid-dep", "yes" if spec.place.after else ""),  # or it would wait for ever
    )
    return ((option, value) for option, value in rows if value)


def _added(site: Site, request: JobRequest, stated: dict[str, sbatch_lines.Option]) -> Iterator[Directive]:
    """Yield the directives that hpcml adds where neither the script nor the user says it."""
    spec, has_output = request.spec, bool(sbatch_lines.OUTPUT & stated.keys())
    array = _array(request)
    terms = partition_fit.terms(site, spec.place.partition, spec, with_gpus=spec.size.gpus_per_node > 0)
    defaults = (
        ("--job-name", spec.code.script.name),  # as sbatch names it
        ("--account", terms.account),
        ("--partition", spec.place.partition),
        ("--qos", terms.qos),
        ("--chdir", str(_folder(request, array))),
        ("--signal", f"B:{SIGNAL}@{request.signal_lead}"),
        ("--export", "" if site.slurm.export == "ALL" else site.slurm.export),
        ("--output", "" if has_output else _log(request, array)),
        ("--open-mode", "" if has_output else "append"),
        *(slurm_options.extra_directive(site, line) for line in terms.extra),
    )
    typed = slurm_options.typed_options(request.asked)
    yield ("--comment", f"hpcml:{request.paths.directory.name}")
    for option, value in defaults:
        if value and option not in stated and option not in typed:
            yield option, value


def _launcher(role: Role) -> Launcher:
    """Return the launcher of the agents."""
    return Launcher("/bin/bash", '"$HPCML_RUN_DIR/agents.sh"', (role.name,))
