"""Batch scripts whose #SBATCH lines ask for tasks or an array: refused before the queue, with what to type instead."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hpcml.cli import commands, submit
from hpcml.errors import UsageError
from hpcml.request.record import RunRequest
from tests.said import in_order

PRINTS = "python -c 'import os; print(os.environ[\"SLURM_PROCID\"])'"


def spec_of(
    folder: Path, lines: str, code: str, *words: str, name: str = "job.sh", command: str = "submit"
) -> RunRequest:
    path = folder / name
    first = "" if name.endswith(".py") else "#!/bin/bash\n"
    path.write_text(f"{first}{''.join(f'#SBATCH {line}{chr(10)}' for line in lines.splitlines())}{code}\n")
    options = commands.build_parser(command).parse_args(words)
    program = [str(path)] if name.endswith(".py") else ["--", "bash", str(path)]
    options.caller, options.script_words = None, program
    return submit.script_spec(options)


def refusal(folder: Path, lines: str, code: str, *words: str, name: str = "job.sh") -> UsageError:
    with pytest.raises(UsageError) as caught:
        spec_of(folder, lines, code, *words, name=name)
    return caught.value


# The lines, the code, and what is to be typed.
SIMPLE = (
    ("--nodes=2\n--ntasks-per-node=2\n--time=00:02:00", f"srun {PRINTS}", f"--time 00:02:00 --nodes 2 --ranks 2 -- {PRINTS}"),
    ("--ntasks=4\n--ntasks-per-node=2\n--gpus-per-task=1\n--mem-per-cpu=200M\n--time=00:03:00", f"srun {PRINTS}",
     f"--time 00:03:00 --nodes 2 --gpus-per-node 2 --ranks gpu -- {PRINTS}"),
    ("--nodes=2\n--ntasks-per-node=2", "module load python\nsrun python ntasks_hint.py",
     "--nodes 2 --ranks 2 --set 'runtime.modules=[\"python\"]' -- python ntasks_hint.py"),
    ("-N 2 -n8 -p big", "set -eo pipefail\nmodule purge\nml load a/1 b\nsrun --mpi=pmix -n 8 \\\n   ./solve --x 1  # remark",
     "--partition big --nodes 2 --ranks 4 --set 'runtime.modules=[\"a/1\", \"b\"]' --mpi pmix -- ./solve --x 1"),
    ("--tasks-per-node 4", "mpirun -np 4 ./a.out", "--ranks 4 -- ./a.out"),
    ("--gpus-per-task=a100:2 --ntasks=2", "srun ./a.out", "--gpus-per-node a100:4 --ranks 2 -- ./a.out"),
)  # fmt: skip


@pytest.mark.parametrize(("lines", "code", "typed"), SIMPLE)
def test_a_script_that_starts_one_program_is_refused_with_its_line(
    tmp_path: Path, lines: str, code: str, typed: str
) -> None:
    error = refusal(tmp_path, lines, code)
    assert (
        f"Type: hpcml submit {typed} (for an MPI program, also --mpi pmix). More: hpcml help from-batch-scripts."
        in error.hint
    )
    options, _, program = typed.partition(" -- ")
    parsed = commands.build_parser("submit").parse_args(shlex.split(options))
    assert parsed.ranks
    assert program
    assert "#SBATCH lines apply" not in str(error)


def test_the_line_that_is_ignored_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, "--nodes=2\n--ntasks-per-node=2", "srun ./a.out")
    assert re.match(in_order("srun in job.sh", "line 3 (--ntasks-per-node=2)"), error.message)


@pytest.mark.parametrize("code", [
    "export A=$(hostname)\nsrun ./a.out", "srun --exclusive ./a.out", "srun ./a.out > log", "srun ./a.out\nsrun ./b.out",
    'LAUNCHER="srun python"\n$LAUNCHER x.py', "if true; then srun ./a.out; fi", "time srun ./a.out", "A=1 B=2 srun ./a.out",
    "cd x && srun ./a.out", "mpiexec.hydra ./a.out", "env A=1 mpirun ./a.out", "(srun ./a.out &)",
])  # fmt: skip
def test_another_script_with_a_launcher_is_refused_with_its_options(tmp_path: Path, code: str) -> None:
    error = refusal(tmp_path, "--nodes=2 --ntasks-per-node=2", code)
    assert "submit --nodes 2 --ranks 2 -- PROGRAM." in error.hint


# Lines that leave the number of processes as it is, or code that starts none: no refusal.
PASSES = (
    (
        "--nodes=2 --ntasks-per-node=2",
        "# srun ./a.out\necho x  # srun y\npython srun.py\n./srun-all.sh\nls /usr/bin/srun ",
    ),
    ("--ntasks=1", "srun ./a.out"),
    ("--nodes=2 --ntasks-per-node=1", "srun ./a.out"),
    ("--nodes=2 --ntasks=2", "srun ./a.out"),
    ("--nodes=1", "srun ./a.out"),
    ("--ntasks=4", "torchrun --nproc-per-node 4 train.py"),
)


@pytest.mark.parametrize(("lines", "code"), PASSES)
def test_what_hpcml_starts_as_sbatch_does_is_not_refused(tmp_path: Path, lines: str, code: str) -> None:
    spec_of(tmp_path, lines, code)


def test_with_ranks_the_lines_are_said_otherwise(tmp_path: Path) -> None:
    """Where ranks are asked for, the check of launchers in ranks follows."""
    assert spec_of(tmp_path, "--nodes=2 --ntasks-per-node=2", "srun ./a.out", "--ranks", "2").kind == "ranks"


@pytest.mark.parametrize("line", ["--array=1-3", "-a 0-4%2", "-a1-3", "--array 7"])
def test_an_array_is_refused(tmp_path: Path, line: str) -> None:
    for name, code in (("job.sh", 'echo "part $SLURM_ARRAY_TASK_ID"'), ("job.py", "import os\nprint(os.environ)")):
        for words in ((), ("--ranks", "2")):
            error = refusal(tmp_path, f"--nodes=1\n{line}", code, *words, name=name)
            assert error.message.startswith("hpcml starts no job array, but line ")
            assert error.hint.startswith("Use hpcml sweep SCRIPT --grid NAME=VALUES")


def test_an_array_that_becomes_a_sweep_is_not_refused(tmp_path: Path) -> None:
    spec_of(tmp_path, "--array=0-4", "import sys", "--grid", "x=1,2", name="job.py", command="sweep")
