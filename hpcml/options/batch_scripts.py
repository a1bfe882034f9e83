"""Batch scripts whose #SBATCH lines ask for tasks or arrays, which hpcml ignores: a refusal, and what to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcml.errors import UsageError
from hpcml.options.sbatch_options import INSTEAD
from hpcml.schedulers import sbatch_lines
from hpcml.terminal import json_text

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
_OF_A_SHELL = re.compile(r"[$`|<>&;*?(){}~\\\n]")
_MODULES = re.compile(r"(?:module|ml)\s+(?:load|add)\s+([\w./+ -]+)")
_NO_EFFECT = re.compile(r"set\s+[-+][\w -]+|(?:module|ml)\s+purge|hostname|date")


def launchers(text: str) -> Iterator[str]:
    """Yield the launchers of ranks that the lines of a shell script start, comments aside."""
    return (match[1] for match in LINE_OF_A_LAUNCHER.finditer(_COMMENT.sub("", text)))


def advice(lines: Sequence[tuple[int, str]]) -> str:
    """Return what to use instead of the first option of #SBATCH lines that says how many tasks there are."""
    asked = (line for number, options in lines for line in sbatch_lines.options(options, number))
    return next((INSTEAD[line.name] for line in asked if line.name in _TASKS and line.value != "1"), "")


def is_batch_script(text: str) -> bool:
    """Return whether a text is a script that has lines for sbatch, or a shell's that starts tasks with srun.

    It may be for any interpreter that its first line names but Python's: that would be a run of a Python script.
    """
    if not text.startswith("#!") or _OF_PYTHON.match(text):
        return False
    has_lines = any(True for _ in sbatch_lines.of_script(text))
    return has_lines or bool(_OF_SHELL.match(text) and "srun" in launchers(text))


def check_array(script: Path) -> None:
    """Refuse a batch script whose lines ask for an array."""
    _refuse_array(script.name, _asked(list(sbatch_lines.of_script(script.read_text(errors="replace")))))


def _asked(lines: Sequence[tuple[int, str]]) -> dict[str, sbatch_lines.Option]:
    """Return the options of numbered lines by their names."""
    return {line.name: line for number, options in lines for line in sbatch_lines.options(options, number)}


def _refuse_array(name: str, asked: Mapping[str, sbatch_lines.Option]) -> None:
    if array := asked.get("--array"):
        problem = f"hpcml starts no job array, but line {array.number} of {name} asks for one: {array.typed}"
        what = "" if name.endswith(".py") else f" SCRIPT is the Python script that {name} starts."
        hint = f"{INSTEAD['--array']}{what} Or submit the array on a cluster: sbatch {name}. More: {PAGE}."
        raise UsageError(problem, place="#SBATCH", hint=hint)


def check(
    name: str, text: str, lines: Sequence[tuple[int, str]], given: Mapping[str, Any], taken: Sequence[str]
) -> None:
    """Refuse a script whose #SBATCH lines ask for an array, or for tasks that a launcher in it would start.

    Parameters
    ----------
    name, text
        The script.
    lines
        Number and options of each #SBATCH line.
    given
        The options of the request, with those of the lines.
    taken
        The words of those options of the lines that hpcml takes.

    Raises
    ------
    UsageError
        The line, and what to type instead.
    """
    asked = _asked(lines)
    _refuse_array(name, asked)
    tasks = _Tasks(asked, str(given.get("nodes") or ""))
    if given.get("ranks") or not tasks.count:
        return
    launcher = next((word for word in launchers(text) if word.partition(".")[0] in _STARTS_TASKS), "")
    if not launcher:
        return
    which = next(asked[option] for option in _TASKS if option in asked)
    problem = (
        f"{launcher} in {name} starts the tasks of line {which.number} ({which.typed}), and hpcml ignores this line"
    )
    hint = f"hpcml would start {launcher} with one task. {_advice(text, tasks, taken)} More: {PAGE}."
    raise UsageError(problem, place="#SBATCH", hint=hint)


