"""``--env`` and ``--env-file``: what is read, what is refused, and that no value is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml import typed_json
from hpcml.cli import commands
from hpcml.errors import HpcmlError
from hpcml.options.reading import request_of
from hpcml.plan import batch_script, make_plan
from hpcml.request import variables
from hpcml.request.record import Code, RunRequest
from hpcml.sites import schema

LOCATION = make_plan.RunLocation(Path("/runs/job-20261121-074500-1a2b"), "/usr/bin/python3", "0")


def request(*words: str) -> RunRequest:
    return request_of(vars(commands.build_parser("submit").parse_args(words)), Code(Path("job.py")))


def test_variables_of_options_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "a b")
    file = tmp_path / "my.env"
    file.write_text("# mine\n\nA=1\nexport B = 'two words'\nFROM_HERE\nC==x\n")
    spec = request("--env", "A=2", f"--env-file={file}", "--env", "D=")
    assert dict(spec.environment) == {"A": "2", "B": "two words", "FROM_HERE": "a b", "C": "=x", "D": ""}


@pytest.mark.parametrize(
    "text", ["1A=secret", "A-B=secret", "=secret", "HPCML_X=secret", "NOT_SET_HERE", "", "a secret"]
)
def test_what_is_no_variable_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(HpcmlError) as caught:
        request(f"--env={text}")
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HpcmlError, match="cannot be read"):
        request(f"--env-file={tmp_path / 'none'}")


def test_no_value_is_in_plan_script_or_record() -> None:
    spec = request("--env", "TOKEN=secret-word", "--env", "B=2", "--image", "/images/a.sif")
    made = make_plan.plan(schema.Site(), spec, LOCATION)
    assert made.variables == ("B", "TOKEN")
    script = batch_script.render(made)
    assert '"$HPCML_RUN_DIR/environment.sh"   # B TOKEN' in script
    assert dict(made.environment)["HPCML_CONTAINER_ENV"] == "B TOKEN"
    told = script + json.dumps(typed_json.plain(made)) + json.dumps(typed_json.plain(spec.given()))
    assert "secret-word" not in told
    assert "environment.sh" not in batch_script.render(make_plan.plan(schema.Site(), request(), LOCATION))


def test_the_values_of_here_are_carried_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "a b")
    own = ["-N", "2", "--env", "FROM_HERE", "--env=A=1", "--wait"]
    options = commands.build_parser("submit").parse_args(own)
    assert variables.carried(own, options.env_file or (), options.env) == [
        "-N", "2", "--wait", "--env=A=1", "--env=FROM_HERE=a b",
    ]  # fmt: skip
