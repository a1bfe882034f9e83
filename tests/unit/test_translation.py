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
from hpcml.options.translate.batch_script import public, translate
from hpcml.options.translate.shell_syntax import UntranslatedError
from hpcml.terminal import shown
from tests.said import says

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


def test_each_line_names_the_options_that_come_from_it() -> None:
    """A line that decides nothing alone names what it decides with others; the nodes come from one line."""
    for lines, expected in (
        ("--nodes=2\n--ntasks-per-node=4\n--gres=gpu:4\n--cpus-per-task=8\n--mem-per-cpu=1G",
         ["--nodes 2", "--cpus-per-node 32 --ranks gpu", "--gpus-per-node 4", "--cpus-per-node 32", "--memory-per-node 32768M"]),
        ("-N 2\n--ntasks=8", ["--nodes 2", "--cpus-per-node 4 --ranks 4"]),
        ("--ntasks=1\n--gres=gpu:0", ["--nodes 1 --cpus-per-node 1 --ranks node", "no option"]),
    ):  # fmt: skip
        made = translate(script(lines, "srun python a.py"), (), {}, VARIABLES, slurm=True)
        assert [row.goes_to for row in made.rows][: len(expected)] == expected


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


@pytest.mark.parametrize("slurm", [True, False])
@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"])
def test_a_number_of_a_task_that_bash_replaces_is_refused_with_the_form_that_is_translated(
    name: str, slurm: bool
) -> None:
    lines = "-n 2 -N 1"
    got = translated(script(lines, f"srun ./a --shard ${name}"), slurm=slurm)
    assert got == says(f"3: {name}, which bash replaces by 0", f"bash -c '… ${name}'")
    got = translated(script(lines, f"N=${name}\nsrun ./a $N"), slurm=slurm)
    assert got == says(f"4: {name}, which bash replaces by 0"), "the line that needs the variable"
    code = f"srun bash -c './a --shard ${name}'"
    assert translated(script(lines, code), slurm=slurm).endswith(f"--ranks 2 -- {code.removeprefix('srun ')}")


