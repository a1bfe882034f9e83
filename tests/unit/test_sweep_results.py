"""The picture of a sweep: that nothing is obeyed or misread, and what is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from argparse import Namespace
from typing import Any

import pytest

from hpcml.cli import sweep
from hpcml.errors import HpcmlError
from hpcml.sweeps import results
from hpcml.sweeps.results import Row

SVG = "{http://www.w3.org/2000/svg}"


def row(key: int, metric: float | None, state: str = "ok", **values: Any) -> Row:
    texts = {name: str(value) for name, value in values.items()}
    return Row(str(key), texts, state, {} if metric is None else {"loss": metric}, 1.0, "", "run", "out", values=values)


def texts(rows: list[Row], *, maximize: bool = False) -> list[str]:
    root = ET.fromstring(results.picture("train", rows, "loss", maximize=maximize))  # noqa: S314 - our own
    return ["".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")]


def test_a_panel_for_each_parameter_that_differs() -> None:
    rows = [row(1, 3.0, k=8, lr=0.1, all=1), row(2, 1.0, k=16, lr=1e-4, all=1), row(3, 0.5, "pruned", k=16, lr=1, all=1),
            row(4, None, "missing", k=32, lr=1, all=1)]  # fmt: skip
    found = texts(rows)
    assert "train: loss, best 1 at k=16 lr=0.0001 all=1" in found, "what was pruned is not the best"
    assert {"k", "lr", "loss", "0.0001", "0.01", "1"} <= set(found)
    assert "all" not in found
    assert "train: loss, best 3 at k=8 lr=0.1 all=1" in texts(rows, maximize=True)
    assert {"a$b$", "c"} <= set(texts([row(1, 1.0, kind="a$b$"), row(2, 2.0, kind="c")]))


def test_a_picture_is_xml_whatever_a_points_file_holds() -> None:
    evil = ["a\x1b[2Jb", "a\nfake row", "\x00", "]]><script>", '"&<', "\ufffe", "\ud83d", "\u202ex", "\x9b31m"]
    found = texts([row(number, float(number), **{"x\x1b[31m": text}) for number, text in enumerate(evil)])
    assert all(text.isprintable() for text in found)
    assert any("\\x1b" in text for text in found), "it is shown"


def test_what_is_refused(subtests: pytest.Subtests) -> None:
    for rows, metric, sentence in (
        ([row(1, None, "failed", k=1)], "loss", "No point of the sweep has reported the metric 'loss'"),
        ([row(1, None, "failed", k=1)], "", "No point of the sweep has reported a metric"),
        ([row(1, 1.0, k=1)], "loss", "All points of the sweep have the same"),
    ):
        with subtests.test(sentence=sentence), pytest.raises(HpcmlError) as raised:
            results.picture("train", rows, metric, maximize=False)
        assert raised.value.message.startswith(sentence)


def test_a_laptop_s_table_is_not_written_on_the_login_node() -> None:
    with pytest.raises(HpcmlError, match="on the login node"):
        sweep._target(Namespace(caller=object()), "--csv", "table.csv")


def test_the_file_of_csv_may_come_before_the_name_of_the_sweep() -> None:
    for words, read in (
        ("table --csv x.csv job", "table job --csv=x.csv"),
        ("table job --csv x.csv", "table job --csv=x.csv"),
        ("table --csv x.csv --metric speed job", "table job --csv=x.csv --metric speed"),
        ("table --csv job", "table job --csv"),
        ("table job --csv --maximize", "table job --csv --maximize"),
        ("table --csv=x.csv job", "table job --csv=x.csv"),
        ("table --csv table table", "table table --csv=table"),
    ):
        assert sweep.split_script(words.split()) == (read.split(), [])
