"""Batch scripts translated and run on this machine: ranks, the lines that prepare, variables, folders, exit statuses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from homes import Here, here

pytestmark = pytest.mark.local
__all__ = ["here"]

PRINTS = """import json, os, sys
names = ("LEVEL", "SOURCED", "GREETING", "OMP_NUM_THREADS")
print(json.dumps([os.environ.get("RANK", "-"), os.environ.get("WORLD_SIZE", "-"), os.getcwd(), sys.argv[1:],
                  [os.environ.get(name) for name in names]]), flush=True)
"""
RANKS = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --time=5
set -euo pipefail
echo "on $(hostname)"
LEVEL_OF_ALL=$(echo 4)
export LEVEL=$LEVEL_OF_ALL
export GREETING="two  words; \\$HOME"
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
source settings.sh
DATA=/data/$SOURCED
mkdir -p made/by/lines
MASTER_ADDR=$(hostname)
srun --cpu-bind=none python prints.py "$1" $DATA/x "$NOT_EXPORTED" "$@"
echo ended
"""


SETTINGS = "export SOURCED=s\nNOT_EXPORTED='not exported'\n"
IN_A_FOLDER = ("#!/bin/bash\n#SBATCH -n 1 -t 5\nexport LEVEL=7\nFOLDER=work-$USER\nmkdir -p $FOLDER\ncd $FOLDER\n"
               "time python ../prints.py *.none > out.txt 2>&1\nexit $?\n")  # fmt: skip
FAILS = "#!/bin/bash\n#SBATCH -n 1 -t 5\n{}mkdir /proc/none\nexport LEVEL=1\npython prints.py\n"


def submit(here: Here, text: str, *arguments: str, status: int = 0) -> list[list[object]]:
    (here.folder / "job.sh").write_text(text)
    (here.folder / "prints.py").write_text(PRINTS)
    here.environment["PATH"] = f"{Path(sys.executable).parent}:{here.environment.get('PATH', os.environ['PATH'])}"
    done = here.run("submit", "--wait", "--translate", "job.sh", *arguments)
    assert done.returncode == status, done.stderr + done.stdout
    lines = here.run("logs", "last", "rank").stdout if " ranks " in done.stderr else done.stdout
    return [json.loads(line[line.index("[") :]) for line in lines.splitlines() if line.strip().endswith("]]")]


def test_ranks_get_what_the_lines_prepare(here: Here) -> None:
    (here.folder / "settings.sh").write_text(SETTINGS)
    found = submit(here, RANKS, "a  b", "$(touch x)")
    assert sorted(str(one[0]) for one in found) == ["0", "1", "2", "3"]
    arguments = ["a  b", "/data/s/x", "not exported", "a  b", "$(touch x)"]
    for _, size, folder, words, variables in found:
        assert (size, folder, words) == ("4", str(here.folder), arguments)
        assert variables == ["4", "s", "two  words; $HOME", "1"]
    assert (here.folder / "made/by/lines").is_dir()
    assert not (here.folder / "x").exists()


def test_the_files_of_a_login_shell_are_read_as_bash_reads_them(here: Here) -> None:
    home = Path(here.environment["HOME"])
    (home / ".bash_profile").write_text("export GREETING=hello\nSOURCED=file\nfalse\n")
    (home / ".profile").write_text("export LEVEL=wrong\n")
    text = f'#!/bin/bash -l\n#SBATCH -n 1 -t 5\nset -e\n{sys.executable} prints.py "$SOURCED"\n'
    [[_, _, _, words, variables]] = submit(here, text)
    assert (words, variables) == (["file"], [None, "file", "hello", None])


def test_one_process_in_its_folder_writes_its_file(here: Here) -> None:
    here.environment["USER"] = "u"
    assert submit(here, IN_A_FOLDER) == []
    [_, _, folder, words, variables] = json.loads((here.folder / "work-u/out.txt").read_text())
    assert (folder, words, variables[0]) == (str(here.folder / "work-u"), ["*.none"], "7")


ONE_TASK = "#!/bin/bash\n#SBATCH -n 1 -t 5\n"
ENDS = [
    ("python -c 'raise SystemExit(7)'\necho ended", 7), ("srun python -c 'raise SystemExit(3)'", 3), ("bash -c 'kill -9 $$'", 137),
]  # fmt: skip


@pytest.mark.parametrize(("code", "status"), ENDS)
def test_the_status_is_the_command_s(here: Here, code: str, status: int) -> None:
    submit(here, f"{ONE_TASK}{code}\n", status=status)


def test_a_line_that_fails_ends_the_run_only_with_set_e(here: Here) -> None:
    assert submit(here, FAILS.format(""))[0][4][0] == "1"  # type: ignore[index]
    submit(here, FAILS.format("set -e\n"), status=80)
