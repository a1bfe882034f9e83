"""sbatch's options as users type them: what is passed on, and what hpcml decides or names otherwise."""

from __future__ import annotations

import re

from hpcml.errors import UsageError
from hpcml.options import table
from hpcml.schedulers import gres as grammar

_DIRECTIVE = re.compile(r"--[a-z][a-z0-9-]*")
# What hpcml has an option for, by sbatch's long words.
_NAMES = {option.slurm[0]: f"Use {option.word}." for option in reversed(table.OPTIONS.values()) if option.slurm}
SWEEP = "Use hpcml sweep SCRIPT --grid NAME=VALUES --jobs N: N jobs run all values, each job with the whole --time."
_ARRAY = f"{SWEEP} For a batch script: --sbatch=--array=0-9."
_TASKS = (
    "For N ranks on each node (PyTorch, JAX, MPI), use --ranks N. "
    "For N Dask workers on each node, use --set workers.per_node=N."
)
_MODULES = "Use --set 'runtime.modules=[\"NAME\"]', or set runtime.modules in the site profile."
# What hpcml decides itself, or says in other words, by sbatch's long and short words: one sentence each.
INSTEAD = {
    "--module": _MODULES,
    "--modules": _MODULES,
    "--gpus": "Use --gpus-per-node: hpcml requests GPUs per node.",
    "-G": "Use --gpus-per-node: hpcml requests GPUs per node.",
    "--gpus-per-task": "Use --gpus-per-node. For one rank for each GPU, add --ranks gpu.",
    "--gpus-per-socket": "Use --gpus-per-node: hpcml requests GPUs per node.",
    "--ntasks": f"{_TASKS} Set the number of nodes with --nodes.",
    "-n": f"{_TASKS} Set the number of nodes with --nodes (-N).",
    "--ntasks-per-node": _TASKS,
    "--cpus-per-task": "Use --cpus-per-node; --set workers.threads=N sets the threads of a worker.",
    "-c": "Use --cpus-per-node; --set workers.threads=N sets the threads of a worker.",
    "--cpus-per-gpu": "Use --cpus-per-node.",
    "--mem-per-cpu": 'Use --memory-per-node. With slurm.remove=["--mem"] in the profile, hpcml sets memory per CPU.',
    "--mem-per-gpu": "Use --memory-per-node.",
    "--array": _ARRAY,
    "-a": _ARRAY,
    "--output": "The output is in the run's logs: hpcml logs RUN.",
    "-o": "The output is in the run's logs: hpcml logs RUN.",
    "--error": "The output is in the run's logs: hpcml logs RUN.",
    "-e": "The output is in the run's logs: hpcml logs RUN.",
    "--open-mode": "The output is in the run's logs: hpcml logs RUN.",
    "--chdir": "The script runs in the folder that you submit from. To use another folder, submit from that folder.",
    "-D": "The script runs in the folder that you submit from. To use another folder, submit from that folder.",
    "--export": "Use --env NAME=VALUE.",
    "--export-file": "Use --env-file FILE.",
    "--signal": "Use --set slurm.signal_lead=TIME.",
    "--comment": "hpcml needs the comment to find the job. Use --name to name the job.",
    "--cluster": "Use --clusters.",
    "--wrap": "Submit a script, or a program: hpcml submit -- PROGRAM.",
    "--gres": "Use --gpus-per-node 4 or TYPE:4; for other resources, use --sbatch=--gres=NAME:N.",
    "--parsable": "Use --json.",
    "--test-only": "Use --check.",
    **table.INSTEAD,
}
# Options of sbatch that mean something else than hpcml's of the same name.
NAMESAKES = ("profile",)


def instead(option: str) -> str:
    """Return a sentence that names hpcml's option for one of sbatch's, or the reason for having none; else nothing."""
    return INSTEAD.get(option, "")


def directive(text: str, place: str, *, as_is: bool = False) -> tuple[str, str]:
    """Return an option for sbatch, as ``--constraint=fast`` or ``--exclusive``, as its name and value.

    ``as_is``: of a batch script that runs as it is, which may be an array.

    Raises
    ------
    UsageError
        If it is no option in its long form, has an empty value, or is one that hpcml decides.
    """
    option, equals, value = (part.strip() for part in text.partition("="))
    if not _DIRECTIVE.fullmatch(option):
        raise UsageError(f"'{text}' is not an option of sbatch", place=place, hint="Write --sbatch=--constraint=fast.")
    if equals and not value:
        raise UsageError(f"{option} is empty", place=place, hint="Remove the option, or give it a value.")
    if as_is and option == "--array":
        return option, value
    if option != "--gres" and (why := instead(option) or _NAMES.get(option, "")):
        raise UsageError(f"hpcml sets {option} itself and does not pass your value to sbatch", place=place, hint=why)
    if option == "--gres" and grammar.gpus(value):
        hint = "Use --gpus-per-node N or TYPE:N."
        raise UsageError("hpcml sets --gres=gpu itself and does not pass your value to sbatch", place=place, hint=hint)
    return option, value


def gres(text: str) -> tuple[str, str]:
    """Divide what ``--gres`` asks for into the GPUs of a node, as ``4`` or ``a100:4``, and the rest.

    Raises
    ------
    UsageError
        If it is empty, or its GPUs have no plain number.
    """
    parts = grammar.read(text)
    gpus = [part for part in parts if part.name == "gpu"]
    if not parts or not all(part.name for part in parts) or len(gpus) > 1:
        raise UsageError(f"'{text}' cannot be read", place="--gres", hint="Write --gres gpu:4 or gpu:a100:4.")
    wanted = "".join(f"{part.type}:{part.number}".lstrip(":") for part in gpus)
    return wanted, ",".join(part.text for part in parts if part not in gpus)
