"""What a run asks of Slurm: the partition, the #SBATCH options, and srun's words for each step; decided, not done."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import paths, units
from hpcml.errors import ConfigError, SiteError, UsageError, did_you_mean, nearest
from hpcml.kind import Role
from hpcml.request.options import OPTIONS
from hpcml.request.record import NOT_SAID, RunRequest
from hpcml.schedulers import JobLayout, JobRequest, Launcher, partition_fit
from hpcml.sites.schema import Partition, Qos, Site

# Directives that a profile cannot have: by its comment a job is found again, and an array would run in one directory.
_RESERVED = ("--comment", "--array", "--cluster")
_DIRECTIVE = re.compile(r"--[a-z][a-z0-9-]*")
Directive = tuple[str, str]  # an option of sbatch and its value, empty for a flag
SUPERVISOR = Role(paths.SUPERVISOR, every_node=False, title="the supervisor")
STAGE = Role("stage", every_node=True, title="the copy of the image")
_AFTER = {"ok": "afterok", "any": "afterany", "fail": "afternotok"}

# The job in hpcml's names: of the batch script's own node for itself alone, since a launcher says it on each node.
NODE = 'HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"'
NAMES = f'{NODE}; export HPCML_JOB="$SLURM_JOB_ID" HPCML_NODE_NAMES="$SLURM_JOB_NODELIST"'
TASK = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'  # of an array, by which squeue and scancel name it
NAMES_OF_TASK = NAMES.replace('"$SLURM_JOB_ID"', TASK)
# Slurm's variables of this script, which each step replaces by its own: the user's script gets these again.
VARIABLES = (
    "HPCML_JOB_VARIABLES=$(for name in \"${!SLURM@}\"; do case ${!name-} in *$'\\n'*) ;; "
    '*) printf "%s=%s\\n" "$name" "${!name-}" ;; esac; done); export HPCML_JOB_VARIABLES'
)
STAGE_MODES = ("copy", "sbcast")
STARTS = '"${SLURM_RESTART_COUNT:-0}"'

# A task of an array waits for no signal and runs once; its processes are no role.
_NOT_OF_AN_ARRAY = ("--signal", "--requeue", "--no-requeue")
_OF_A_ROLE = ("--output", "--job-name", "--kill-on-bad-exit")

# A job of an elastic cluster that Slurm takes away is not put back into the queue: the cluster asks again.
_NOT_OF_A_CLUSTER = ("--signal", "--requeue", "--no-requeue", "--comment", "--output", "--error", "--open-mode")

# What the job has for its own steps is not meant for another job.
FOLLOW_UP = (
    'for name in "${!SLURM_@}"; do [ "$name" = SLURM_CONF ] || unset "$name"; done; '
    'timeout 60 sbatch --parsable --begin=now --dependency="afterany:$this_job" "$HPCML_RUN_DIR/job.sh"'
)
FOLLOW_UP_HERE = "here=$SLURM_CLUSTER_NAME; " + FOLLOW_UP.replace("--parsable", '--parsable --clusters="$here"')
MAY_PUT_BACK = 'timeout 60 scontrol update jobid="$this_job" requeue=1'  # submitted with --no-requeue
PUT_BACK = 'timeout 60 scontrol requeue "$this_job"'


def lay_out(site: Site, request: JobRequest) -> JobLayout:
    """Return Slurm's part of a batch script."""
    reasons: list[str] = []
    notices: list[str] = []
    name = _partition(site, request, reasons, notices)
    terms = partition_fit.terms(site, name, request.asked, with_gpus=request.spec.size.gpus_per_node > 0)
    directives, ignored = _directives(site, request, name, terms, reasons, notices)
    notices += ignored
    notices += [*_on_shares(site, request, name, directives), *_on_memory(request, dict(directives).get("--mem", ""))]
    part = partition_fit.node_part(site, name, request.spec)
    known_qos = {site.defaults.qos, *(partition.qos for partition in site.partitions.values()), *site.qos} - {""}
    qos = request.asked.place.qos
    if qos and qos not in known_qos and (near := nearest(qos, known_qos)):
        notices.append(f"unknown QoS {qos}: did you mean {near}?")
    qos = partition_fit.qos_of(site, name, request.spec)
    if request.spec.attempts.several_jobs and site.qos.get(qos, Qos()).max_jobs == 1:
        anew = "Slurm requeues the job after each attempt"
        notices.append(f"QoS {qos} allows you only one submitted job at a time, so {anew}")
    kept, others = "NODE", "SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU"
    if "--mem" not in dict(directives):
        kept, others = "CPU", "SLURM_MEM_PER_NODE"
    return JobLayout(
        directives=directives,
        directive_word="#SBATCH",
        may_start_again=("--requeue", "") in directives,
        prologue=(
            'cpus="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"',
            # sbatch that is typed in a job passes that job's on, and srun takes no two of them
            f'if [ -n "${{SLURM_MEM_PER_{kept}-}}" ]; then unset {others}; fi',
            NAMES,
            VARIABLES,
        ),
        launchers={role.name: launcher(site, request, role) for role in (*request.roles, SUPERVISOR, STAGE)},
        nodes_word='"$SLURM_JOB_NUM_NODES"',
        starts_word=STARTS,
        job_word='"$SLURM_JOB_ID"',
        follow_up=FOLLOW_UP if "--clusters" not in dict(directives) else FOLLOW_UP_HERE,
        forget="scancel",
        may_put_back=MAY_PUT_BACK,
        put_back=PUT_BACK,
        stage_modes=STAGE_MODES,
        memory=_of_node(site, request, name).memory,
        cpus=int(count) if (count := dict(directives).get("--cpus-per-task", "")).isdecimal() else 0,
        node_gpus=part.of if part.partial else 0,
        whole_nodes=_are_whole_nodes(site, directives),
        reasons=tuple(reasons),
        notices=tuple(notices),
        ignored=tuple(ignored),
    )


