"""What starts the processes of a batch script (srun, mpirun, torchrun, apptainer), and hpcml's words for it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from hpcml.gpu_vendor import VENDOR
from hpcml.options.translate.directives import Layout
from hpcml.options.translate.shell_syntax import Piece, UntranslatedError, Word, text_of, words
from hpcml.schedulers import batch_variables, sbatch_lines

_BEFORE = ("time", "exec", "command")
_MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "mpiexec.slurm", "orterun", "prterun")
_SEVERAL = (
    "accelerate", "deepspeed", "horovodrun", "ray", "fabric", "lightning", "aprun", "jsrun", "parallel", "ibrun",
)  # fmt: skip
_SRUN_LONG = {**sbatch_lines.LONG, "-u": "--unbuffered", "-l": "--label", "-K": "--kill-on-bad-exit", "-v": "--verbose"}
_SRUN_FLAGS = {
    "--unbuffered", "--label", "--verbose", "--quiet", "--overlap", "--kill-on-bad-exit", "--exact", "--exclusive",
}  # fmt: skip
_SRUN_IGNORED = {  # options of a step of all tasks that change neither their number nor their nodes
    *_SRUN_FLAGS, "--cpu-bind", "--cpu_bind", "--wait", "--job-name", "--hint", "--mem", "--gpu-bind",
    "--threads-per-core",
}  # fmt: skip
_SRUN_SIZES = (
    "--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task", "--gpus-per-node", "--gres", "--gpus",
    "--gpus-per-task", "--export",
)  # fmt: skip
_TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_TORCH_FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank", "use-env", "m")
_PLACES = re.compile(r"rdzv.*|master-(?:addr|port)|node-rank|standalone|nnodes|local-addr")
_PMIX = re.compile(r"open-?mpi|prrte|pmix", re.IGNORECASE)
_PMI2 = re.compile(r"intel-?mpi|\bimpi|mpich|mvapich", re.IGNORECASE)


class Launch(NamedTuple):
    """The words of the program, how many ranks a node has (empty: one process without ranks), and other options.

    ``tasks`` is the number of all ranks, 1 without ranks.
    """

    words: tuple[Word, ...]
    ranks: str = ""
    options: tuple[tuple[str, ...], ...] = ()
    note: str = ""
    tasks: int = 1


def mpi_of_modules(text: str) -> str:
    """Return the kind of PMI of the MPI that a line loads, empty if it names none."""
    return "pmix" if _PMIX.search(text) else "pmi2" if _PMI2.search(text) else ""


def of(found: tuple[Word, ...], made: Layout, mpi: str, number: int, *, slurm: bool) -> Launch:
    """Return the launch of a command.

    Raises
    ------
    UntranslatedError
        If it is not certain that hpcml would start as many processes on the same nodes.
    """
    found = _after_prefix(found, number)
    name = os.path.basename(text_of(found[0]) or "") if found else ""
    if name in (*_MPIRUN, "srun") and any(text_of(word) == ":" for word in found):
        raise UntranslatedError(number, f"{name} of several programs (:)")
    if name in _MPIRUN:
        return _of_mpirun(found, made, mpi, number, slurm=slurm)
    if name == "srun":
        found, of_step, own = _of_srun(found[1:], made, number)
        launch = _in_ranks(found, of_step, own or mpi, number)
        cpus = ("--cpus-per-node", str(of_step.each * (of_step.cpus or 1)))
        return launch if made.has_tasks or of_step == made else launch._replace(options=(cpus, *launch.options))
    if (torchrun := _torchrun(found)) or name in _SEVERAL:
        if made.nodes > 1 or made.each > 1:
            raise UntranslatedError(number, f"{name} on the first of several nodes or tasks")
        return _of_torchrun(found, torchrun, made, number) if torchrun else Launch(found)
    if made.tasks > 1:
        raise UntranslatedError(number, f"one process, but the #SBATCH lines ask for {made.tasks} tasks")
    return _in_image(Launch(found))


def _after_prefix(found: tuple[Word, ...], number: int) -> tuple[Word, ...]:
    """Return the words of a command without ``time`` and the like."""
    while found and text_of(found[0]) in _BEFORE:
        if len(found) > 1 and (text_of(found[1]) or "").startswith("-"):
            raise UntranslatedError(number, f"{text_of(found[0])} with options")
        found = found[1:]
    return found


def _static(word: Word, number: int) -> str:
    text = text_of(word)
    if text is None:
        raise UntranslatedError(number, "an option of the launcher whose value is not known before the job")
    return text


def _ranks(made: Layout) -> str:
    """Return ``--ranks`` for the tasks of a node."""
    if made.gpus and made.each >= made.gpus and made.each % made.gpus == 0:
        return "gpu" if made.each == made.gpus else f"{made.each // made.gpus}/gpu"
    return str(made.each) if made.each > 1 else "node"


def _in_ranks(found: tuple[Word, ...], made: Layout, mpi: str, number: int) -> Launch:
    """Return the launch of srun, one process for each task."""
    if not found:
        raise UntranslatedError(number, "srun without a program")
    name = os.path.basename(text_of(found[0]) or "")
    if name in (*_MPIRUN, "srun"):
        raise UntranslatedError(number, f"{name} in each task")
    if name in ("bash", "sh") and len(found) > 2 and text_of(found[1]) == "-c":
        found = _in_shell(found, number)
    if torchrun := _torchrun(found):
        if made.each > 1:
            raise UntranslatedError(number, "torchrun in each of several tasks of a node")
        return _of_torchrun(found, torchrun, made, number)
    if os.path.basename(text_of(found[0]) or "") in _SEVERAL and made.nodes > 1:
        raise UntranslatedError(number, f"{name} on several nodes. See hpcml help from-batch-scripts")
    options = (("--mpi", mpi),) if mpi in ("pmix", "pmi2") else ()
    seen = "; each rank sees all GPUs of its node: choose by LOCAL_RANK" if made.gpus and made.each > 1 else ""
    ranks = _ranks(made)
    return _in_image(Launch(found, ranks, options, f"--ranks {ranks}, and the command{seen}", made.tasks))


def _in_shell(found: tuple[Word, ...], number: int) -> tuple[Word, ...]:
    """Return the command of ``bash -c`` in a task if it starts processes; else the words as they are."""
    text = text_of(found[2])
    shown = text if text is not None else "".join(piece.text for piece in found[2])
    if not re.search(r"\b(?:torchrun|torch\.distributed|accelerate|deepspeed|srun|mpirun|mpiexec)\b", shown):
        return found
    if text is None or len(found) > 3:
        raise UntranslatedError(number, "a launcher in the text of a shell")
    return words(text, number)


# -- srun -------------------------------------------------------------------------------------------------------------


def _srun_options(found: tuple[Word, ...], number: int) -> Iterator[tuple[str, str, int]]:
    """Yield each option of srun with its value, and where the words after it begin."""
    at = 0
    while at < len(found) and (word := text_of(found[at]) or "").startswith("-"):
        at += 1
        if word == "--":
            yield "--", "", at
            return
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        name = _SRUN_LONG.get(name, name)
        if not equals and name not in _SRUN_FLAGS:
            if at == len(found):
                raise UntranslatedError(number, f"srun {word} without a value")
            value, at = _static(found[at], number), at + 1
        yield name, value.removeprefix("="), at


def program_of(found: tuple[Word, ...]) -> str:
    """Return the only word of a program that srun or mpirun starts, empty if it has more, or it is not certain."""
    begin = 1
    if text_of(found[0]) == "srun":
        try:
            begin += max((at for _, _, at in _srun_options(found[1:], 1)), default=0)
        except UntranslatedError:
            return ""
    else:
        while begin < len(found) - 1 and (text_of(found[begin]) or "") in ("-n", "-np", "--n", "--np"):
            begin += 2
    return (text_of(found[begin]) or "") if begin == len(found) - 1 else ""


def _of_srun(found: tuple[Word, ...], made: Layout, number: int) -> tuple[tuple[Word, ...], Layout, str]:
    """Return the program that srun starts, the tasks, and the MPI."""
    begin, mpi, asked = 0, "", dict[str, str]()
    for name, value, at in _srun_options(found, number):
        begin = at
        if name == "--mpi":
            if not re.fullmatch(r"pmix(?:_v\d)?|pmi2|none|cray_shasta", value):
                raise UntranslatedError(number, f"srun --mpi={value}")
            mpi = "pmix" if value.startswith("pmix") else value
        elif name in _SRUN_SIZES:
            asked[name] = value
        elif name not in (*_SRUN_IGNORED, "--"):
            raise UntranslatedError(number, f"srun {name}, which hpcml has no word for")
    each = _each(asked, made, number)
    for name, most in (("--gpus-per-node", made.gpus), ("--gres", made.gpus), ("--gpus", made.gpus * made.nodes),
                       ("--gpus-per-task", made.gpus // made.each)):  # fmt: skip
        if name in asked and asked[name].rpartition(":")[2] != str(most):
            raise UntranslatedError(number, f"srun {name}={asked[name]}, other GPUs than the job has")
    cpus = asked.get("--cpus-per-task", str(made.cpus))
    if not cpus.isdecimal() or ((made.cpus or made.has_tasks) and int(cpus[:9]) not in (0, made.cpus or 1)):
        raise UntranslatedError(number, "srun with another number of CPUs than the #SBATCH lines")
    if asked.get("--export", "ALL") != "ALL":
        raise UntranslatedError(number, f"srun --export={asked['--export']}")
    return found[begin:], made._replace(each=each, cpus=int(cpus[:9])), mpi


def _each(asked: dict[str, str], made: Layout, number: int) -> int:
    """Return the number of tasks that srun starts on each node."""
    names = ("--nodes", "--ntasks", "--ntasks-per-node")
    if bad := next((name for name in names if name in asked and not re.fullmatch("[1-9][0-9]{0,5}", asked[name])), ""):
        raise UntranslatedError(number, f"srun {bad}={asked[bad]}")
    nodes, total, each = (int(asked.get(name, 0)) for name in names)
    nodes = nodes or made.nodes
    # Where the lines name no tasks, the nodes are whole, or Slurm refuses the step.
    count = total or each * nodes or made.tasks
    is_even = count % nodes == 0 and (not each or count == each * nodes)
    is_whole = not made.has_tasks or count == made.tasks or (nodes == 1 and count < made.tasks)
    if nodes != made.nodes or not is_even or not is_whole:
        problem = f"srun on other nodes or with other tasks than the {made.tasks} of the #SBATCH lines"
        raise UntranslatedError(number, problem)
    return count // nodes


# -- mpirun -----------------------------------------------------------------------------------------------------------


def _of_mpirun(found: tuple[Word, ...], made: Layout, mpi: str, number: int, *, slurm: bool) -> Launch:
    """Return the launch of mpirun: ranks that Slurm connects, or without Slurm mpirun itself on one node."""
    name = text_of(found[0]) or ""
    at, total = _mpirun_options(found, made, number)
    if not total or (made.nodes > 1 and total != made.tasks) or (made.has_tasks and total > made.tasks):
        raise UntranslatedError(number, f"{name} with a number of processes that is not the tasks of the #SBATCH lines")
    if not slurm:
        if made.nodes > 1:
            raise UntranslatedError(number, f"{name} on several nodes, without Slurm")
        return Launch(found)
    if name.startswith("mpiexec.hydra"):
        mpi = mpi or "pmi2"
    if mpi not in ("pmix", "pmi2"):
        way = "Add --mpi pmix (Open MPI) or --mpi pmi2 (MPICH, Intel MPI) to the command"
        raise UntranslatedError(number, f"{name} of an MPI that the script does not name. {way}")
    if at >= len(found):
        raise UntranslatedError(number, f"{name} without a program")
    ranks = _ranks(made._replace(each=total // made.nodes))
    return Launch(found[at:], ranks, (("--mpi", mpi),), f"--ranks {ranks} --mpi {mpi}, and the command", total)


def _mpirun_options(found: tuple[Word, ...], made: Layout, number: int) -> tuple[int, int]:
    """Return the index of the first word after mpirun's options, and the number of processes."""
    at, total = 1, made.tasks if made.has_tasks else 0
    while at < len(found) and (option := text_of(found[at]) or "").startswith("-"):
        if option in ("-n", "-np", "--n", "--np"):
            text = _static(found[at + 1], number) if at + 1 < len(found) else ""
            total = int(text) if text.isdecimal() and len(text) < 7 else 0
        elif option not in ("-x", "--bind-to", "-bind-to"):  # hpcml binds ranks, and all have the variables
            raise UntranslatedError(number, f"mpirun {option}, which hpcml has no word for")
        elif option == "-x" and at + 1 < len(found) and "=" in (text := _static(found[at + 1], number)):
            raise UntranslatedError(number, f"mpirun -x {text.partition('=')[0]}=…. Write a line: export NAME=VALUE")
        at += 2
    return at, total


