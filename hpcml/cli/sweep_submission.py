"""Submit what is missing of a sweep: which points that are, what they cost, and in how many jobs they run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcml.cli import common, submit
from hpcml.errors import SiteError, UsageError
from hpcml.request.record import job_name
from hpcml.runs import directories
from hpcml.sites import layers
from hpcml.sites.schema import Partition
from hpcml.sweeps import halving, keys, lock, points, store
from hpcml.terminal import note, say, say_fitted
from hpcml.units import Memory, format_seconds

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.runs.submit import Prepared

_FIRST = 3  # points that are shown before a submission
_MOST_JOBS = 100
_DETACHED = 130  # the status of a command that Ctrl-C ended, while its runs go on
_GANG = 16  # jobs beside each other, where neither the user nor Slurm says how many


def begin(options: Namespace) -> int:
    """Submit the points that no run has ended or goes on with."""
    from hpcml.runs import submit as submission

    request = _request(options)
    spec = submit.script_spec(options)
    wanted = points.points(request)
    if spec.code.form:
        hint = "Submit it by itself, or call it from a Python file."
        raise UsageError("A sweep starts a Python file, and this is none", place=spec.code.script.name, hint=hint)
    if spec.dask.profile:
        hint = "Profile one of its points: hpcml submit --profile … SCRIPT ARGS…."
        raise UsageError("A sweep records no profile", place="--profile", hint=hint)
    _check_arguments(wanted, spec.code.arguments)
    submit.check_modes(options)
    max_fails = None if options.max_fails is None else common.whole(options.max_fails, "--max-fails")
    asked = _Asked(max_fails, *points.metric_of_files(request), _halving(options), *_divided(options))
    name = job_name(spec)
    spec = spec.changed(name=name, sweep=name, at_once=common.positive(options.at_once, "--at-once"))
    if asked.gang:
        spec = spec.changed(until_done=True, max_restarts=len(wanted))
    prepared = submission.prepare_request(spec, learn=not options.dry_run)
    _check_shares(prepared)
    runs = Path(prepared.plan.directory).parent
    if asked.several:
        claims = str(store.new_claims(runs, name))
        prepared = submission.prepare(prepared.loaded, prepared.spec.changed(claims=claims))
    planned = _planned(prepared, wanted)
    if options.dry_run:
        _look_again(options, asked, prepared, planned, say_it=True)
        return 0
    agreed, told = options.yes, False
    while True:  # once, or twice where a question is asked: it holds up nobody else
        with lock.held(runs, name, prepared.plan.run_id):
            look = _look_again(options, asked, prepared, planned, say_it=not told)
            if not look.chosen:
                return 0
            if agreed or not look.stale:
                started = _submit(options, look, asked)
                break
        told = agreed = True
        question = f"{look.stale} points are stale, made by another script, image or arguments. Run them again?"
        if not common.confirmed(question, yes=False):
            say("Nothing was submitted.", sys.stderr)
            return 1
    return _go_on(options, started, name)


class _Asked(NamedTuple):
    """What the command says of the whole sweep; ``metric`` and ``maximize`` are those of files of points.

    ``jobs`` is 0 where a gang has as many as there is room for.
    """

    max_fails: int | None
    metric: str
    maximize: bool
    halving: halving.Halving | None
    jobs: int
    gang: bool

    @property
    def several(self) -> bool:
        """Whether several jobs may have points of it, so that they must divide them."""
        return self.jobs > 1 or self.gang


def _halving(options: Namespace) -> halving.Halving | None:
    given = {"eta": options.eta, "min_steps": options.halving_min_steps}
    said = {name: text for name, text in given.items() if text is not None}
    if options.halving is None:
        if said:
            option = "--eta" if "eta" in said else "--halving-min-steps"
            raise UsageError(f"{option} is for halving", place=option, hint="Give --halving METRIC too.")
        return None
    options_of = {"eta": "--eta", "min_steps": "--halving-min-steps"}
    numbers = {name: common.whole(text, options_of[name]) for name, text in said.items()}
    return halving.Halving(options.halving, **numbers).checked()


class _Look(NamedTuple):
    """How the sweep stands before a submission, and the points that are to run; ``stale`` counts as ``store.stale``.

    ``prepared`` is the run with what the causes of failures ask for.
    """

    before: store.Sweep
    planned: list[store.Planned]
    chosen: list[store.Planned]
    stale: int
    prepared: Prepared
    claims: frozenset[str]


def _look_again(
    options: Namespace, asked: _Asked, prepared: Prepared, planned: list[store.Planned], *, say_it: bool
) -> _Look:
    """Look at what the sweep's runs have written, and say what is to run."""
    name, runs = prepared.spec.points.sweep, Path(prepared.plan.directory).parent
    before = store.load(runs, name)
    standing = store.standing(runs, before) if before else store.Standing({}, {})
    chosen, prepared, more = _chosen(options, prepared, planned, standing)
    if say_it:
        jobs = 1 if asked.gang else min(asked.jobs, len(chosen))  # a gang's are not known before Slurm is asked
        _tell(prepared, planned, chosen, standing, more, jobs)
    if options.json and (options.dry_run or not chosen):
        common.print_json({**_facts(name, planned, chosen, standing), "more": list(more)})
    return _Look(
        before or store.Sweep(name), planned, chosen, store.stale(planned, standing), prepared, standing.claims
    )