class _Tasks:
    """How many tasks #SBATCH lines ask for; ``count`` is 0 where the lines decide nothing that hpcml ignores."""

    def __init__(self, asked: Mapping[str, sbatch_lines.Option], nodes: str) -> None:
        total, each = (_number(asked.get(name)) for name in _TASKS[:2])
        if not nodes.isdecimal() and total and each:
            nodes = str(-(-total // each))
        self.nodes = int(nodes) if nodes.isdecimal() else 1
        of_gpus = asked.get("--gpus-per-task")
        self.count = total or self.nodes * (each or 1)
        # One task on each node is what a launcher starts without these lines.
        if self.count == self.nodes and not of_gpus:
            self.count = 0
        self.per_node = self.count // self.nodes if self.count % self.nodes == 0 else 0
        self.one_gpu_each = of_gpus is not None and of_gpus.value.rpartition(":")[2] == "1"
        kind, _, gpus = (of_gpus.value if of_gpus else "").rpartition(":")
        self.gpus = f"{kind + ':' if kind else ''}{int(gpus) * self.per_node}" if gpus.isdecimal() else ""

    @property
    def words(self) -> list[str]:
        """The options that ask hpcml for these tasks."""
        words = ["--nodes", str(self.nodes)] if self.nodes > 1 else []
        words += ["--gpus-per-node", self.gpus] if self.gpus else []
        return [*words, "--ranks", "gpu" if self.one_gpu_each else str(self.per_node or "N")]


def _number(line: sbatch_lines.Option | None) -> int:
    return int(line.value) if line and line.value.isdecimal() else 0


def _advice(text: str, tasks: _Tasks, taken: Sequence[str]) -> str:
    """Return what to type: the whole line if the script only starts one program."""
    others = [word for at, word in enumerate(taken) if "--nodes" not in (word, taken[at - 1] if at else "")]
    if (command := _command(text, tasks)) and tasks.per_node:
        options, program = command
        line = shlex.join([*others, *tasks.words, *options, "--", *program])
        return f"Type: hpcml submit {line} (for an MPI program, also --mpi pmix)."
    return f"Start the program itself: hpcml submit {shlex.join([*others, *tasks.words])} -- PROGRAM."


def _command(text: str, tasks: _Tasks) -> tuple[list[str], list[str]] | None:
    """Return hpcml's options and the program of a script that only loads modules and starts one program."""
    code = [line.strip() for line in re.sub(r"\\\n", " ", _COMMENT.sub("", text)).splitlines()]
    code = [line for line in code if line and not _NO_EFFECT.fullmatch(line)]
    modules: list[str] = []
    while code and (match := _MODULES.fullmatch(code[0])):
        modules += match[1].split()
        code.pop(0)
    if len(code) != 1 or _OF_A_SHELL.search(re.sub(r"'[^']*'", "", code[0])):
        return None
    try:
        launcher, *words = shlex.split(code[0])
    except ValueError:
        return None
    options = ["--set", f"runtime.modules={json_text(modules)}"] if modules else []
    while words and words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        if not value and words:
            value = words.pop(0)
        if name == "--mpi":
            options += ["--mpi", value]
        elif name not in ("-n", "-np", "--ntasks") or value != str(tasks.count):
            return None
    return (options, words) if words and launcher in _STARTS_TASKS else None


def instead(script: Path) -> str:
    """Return what to type where nothing reads a batch script as it is: hpcml's line of the same run, if it has one."""
    text = script.read_text(errors="replace")
    asked = _asked(list(sbatch_lines.of_script(text)))
    tasks = _Tasks(asked, asked["--nodes"].value if "--nodes" in asked else "")
    if any(word in _STARTS_TASKS for word in launchers(text)):
        return f"{_advice(text, tasks, [])} More: {PAGE}."
    return f"To start it on one node: hpcml submit -- bash {script.name}. More: {PAGE}."