class _OfNode(NamedTuple):
    """What is asked for of each node: CPUs and bytes of memory, 0 for what Slurm gives, and which the profile says.

    ``of_cpus`` are the node's CPUs if the memory is the share of some of them, else 0.
    """

    cpus: int
    memory: int
    by_profile: tuple[str, ...]
    of_cpus: int


def _of_node(site: Site, request: JobRequest, name: str) -> _OfNode:
    """Return the request for each node: of what the profile says a node has, the share of the GPUs or of the CPUs."""
    spec, asked = request.spec, request.asked
    part = partition_fit.node_part(site, name, spec)
    kinds = partition_fit.nodes_for(site, name, spec.size)
    for kind in kinds:
        if not spec.size.memory_per_node and kind.memory_per_node.text and kind.memory_per_node < 1024**2:
            place = f"profile {site.name}: partitions.{name}.memory_per_node"
            message = f"The memory '{kind.memory_per_node.text}' is less than 1 MiB"
            hint = "Correct the value, or remove the key if the memory of a node is unknown."
            raise UsageError(message, place=place, hint=hint)
    parts = [part._replace(of=kind.gpus_per_node) if site.partitions else part for kind in kinds]
    all_cpus = [spec.size.cpus_per_node or kind.cpus_per_node for kind in kinds]
    all_memory = [int(spec.size.memory_per_node or kind.memory_per_node) >> 20 for kind in kinds]  # MiB
    of_cpus, by_profile = 0, tuple[str, ...]()
    # where partitions are listed, resources say what is wanted of their nodes, and else what a node has
    if asked.size.cpus_per_node == NOT_SAID and not (site.partitions and spec.size.cpus_per_node):
        by_profile = ("--cpus-per-node",)
        all_cpus = [one.share(cpus) for one, cpus in zip(parts, all_cpus, strict=True)]
    if not asked.size.memory_per_node.text and not (site.partitions and spec.size.memory_per_node):
        by_profile = (*by_profile, "--memory-per-node")
        all_memory = [one.share(memory) for one, memory in zip(parts, all_memory, strict=True)]
        of_cpus, all_memory = partition_fit.share_of_cpus(site, part, kinds, all_cpus, all_memory)
    cpus, memory = partition_fit.smallest(all_cpus), partition_fit.smallest(all_memory) << 20
    return _OfNode(cpus, memory, by_profile, of_cpus)


