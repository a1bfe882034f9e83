"""The lines of a batch script that sbatch reads, as sbatch reads them: their options, without a look at the code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml.errors import UsageError
from hpcml.schedulers import gres

_LINE = re.compile(r"#(SBATCH|(PBS|BB|DW)\s)")  # sbatch reads those of others too
_BLANK = " \t\v\f\r"  # as isspace(3) has it, within a line
LONG = {
    "-A": "--account", "-a": "--array", "-b": "--begin", "-C": "--constraint", "-c": "--cpus-per-task",
    "-D": "--chdir", "-d": "--dependency", "-e": "--error", "-F": "--nodefile", "-G": "--gpus", "-H": "--hold",
    "-i": "--input", "-J": "--job-name", "-k": "--no-kill", "-L": "--licenses", "-M": "--clusters",
    "-m": "--distribution",
    "-N": "--nodes", "-n": "--ntasks", "-O": "--overcommit", "-o": "--output", "-p": "--partition", "-Q": "--quiet",
    "-q": "--qos", "-S": "--core-spec", "-s": "--oversubscribe", "-t": "--time", "-W": "--wait", "-w": "--nodelist",
    "-x": "--exclude", "--tasks-per-node": "--ntasks-per-node", "--workdir": "--chdir", "--cluster": "--clusters",
}  # fmt: skip
# All long options of sbatch: getopt_long(3) takes the beginning of one that no other begins with.
_NAMES = """
account acctg-freq array batch bb bbf begin chdir cluster clusters cluster-constraint comment constraint container
container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
distribution error exclude exclusive export export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input job-name
kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice
no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
oom-kill-step open-mode output overcommit oversubscribe parsable partition power prefer priority profile propagate
qos quiet reboot requeue reservation resv-ports segment share signal sockets-per-node spread-job stepmgr switches
tasks-per-node test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid usage
use-min-nodes verbose version wait wait-all-nodes wckey workdir wrap
"""
_ALL = {f"--{name}" for name in _NAMES.split()}
FLAGS = {"--hold", "--overcommit", "--quiet", "--wait", "--requeue", "--no-requeue", "--parsable", "--test-only",
         "--contiguous", "--reboot", "--spread-job", "--use-min-nodes", "--verbose", "--ignore-pbs"}  # fmt: skip
_ONLY_WITH_EQUALS = ("--exclusive", "--no-kill", "--oversubscribe", "--nice", "--propagate", "--get-user-env")
OUTPUT = {"--output", "--error"}
MOST_TASKS = 1000  # of an array: each is a run with a directory of its own
_SLURM_DECIDES = {  # how many CPUs or GPUs there are
    "--cpus-per-gpu", "--ntasks-per-gpu", "--ntasks-per-socket", "--ntasks-per-core", "--gpus-per-socket", "--mincpus",
    "--extra-node-info", "-B", "--sockets-per-node", "--cores-per-socket", "--threads-per-core", "--overcommit",
}  # fmt: skip
_REQUEUE = {"--requeue", "--no-requeue"}  # of which one replaces the other


class Option(NamedTuple):
    """An option of a line: its long name, its value, the words that say it, and the number of the line."""

    name: str
    value: str
    words: tuple[str, ...]
    number: int

    @property
    def typed(self) -> str:
        """The words as they are typed."""
        return " ".join(self.words)


def check_line_breaks(script: Path, text: str) -> None:
    """Refuse a batch script that has a line break of Windows anywhere, as sbatch does."""
    if "\r\n" in text:
        problem = "The batch script has line breaks of Windows, which Slurm refuses"
        raise UsageError(problem, place=str(script), hint=f"Convert the file: dos2unix {shlex.quote(script.name)}.")


def first_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of a script before the first line of code."""
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        if line.strip(_BLANK) and not line.lstrip(_BLANK).startswith("#"):
            return
        yield number, line


