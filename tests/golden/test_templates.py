"""A template of the user's own: it may extend the built-in one, and what is wrong in it is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.errors import ConfigError, UsageError
from hpcml.plan import batch_script
from matrix import CASES, make


def test_a_template_of_ones_own_extends_the_built_in_one(tmp_path: Path) -> None:
    own = '{% extends "hpcml/batch.sh.j2" %}\n{% block environment %}\n{{ super() }}ulimit -c 0\n{% endblock %}\n'
    (tmp_path / "batch.sh.j2").write_text(own)
    made = make("slurm", CASES[0])
    assert [line for line in batch_script.render(made, [tmp_path]).splitlines() if line] == [
        *(lines := [line for line in batch_script.render(made).splitlines() if line])[: (at := next(at for at, line in enumerate(lines) if line.startswith("set +u")) + 1)], "ulimit -c 0", *lines[at:],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source",
    ["{{ plan.nothing | sh }}", "{% if %}", "{{ plan.inside.job.one_machine | argv }}", '{% extends "nowhere.j2" %}', "{{ 1 / 0 }}"],
)  # fmt: skip
def test_what_is_wrong_in_a_template_is_told_with_its_place(tmp_path: Path, source: str) -> None:
    (tmp_path / "batch.sh.j2").write_text(f"#!/bin/bash\n{source}\n")
    with pytest.raises(ConfigError) as error:
        batch_script.render(make("slurm", CASES[0]), [tmp_path])
    assert "batch.sh.j2:2" in error.value.place or "nowhere" in str(error.value)


@pytest.mark.parametrize("value", ["a\nb", "a\x00"])
def test_a_comment_filter_is_no_way_around(value: str) -> None:
    with pytest.raises(UsageError):
        batch_script.comment(value)