def _divided(options: Namespace) -> tuple[int, bool]:
    """Return in how many jobs at once the points are to run, and whether each has one of its own."""
    jobs = common.positive(options.jobs, "--jobs") if options.jobs is not None else 0 if options.gang else 1
    if jobs > _MOST_JOBS:
        hint = "More of a cluster is rarely free at once: each job takes points as long as there are some."
        raise UsageError(f"{jobs} jobs are more than {_MOST_JOBS}", place="--jobs", hint=hint)
    if options.gang and options.at_once != "1":
        raise UsageError("A gang's job has one point", place="--at-once", hint="Leave --at-once or --gang out.")
    return jobs, options.gang


def _check_shares(prepared: Prepared) -> None:
    """Refuse more points at once than there are workers."""
    inside = prepared.plan.inside
    if inside.at_once <= inside.worker_count:
        return
    what = f"{inside.at_once} points at once need as many workers, and the run has {inside.worker_count}"
    more = "" if inside.gpu else f"more of them (--set workers.per_node={-(-inside.at_once // inside.nodes)}), or "
    raise UsageError(what, place="--at-once", hint=f"Ask for {more}more nodes.")


def _submit(options: Namespace, look: _Look, asked: _Asked) -> list[directories.Run]:
    """Write the sweep's record and submit runs for the chosen points; at least one, or it is an error."""
    from hpcml.runs import submit as submission

    old, prepared = look.before, look.prepared
    runs = Path(prepared.plan.directory).parent
    store.remove_claims(runs, old.name, look.claims)
    everyone = [prepared]
    if asked.several:
        with directories.storage(runs):
            Path(prepared.spec.points.claims).mkdir(mode=0o700)
        more = _room(prepared, asked, len(look.chosen)) - 1
        everyone += [submission.prepare(prepared.loaded, prepared.spec) for _ in range(more)]
    ids = [one.plan.run_id for one in everyone]
    sweep = old._replace(
        points=tuple(look.planned),
        runs=(*old.runs, *ids),
        metric=options.metric or asked.metric or (asked.halving.metric if asked.halving else old.metric),
        maximize=options.maximize or asked.maximize or old.maximize,
    )
    store.save(runs, sweep)
    started: list[directories.Run] = []
    text = _for_the_nodes(prepared, sweep, look.chosen, asked, ids)
    for one in everyone:
        try:
            started.append(submission.submit(one._replace(points=text)))
        except SiteError as error:
            if not started:
                raise
            note(f"{len(started)} of {len(everyone)} jobs were taken, and have all points: {error.message}")
            break
    return started


