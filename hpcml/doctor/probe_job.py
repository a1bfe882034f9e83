"""The doctor's look at nodes: one short job, submitted as any run, whose workers probe their nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpcml import schedulers, units
from hpcml.doctor import node_findings as judgement
from hpcml.doctor.finding import Examination, Finding, clause, green, not_applicable, red, yellow
from hpcml.errors import HpcmlError
from hpcml.request.record import NOT_SAID, RunRequest
from hpcml.runs import directories, handle, why
from hpcml.runs import submit as submission
from hpcml.schedulers import partition_fit
from hpcml.sites.lookup import LoadedSite
from hpcml.sites.schema import Partition
from hpcml.units import Memory, TimeLimit


def request(loaded: LoadedSite, spec: RunRequest) -> tuple[LoadedSite, RunRequest]:
    """Return the site and the request of the doctor's job: one worker a node, over TLS, whatever its interface.

    It asks for one GPU where the partition has some, or for as many as the request says, but starts no GPU workers:
    their facts are read without any package for GPUs.
    """
    site = loaded.site
    spec = schedulers.with_variables(site.scheduler, spec, loaded.is_from_this_call)
    name = spec.place.partition or site.defaults.partition
    partition = site.partitions.get(name, Partition())
    node_gpus = partition_fit.gpus_of_node(site, name, spec.changed(gpus_per_node=0))
    gpus = min(1, node_gpus) if spec.size.gpus_per_node == NOT_SAID else spec.size.gpus_per_node
    with_gpus = schedulers.find_nodes(site.scheduler)
    pairs = tuple(with_gpus.gpu_directives(site, gpus, spec.size.gpu_type)) if with_gpus else ()
    plain = {name: one._replace(needs_gpus=False, gpus_per_node=0, nodes={}) for name, one in site.partitions.items()}
    site = site._replace(
        partitions=plain,
        resources=site.resources._replace(node_gpus=0),
        network=site.network._replace(interface="", protocol="tls"),
        interconnect=site.interconnect._replace(require="none"),
        workers=site.workers._replace(per_node=1),
    )
    nodes = spec.size.nodes
    if nodes == NOT_SAID:
        nodes = 1 if schedulers.get(site.scheduler).ONE_MACHINE else min(2, partition.max_nodes or 2)
    spec = spec.changed(
        nodes=nodes,
        gpus_per_node=0,
        gpu_type="",
        cpus_per_node=2,
        memory_per_node=Memory("2G"),
        time=TimeLimit("5"),
        sbatch=(*spec.place.sbatch, *pairs),
    )
    return loaded._replace(site=site), spec


def look(exam: Examination, patience: float, tell: Callable[[str], None]) -> list[Finding]:
    """Submit the job, wait for its end and judge what it saw; it is cancelled if it does not end in time.

    Parameters
    ----------
    patience
        Seconds for the job to start and end.
    tell
        Called with a line on what is waited for.
    """
    try:
        prepared = exam.prepared()
    except HpcmlError:
        return _alone(not_applicable("no job was submitted, because the check 'request' failed"))
    try:
        run = submission.submit(prepared)
    except HpcmlError as error:
        return _alone(red(f"the job that checks the nodes was not submitted: {clause(error.message)}", error.hint))
    one = handle.RunHandle(run)
    try:
        tell(f"a job checks {units.counted(exam.spec.size.nodes, 'node')} (run {run.id})")
        status = one.wait_status(patience)
    except BaseException as error:
        handle.cancel(run)
        if not isinstance(error, TimeoutError):
            raise
        waited = one.now()
        why_not = f": {waited.message}" if waited.message else ""
        sentence = (
            f"the job that checks the nodes did not end within {units.format_seconds(patience)}{why_not}; "
            "hpcml cancelled the job"
        )
        return _alone(not_applicable(sentence, "To wait longer: --patience 1h."))
    if status.exit_status:
        answer = why.of_status(run, status)
        sentence = f"the job that checks the nodes failed: {answer.cause or status.message}"
        hint = answer.next_step or status.hint or f"For more details: hpcml why {run.id}"
        return _alone(red(sentence, hint, run=run.id))
    table = directories.read_json(run.paths.out / "doctor.json")
    answers = {name: node for name, node in (table.facts if table else {}).items() if isinstance(node, dict)}
    nodes = status.allocation.nodes
    clocks = {**dict.fromkeys(nodes[:1], (0.0, 0.0)), **status.progress.clocks}  # the others' are against the first's
    directories.remove_folder(run.paths.directory)
    job = judge_answers(answers, nodes, units.format_seconds(status.seconds() or 0))._replace(
        facts={"nodes": sorted(answers), "job": run.job}
    )
    return [job._replace(check="job"), *judgement.judge(exam, answers, clocks)] if answers else _alone(job)


def judge_answers(by_node: Mapping[str, object], nodes: Sequence[str], took: str) -> Finding:
    """Return a finding on the nodes that reported nothing; ``took``: how long the run lasted."""
    if not by_node:
        return red("the job succeeded, but no node reported any results", "Try again: hpcml doctor --node.")
    if silent := [node for node in nodes if node not in by_node]:
        sentence = f"the job succeeded, but the results below are incomplete: {', '.join(silent)} reported nothing"
        return yellow(sentence, "Try again: hpcml doctor --node.")
    return green(f"a run started on {', '.join(by_node)} and ended after {took}")


def _alone(job: Finding) -> list[Finding]:
    """Return the findings of the job's own check; all others were not possible."""
    nothing = not_applicable("the job on the nodes reported nothing: see the check 'job'")
    return [job._replace(check="job"), *(nothing._replace(check=name) for name in judgement.JUDGES)]