# Lines that do more than they seem to, each before or in the one command of a script with four tasks on two nodes.
MORE = [
    (": ${N:=4}\nsrun ./a $N", "--set 'runtime.setup=[\": ${N:=4}\", \"export N\"]' --ranks 2 -- bash -c 'exec ./a $N'"),
    ("B=${N:=4}\nsrun ./a $N", "4: B, whose line sets another variable too"),
    ("ls ${N:=4}\nsrun ./a $N", "4: ${N:=…} in this place, which hpcml has no word for"),
    (": ${N:?no N}\nsrun ./a", "--set 'runtime.setup=[\": ${N:?no N}\"]' --ranks 2 -- ./a"),
    ("N=1\necho $((N++))\nsrun ./a $N", "5: arithmetic that changes a variable"),
    ("N=1\necho $[N=2]\nsrun ./a $N", "5: arithmetic in $[…]"),
    ("printf -v N %03d 4\nsrun ./a $N", "--set 'runtime.setup=[\"printf -v N %03d 4\", \"export N\"]' --ranks 2 -- bash -c 'exec ./a $N'"),
    ("printf -v A[0] x\nsrun ./a", "4: printf -v A[0] x, which hpcml has no word for"),
    *((f"set {flags}\n. ./f\nsrun ./a", f"4: set {flags}, which hpcml has no word for") for flags in ("-a", "-f", "-en", "-- x")),
    ("set -Eeuo pipefail\nsrun ./a", "--ranks 2 -- ./a"),
    ("export A=1\nA=2\nsrun ./a", "--env A=1 --env A=2 --ranks 2 -- ./a"),
    ("PATH=/opt/b:$PATH\nsrun ./a", "--set 'runtime.setup=[\"PATH=\\\"/opt/b:$PATH\\\"\"]' --ranks 2 -- ./a"),
    ("OWN=2\nsrun ./a", "--ranks 2 -- ./a"),
    ('X=""\nsrun ./a "$X" $X b', "--ranks 2 -- ./a '' b"),
    *((f"srun ./a ${name}", f"4: ${name}, whose value only the batch script's shell knows") for name in ("HOSTNAME", "RANDOM")),
    ("S=$RANDOM\nsrun ./a $S", "--set 'runtime.setup=[\"S=\\\"$RANDOM\\\"\", \"export S\"]' --ranks 2 -- bash -c 'exec ./a $S'"),
    *((f"X=$({inner})\nsrun ./a", "4: X, whose command may do more than print") for inner in (
        "date\n./b", "( ./b )", "! ./b", '"./b"', "$B", "~/b", "xargs -n1 ./b <f", "sed -i s/a/b/ f", "awk 'BEGIN{system(\"./b\")}'",
        "scontrol update x", 'echo "it\'s $(./b) it\'s"', "`./b`")),
    *((f"{line}\nsrun ./a", "5: a second command; hpcml starts one") for line in (
        "echo $(sort -o x f)", "echo $(sort -uo x f)", "echo $(sort f --output=x)", "echo $(uniq f x)", "echo $(sed -n 'w x' f)",
        "echo $(sed 's/a/b/w x' f)", "echo $(sed 's/a/b/e' f)", "echo $(sed -f p f)", "echo $(sed -e p -e 'w x' f)", "echo $(sed \"$S\" f)", "echo $(sed -n p -i f)", "echo $(sed '1e ./b' f)",
        "echo $(awk 'BEGIN{print > \"x\"}')", "echo $(awk -f p)", "echo $(awk '{print | \"sh\"}' f)", "echo $(awk '{\"./b\" | getline}' f)",
        "nvidia-smi -pm 1", "nvidia-smi --gpu-reset", "nvidia-smi -q -f x", "hostname foo", "hostname -F f", "echo $(ip link set eth0 up)")),
    *((f"{line}\nsrun ./a", "--ranks 2 -- ./a") for line in (
        "X=$(cat f | xargs)", "echo $(sed -n 's/a word/b/p' f)", "echo $(cat f | sed -e 's|w|e|g;2,/x/d' | sort -n | uniq -c)",
        "echo $(sed -n 3p f)", "echo $(sed -n \"${I}p\" f)", "echo $(sed -n \"$((I + 1))p\" f)", "echo $(sed -e 's/a/b/' -e 2d f)",
        "echo $(sed \"s/w/e/\" f)", "echo $(awk -F, '{print $1}' f)", "echo $(ip addr show eth0)", "hostname -I",
        "nvidia-smi", "nvidia-smi -L", "nvidia-smi topo -m", "nvidia-smi --query-gpu=name,memory.total --format=csv",
        'echo "the hostname is $(hostname -f)"', "echo nvidia-smi -pm")),
    ("scontrol requeue 5\nsrun ./a", "5: a second command; hpcml starts one"),
    ("srun ./b date\nsrun ./a", "5: a second command; hpcml starts one"),
    ("srun -n 4 date\nsrun ./a", "--ranks 2 -- ./a"),
    ("srun ./a $K\"b\" \"$K\"_1 ${K}x", "--ranks 2 -- bash -c 'exec ./a ${K}b \"${K}_1\" ${K}x'"),
    *((f"{line}\nsrun ./a {word}", f"5: {word.strip(chr(34))}, whose value only the batch script's shell knows") for line, word in (
        ("F=(*.csv)", '"${F[@]}"'), ("F=(*.csv)", "$F"), ("mapfile -t F < f", "${F[0]}"), (". ./f", "${#F[@]}"), ("F=1", "${!F}"))),
    ("F=()\nsrun ./a $F b", "--ranks 2 -- ./a b"),
    ("set -u\nsrun ./a $K", "--ranks 2 -- bash -uc 'exec ./a $K'"),
    *((f"set -e\n{line}\nsrun ./a\n{line}", f"--set 'runtime.setup=[\"{line}\"]' --set runtime.setup_errors=end --ranks 2 -- ./a")
      for line in ("id nosuchuser", "df /nope", "scontrol show job 1", "date -d x", "squeue")),
    ("set -e\ndate\ntrue\nprintf a\nsrun ./a\nsacct", "--ranks 2 -- ./a"),
    ("set -e\nls data\necho $K\nsrun ./a", "--set 'runtime.setup=[\"ls data\"]' --set runtime.setup_errors=end --ranks 2 -- ./a"),
    ("cd b\nK=$PWD\ncd ..\nsrun ./a $K",
     "--set 'runtime.setup=[\"cd b\", \"K=\\\"$PWD\\\"\", \"export K\"]' --ranks 2 -- bash -c 'cd b && cd .. && exec ./a $K'"),
    (". ./f\nK=2\nsrun ./a", "--set 'runtime.setup=[\". ./f\", \"K=2\"]' --ranks 2 -- ./a"),
    ("time -p srun ./a", "4: time with options"),
    ("module load openmpi\nmpirun -x A=5 ./a", "5: mpirun -x A=…. Write a line: export NAME=VALUE"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), MORE)
