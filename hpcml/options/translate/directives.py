"""The #SBATCH lines of a batch script as hpcml's options: nodes, tasks, CPUs and GPUs, and all that is passed on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hpcml import units
from hpcml.errors import UsageError
from hpcml.options import sbatch_options, table
from hpcml.options.translate.shell_syntax import UntranslatedError
from hpcml.request.record import RunRequest, job_name
from hpcml.schedulers import batch_variables, sbatch_lines
from hpcml.schedulers.sbatch_lines import Option

# hpcml's option for one of sbatch's that means the same.
_SAME = {option.slurm[0]: option.word for option in reversed(table.OPTIONS.values()) if option.slurm} | {
    option.word: option.word for option in table.OPTIONS.values() if option.passed
}
_PASSED = {
    "--licenses", "--hint", "--nice", "--priority", "--tmp", "--hold", "--deadline", "--switches", "--reboot",
    "--contiguous", "--cpu-freq", "--wckey", "--threads-per-core", "--core-spec", "--thread-spec", "--acctg-freq",
    "--requeue", "--no-kill", "--propagate", "--mcs-label", "--kill-on-invalid-dep", "--use-min-nodes", "--bb",
}  # fmt: skip
_LEFT_OUT = {
    "--output": "hpcml logs RUN",
    "--error": "hpcml logs RUN",
    "--open-mode": "hpcml logs RUN",
    "--comment": "hpcml finds the job by its own comment",
    "--wait": "hpcml submit --wait",
    "--test-only": "hpcml submit --check",
    "--no-requeue": "hpcml's default",
    "--gpu-bind": "each rank sees all GPUs of its node",
    "--quiet": "",
    "--verbose": "",
    "--parsable": "",
    "--ignore-pbs": "",
}  # fmt: skip
_OF_GPUS = ("--gres", "--gpus-per-node", "--gpus", "--gpus-per-task")
_OF_LAYOUT = {  # with those of hpcml's options that each decides
    **dict.fromkeys(_OF_GPUS, ("--gpus-per-node",)),
    "--nodes": ("--nodes",),
    "--ntasks": ("--nodes", "--cpus-per-node", "--ranks"),
    "--ntasks-per-node": ("--cpus-per-node", "--ranks"),
    "--cpus-per-task": ("--cpus-per-node",),
    **dict.fromkeys(("--mem-per-cpu", "--mem-per-gpu"), ("--memory-per-node",)),
}


class Row(NamedTuple):
    """A line of a batch script, or an option of it: the number, the text, and what becomes of it.

    ``sizes`` are the options of hpcml that it decides with others.
    """

    number: int
    text: str
    goes_to: str
    sizes: tuple[str, ...] = ()

    def decides(self, options: list[Taken]) -> str:
        """Return those of some options that the line decides; the nodes are of one line."""
        own = [taken for taken in options if taken.words[0] != "--nodes" or taken.number == self.number]
        return " ".join(word for taken in own if taken.words[0] in self.sizes for word in taken.words) or "no option"


class Taken(NamedTuple):
    """Words of hpcml's command line, and the line of the batch script that they come from."""

    words: tuple[str, ...]
    number: int = 0


class Layout(NamedTuple):
    """How many nodes the lines ask for, and tasks on each of them; 0 CPUs and GPUs where they ask for none."""

    nodes: int
    each: int  # tasks on a node
    has_tasks: bool  # the lines say how many
    cpus: int  # of a task
    gpus: int  # of a node
    gpu_words: str  # the same with their type, as hpcml's option takes it

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return self.nodes * self.each

    @property
    def variables(self) -> dict[str, str]:
        """Those variables of Slurm's that the lines decide, as the batch shell has them."""
        tasks = self.tasks if self.has_tasks else 0
        return batch_variables.decided(self.nodes, tasks, self.cpus, self.gpus)


