"""What a submission would cost, when it may start, and whether it asks for much more time than runs before it took."""

from __future__ import annotations

import datetime
import math
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcml import schedulers, subprocesses, units
from hpcml.config_trust import Named
from hpcml.errors import HpcmlError
from hpcml.plan import cost
from hpcml.runs import directories, request_cost
from hpcml.runs import record as records
from hpcml.runs.status import status
from hpcml.sites.lookup import LoadedSite
from hpcml.sites.schema import Partition, Site
from hpcml.states import Phase

if TYPE_CHECKING:
    from hpcml.runs.submit import Prepared  # which hpcml status does without

DEADLINE = 2.0  # seconds for all that is asked before a submission
_ANSWERS = {"budget": "the profile's budget command", "slurm": "Slurm"}  # who answers a question
_PAST = 5  # newest runs of the script that are looked at
_ENOUGH = 2  # of them tell something
_LOOKED_AT = 20  # records that are read for them, at most
_LEAST_ASKED = 900  # seconds; a shorter time limit is not judged


class Budget(NamedTuple):
    """A grant in the site's unit: all of it, and what is used."""

    total: float
    used: float

    @property
    def left(self) -> float:
        """What may still be spent."""
        return max(0.0, self.total - self.used)


class Forecast(NamedTuple):
    """What is known before a submission; what nobody reported is None or empty, and ``problems`` say why.

    ``most`` is the most node-hours that all attempts of a run may take that continues until it is done, by ``limit``.
    ``terms`` are options that the profile has for the partition, each with its key and the profile. ``at_once`` is how
    many of the jobs Slurm runs at once at most, 0 without a limit.
    """

    request: cost.Request
    billed: float | None = None
    unit: str = ""
    by_slurm: float | None = None
    budget: Budget | None = None
    account: str = ""
    start: str = ""
    advice: str = ""
    problems: tuple[str, ...] = ()
    most: float | None = None
    limit: str = ""
    terms: tuple[str, ...] = ()
    at_once: int = 0
    unpriced: str = ""  # why the cost is unknown


def look(prepared: Prepared, *, whole: bool, jobs: int = 1) -> Forecast:
    """Return the cost of a submission, of so many jobs alike, and the time when it may start.

    The site's commands are asked where its profile says so (``cost``), all within ``DEADLINE``; whatever fails
    is left out. ``whole``: Slurm's own weights are compared too.
    """
    site, made = prepared.loaded.site, prepared.plan
    job = made.inside.job
    request = cost.request(site, made.directives, job.nodes, job.time_limit, made.lines).times(jobs)
    billed, problems = request_cost.bill(site, request)
    hours = request.seconds / 3600
    forecast = Forecast(request, billed, site.cost.unit or "billing-h", account=request.account, at_once=made.at_once)
    terms = _terms(prepared.loaded, made.directives, request.partition)
    forecast = forecast._replace(terms=terms, unpriced=_unpriced(site, request))
    questions: dict[str, Callable[[], object]] = {}
    command, named = budget_command(prepared.loaded, request.partition)
    if command and request.account:
        questions["budget"] = lambda: ask_budget(command, site.cost.budget_row, request.account, DEADLINE, named)
    if site.cost.ask:
        questions["slurm"] = lambda: ask_scheduler(prepared, request.partition if whole else "", DEADLINE)
    answers = _answers(questions)
    problems += [f"{_ANSWERS[name]} did not answer within {DEADLINE:g} s" for name in questions if name not in answers]
    problems += [str(answer) for answer in answers.values() if isinstance(answer, str)]
    if isinstance(budget := answers.get("budget"), Budget):
        forecast = forecast._replace(budget=budget)
    if isinstance(said := answers.get("slurm"), schedulers.Prospect):
        forecast = forecast._replace(start=said.start)
        theirs, more = cost.weights(said.weights)
        if hours and request.cpus and theirs and not more:
            forecast = forecast._replace(by_slurm=cost.billing(request, theirs, largest=said.largest) * hours)
    most, limit = None, ""
    if made.inside.attempts.several_jobs and not (forecast.unpriced and request.seconds):
        limits = made.inside.attempts
        most, limit = request_cost.most_hours(limits.max_restarts, limits.max_node_hours, request.node_hours)
    return forecast._replace(advice=shorter(prepared), problems=tuple(problems), most=most, limit=limit)


def _unpriced(site: Site, request: cost.Request) -> str:
    """Return the reason for which the cost of a request is unknown, empty if it is known."""
    strange = [name for name in request.partition.split(",") if name and name not in site.partitions]
    if strange and site.partitions:
        return f"partition {strange[0]} is not in the profile"
    return "" if request.seconds else "the request has no time limit"


