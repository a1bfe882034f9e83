"""What ``hpcml submit --dry-run`` prints: the submission in about ten lines."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import kinds
from hpcml.cli import common
from hpcml.kind import Kind
from hpcml.paths import RunPaths
from hpcml.runs import gpus_chosen, script_or_program, snapshot
from hpcml.terminal import say, say_facts
from hpcml.units import counted, first_of_many, format_bytes, format_time_limit
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from hpcml.plan.make_plan import Plan
    from hpcml.runs.submit import Prepared


_MOST_TASKS = 4  # that are named
_ONE_MACHINE = "none: all processes are on one machine"


def show(prepared: Prepared, given: Mapping[str, Any], forecast: Sequence[tuple[str, str]]) -> None:
    """Print what would be submitted by the ``given`` options.

    ``forecast`` are the titles and texts of what it asks for and costs.
    """
    made = prepared.plan
    kind, is_hold = kinds.get(made.inside.kind), prepared.spec.code.form is Form.HOLD  # which has no script
    paths = RunPaths(Path(made.directory).with_name(f"{made.name}-…"))
    lines = [
        ("run", f"{made.name} on site {made.site}; nothing is submitted"),
        ("command", _command(prepared)),
        *([("array", _array(made))] if made.array else []),
        *(forecast or [("asks for", _free(made)), *gpus_chosen.lines(made.gpus_because)]),
        *([] if is_hold else [("processes", kind.condition(made.inside) + _processes(made, kind))]),
        ("image", made.inside.job.image) if made.inside.job.image else ("python", _python(prepared)),
        ("network", _ONE_MACHINE if made.inside.single_node else kind.network(made.inside)),
        *kind.lines(made.inside, made.variables),
        *([] if is_hold else [("code", _code(prepared))]),
        ("results", common.typed(paths.out, sys.stdout)),
        *(("because" if not number else "", reason) for number, reason in enumerate(made.reasons)),
        ("script", "--dry-run=script prints the batch script"),
    ]
    say_facts(lines)
    if (code := prepared.spec.code).form is Form.BATCH:
        from hpcml.runs import translated  # what only few submissions need

        partition = prepared.loaded.site.defaults.partition
        line = translated.in_words(code.script, code.arguments, given, partition)
        say(f"in hpcml   {line}")  # whole: it is to be copied


def _python(prepared: Prepared) -> str:
    """Return the Python of the run's script: one that is named without its path is found in the job."""
    code, made = prepared.spec.code, prepared.plan
    if code.form is Form.BATCH:
        return "the batch script's own"
    is_program = code.form is Form.PROGRAM
    is_other = is_program and not script_or_program.is_python(code.script)  # it chooses its own Python
    program = code.interpreter[0] if code.interpreter else str(code.script) if is_program else made.python
    if program == made.python or (is_other and made.python_from):
        return python_of(made)
    keys = [key for key in ("setup", "modules") if getattr(made, key)]
    after = " and ".join(f"runtime.{key} ({prepared.loaded.layers.origin(f'runtime.{key}')})" for key in keys)
    text = program if "/" in program else f'"{program}" after {after}' if after else f'"{program}" on the job\'s PATH'
    text = f"the program's own{', after ' * bool(after)}{after}" if is_other else text
    return f"{text}; workers: {python_of(made)}" if kinds.get(made.inside.kind).has_cluster else text


def _array(made: Plan) -> str:
    """Return the tasks of an array, and the time that all may take where only some run at once."""
    count, limit = len(made.array), made.inside.job.time_limit
    names = [f"{made.name}_{index}" for index in made.array]
    follow = count > 2 and made.array == tuple(range(made.array[0], made.array[0] + count))
    listed = f"{names[0]} … {names[-1]}" if follow else first_of_many(names, _MOST_TASKS)
    text = f"{counted(count, 'task')}, each a run of its own: {listed}"
    if not made.at_once:
        return text
    text += f"; at most {made.at_once} at once"
    return f"{text}, {format_time_limit(-(-count // made.at_once) * limit)} at most in all" if limit else text


def python_of(made: Plan) -> str:
    """Return the Python of a run's processes, and who named it."""
    return f"{made.python} ({made.python_from})" if made.python_from else made.python


def _command(prepared: Prepared) -> str:
    code = prepared.spec.code
    if code.form.service:
        return code.form.traits.title
    return " ".join(filter(None, (shlex.join(code.interpreter), prepared.plan.inside.code.command())))


def _free(made: Plan) -> str:
    """Return the request of a run where nothing is charged for it."""
    job = made.inside.job
    where = f"this machine instead of {counted(job.nodes, 'node')}" if job.one_machine else "the existing allocation"
    limit = f"time limit {format_time_limit(job.time_limit)}" if job.time_limit else "no time limit"
    return f"{where}, {limit}, at no extra cost"


def _processes(made: Plan, kind: Kind) -> str:
    """Return the processes of the run's kind beside the script, and what each of those on every node has."""
    inside, workers = made.inside, made.inside.workers
    if not inside.worker_count:
        return f"{kind.name}: only those that the script starts"
    each = (
        f"{workers.per_node} on each node" if inside.job.nodes > 1 else "",
        "one GPU each" if workers.gpu else "",
        f"{counted(workers.threads, 'thread')} each" if workers.threads else "",
        f"{format_bytes(workers.memory_limit)} of memory each" if workers.memory_limit else "",
    )
    roles = [f"1 {role.name}" for role in kind.roles if not role.every_node]
    details = ", ".join(filter(None, each))
    many = f"{counted(inside.worker_count, kind.noun)}{details and f' ({details})'}"
    return f"{kind.name}: {', '.join([*roles, many])}"


def _code(prepared: Prepared) -> str:
    """Return the number of the files of the script's folder that the run would copy, and the others."""
    spec, rules = prepared.spec, prepared.loaded.site.code
    if not spec.code.copied or rules.snapshot == "none":
        return "not copied: the run uses the original files"
    if spec.code.staged:
        return "the files that the laptop sent"
    module = spec.code.form is Form.MODULE
    target, root = Path(prepared.plan.directory), spec.code.root
    count, left_out = snapshot.preview(spec.code.script, target, rules, module=module, root=root)
    rest = f"; not copied: {snapshot.listed(left_out)}" if left_out else ""
    folder = common.typed(Path(root) if root else snapshot.folder_of(spec.code.script, module=module), sys.stdout)
    return f"would copy {counted(count, 'file')} of {folder}{rest}"
