"""Batch scripts whose #SBATCH lines ask for tasks or arrays, which hpcml ignores: a refusal, and what to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcml.errors import UsageError
from hpcml.options.sbatch_options import INSTEAD, SWEEP
from hpcml.schedulers import sbatch_lines

PAGE = "hpcml help from-batch-scripts"
_TASKS = ("--ntasks", "--ntasks-per-node", "--gpus-per-task")
# Where a shell looks for a command: at the beginning of a line or a text, or after a word that another command follows.
_BEFORE = r"(?:^|[;&|({\"'`]|(?<![\w./-])(?:then|do|else|exec|time|nohup|command|env|uv\s+run)\s)\s*(?:\w+=\S*\s+)*"
_LAUNCHERS = r"mpirun|mpiexec(?:\.\w+)?|orterun|prterun|srun|torchrun|deepspeed|horovodrun"
_STARTS_TASKS = ("srun", "mpirun", "mpiexec", "orterun", "prterun")  # as many as Slurm says, if they are not told
LINE_OF_A_LAUNCHER = re.compile(rf"{_BEFORE}({_LAUNCHERS})\s", re.MULTILINE)
_OF_SHELL = re.compile(r"#![ \t]*(?:\S*/)?(?:env[ \t]+(?:-\S+[ \t]+)*)?(?:\S*/)?(?:ba|da|z|k|mk|c|tc|a)?sh(?![\w.])")
_OF_PYTHON = re.compile(r"#!.*\b(?:i?python|pypy|uv[ \t]+run)[\d.]*(?!\w)")
_COMMENT = re.compile(r"(?m)^\s*#.*$|(?<=\s)#\s.*$")


def launchers(text: str) -> Iterator[str]:
    """Yield the launchers of ranks that the lines of a shell script start, comments aside."""
    return (match[1] for match in LINE_OF_A_LAUNCHER.finditer(_COMMENT.sub("", text)))


def advice(lines: Sequence[tuple[int, str]]) -> str:
    """Return the advice what to use instead of the first option of #SBATCH lines that says how many tasks there are."""
    asked = (line for number, options in lines for line in sbatch_lines.options(options, number))
    return next((INSTEAD[line.name] for line in asked if line.name in _TASKS and line.value != "1"), "")


def is_batch_script(text: str) -> bool:
    """Return True if a text is a script that has lines for sbatch, or a shell's that starts tasks with srun.

    It may be for any interpreter that its first line names but Python's: that would be a run of a Python script.
    """
    if not text.startswith("#!") or _OF_PYTHON.match(text):
        return False
    has_lines = any(True for _ in sbatch_lines.of_script(text))
    return has_lines or bool(_OF_SHELL.match(text) and "srun" in launchers(text))


def check_array(script: Path, site: str) -> None:
    """Refuse a batch script whose lines ask for an array that a site cannot start."""
    _refuse_array(script.name, _asked(list(sbatch_lines.of_script(script.read_text(errors="replace")))), site)


def _asked(lines: Sequence[tuple[int, str]]) -> dict[str, sbatch_lines.Option]:
    """Return the options of numbered lines by their names."""
    return {line.name: line for number, options in lines for line in sbatch_lines.options(options, number)}


def _refuse_array(name: str, asked: Mapping[str, sbatch_lines.Option], who: str = "A run") -> None:
    if array := asked.get("--array"):
        problem = f"{who} starts no job array, but line {array.number} of {name} asks for one: {array.typed}"
        python = name.endswith(".py")
        what = "" if python else f" SCRIPT is the Python script that {name} starts."
        line = f"{'sbatch' if python else 'hpcml submit'} {name}"
        hint = f"{SWEEP}{what} On a cluster, submit the array: {line}. More: {PAGE}."
        raise UsageError(problem, place="#SBATCH", hint=hint)


def check(name: str, text: str, lines: Sequence[tuple[int, str]], given: Mapping[str, Any]) -> None:
    """Refuse a script whose #SBATCH lines ask for an array, or for tasks that a launcher in it would start.

    Parameters
    ----------
    name, text
        The script.
    lines
        Number and options of each #SBATCH line.
    given
        The options of the request, with those of the lines.

    Raises
    ------
    UsageError
        The line, and what to type instead.
    """
    asked = _asked(lines)
    _refuse_array(name, asked)
    if given.get("ranks") or not {*_TASKS} & asked.keys():
        return
    launcher = next((word for word in launchers(text) if word.partition(".")[0] in _STARTS_TASKS), "")
    if not launcher or _is_one_task_a_node(asked, given):
        return
    which = next(asked[option] for option in _TASKS if option in asked)
    problem = (
        f"{launcher} in {name} starts the tasks of line {which.number} ({which.typed}), and hpcml ignores this line"
    )
    hint = f"hpcml would start {launcher} with one task. {_advice(name, text, given)} More: {PAGE}."
    raise UsageError(problem, place="#SBATCH", hint=hint)


def _is_one_task_a_node(asked: Mapping[str, sbatch_lines.Option], given: Mapping[str, Any]) -> bool:
    """Return True if a launcher would start the same tasks without the lines."""
    from hpcml.options.translate import directives, shell_syntax

    try:
        made = directives.layout(asked, str(given.get("nodes") or ""))
    except shell_syntax.UntranslatedError:
        return False
    return made.each == 1 and "--gpus-per-task" not in asked


def _advice(name: str, text: str, given: Mapping[str, Any]) -> str:
    """Return the line to type: the whole one if the script only prepares and starts one program."""
    from hpcml.options.translate import batch_script, shell_syntax

    try:
        line = batch_script.translate(text, (), given, {}, slurm=True).line
    except shell_syntax.UntranslatedError as error:
        if name.endswith(".py"):
            return "Start the program itself: hpcml submit --nodes N --ranks N -- PROGRAM."
        why = f"hpcml has no line that does the same: line {error.number} has {error.what}"
        return f"To run it as it is: hpcml submit {shlex.quote(name)}. {why}."
    return f"Type: {line}{'' if ' --mpi ' in line else ' (for an MPI program, also --mpi pmix)'}."