def _terms(loaded: LoadedSite, directives: Sequence[tuple[str, str]], names: str) -> tuple[str, ...]:
    """Return those options of a request that the profile sets for its partitions, each with the key that sets it."""
    texts = []
    for name in names.split(","):
        partition = loaded.site.partitions.get(name, Partition())
        rows = [(key, f"--{key}", getattr(partition, key)) for key in ("account", "qos", "constraint")]
        extra = [line.partition("=") for line in partition.extra]
        rows += [("extra", option.strip(), value.strip()) for option, _, value in extra]
        texts += [
            f"{option}={value} ({loaded.layers.named('partitions', name, key).place})".replace("= ", " ")
            for key, option, value in rows
            if (option, value) in directives
        ]
        if partition.gpu_type and any(f"{partition.gpu_type}:" in value for _, value in directives):
            by = loaded.layers.named("partitions", name, "gpu_type").place
            texts.append(f"GPU type {partition.gpu_type} ({by})")
    return tuple(texts)


def budget_command(loaded: LoadedSite, names: str) -> tuple[tuple[str, ...], Named]:
    """Return the command that shows grants for a partition, or the first of several, and who set it."""
    partition = names.partition(",")[0]
    if command := loaded.site.partitions.get(partition, Partition()).budget:
        return command, loaded.layers.named("partitions", partition, "budget")
    return loaded.site.cost.budget, loaded.layers.named("cost", "budget")