def _are_whole_nodes(site: Site, directives: tuple[Directive, ...]) -> bool:
    """Return True if no other user's job can be on the nodes; False if only a doubtful value says so.

    Values of a project's file or a script's line are doubtful (:func:`hpcml.sites.lookup.load`).
    """
    said = dict(directives)
    if "--oversubscribe" in said:
        return False
    if said.get("--exclusive") in ("", "user"):
        return True
    names, qos = said.get("--partition", "").split(","), said.get("--qos", "")
    if site.qos.get(qos, Qos()).whole_nodes and not site.doubtful(f"qos.{qos}.whole_nodes"):
        return True
    cpus = int(text) if (text := said.get("--cpus-per-task", "")).isdigit() else 0
    return all(_is_whole(site, name, cpus) for name in names)


def _is_whole(site: Site, name: str, cpus: int) -> bool:
    """Return True if a job with so many CPUs per node has the nodes of a partition alone, for certain."""
    partition, table = site.partitions.get(name, Partition()), f"partitions.{name}"
    if partition.whole_nodes and not site.doubtful(f"{table}.whole_nodes"):
        return True
    counts = {f"{table}.nodes.{kind}.cpus_per_node": of.cpus_per_node for kind, of in partition.nodes.items()}
    counts = counts or {f"{table}.cpus_per_node": partition.cpus_per_node}
    return not any(map(site.doubtful, (table, *counts))) and all(0 < count <= cpus for count in counts.values())


def _on_shares(site: Site, request: JobRequest, name: str, directives: tuple[tuple[str, str], ...]) -> list[str]:
    """Return a note if a job requests a part of a node, or a node whose GPUs the profile does not give."""
    part = partition_fit.node_part(site, name, request.spec)
    if part.gpus and site.slurm.gpu_request == "none":
        return ["the job requests no GPUs from Slurm (slurm.gpu_request is none): its nodes must have the GPUs anyway"]
    of_node = _of_node(site, request, name)
    if (part.gpus and part.of and not part.partial) or not (part.gpus or of_node.of_cpus):
        return []
    shares = _shares(site, request, name, dict(directives))
    if of_node.of_cpus:
        cpus = f"{of_node.cpus} of {of_node.of_cpus} CPUs"
        return [f"the run requests {cpus} and {text} per node (to request more: {option})" for option, text in shares]
    options, amounts = ", ".join(option for option, _ in shares), " and ".join(text for _, text in shares)
    if part.partial:
        gpus = f"{part.gpus} of {part.of} GPUs"
        requests = ", ".join([gpus, *(text for _, text in shares[:-1])])
        more = f"(to request more: {options})"
        return [f"the run requests {requests} and {shares[-1][1]} per node {more}"] if shares else []
    key = f"partitions.{name}.gpus_per_node" if site.partitions else "resources.node_gpus"
    unknown = f"the profile does not give the number of GPUs per node ({key})"
    if part.whole:
        more = f"if they have more than {units.counted(part.gpus, 'GPU')} each, increase --gpus-per-node"
        return [f"this job reserves whole nodes: {more}; {unknown}"]
    return [f"{unknown}, so hpcml requests {amounts} (to request other amounts: {options})"] if shares else []


