"""Batch scripts in the forms of public ones, and hpcml's line for each, or the first line that has none."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcml.cli import commands
from hpcml.options.shell_lines import UntranslatedError
from hpcml.options.translation import public, translate
from hpcml.terminal import shown

VARIABLES = {"HOME": "/home/alice", "USER": "alice", "SLURM_SUBMIT_DIR": "/home/alice/work"}


def script(lines: str, code: str, first: str = "#!/bin/bash") -> str:
    return f"{first}\n" + "".join(f"#SBATCH {line}\n" for line in lines.splitlines()) + code + "\n"


def _cases() -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Return by name: a script, its arguments, and what follows "hpcml submit", or the number of a line and what it has."""
    text = (Path(__file__).parent.parent / "fixtures/translate/scripts.table").read_text()
    parts = re.findall(r"^=== (.*?)(?: (\[[^\n]*\]))?\n(.*?\n)--- (.*?)$", text, re.MULTILINE | re.DOTALL)
    return {
        name: (code.replace("\\x1b", "\x1b"), tuple(json.loads(given or "[]")), line)
        for name, given, code, line in parts
    }


CASES = _cases()


def translated(
    text: str, arguments: tuple[str, ...] = (), *, slurm: bool = True, typed: Mapping[str, str] | None = None
) -> str:
    try:
        return translate(text, arguments, typed or {}, VARIABLES, slurm=slurm).line.removeprefix("hpcml submit ")
    except UntranslatedError as error:
        return f"{error.number}: {error.what}"


@pytest.mark.parametrize("name", CASES)
def test_a_script_has_a_line_of_hpcml_or_a_first_line_without(name: str) -> None:
    text, arguments, expected = CASES[name]
    assert translated(text, arguments) == expected


def test_the_line_can_be_pasted_and_every_option_is_hpcml_s(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Bash reads the words that the translation means, and hpcml's parser takes them; no line break is in it."""
    for name, (text, arguments, expected) in CASES.items():
        if expected[0].isdigit():
            continue
        with subtests.test(name):
            made = translate(text, arguments, {}, VARIABLES, slurm=True)
            assert shown(made.line) == made.line
            done = subprocess.run(["bash", "-c", f"hpcml() {{ printf '%s\\0' \"$@\"; }}; {made.line}"],
                                  capture_output=True, cwd=tmp_path, check=True)  # fmt: skip
            words = [word.decode(errors="surrogateescape") for word in done.stdout.split(b"\0")[:-1]]
            options, command = words[1 : words.index("--")], words[words.index("--") + 1 :]
            assert tuple(command) == made.command
            assert options == [word for taken in made.options for word in public(taken.words)]
            commands.build_parser("submit").parse_args(options)


def test_each_line_of_a_script_is_listed() -> None:
    for text, arguments, expected in CASES.values():
        if expected[0].isdigit():
            continue
        joined = re.sub(r"\\\n", lambda _: "\0", text).split("\n")
        made = translate(text, arguments, {}, VARIABLES, slurm=True)
        listed, number = {row.number for row in made.rows}, 0
        opened = text.count("python -c '") + text.count("=(\n  ")  # a word of several lines
        for line in joined:
            number += 1
            if line.strip() and not re.match(r"#(?!SBATCH)", line) and not opened and number > 1:
                assert number in listed, line
            number += line.count("\0")
        assert all(row.goes_to for row in made.rows)


OPEN = [
    ("--ntasks=4", "srun ./a", {"nodes": "2"}, "--nodes 2 --cpus-per-node 2 --ranks 2 -- ./a"),
    ("--nodes=2 --ntasks=4", "srun ./a", {"nodes": "4"}, "--nodes 4 --cpus-per-node 1 --ranks node -- ./a"),
    ("-n 2 -N 1", "mpirun ./a", {"mpi": "pmi2"}, "--mpi pmi2 --nodes 1 --cpus-per-node 2 --ranks 2 -- ./a"),
    ("-N 1 -n 4 --gpus-per-node=4", "srun ./a", {"gpus_per_node": "a:2"},
     "--gpus-per-node a:2 --nodes 1 --cpus-per-node 4 --ranks 2/gpu -- ./a"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "code", "typed", "expected"), OPEN)
def test_typed_options_decide_what_a_script_leaves_open(
    lines: str, code: str, typed: dict[str, str], expected: str
) -> None:
    assert translated(script(lines, code), typed=typed) == expected


WITHOUT_SLURM = [
    ("mpirun -n 2 ./a", "--nodes 1 --cpus-per-node 2 -- mpirun -n 2 ./a"),
    ("srun ./a", "--nodes 1 --cpus-per-node 2 --ranks 2 -- ./a"),
    ("srun ./a $SLURM_JOB_ID", "3: SLURM_JOB_ID, which has another value without Slurm"),
    ("echo $SLURM_JOB_ID > id\nsrun ./a", "3: a second command; hpcml starts one"),
    ("mkdir $SLURM_JOB_ID\nsrun ./a", "3: SLURM_JOB_ID, which has another value without Slurm"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), WITHOUT_SLURM)
def test_without_slurm_its_variables_are_not_there(code: str, expected: str) -> None:
    got = translated(script("-n 2 -N 1", code), slurm=False)
    assert got.replace("4: a second", "3: a second") == expected


# Pieces that a random script is made of: of the shell's grammar, of Slurm's, and of neither.
PIECES = (
    *"\n\n\n ;|&()<>{}[]$\"'`\\#=!*?~", "$(", "${", "))", "<<", "&&", "||", "\\\n", "\t", "#SBATCH ", "-N 2", "-n 4", "--mem-per-cpu=",
    "--gres=gpu:", "srun ", "mpirun ", "torchrun ", "--nnodes=", "cd ", "export ", "A=", "$A", "${A[0]}", "${A[@]}", "$1", "$@",
    "if ", "python x.py", "touch made-by-a-line", "source f", "set -e", "\x00", "\x1b", "\udc80", "é", "\u202e", "999999999999",
    "mapfile -t A ", "eval ", "hetjob", "--array=", "(scontrol", "exit 1", "--", "-",
)  # fmt: skip


def test_no_text_is_a_traceback_and_none_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(52)
    for _ in range(4000):
        text = "#!/bin/bash\n" + "".join(draw.choices(PIECES, k=draw.randrange(1, 30)))
        assert translated(text, ("a b",))
    for long in (
        "$(" * 50_000,
        '"$(' * 20_000,
        "(" * 60_000,
        "a=(" * 20_000,
        "${" * 30_000,
        "x" * 60_000,
        "A=$A$A\n" * 9000,
    ):
        assert translated(f"#!/bin/bash\n{long}")
    doubled = "A=aaaaaaaa\n" + "A=$A$A\n" * 60 + "./x $A\n"
    assert translated(f"#!/bin/bash\n{doubled}")
    assert list(tmp_path.iterdir()) == []


MAKES = ("touch {}", "A=$(touch {})", "export A=`touch {}`", "echo $(touch {})", "cd $(touch {})", "source <(touch {})",
         "mkdir ${{X:-$(touch {})}}", "A=([$(touch {})0]=1)", "echo $((A[$(touch {})]))", "srun --x=$(touch {}) ./a", "./a <<<$(touch {})")  # fmt: skip


def test_a_script_whose_every_line_makes_a_file_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "start"))
    (tmp_path / "start").write_text("touch made-by-start\n")
    for number, form in enumerate(MAKES):
        translated(script(f"-n 1 -J $(touch s{number})", form.format(f"f{number}") + "\n./a"))
    assert [path.name for path in tmp_path.iterdir()] == ["start"]
