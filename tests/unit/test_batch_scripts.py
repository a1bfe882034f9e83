"""Batch scripts whose #SBATCH lines ask for tasks or an array: refused before the queue, with what to type instead."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hpcml.cli import commands, submit
from hpcml.errors import UsageError
from hpcml.request.record import RunRequest
from tests.said import in_order, says

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
    ("--nodes=2\n--ntasks-per-node=2\n--time=00:02:00", f"srun {PRINTS}",
     f"--nodes 2 --time 00:02:00 --cpus-per-node 2 --ranks 2 -- {PRINTS}"),
    ("--ntasks=4\n--ntasks-per-node=2\n--gpus-per-task=1\n--mem-per-cpu=200M\n--time=00:03:00", f"srun {PRINTS}",
     "--time 00:03:00 --nodes 2 --gpus-per-node 2 --cpus-per-node 2 --memory-per-node 400M "
     f"--ranks gpu -- {PRINTS}"),
    ("--nodes=2\n--ntasks-per-node=2", "module load python\nsrun python ntasks_hint.py",
     "--nodes 2 --cpus-per-node 2 --set 'runtime.setup=[\"module load python\"]' --ranks 2 -- python ntasks_hint.py"),
    ("-N 2 -n8 -p big", "set -eo pipefail\nmodule purge\nml load a/1 b\nsrun --mpi=pmix -n 8 \\\n   ./solve --x 1  # remark",
     "--partition big --nodes 2 --cpus-per-node 4 --set 'runtime.setup=[\"module purge\", \"ml load a/1 b\"]' "
     "--set runtime.setup_errors=end --ranks 4 --mpi pmix -- ./solve --x 1"),
)  # fmt: skip


@pytest.mark.parametrize(("lines", "code", "typed"), SIMPLE)
def test_a_script_that_starts_one_program_is_refused_with_its_line(
    tmp_path: Path, lines: str, code: str, typed: str
) -> None:
    error = refusal(tmp_path, lines, code)
    mpi = "" if " --mpi " in typed else " (for an MPI program, also --mpi pmix)"
    assert f"Type: hpcml submit {typed}{mpi}. More: hpcml help from-batch-scripts." in error.hint
    options, _, program = typed.partition(" -- ")
    parsed = commands.build_parser("submit").parse_args(shlex.split(options))
    assert parsed.ranks
    assert program
    assert "#SBATCH lines apply" not in str(error)


def test_the_line_that_is_ignored_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, "--nodes=2\n--ntasks-per-node=2", "srun ./a.out")
    assert re.match(in_order("srun in job.sh", "line 3 (--ntasks-per-node=2)"), error.message)


@pytest.mark.parametrize("code", [
    "if true; then A=1; fi\nsrun ./a.out", "srun ./a.out > log", "srun --pty ./a.out", "srun ./a.out\nsrun ./b.out",
    "if true; then srun ./a.out; fi", "mkdir x && srun ./a.out", "env A=1 mpirun ./a.out", "(srun ./a.out &)",
])  # fmt: skip
def test_another_script_with_a_launcher_is_refused_with_the_line_that_has_no_word(tmp_path: Path, code: str) -> None:
    error = refusal(tmp_path, "--nodes=2 --ntasks-per-node=2", code)
    assert re.search(r"as it is: hpcml submit job.sh\. .* line [34] has ", error.hint)


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
            assert error.message.startswith("A run starts no job array, but line "), "hpcml submit job.sh starts one"
            assert error.hint == says("Use hpcml sweep SCRIPT", "--jobs N", f" {name}")


def test_an_array_that_becomes_a_sweep_is_not_refused(tmp_path: Path) -> None:
    spec_of(tmp_path, "--array=0-4", "import sys", "--grid", "x=1,2", name="job.py", command="sweep")