def _room(prepared: Prepared, asked: _Asked, chosen: int) -> int:
    """Return how many jobs to submit; each of a gang has the next one waiting behind it, which counts too."""
    number = min(asked.jobs or _GANG, chosen)
    if not asked.gang or prepared.plan.inside.one_machine:
        return number
    from hpcml.schedulers import slurm_limits

    room = slurm_limits.room(prepared.plan.directives)
    if room is None:
        return number
    if room < 2:
        note(
            "Slurm has room for one more job of yours: it runs the points one after another, as long as its time lasts"
        )
    elif room // 2 < number:
        note(f"Slurm has room for {room} more jobs of yours: {room // 2} run at once, and as many wait behind them")
    return max(1, min(number, room // 2))


def _go_on(options: Namespace, started: Sequence[directories.Run], name: str) -> int:
    """Say what was submitted, and wait for its end or not."""
    waits = options.wait or (not options.detach and not options.json and sys.stderr.isatty() and sys.stdout.isatty())
    if len(started) == 1:
        submit.announce(started[0], as_json=options.json and not waits)
        if not waits and not options.json:
            _say_where_to_look(name)
        return submit.wait_for_end(started[0], as_json=options.json) if waits else 0
    if options.json and not waits:
        facts = [{"run": run.id, "directory": str(run.paths.directory)} for run in started]
        common.print_json(
            {
                "runs": [
                    one | run.submission.as_json() for one, run in zip(facts, started, strict=True) if run.submission
                ]
            }
        )
        return 0
    for run in started:
        submit.announce(run, as_json=False)
    if not waits:
        _say_where_to_look(name)
        return 0
    ends = []
    for run in started:
        ends.append(submit.wait_for_end(run, as_json=options.json))
        if ends[-1] == _DETACHED:
            return _DETACHED
    return _end_of_all(started, ends)


def _say_where_to_look(name: str) -> None:
    say_fitted(f"hpcml sweep status {shlex.quote(name)}", sys.stderr, first="  look       ", rest=" " * 13)


def _end_of_all(started: Sequence[directories.Run], ends: Sequence[int]) -> int:
    """Return the exit status of several runs: what became of the points counts, and not a run that others replaced."""
    given = store.given(started[0])
    found: dict[str, store.Ended] = {}
    for run in started:
        found |= store.records(run)
    if any(key not in found for key in given.keys):
        return next((end for end in ends if end), 1)
    return int(any(found[key].failed for key in given.keys))


def _request(options: Namespace) -> points.Request:
    here = common.here()
    paths = [here / layers.user_path(text) for text in options.points or ()]
    seed = common.whole(options.seed, "--seed")
    request = points.Request(options.grid or (), options.zip or (), paths, options.random or (), seed)
    if text := points.drawn(request):
        note(text)
    return request


def _check_arguments(wanted: Sequence[points.Point], arguments: Sequence[str]) -> None:
    """Refuse a name that the script's own arguments give already: which of the two counted would be a guess."""
    given = {word.partition("=")[0] for word in arguments}
    if twice := sorted({value.name for point in wanted for value in point if f"--{value.name}" in given}):
        hint = "Take it out behind --, or out of the points."
        raise UsageError(f"--{twice[0]} is among the script's arguments and the points", place="hpcml sweep", hint=hint)


def _planned(prepared: Prepared, wanted: Sequence[points.Point]) -> list[store.Planned]:
    """Return the points with their keys."""
    from hpcml.runs import submit as submission

    spec = prepared.spec
    with directories.storage(spec.code.script):
        code = keys.of_code(spec.code.script.resolve())
    facts = submission.check_image(prepared)
    image = str(facts.get("digest") or [facts.get(name) for name in ("path", "size", "modified")]) if facts else ""
    return [store.Planned(keys.key(point, code, spec.code.arguments, image), point) for point in wanted]


def _chosen(
    options: Namespace, prepared: Prepared, planned: Sequence[store.Planned], standing: store.Standing
) -> tuple[list[store.Planned], Prepared, tuple[str, ...]]:
    """Return the points to run, and the run with what is asked for beyond the command line, and that in words."""
    failed = any(end.failed for end in standing.ended.values())
    if not (options.only_failed or failed or standing.interrupted):
        busy = standing.ended.keys() | standing.under_way.keys()
        return [one for one in planned if one.key not in busy], prepared, ()
    from hpcml.sweeps import retry

    only = retry.asked(options.only_failed) if options.only_failed else ()
    faults = retry.Faults(Path(prepared.plan.directory).parent, standing)
    chosen = retry.chosen(planned, standing, faults, only)
    found = [fault for one in chosen if (fault := faults.of(one.key))]
    inside, site = prepared.plan.inside, prepared.loaded.site
    directives = dict(prepared.plan.directives)
    name = directives.get("--partition", "")
    memory = int(Memory(directives["--mem"])) if directives.get("--mem") else 0
    now = {"time": inside.time_limit, "memory": memory, "memory_limit": inside.memory_limit}
    limits = site.partitions.get(name, Partition())
    more = retry.more(prepared.spec, found, limits, name, now, asked_for=bool(only))
    if more.spec != prepared.spec or more.settings:
        from hpcml.runs import submit as submission

        loaded = common.load_site(options.site or "", more.spec.code.cwd, [*(options.set or ()), *more.settings])
        prepared = submission.prepare(loaded, more.spec, run_id=prepared.plan.run_id)
    return chosen, prepared, more.words


def _say(title: str, text: str) -> None:
    say_fitted(text, sys.stderr, first=f"  {title:<11}", rest=" " * 13)


def _tell(
    prepared: Prepared,
    planned: Sequence[store.Planned],
    chosen: Sequence[store.Planned],
    standing: store.Standing,
    more: Sequence[str],
    jobs: int,
) -> None:
    """Say which points there are, which of them are to run, and what that may cost in so many jobs."""
    for position, one in enumerate(chosen[:_FIRST]):
        _say("" if position else "points", points.shown(one.point))
    if len(chosen) > _FIRST:
        _say("", f"… and {len(chosen) - _FIRST} more")
    ends = [standing.ended[one.key] for one in planned if one.key in standing.ended]
    ok, failed, halved = (sum(getattr(one, state) for one in ends) for state in ("ok", "failed", "stopped"))
    busy = sum(one.key in standing.under_way for one in planned)
    words = [
        f"{ok} done" if ok else "",
        f"{halved} stopped by halving" if halved else "",
        f"{failed} failed" if failed else "",
        f"{busy} under way" if busy else "",
    ]
    _say("count", ", ".join([f"{len(planned)} points", *filter(None, words), f"{len(chosen)} to run"]))
    if not chosen:
        if failed and not busy:
            _say("next", "run again what failed: --only-failed")
        return
    for text in more:
        _say("again", text)
    _tell_cost(prepared, len(chosen), sorted(one.seconds for one in ends), jobs)


def _tell_cost(prepared: Prepared, count: int, taken: Sequence[float], jobs: int) -> None:
    """Say what so many points may cost in so many jobs; ``taken`` are the seconds that others took."""
    inside = prepared.plan.inside
    nodes = f"{f'{jobs} jobs of ' if jobs > 1 else ''}{inside.nodes} node{'' if inside.nodes == 1 else 's'}"
    if not inside.one_machine:
        submit.tell_outlook(prepared, whole=True, jobs=jobs)
        if prepared.spec.attempts.until_done and inside.time_limit:  # a gang
            most = count * inside.nodes * inside.time_limit / 3600
            _say("", f"that is one point's job; {count} take at most {most:.3g} node-hours")
    elif inside.time_limit:
        hours = jobs * inside.nodes * inside.time_limit / 3600
        _say("cost", f"at most {hours:.3g} node-hours: {nodes} for {format_seconds(inside.time_limit)}")
    else:
        _say("cost", f"{nodes} until the last point ends: there is no time limit")
    if taken:
        middle = taken[len(taken) // 2]
        hours = inside.nodes * middle * count / 3600
        _say("", f"about {hours:.3g} node-hours if they take as long as those before: {format_seconds(middle)} each")


def _facts(
    name: str, planned: Sequence[store.Planned], chosen: Sequence[store.Planned], standing: store.Standing
) -> dict[str, object]:
    ended = [standing.ended[one.key] for one in planned if one.key in standing.ended]
    return {
        "sweep": name,
        "points": len(planned),
        "ok": sum(one.ok for one in ended),
        "stopped": sum(one.stopped for one in ended),
        "failed": sum(one.failed for one in ended),
        "under_way": sum(one.key in standing.under_way for one in planned),
        "to_run": [{value.name: value.typed for value in one.point} for one in chosen],
    }


def _for_the_nodes(
    prepared: Prepared, sweep: store.Sweep, chosen: Sequence[store.Planned], asked: _Asked, ids: Sequence[str]
) -> str:
    """Return the points as the first node of a run reads them; ``ids`` are the runs that divide them."""
    rows = [
        {
            "key": one.key,
            "values": {value.name: value.typed for value in one.point},
            "words": points.words(one.point),
            "shown": points.shown(one.point),
        }
        for one in chosen
    ]
    inside, runs = prepared.plan.inside, Path(prepared.plan.directory).parent
    facts: dict[str, object] = {"sweep": sweep.name, "max_fails": asked.max_fails, "points": rows}
    if asked.halving:
        known = {one.key for one in sweep.points}
        facts["halving"] = halving.for_the_nodes(asked.halving, runs, sweep, known, maximize=sweep.maximize)
    if inside.claims:
        facts |= {"claims": inside.claims, "runs": list(ids), "gang": asked.gang}
    return json.dumps(facts, indent=1) + "\n"