def _answers(questions: dict[str, Callable[[], object]]) -> dict[str, object]:
    """Return the answers that came within the deadline; a thread whose command hangs is left behind."""
    answers: dict[str, object] = {}

    def ask(name: str, question: Callable[[], object]) -> None:
        try:
            answers[name] = question()
        except (HpcmlError, OSError, subprocesses.CommandMissingError) as error:
            answers[name] = f"{name}: {error.message if isinstance(error, HpcmlError) else error}"

    end = time.monotonic() + DEADLINE
    threads = [threading.Thread(target=ask, args=question, daemon=True) for question in questions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(answers)


def ask_scheduler(prepared: Prepared, partition: str, seconds: float) -> schedulers.Prospect:
    """Return the scheduler's prospect of a submission and, if one is named, of a partition, within so many seconds."""
    adviser = schedulers.find_adviser(prepared.plan.scheduler)
    if adviser is None:
        return schedulers.Prospect()
    with tempfile.TemporaryDirectory(prefix="hpcml-check-") as folder:
        script = Path(folder) / "job.sh"
        script.write_text(prepared.script)
        return adviser.prospect(script, partition, seconds)


def ask_budget(command: Sequence[str], row: str, account: str, seconds: float, named: Named) -> Budget | str:
    """Return the account's grant by the site's command, or the reason why it is not known."""
    try:
        answer = subprocesses.run(command, seconds, program=named)
    except subprocesses.CommandMissingError:
        return f"hpcml cannot read the budget: the command {command[0]} does not exist here"
    if answer.code != 0:
        how = f"with exit status {answer.code}" if answer.code else "to answer in time"
        return f"the profile's budget command {command[0]} failed {how}"
    return budget_of(answer.out, row, account)


def budget_of(text: str, row: str, account: str) -> Budget | str:
    """Return the grant that a row of a command's answer tells, or why none does.

    ``row`` is a regular expression with ``{account}`` in it and the groups ``total`` and ``used``.
    """
    try:
        match = re.search(row.replace("{account}", re.escape(account)), text, re.MULTILINE)
        if match is None:
            return f"the profile's budget command does not list account {account}"
        return Budget(float(match["total"]), float(match["used"]))
    except (re.error, IndexError, ValueError, TypeError) as error:
        return f"cost.budget_row does not match the output of the budget command: {error}"


def shorter(prepared: Prepared) -> str:
    """Return a note if runs of the same script took less than half of the time that is asked for now."""
    asked = prepared.plan.inside.job.time_limit
    if asked < _LEAST_ASKED:
        return ""
    taken: list[int] = []
    try:
        for run in _runs_like(prepared):
            current = status(run, ask=False)
            if current.phase == Phase.ENDED and current.exit_status == 0 and (seconds := current.seconds()) is not None:
                taken.append(seconds)
            if len(taken) == _PAST:
                break
    except HpcmlError:
        return ""  # a run that cannot be read tells nothing; ls names it
    if len(taken) < _ENOUGH or 2 * max(taken) >= asked:
        return ""
    seconds = math.ceil(max(max(taken) * 1.5, 300) / 300) * 300
    if seconds >= asked:
        return ""
    enough = units.format_time_limit(seconds)
    took, limit = units.format_time_limit(max(taken)), units.format_time_limit(asked)
    past = f"the script's latest {len(taken)} runs took at most {took} of the time limit {limit}"
    return f"{past}: --time {enough} may be enough"


def _runs_like(prepared: Prepared) -> Iterator[directories.Run]:
    """Yield the site's newest runs of the same script on as many nodes with a time limit, the newest first."""
    made, script = prepared.plan, str(prepared.spec.code.script)
    folder = Path(made.directory).parent
    run_ids = directories.ids(folder, made.name)
    for run_id in reversed(directories.newest(folder, run_ids, _LOOKED_AT)):
        run = directories.load(folder / run_id)
        record = records.Record(run.paths)
        same = record.request is not None and record.request.spec.script == script and record.plan.site == made.site
        job = record.plan.inside.job
        if same and job.nodes == made.inside.job.nodes and job.time_limit:
            yield run


def lines(forecast: Forecast, now: datetime.datetime, *, whole: bool) -> list[tuple[str, str]]:
    """Return the request and the highest cost of a submission, as titles and texts; ``whole``: all that is known."""
    request = forecast.request
    start = _start(forecast.start, now, "the job" if request.jobs == 1 else "the first job")
    limits = {"partition": request.partition, "time_limit": request.seconds, "cost": _cost(forecast)}
    jobs, at_once = request.jobs, min(forecast.at_once, request.jobs)
    if at_once:
        nodes, gpus = (at_once * number // jobs for number in (request.nodes, request.gpus))
        most = request_cost.sentence({"nodes": nodes, "gpus": gpus})
        each = request_cost.sentence({"nodes": request.nodes // jobs, "of_node": request.of_node})
        text = f"{jobs} jobs of {each}, at most {most} at once"
        text = f"{text}, {request_cost.sentence(limits)}".removesuffix(", ")
    else:
        text = request_cost.sentence(
            {"nodes": request.nodes, "of_node": request.of_node, "gpus": request.gpus, **limits}
        )
        text = text if jobs == 1 else f"{text}, for {jobs} jobs"
    text = f"{text}; the cost is unknown, because {forecast.unpriced}" if forecast.unpriced else text
    said = [("asks for", f"{text}; {start}" if start and not whole else text)]
    said += [("", term) for term in forecast.terms if whole]
    if forecast.most is not None:
        most = request_cost.price(request._replace(gpus=0), forecast.most, None, "")
        said.append(("", f"this cost is for one attempt; all attempts together use at most {most} ({forecast.limit})"))
    if whole and forecast.by_slurm is not None:
        theirs = f"Slurm's billing weights give a cost of {request_cost.amount(forecast.by_slurm)} {forecast.unit}"
        differs = forecast.billed is not None and not math.isclose(forecast.by_slurm, forecast.billed, rel_tol=0.01)
        said.append(("", f"{theirs}; the profile's weights give another cost" if differs else theirs))
    if whole and start:
        said.append(("start", start))
    if forecast.advice:
        said.append(("time", forecast.advice))
    if whole:
        said += [("not known", problem) for problem in forecast.problems]
    return said


def _cost(forecast: Forecast) -> str:
    """Return the highest cost and its share of the grant, empty if it is unknown."""
    if forecast.unpriced or not forecast.request.seconds:
        return ""
    text = request_cost.price(forecast.request, forecast.request.node_hours, forecast.billed, forecast.unit)
    if forecast.budget is None:
        return text
    left = f"{request_cost.amount(forecast.budget.left)} {forecast.unit}"
    if forecast.billed is None:
        return f"{text} ({left} of account {forecast.account} are left)"
    share = 100 * forecast.billed / forecast.budget.total if forecast.budget.total else 100.0
    left = f"only {left}" if forecast.billed > forecast.budget.left else left
    return f"{text}, {request_cost.amount(share)} % of the grant of account {forecast.account} ({left} left)"


def _start(text: str, now: datetime.datetime, source: str) -> str:
    """Return Slurm's estimate for what is submitted as a person reads it; empty if there is none."""
    try:
        start = datetime.datetime.fromisoformat(text)
    except ValueError:
        return ""
    if (start - now).total_seconds() < 120:
        return f"Slurm would start {source} now"
    return f"Slurm would start {source} at {start:{'%H:%M' if start.date() == now.date() else '%Y-%m-%d %H:%M'}}"