def _on_memory(request: JobRequest, memory: str) -> list[str]:
    """Return a note if hpcml requests memory for a translated batch script that leaves it to Slurm."""
    if not (memory and request.spec.code.batch_words) or request.asked.size.memory_per_node.text:
        return []
    by_hpcml = f"hpcml requests {memory} per node (to request another amount: --memory-per-node)"
    return [f"the script requests no memory, so sbatch would use Slurm's default; {by_hpcml}"]


def _shares(site: Site, request: JobRequest, name: str, directives: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the amounts that the profile, not the user, asked for of a node, by the option that asks for it."""
    part, share = partition_fit.node_part(site, name, request.spec), _of_node(site, request, name)
    alone = site._replace(resources=site.resources._replace(exclusive=True))
    whole, to_memory = _of_node(alone, request, name), units.format_memory_for_slurm
    rows = (  # option, directive, its value, and the amount of the job and of the node in words
        ("--cpus-per-node", "--cpus-per-task", str(share.cpus), share.cpus, str(whole.cpus), "CPUs"),
        ("--memory-per-node", "--mem", to_memory(share.memory), share.memory, to_memory(whole.memory), "of memory"),
    )
    return [
        (option, f"{value}{f' of {all_of_it}' if part.partial or share.of_cpus else ''} {unit}")
        for option, directive, value, amount, all_of_it, unit in rows
        if amount and option in share.by_profile and directives.get(directive) == value
    ]


def _partition(site: Site, request: JobRequest, reasons: list[str], notices: list[str]) -> str:
    """Return the named partition, else the first that fits, and collect why others do not fit."""
    asked, spec = request.asked.place.partition, request.spec
    named = spec.place.partition
    for name in asked.split(",") if asked and site.partitions else ():
        if name not in site.partitions:
            hint = did_you_mean(nearest(name, site.partitions), "The profile's list may be incomplete")
            notices.append(f"partition {name} is not in the profile, so its limits and cost are unknown. {hint}")
    if "," in named:
        reasons.append("Slurm chooses the first of these partitions that can start the job; the job must fit all")
    if not asked and site.partitions:
        named = _fitting_partition(site, spec, reasons, notices)
    elif misfit := partition_fit.misfit(site, named, spec):
        raise SiteError(misfit, place=f"profile {site.name}", hint=partition_fit.way_out(site, named, spec))
    notices += partition_fit.doubtful_misfits(site, named, spec)
    notices += partition_fit.unused_gpus(site, named, spec)
    if not asked and named in (with_gpus := _with_idle_gpus(site, spec)):
        others = [name for name in site.partitions if name not in with_gpus and partition_fit.misfit(site, name, spec)]
        ways = partition_fit.by_qos(site, _in_order(others, spec), spec)
        notices += [f"a partition without GPUs also fits this request: {way}" for way in ways]
    return named


def _in_order(names: Iterable[str], spec: RunRequest) -> list[str]:
    """Return partitions in the profile's order, but the default first."""
    return sorted(names, key=lambda name: name != spec.place.partition)


def _with_idle_gpus(site: Site, spec: RunRequest) -> list[str]:
    """Return the partitions whose nodes have GPUs, for a job that requests none."""
    names = _in_order(site.partitions, spec) if not spec.size.gpus_per_node else []
    return [name for name in names if partition_fit.gpus_of_node(site, name, spec)]


def _fitting_partition(site: Site, spec: RunRequest, reasons: list[str], notices: list[str]) -> str:
    """Return the first partition of the profile that fits: without idle GPUs and doubtful limits, if there is one."""
    default, with_gpus = spec.place.partition, _with_idle_gpus(site, spec)
    in_order = sorted(_in_order(site.partitions, spec), key=lambda name: name in with_gpus)
    misfits = {name: reason for name in in_order if (reason := partition_fit.misfit(site, name, spec))}
    fitting = [name for name in in_order if name not in misfits]
    if not fitting:
        raise _no_partition(site, spec, misfits)
    chosen = min(fitting, key=lambda name: bool(partition_fit.doubtful_misfits(site, name, spec)))
    passed_over = [misfits[name] for name in in_order[: in_order.index(chosen)] if name in misfits]
    if chosen not in with_gpus:
        idle = (f"Partition '{name}' has GPUs, but the job requests none (--gpus-per-node)" for name in with_gpus)
        passed_over = [*idle, *passed_over]
    fits = "may fit" if partition_fit.doubtful_misfits(site, chosen, spec) else "fits"
    fits = f"the first partition in the profile that {fits} the request"
    why = "the site's default (defaults.partition)" if chosen == default else fits
    reasons += [f"partition {chosen}: {why}", *passed_over]
    if passed_over and default and chosen != default:
        notices.append(f"hpcml uses partition {chosen}, because: {passed_over[0]}")
    return chosen


def _no_partition(site: Site, spec: RunRequest, misfits: Mapping[str, str]) -> SiteError:
    """Return the refusal of a request that no partition fits, by why none does."""
    place, texts = f"profile {site.name}", tuple(misfits.values())
    if len(texts) == 1:
        return SiteError(texts[0], place=place, hint=partition_fit.way_out(site, spec.place.partition, spec))
    ways = partition_fit.by_qos(site, list(misfits), spec)
    hint = f"Try {ways[0]}." if ways else "Request fewer nodes, GPUs or CPUs, less memory or less time."
    return SiteError("No partition fits the request", place=place, hint=hint, quote=texts)


def _directives(
    site: Site, request: JobRequest, name: str, terms: partition_fit.Terms, reasons: list[str], notices: list[str]
) -> tuple[tuple[Directive, ...], list[str]]:
    """Return the #SBATCH options in order, as (option, value) with an empty value for a flag, and what is ignored.

    The profile's ``extra`` replace hpcml's own, but none that represents an option of the user's. What the user passes
    to sbatch comes last.
    """
    spec, ignored = request.spec, list[str]()
    _check_account(site, terms.account)
    of_node = _of_node(site, request, name)
    if not of_node.cpus and not site.resources.exclusive:
        reasons.append("hpcml requests one CPU per node: request and profile set no number of CPUs (--cpus-per-node)")
    own = _own_directives(site, request, name, terms, of_node)
    typed, passed = typed_options(request.asked), dict(spec.place.sbatch)
    removed = {_known_directive(site, option) for option in terms.remove}
    if "--mem" in removed and "--mem" in typed and "--mem-per-cpu" not in removed:
        per_cpu, note = _memory_per_cpu(site, of_node, typed["--mem"], _remover(site, name, "--mem"))
        own += per_cpu
        notes = notices
        if not per_cpu:  # the job keeps what the profile says of memory
            notes = ignored
            typed = {option: word for option, word in typed.items() if option not in OPTIONS["memory_per_node"].slurm}
        notes.append(note)
    extra = _extra(site, terms, typed, passed, reasons)
    of_user = removed & typed.keys() - _spoken_of(removed)
    ignored += [
        f"hpcml ignores {typed[option]}: the profile removes {option} ({_remover(site, name, option)})"
        for option, _ in own
        if option in of_user
    ]
    own += (("--no-requeue", ""),) if ("--requeue", "") not in extra and "--requeue" not in passed else ()
    own += (("--exclusive", ""),) if site.resources.exclusive else ()
    if "--gres" in passed.keys() - removed:
        passed["--gres"] = _with_own_gres(own, passed["--gres"])
    reasons += [f"{option}={value}: requested".replace("=:", ":") for option, value in spec.place.sbatch]
    left_out = {*removed, *(option for option, _ in extra), *passed}
    kept = [(option, value) for option, value in own if option not in left_out]
    return (*kept, *extra, *passed.items()), ignored


def _remover(site: Site, partition_name: str, option: str) -> str:
    """Return the key by which the profile removes an option: for all jobs, or for those of a partition."""
    if option in site.slurm.remove:
        return "slurm.remove"
    return f"partitions.{partition_name.partition(',')[0]}.remove"  # those of a list are alike


def _spoken_of(removed: set[str]) -> set[str]:
    """Return the options of which another note speaks: memory by CPU replaces --mem, if it is passed."""
    return set() if "--mem-per-cpu" in removed else {"--mem"}


ADD_ACCOUNT = "Add --account, or set [defaults] account = '…' in hpcml.toml."


def _check_account(site: Site, account: str) -> None:
    """Refuse a request without an account on a site that needs one."""
    if site.slurm.account_required and not account:
        raise UsageError(f"Site {site.name} needs an account", place="--account", hint=ADD_ACCOUNT)


def _with_own_gres(own: Iterable[Directive], passed: str) -> str:
    """Return the user's --gres with what hpcml asks for before it, which a second --gres would replace."""
    own_gres = [value for option, value in own if option == "--gres"]
    return ",".join([*own_gres, passed])


def typed_options(asked: RunRequest) -> dict[str, str]:
    """Return the options of sbatch for which the user gave an option of hpcml's, each with that option's word."""
    names = sorted(asked.given().keys() & OPTIONS.keys())
    return {option: OPTIONS[name].word for name in names for option in OPTIONS[name].slurm}


def _own_directives(
    site: Site, request: JobRequest, name: str, terms: partition_fit.Terms, of_node: _OfNode
) -> tuple[Directive, ...]:
    """Return the options with values that hpcml gives, by the request on a partition."""
    spec = request.spec
    takes_all = bool(spec.size.memory_per_node.text) and not spec.size.memory_per_node
    memory = units.format_memory_for_slurm(of_node.memory) if of_node.memory else ""
    rows = (
        ("--job-name", spec.name),
        ("--comment", f"hpcml:{request.paths.directory.name}"),
        ("--clusters", spec.place.clusters),
        ("--account", terms.account),
        ("--partition", name),
        ("--qos", terms.qos),
        ("--nodes", str(spec.size.nodes)),
        ("--ntasks-per-node", "1"),
        ("--cpus-per-task", str(of_node.cpus or "")),
        *gpu_directives(site, spec.size.gpus_per_node, terms.gpu_type),
        ("--mem", "0" if takes_all else memory),
        ("--time", units.format_time_limit(spec.size.time) if spec.size.time else ""),
        ("--dependency", dependency(spec)),
        ("--kill-on-invalid-dep", "yes" if spec.place.after else ""),  # or it would wait for ever
        ("--output", filename_pattern(request.paths.job_log)),
        ("--open-mode", "append"),
        ("--signal", f"B:USR1@{request.signal_lead}"),
        ("--export", site.slurm.export),
    )
    return tuple((option, value) for option, value in rows if value)


def _memory_per_cpu(site: Site, of_node: _OfNode, word: str, remover: str) -> tuple[tuple[Directive, ...], str]:
    """Return the memory of a node by its CPUs, for a site that takes no --mem, and a note on the user's option."""
    count = of_node.cpus or (0 if site.resources.exclusive else 1)
    if not (of_node.memory and count):
        return (), f"hpcml ignores {word}: the profile removes --mem ({remover})"
    value = f"{-(-(of_node.memory >> 20) // count)}M"
    note = f"hpcml passes {word} as --mem-per-cpu={value}, because this site does not accept --mem"
    return (("--mem-per-cpu", value),), note


def _extra(
    site: Site, terms: partition_fit.Terms, typed: Mapping[str, str], passed: Mapping[str, str], reasons: list[str]
) -> list[Directive]:
    """Return those options of the profile's ``extra`` that stand for none of the user's, and why the others do not."""
    extra = []
    for option, value in dict(extra_directive(site, line) for line in terms.extra).items():
        ignored = f"hpcml ignores {option}{'=' if value else ''}{value} of the profile's slurm.extra"
        if option in passed or (option == "--requeue" and "--no-requeue" in passed):
            stated = option if option in passed else "--no-requeue"
            reasons.append(f"{ignored}, because your request contains {stated}")
        elif option in typed and not (option == "--gres" and not value.startswith("gpu")):
            reasons.append(f"{ignored}, because your request contains {typed[option]}")
        else:
            extra.append((option, value))
    return extra


def dependency(spec: RunRequest) -> str:
    """Return the jobs that have to end before, as Slurm takes them: all of them; UsageError if ``?`` joins others."""
    jobs = [f"{_AFTER[awaited.when]}:{awaited.job}" for awaited in spec.place.after]
    if jobs and "?" in spec.place.dependency:
        hint = "Remove --after, and write all start conditions with job ids in --dependency."
        raise UsageError(
            "With ? in --dependency, any one condition starts the job, even before the runs of --after end", hint=hint
        )
    return ",".join([*filter(None, [spec.place.dependency]), *jobs])


def extra_directive(site: Site, line: str) -> tuple[str, str]:
    """Return a directive of the profile; ConfigError if it is invalid or would break the run."""
    option, _, value = line.partition("=")
    return _known_directive(site, option.strip()), value.strip()


def _known_directive(site: Site, option: str) -> str:
    """Return a directive of the profile; raise ConfigError if it is invalid or would break the run."""
    place = f"site {site.name}: extra, remove"
    if not _DIRECTIVE.fullmatch(option):
        raise ConfigError(
            f"'{option}' is not an sbatch option", place=place, hint="Write --constraint=gpu, without quotes."
        )
    if option in _RESERVED:
        raise ConfigError(f"{option} is reserved for hpcml", place=place, hint="Remove the option from the profile.")
    return option


def gpu_directives(site: Site, gpus: int, asked_type: str) -> list[tuple[str, str]]:
    """Return the option that asks for so many GPUs on each node, none if none are wanted."""
    if not gpus or site.slurm.gpu_request == "none":
        return []
    gpu_type = asked_type or site.slurm.gpu_type
    kind = f"{gpu_type}:" if gpu_type else ""
    if site.slurm.gpu_request == "gres":
        return [("--gres", f"gpu:{kind}{gpus}")]
    return [("--gpus-per-node", f"{kind}{gpus}")]


def filename_pattern(path: Path) -> str:
    """Return a path as Slurm's ``--output`` takes it: per cent signs doubled, since they begin its patterns."""
    return str(path).replace("%", "%%")


def array_options(directives: Sequence[Directive], count: int, at_once: int) -> tuple[Directive, ...]:
    """Return a job's directives as those of an array with so many tasks, of which ``at_once`` run at once (0: all)."""
    _check_own_cluster(directives)
    kept = [option for option in directives if option[0] not in _NOT_OF_AN_ARRAY]
    limit = f"%{at_once}" if at_once else ""
    return (*kept, ("--no-requeue", ""), ("--array", f"0-{count - 1}{limit}"))


def cluster_options(directives: Sequence[Directive], job: str, logs: Path) -> tuple[Directive, ...]:
    """Return a run's directives as those of a job of an elastic cluster: it has a name of its own, and runs once."""
    _check_own_cluster(directives)
    kept = [option for option in directives if option[0] not in _NOT_OF_A_CLUSTER]
    fixed_options = (
        ("--comment", f"hpcml:{job}"),
        ("--output", f"{filename_pattern(logs)}/job-%j.log"),
        ("--no-requeue", ""),
    )
    return (*kept, *fixed_options)


def _check_own_cluster(directives: Sequence[Directive]) -> None:
    """Refuse jobs on another cluster that are no runs: their states are asked for by number alone."""
    if clusters := dict(directives).get("--clusters"):
        problem = f"hpcml.map and ElasticCluster cannot use another Slurm cluster: {clusters}"
        hint = "Unset SLURM_CLUSTERS and SBATCH_CLUSTERS, or start them on a login node of that cluster."
        raise UsageError(problem, place="--clusters", hint=hint)


def array_launcher(launcher: Launcher, folder: Path) -> Launcher:
    """Return the launcher of a task's processes, whose logs are in a folder, named as submitit expects them."""
    kept = (word for word in launcher.options if not word.startswith(_OF_A_ROLE))
    return launcher._replace(
        options=(f"--output={filename_pattern(folder)}/%A_%a_%t_log.out", "--kill-on-bad-exit=1", *kept)
    )


def launcher(site: Site, request: JobRequest, role: Role) -> Launcher:
    """Return srun and its options for a role; how many CPUs a task has is known in the allocation.

    ``--wait=0`` and ``--kill-on-bad-exit`` are explicit, because a site's WaitTime would otherwise kill the
    other workers after the first one's end; ``--overlap``, because the steps share the first node.
    """
    count = request.spec.size.nodes
    everywhere = role.every_node
    pattern = filename_pattern(request.paths.logs / (paths.SCRIPT if role == SUPERVISOR else role.name)) + (
        "-%N.log" if everywhere else ".log"
    )
    where: tuple[str, ...] = ("--nodes=1", "--ntasks=1")
    if everywhere:
        where = (f"--nodes={count}", f"--ntasks={count * role.tasks}", f"--ntasks-per-node={role.tasks}")
    # Such tasks only wait, and neighbouring ones are on one node.
    mpi = (f"--mpi={role.mpi}", "--distribution=block", "--overcommit") if role.mpi else ()
    cpus = "1" if role.mpi else '"$cpus"'
    # the node of the batch script by its name: Slurm 24.11 takes --relative=0 for any node
    here = "" if everywhere else ' --nodelist="$HPCML_NODE"'
    fixed = ("--overlap", f"--kill-on-bad-exit={0 if everywhere else 1}", "--wait=0", "--cpu-bind=none", "--export=ALL")
    bind = ("--gpu-bind=none",) if request.spec.size.gpus_per_node else ()  # a hidden GPU has no cuda_ipc
    # Slurm 26.05 reads %% twice beside %N, so the task opens such a log itself
    by_task = role != STAGE and everywhere and "%" in str(request.paths.logs)
    opened = f' >>"$HPCML_RUN_DIR/logs/{role.name}-$HPCML_NODE.log" 2>&1' if by_task else ""
    unsaid = role == STAGE or by_task  # the copy of the image speaks to the batch script
    output = () if unsaid else (f"--output={pattern}", "--open-mode=append")
    begin = ("/bin/sh", "-c", f'export {NODE}; exec "$@"{opened}', "sh")
    options = (*fixed, *bind, *where, f"--job-name={role.name}", *output, *site.slurm.srun_extra, *mpi, *begin)
    return Launcher("srun", f"--cpus-per-task={cpus}{here}", options)


def _here(job: str) -> str:
    """Return a job's number by what names it to Slurm; SiteError if srun cannot reach it from this login node."""
    number, _, cluster = job.partition(" ")[0].partition(";")
    if cluster:
        hint = f"Log in to a login node of {cluster}, and run the command there."
        raise SiteError("srun reaches no job of another Slurm cluster", place=f"job {number} on {cluster}", hint=hint)
    return number


def step_on(job: str, node: str, name: str, *, whole: bool = False) -> list[str]:
    """Return srun and its options for a command on one node of a job that runs."""
    resources = ["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--mpi=none"]
    resources += [] if whole else ["--cpus-per-task=1", "--gres=none"]
    quiet = ["--unbuffered", "--quiet", "--chdir=/", f"--job-name={name}", "--export=NONE"]
    return ["srun", f"--jobid={_here(job)}", f"--nodelist={node}", *resources, *quiet]


def shell_on(job: str, node: str) -> list[str]:
    """Return srun and its options for a program on this terminal, on one node of a job that runs."""
    place = [f"--jobid={_here(job)}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"]
    return ["srun", *place, "--overlap", "--mem=0", "--mpi=none", "--job-name=hpcml-shell", "--pty"]
