"""Options in the script's first lines: what is read, what wins, and what is said of the rest."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hpcml.cli import commands, misplaced, submit
from hpcml.config_trust import Origin
from hpcml.errors import UsageError
from hpcml.request.record import NOT_SAID, RunRequest
from hpcml.runs.checks import script_checks
from hpcml.sites import lookup

TEXT = """#!/usr/bin/env python
# A script of mine.
# hpcml: --nodes 4 --time 2:00:00
#hpcml: --set workers.per_node=2 -C 'fast&big'

#SBATCH --account=mine --ntasks-per-node=4   # a remark
#SBATCH --output=out-%j.txt
#SBATCH -p big
#SBATCH --gres gpu:a100:2,tmpfs:1g
import hpcml
# hpcml: --nodes 9
"""


def spec_of(tmp_path: Path, text: str, *words: str) -> tuple[RunRequest, argparse.Namespace]:
    script = tmp_path / "train.py"
    script.write_text(text)
    options = commands.build_parser("submit").parse_args(words)
    options.caller, options.script_words = None, [str(script)]
    return submit.script_spec(options), options


def test_the_first_lines_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, options = spec_of(tmp_path, TEXT)
    assert (spec.size.nodes, spec.size.time, spec.place.account, spec.place.partition) == (4, 7200, "mine", "big")
    assert options.set is None, "what a line sets is not as typed"
    assert (spec.size.gpu_type, spec.size.gpus_per_node) == ("a100", 2)
    assert spec.place.settings == ()
    assert spec.place.line_settings == (("workers.per_node=2", "line 4 of train.py"),)
    assert dict(spec.place.sbatch) == {"--constraint": "fast&big", "--gres": "tmpfs:1g"}
    assert dict(spec.origins) == {
        "--nodes 4": "line 3 of train.py",
        "--time 2:00:00": "line 3 of train.py",
        "--set workers.per_node=2": "line 4 of train.py",
        "--constraint=fast&big": "line 4 of train.py",
        "--account mine": "line 6 of train.py",
        "--partition big": "line 8 of train.py",
        "--gpus-per-node a100:2": "line 9 of train.py",
        "--gres=tmpfs:1g": "line 9 of train.py",
    }
    told = capsys.readouterr().err
    assert told.count("hpcml ignores these") == 1
    assert "--ntasks-per-node=4 (line 6), --output=out-%j.txt (line 7)" in told
    assert told.endswith("use --set workers.per_node=N.\n")


def test_the_value_of_a_variable_is_not_recorded(tmp_path: Path) -> None:
    spec, _ = spec_of(tmp_path, "# hpcml: --env TOKEN=secret\n")
    assert dict(spec.origins) == {"--env TOKEN": "line 1 of train.py"}


def test_the_command_line_wins(tmp_path: Path) -> None:
    spec, _ = spec_of(tmp_path, TEXT, "-N", "1", "--constraint=slow", "--set", "workers.per_node=8", "-p", "small")
    assert (spec.size.nodes, spec.place.partition) == (1, "small")
    assert dict(spec.place.sbatch)["--constraint"] == "slow"
    assert spec.place.settings == ("workers.per_node=8",)
    loaded = lookup.load("local", {}, None, spec.place.settings, spec.place.line_settings)
    assert (loaded.site.workers.per_node, loaded.layers.named("workers", "per_node").origin) == (8, Origin.TYPED)
    loaded = lookup.load("local", {"HPCML_WORKERS__PER_NODE": "3"}, None, (), spec.place.line_settings)
    assert (loaded.site.workers.per_node, loaded.layers.named("workers", "per_node").origin) == (2, Origin.LINE)
    assert {option for option, _ in spec.origins} == {
        "--time 2:00:00",
        "--account mine",
        "--gpus-per-node a100:2",
        "--gres=tmpfs:1g",
    }


@pytest.mark.parametrize(("line", "says"), [
    ("--node 4", "no option '--node'"),
    ("--nodes", "expected one argument"),
    ("--wait", "works only on the command line"),
    ("train.py", "nrecognized arguments: train.py"),
    ("--name 'x", "No closing quotation"),
    ("--sbatch=--output=x", "hpcml sets --output itself"),
])  # fmt: skip
def test_a_wrong_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(tmp_path, f"# hpcml: {line}\n")
    assert says in str(caught.value)
    if "sbatch" not in line:
        assert "line 1 of train.py" in str(caught.value)


@pytest.mark.parametrize("program", [("bash",), ("./job.sh",)])
def test_the_lines_of_a_batch_script_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4\nhostname\n")
    options = commands.build_parser("submit").parse_args([])
    options.caller, options.script_words = None, ["--", *program, "job.sh"]
    spec = submit.script_spec(options)
    assert (spec.size.nodes, spec.size.gpus_per_node) == (2, 4)
    with pytest.raises(UsageError, match="not Python") as caught:
        script_checks.check_file(tmp_path / "job.sh")
    assert "-- bash job.sh. The script's #SBATCH" in caught.value.hint


def test_a_script_without_such_lines_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, _ = spec_of(tmp_path, "# hpcml is used here\n#SBATCHED\nprint(1)\n")
    assert (spec.origins, spec.size.nodes) == ((), NOT_SAID)
    assert capsys.readouterr().err == ""


def refusal(tmp_path: Path, text: str, *words: str, script: str = "train.py") -> str:
    (tmp_path / "train.py").write_text(text)
    try:
        misplaced.check([*script.split(" "), *words], tmp_path, "hpcml submit")
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", [
    "parser.add_argument('-N', '--nodes')",
    "@click.option('--nodes/--no-nodes')\ndef main(nodes): ...",
    "import typer\ndef main(nodes: int = 1): ...",
    "from fire import Fire\nclass Work:\n    def fit(self, nodes): ...",
    "from absl import flags\nflags.DEFINE_integer('nodes', 1, '')",
    "import tyro\nclass Config:\n    nodes: int = 1",
    "'''Usage: train.py [--nodes=N]'''\nimport docopt",
    "import sys\nif '--nodes' in sys.argv: ...",
    "newer syntax of Python\nparser.add_argument('--nodes')",
    "from deep import main\nmain()",
    "from pack.cli import main\nmain()",
])  # fmt: skip
def test_a_script_with_an_option_of_the_same_name_gets_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("deep.py", "pack/cli.py", "pack/__init__.py"):
        (tmp_path / name).write_text("" if "__" in name else "parser.add_argument('--nodes')")
    assert refusal(tmp_path, text, "--nodes", "2") == ""
    assert refusal(tmp_path, text, "--nodes", "2", script="-m train") == ""


@pytest.mark.parametrize("text", [
    "print(1)",
    '"""Submit it so: hpcml submit --nodes 4 train.py."""\n# --nodes 2\nparser.add_argument("--nodes-of-it")',
    "def main(nodes): ...",
    "import argparse\nnodes = 4\nargparse.ArgumentParser().parse_args()",
])  # fmt: skip
def test_options_of_hpcml_after_the_script_are_refused(tmp_path: Path, text: str) -> None:
    error = refusal(tmp_path, text, "--k", "8", "--nodes", "2", "--dry-run", "--", "--time")
    assert "--dry-run and --nodes come after train.py" in error
    assert "write before train.py: --nodes 2 --dry-run." in error
    assert "write -- after train.py." in error
    assert "write before -m train: --nodes=3." in refusal(tmp_path, text, "--nodes=3", script="-m train")


def test_what_is_no_option_of_hpcml_goes_to_the_script(tmp_path: Path) -> None:
    assert refusal(tmp_path, "x = 1", "--k", "8", "-t", "5", "--", "--nodes", "2") == ""
    assert refusal(tmp_path, "", "--nodes", "2", script="-m pytest") == ""
    assert refusal(tmp_path, "", "--nodes", "2", script="nowhere.py") == ""
