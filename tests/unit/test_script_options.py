"""Options in the script's first lines: what is read, what wins, and what is said of the rest."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hpcml.cli import main, script_options, submit
from hpcml.errors import UsageError
from hpcml.schedulers.request import JobSpec

TEXT = """#!/usr/bin/env python
# A script of mine.
# hpcml: --nodes 4 --time 2:00:00
#hpcml: --set workers.per_node=2 -C 'fast&big'

#SBATCH --account=mine --ntasks-per-node=4   # a remark
#SBATCH --output=out-%j.txt
#SBATCH -p big
import hpcml
# hpcml: --nodes 9
"""


def spec_of(tmp_path: Path, text: str, *words: str) -> tuple[JobSpec, argparse.Namespace]:
    script = tmp_path / "train.py"
    script.write_text(text)
    options = main.build_parser("submit").parse_args(words)
    options.caller, options.script_words = None, [str(script)]
    return submit.script_spec(options), options


def test_the_first_lines_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, options = spec_of(tmp_path, TEXT)
    assert (spec.nodes, spec.time, spec.account, spec.partition) == (4, 7200, "mine", "big")
    assert options.set == ["workers.per_node=2"]
    assert spec.sbatch == (("--constraint", "fast&big"),)
    assert dict(spec.origins) == {
        "--nodes 4": "line 3 of train.py",
        "--time 2:00:00": "line 3 of train.py",
        "--set workers.per_node=2": "line 4 of train.py",
        "--constraint=fast&big": "line 4 of train.py",
        "--account mine": "line 6 of train.py",
        "--partition big": "line 8 of train.py",
    }
    told = capsys.readouterr().err
    assert told.count("hpcml has no counterpart") == 1
    assert "--ntasks-per-node=4 (line 6), --output=out-%j.txt (line 7)" in told


def test_the_command_line_wins(tmp_path: Path) -> None:
    spec, options = spec_of(
        tmp_path, TEXT, "-N", "1", "--constraint=slow", "--set", "workers.per_node=8", "-p", "small"
    )
    assert (spec.nodes, spec.partition, spec.sbatch) == (1, "small", (("--constraint", "slow"),))
    assert options.set == ["workers.per_node=2", "workers.per_node=8"]
    assert {option for option, _ in spec.origins} == {"--time 2:00:00", "--account mine"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--node 4", "no option '--node'"),
        ("--nodes", "expected one argument"),
        ("--wait", "for the command line"),
        ("--help", "for the command line"),
        ("train.py", "nrecognized arguments: train.py"),
        ("--name 'x", "No closing quotation"),
        ("--sbatch=--output=x", "--output is not passed"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(tmp_path, f"# hpcml: {line}\n")
    assert says in str(caught.value)
    if "sbatch" not in line:
        assert "line 1 of train.py" in str(caught.value)


def test_a_script_without_such_lines_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, _ = spec_of(tmp_path, "# hpcml is used here\n#SBATCHED\nprint(1)\n")
    assert (spec.origins, spec.nodes) == ((), JobSpec._field_defaults["nodes"])
    assert capsys.readouterr().err == ""


def test_options_behind_the_script_are_noted_unless_the_script_knows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('--name')\n")
    script_options.note_misplaced(
        ["--nodes", "2", "--nodes=3", "--name=x", "--", "--time"],
        script,
        submit.FLAGS | submit.VALUES["how much"] | submit.VALUES["how"],
    )
    told = capsys.readouterr().err
    assert "--nodes, --nodes=3 behind train.py goes to the script" in told
    assert "--name" not in told
    assert "--time" not in told