def read(text: str) -> dict[str, Option]:
    """Return the options of a script's #SBATCH lines by their long names, each as it is said last.

    Raises
    ------
    UntranslatedError
        The line that is another scheduler's, of another component, or unreadable.
    """
    return {option.name: option for option in _all(text)}


def _all(text: str) -> Iterator[Option]:
    for number, line in sbatch_lines.of_script(text):
        if not line.startswith("#SBATCH"):
            raise UntranslatedError(number, "a line for another program than sbatch")
        if sbatch_lines.is_for_another(line):
            raise UntranslatedError(number, "a heterogeneous job")
        found = sbatch_lines.options(line, number)
        try:
            unread = [word for option in found for word in option.words] != sbatch_lines.words_of(line)
        except ValueError:
            unread = True
        if unread:
            raise UntranslatedError(number, "an #SBATCH line that hpcml cannot read")
        yield from found


def layout(asked: Mapping[str, Option], nodes: str = "") -> Layout:
    """Return the layout that the lines ask for; ``nodes`` is a typed ``--nodes``, which counts more.

    Raises
    ------
    UntranslatedError
        If the number of processes on each node is not certain.
    """
    count = int(nodes) if nodes.isdecimal() else _number(asked, "--nodes")
    total, each = _number(asked, "--ntasks"), _number(asked, "--ntasks-per-node")
    if total and each and not count:
        count = -(-total // each)
    if total > 1 and not count:
        how = "tasks whose nodes Slurm chooses. Add --nodes N to the command"
        raise UntranslatedError(asked["--ntasks"].number, how)
    count = count or 1
    total = total or count * (each or 1)
    if total % count or (each and total != count * each):
        which = asked.get("--ntasks") or asked["--ntasks-per-node"]
        raise UntranslatedError(which.number, "a number of tasks that is not the same on each node")
    has_tasks = "--ntasks" in asked or "--ntasks-per-node" in asked
    words = _gpu_words(asked, count, total // count if has_tasks else 0)
    cpus = _number(asked, "--cpus-per-task")
    return Layout(count, total // count, has_tasks, cpus, int(words.rpartition(":")[2] or 0), words)


def _gpu_words(asked: Mapping[str, Option], nodes: int, each: int) -> str:
    """Return the GPUs of a node as hpcml's option takes them; ``each``: its tasks, 0 if no line says it."""
    said = {name: words for name in _OF_GPUS if name in asked and (words := _gpus(asked[name], nodes, each))}
    if len({*said.values()}) > 1:
        number = max(asked[name].number for name in said)
        raise UntranslatedError(number, "several options that say how many GPUs there are")
    return next(iter(said.values()), "")


def _number(asked: Mapping[str, Option], name: str) -> int:
    option = asked.get(name)
    if option and not (option.value.isascii() and option.value.isdecimal() and 0 < int(option.value[:9]) < 10**6):
        raise UntranslatedError(option.number, f"{name} with another value than a number")
    return int(option.value) if option else 0


def _gpus(option: Option, nodes: int, each: int) -> str:
    """Return the GPUs of a node that an option asks for, as hpcml's option takes them; empty for another resource."""
    try:
        words, _ = sbatch_options.gres(option.value if option.name == "--gres" else f"gpu:{option.value}")
    except UsageError as error:
        raise UntranslatedError(option.number, f"GPUs that hpcml cannot read ({option.typed})") from error
    kind, colon, number = words.rpartition(":")
    if (option.name == "--gpus" and nodes > 1) or (option.name == "--gpus-per-task" and not each):
        raise UntranslatedError(option.number, "GPUs that Slurm divides among nodes or tasks. Use --gpus-per-node")
    return f"{kind}{colon}{int(number) * each}" if option.name == "--gpus-per-task" else words


def taken(text: str, asked: Mapping[str, Option], made: Layout) -> tuple[list[Taken], list[Row]]:
    """Return hpcml's options for those of the lines, without ``--ranks``, and where each went, empty for the sizes.

    Raises
    ------
    UntranslatedError
        An option that hpcml has no word for.
    """
    options, rows = list(_of_layout(asked, made)), list[Row]()
    for option in _all(text):
        if asked[option.name] is not option and asked[option.name] != option:
            rows.append(Row(option.number, option.typed, f"line {asked[option.name].number} replaces it"))
            continue
        words, goes_to = _of_option(option) if option.name != "--array" else ((), "")
        if words:
            options.append(Taken(words, option.number))
            goes_to = " ".join(words)
        rows.append(Row(option.number, option.typed, goes_to, _OF_LAYOUT.get(option.name, ())))
    if array := asked.get("--array"):
        sizes = shlex.join(word for taken in options for word in taken.words)
        raise UntranslatedError(
            array.number, f"a job array. Use hpcml sweep --jobs N {sizes} SCRIPT --grid NAME=VALUES"
        )
    return options, rows


def _of_layout(asked: Mapping[str, Option], made: Layout) -> Iterator[Taken]:
    """Yield hpcml's options for the sizes, each with the line that decides it."""
    alone = "--exclusive" in asked

    def line_of(*names: str) -> int:
        return next((asked[name].number for name in names if name in asked), 1)

    yield Taken(("--nodes", str(made.nodes)), line_of("--nodes", "--ntasks"))
    if made.gpus:
        yield Taken(("--gpus-per-node", made.gpu_words), line_of(*_OF_GPUS))
    cpus = made.each * (made.cpus or 1)
    if made.cpus or (made.has_tasks and not alone):
        yield Taken(("--cpus-per-node", str(cpus)), line_of("--cpus-per-task", "--ntasks", "--ntasks-per-node"))
    for name, count in (("--mem-per-cpu", 0 if alone else cpus), ("--mem-per-gpu", made.gpus)):
        if option := asked.get(name):
            try:
                memory = units.parse_memory(option.value) * count
            except ValueError:
                memory = 0
            if not memory:
                raise UntranslatedError(option.number, f"memory whose amount on a node is not certain ({option.typed})")
            yield Taken(("--memory-per-node", units.format_memory_for_slurm(memory)), option.number)


def _of_option(option: Option) -> tuple[tuple[str, ...], str]:
    """Return hpcml's words for an option of sbatch, and what else becomes of it; neither for one of the sizes."""
    name, value = option.name, option.value
    rest = sbatch_options.gres(value)[1] if name == "--gres" else ""
    if rest:
        return (f"--sbatch=--gres={rest}",), ""
    if name in _OF_LAYOUT:
        return (), ""
    if name in _LEFT_OUT:
        return (), f"left out ({_LEFT_OUT[name]})".removesuffix(" ()")
    if name == "--export":
        return _exported(option), "hpcml's default"
    if name == "--job-name" and not _is_name(value):
        return (), "left out (hpcml has no such name)"
    if name in _SAME and (value or name == "--exclusive"):
        return (f"--sbatch={name}={value}",) if name == "--exclusive" and value else (
            _SAME[name], *([value] if value else [])), ""  # fmt: skip
    if name in _PASSED:
        return (f"--sbatch={name}{f'={value}' if value else ''}",), ""
    raise UntranslatedError(option.number, _refusals(option))


def _refusals(option: Option) -> str:
    if option.name == "--signal":
        return f"a signal ({option.typed}). hpcml sends no signal: let the script check hpcml.run.should_stop()"
    return f"an option that hpcml has no word for ({option.typed})"


def _exported(option: Option) -> tuple[str, ...]:
    """Return hpcml's words for the variables of ``--export=ALL,A=b``."""
    first, *others = option.value.split(",")
    if first != "ALL" or not all("=" in text for text in others):
        raise UntranslatedError(option.number, f"a job that does not have your variables ({option.typed})")
    return tuple(word for text in others for word in ("--env", text))


def _is_name(name: str) -> bool:
    try:
        return bool(job_name(RunRequest(name=name)))
    except UsageError:
        return False