# -- torchrun ---------------------------------------------------------------------------------------------------------


def _torchrun(found: tuple[Word, ...]) -> int:
    """Return the number of words that start torchrun, 0 if the command does not."""
    texts = [text_of(word) or "" for word in found]
    if texts and os.path.basename(texts[0]) == "torchrun":
        return 1
    at = next((at for at, text in enumerate(texts) if at and text not in ("-u", "-O", "-B", "-s", "-E")), 0)
    is_module = at and os.path.basename(texts[0]).startswith("python") and texts[at] == "-m"
    return at + 2 if is_module and texts[at + 1 : at + 2] and texts[at + 1] in _TORCH_MODULES else 0


def _of_torchrun(found: tuple[Word, ...], begin: int, made: Layout, number: int) -> Launch:
    """Return torchrun without the words by which its nodes find each other."""
    kept, at, has_count = list(found[:begin]), begin, False
    while at < len(found) and found[at][0].text.startswith("-"):
        option, equals, value = found[at][0].text.partition("=")
        name = option.lstrip("-").replace("_", "-")
        end = at + 1 if equals or name in _TORCH_FLAGS else at + 2
        if name == "nnodes":
            last = "".join(piece.text for word in found[end - 1 : end] for piece in word)
            value = re.sub(r"^1:|[{}]", "", last.partition("=")[2] if equals else last)
            if value != str(made.nodes) and not batch_variables.is_number_of_nodes(value):
                raise UntranslatedError(number, f"torchrun --nnodes {value}, but {made.nodes} nodes")
        has_count = has_count or name == "nproc-per-node"
        if not _PLACES.fullmatch(name):
            kept += found[at:end]
        at = end
    if not has_count:  # hpcml's default is one for each GPU
        kept.insert(begin, (Piece("text", "--nproc-per-node=1"),))
    note = "--ranks node, and the command without --nnodes and the rendezvous, which hpcml sets"
    return Launch((*kept, *found[at:]), "node", note=note, tasks=made.nodes)


# -- images -----------------------------------------------------------------------------------------------------------


def _in_image(launch: Launch) -> Launch:
    """Return the launch of apptainer, with ``--image`` where the words say no more than the image; else as it is."""
    texts = [text_of(word) for word in launch.words]
    if os.path.basename(texts[0] or "") not in ("apptainer", "singularity") or texts[1:2] != ["exec"]:
        return launch
    at = 2
    while at < len(texts) and texts[at] == VENDOR.image_option:
        at += 1
    image = texts[at] if at < len(texts) else None
    if not image or not image.endswith(".sif") or not texts[at + 1 :]:
        return launch
    return launch._replace(words=launch.words[at + 1 :], options=(*launch.options, ("--image", image)))