def of_script(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of a batch script that sbatch reads."""
    lines = ((number, line.rstrip().replace("\t", " ")) for number, line in first_comments(text))
    return ((number, line) for number, line in lines if _LINE.match(f"{line} "))


def is_for_another(line: str) -> bool:
    """Whether a line begins the part of another component of the job."""
    return line.split()[1:2] in (["hetjob"], ["packjob"])


def words_of(line: str) -> list[str]:
    """Return the words of a ``#SBATCH`` line, with or without that word; ValueError if a quote has no end."""
    return shlex.split(line.removeprefix("#SBATCH"), comments=True)


def options(line: str, number: int = 0) -> list[Option]:
    """Return the options of a ``#SBATCH`` line, with or without that word; none of a line that cannot be read."""
    try:
        words = words_of(line)
    except ValueError:
        return []
    if line.startswith("#") and not line.startswith("#SBATCH"):
        return []
    read = []
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word.partition("=")
        elif word.startswith("-"):
            name, equals, value = word[:2], word[2:], word[2:].removeprefix("=")
        else:
            continue
        said = [word]
        begun = [whole for whole in _ALL if whole.startswith(name)] if name[:2] == "--" and name not in _ALL else []
        whole = begun[0] if len(begun) == 1 else name
        long = LONG.get(whole, whole)
        alone = long in FLAGS or (long in _ONLY_WITH_EQUALS)
        if not equals and not alone and words and not re.match(r"-[A-Za-z-]", words[0]):
            value = words.pop(0)
            said.append(value)
        read.append(Option(long, value, tuple(said), number))
    return read


def all_options(lines: Sequence[str]) -> dict[str, Option]:
    """Return the options of a script's lines by their long names, each as it is said last."""
    return {option.name: option for line in lines for option in options(line)}


def without(lines: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    """Return lines without some options; lines that have none of them stay as they are."""
    dropped = {*names, *(_REQUEUE if _REQUEUE & {*names} else ())}
    kept = []
    for line in lines:
        read = options(line)
        if not any(option.name in dropped for option in read):
            kept.append(line)
        elif rest := [word for option in read if option.name not in dropped for word in option.words]:
            kept.append(f"#SBATCH {' '.join(_quoted(word) for word in rest)}")
    return tuple(kept)


def _quoted(word: str) -> str:
    """Quote a word as sbatch reads it (see ``plan.batch_script.directive``)."""
    if re.fullmatch(r"[A-Za-z0-9_./:=,@%+\[\]*-]+", word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def count(option: Option | None) -> int:
    """Return the number that an option says, of ``--nodes=2-4`` the first; 0 without one."""
    match = re.match(r"\d+", option.value) if option else None
    return int(match[0]) if match else 0


def nodes(stated: dict[str, Option]) -> int:
    """Return the number of nodes that lines ask for, as far as they say it: 1 where Slurm decides."""
    total, each = (count(stated.get(name)) for name in ("--ntasks", "--ntasks-per-node"))
    return count(stated.get("--nodes")) or (-(-total // each) if total and each else 1)


def decides_nodes(stated: dict[str, Option]) -> Option | None:
    """Return the option for which Slurm chooses how many nodes there are, at least those of :func:`nodes`."""
    if "--nodes" in stated:
        return None if stated["--nodes"].value.isdecimal() else stated["--nodes"]
    is_certain = count(stated.get("--ntasks")) < 2 or count(stated.get("--ntasks-per-node"))
    return None if is_certain else stated["--ntasks"]


def of_node(lines: Sequence[str], nodes: int) -> dict[str, str]:
    """Return the requests of lines, by option: CPUs and GPUs those of a node, 0 CPUs if the lines leave it to Slurm."""
    stated = all_options(lines)
    tasks = -(-count(stated.get("--ntasks")) // nodes) or count(stated.get("--ntasks-per-node")) or 1
    of_task = f"gpu:{stated['--gpus-per-task'].value}" if "--gpus-per-task" in stated else ""
    number = gpus({name: stated[name] for name in ("--gpus-per-node", "--gres") if name in stated})
    number = number or -(-gpus(stated) // nodes) or tasks * gres.total(gres.gpus(of_task))  # --gpus: of all nodes
    is_known = not ("--nodes" in stated and decides_nodes(stated)) and not _SLURM_DECIDES & stated.keys()
    return {
        **{name: option.value for name, option in stated.items()},
        "--cpus-per-task": str(tasks * (count(stated.get("--cpus-per-task")) or 1) if is_known else 0),
        "--gres": f"gpu:{number}" if number else "",
    }


class Array(NamedTuple):
    """The tasks of a job array: their indices in order, and how many run at once, 0 without a limit."""

    tasks: tuple[int, ...] = ()
    at_once: int = 0


def array(text: str) -> Array:
    """Return the tasks that a value of ``--array`` asks for; ValueError if it is no list of indices, or a huge one."""
    listed, _, limit = text.partition("%")
    tasks: set[int] = set()
    for part in listed.removeprefix("[").removesuffix("]").split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?", part, re.ASCII)
        numbers = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)) if match else range(0)
        if not numbers or len(tasks) + len(numbers) > MOST_TASKS:
            raise ValueError(f"more than {MOST_TASKS} tasks" if numbers else f"'{part}' is not an index or a range")
        tasks |= {*numbers}
    if not re.fullmatch(r"[1-9]\d{0,8}" if "%" in text else "", limit, re.ASCII):
        raise ValueError(f"'%{limit}' is not a number of tasks at once")
    return Array(tuple(sorted(tasks)), int(limit or 0))


def gpus(stated: dict[str, Option]) -> int:
    """Return the number of GPUs of a node that lines ask for, as far as they say it; else 0."""
    said = [stated[name].value for name in ("--gpus-per-node", "--gpus") if name in stated]
    texts = [",".join(f"gpu:{part}" for part in text.split(",")) for text in said]  # as --gres has it
    texts += [stated["--gres"].value] if "--gres" in stated else []
    return next(filter(None, (gres.total(gres.gpus(text)) for text in texts)), 0)