def test_a_line_that_does_more_than_it_seems_is_kept_or_refused(code: str, expected: str) -> None:
    got = translated(script("-N 2\n-n 4", code)).removeprefix("--nodes 2 --cpus-per-node 2 ")
    assert got == expected


def test_a_line_that_sets_a_variable_of_the_shell_changes_the_program_s() -> None:
    text = script("-n 1", "OWN=2\n./a")
    assert "--env OWN=2" in translate(text, (), {}, VARIABLES, slurm=True, exported={"OWN"}).line


UNKNOWN = ", whose value only the batch script's shell knows"


def test_all_arguments_of_a_script_are_the_command_s(subtests: pytest.Subtests) -> None:
    arguments = tuple(f"a{number}" for number in range(1, 13))
    for words, expected in (
        ("${10} $10 ${12}", "-- ./a a10 a10 a12"), ('"$@"', f"-- ./a {' '.join(arguments)}"), ("${11:-x}", "-- ./a a11"),
        *((word, f"3: ${name}{UNKNOWN}") for word, name in (
            ("${13}", "13"), ("${1%.csv}", "1"), ("${10%.csv}", "10"), ('"${@:2}"', "@"), ("${#10}", "10"), ("${#}", "#"), ("${$}", "$"))),
    ):  # fmt: skip
        with subtests.test(words):
            assert (
                translated(script("-n 1", f"./a {words}"), arguments).removeprefix("--nodes 1 --cpus-per-node 1 ")
                == expected
            )
    assert translated(script("-n 1", "mkdir ${1%.csv}\n./a"), arguments) == f"3: $1{UNKNOWN}"


STARTED = [
    ("-N 1", "srun -n4 ./a $RANDOM", f"3: $RANDOM{UNKNOWN}"),
    ("-N 1", "module load openmpi\nmpirun -n 4 ./a $RANDOM", f"4: $RANDOM{UNKNOWN}"),
    ("-N 1", "srun -n4 ./a >f", "3: a file for the output of several tasks. hpcml logs RUN has it"),
    ("-N 1", "export WORLD_SIZE=1\nsrun -n4 ./a", "3: WORLD_SIZE=1, but 4 tasks"),
    ("-N 1", "export WORLD_SIZE=4\nsrun -n4 ./a", "--nodes 1 --ranks 4 --cpus-per-node 4 -- ./a"),
    ("-N 1\n-n 4", "srun -n1 ./a $RANDOM >f", "--nodes 1 --cpus-per-node 4 --ranks node -- bash -c 'exec ./a $RANDOM >f'"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "code", "expected"), STARTED)
def test_the_tasks_are_those_that_the_command_starts(lines: str, code: str, expected: str) -> None:
    assert translated(script(lines, code)) == expected


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
