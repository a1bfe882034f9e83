"""The picture of a sweep: which kind of it, which axes are logarithmic, and that nothing is left out or misread."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from hpcml.errors import HpcmlError
from hpcml.sweeps import plot, scale
from hpcml.sweeps.plot import Point
from hpcml.sweeps.points import Typed

SVG = "{http://www.w3.org/2000/svg}"


def drawn(points: list[Point], *, maximize: bool = False, metric: str = "loss") -> tuple[ET.Element, list[str]]:
    root = ET.fromstring(plot.picture("train", points, metric, maximize=maximize))  # noqa: S314 - our own
    return root, [text.text or "" for text in root.iter(f"{SVG}text")]


def marks(root: ET.Element, kind: str) -> int:
    """Return how many marks there are of a kind, without the one of the legend."""
    return sum(kind == one.get("class") for one in root.iter()) - 1


def grid(**values: list[Any]) -> list[Point]:
    rows: list[dict[str, Any]] = [{}]
    for name, choices in values.items():
        rows = [{**row, name: one} for row in rows for one in choices]
    return [Point(row, "ok", float(number)) for number, row in enumerate(rows, 1)]


def test_a_picture_is_xml_whatever_a_points_file_holds() -> None:
    evil = ["a\x1b[2Jb", "a\nfake row", "\x00", "]]><script>", '"&<', "\ufffe", "\ud83d", "\u202ex", "\x9b31m"]
    for points in (grid(**{"x\x1b[31m": evil}), grid(x=evil, **{'y"<': evil}), grid(x=[1, 2], y=evil, z=evil[:2])):
        root, texts = drawn(points, metric="loss\x1b]0;owned\x07")
        titles = [text.text or "" for text in root.iter(f"{SVG}title")]
        assert all(text.isprintable() for text in (*texts, *titles))
        assert any("\\x1b" in text for text in (*texts, *titles)), "it is shown"


def test_which_axes_are_logarithmic(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[Typed], str]] = [([8, 16, 32, 64], "log"), ([1, 2, 3, 4], "linear"), ([1e-4, 1e-3, 1e-2], "log"), ([1, 10], "linear"),
                         ([0, 10, 100], "linear"), ([-1, 1, 100], "linear"), ([0.1, 0.5, 0.9], "linear"), ([1, "a"], "names"),
                         ([True, False], "names"), ([5], "linear"), ([1.27e-1, 5.2e-3, 1e-4, 1e-6], "log")]  # fmt: skip
    for values, kind in cases:
        with subtests.test(values=values):
            one = scale.of(values)
            assert one.kind == kind
            assert all(0 <= one.at(value) <= 1 for value in values)
            assert [tick.text for tick in scale.of([8, 16, 1e-5]).ticks] == ["1e-5", "8", "16"]
    assert scale.round_numbers(-3.2, 1.1, log=True) == [0.001, 0.01, 0.1, 1, 10]
    assert scale.round_numbers(0.1, 1.1, log=False) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_line_and_all_states() -> None:
    points = [*grid(k=[8, 16, 32, 64], rows=[100]), Point({"k": 128, "rows": 100}, "stopped", 9.0),
              Point({"k": 256, "rows": 100}, "failed", None), Point({"k": 512, "rows": 100}, "missing", None)]  # fmt: skip
    root, texts = drawn(points)
    assert "best: 1 at k=8; all: rows=100" in texts
    assert "k (logarithmic)" in texts
    assert {"8", "64", "512"} <= set(texts)
    [line] = root.iter(f"{SVG}polyline")
    assert len((line.get("points") or "").split()) == 4, "what was stopped is no point of the line"
    assert (marks(root, "stopped"), marks(root, "failed"), marks(root, "missing")) == (1, 1, 1)
    assert "best: 4 at k=64; all: rows=100" in drawn(points, maximize=True)[1]


def test_two_parameters_are_fields_or_points() -> None:
    points = [*grid(k=[8, 16], kind=["a<b", "c&d"]), Point({"k": 32, "kind": "a<b"}, "failed", None)]
    root, texts = drawn(points)
    fields = [one for one in root.iter(f"{SVG}rect") if (one.get("fill") or "").startswith("#") and one.get("x")]
    assert len(fields) == 4
    assert {"1", "2", "3", "4", "a<b", "c&d", "8", "16", "32"} <= set(texts)
    scattered = [Point({"x": number / 7, "y": number**2 / 3}, "ok", float(number)) for number in range(30)]
    root, _ = drawn(scattered)
    assert marks(root, "dot") + 1 == 30


def test_more_parameters_are_parallel_axes() -> None:
    points = [*grid(k=[8, 16], lr=[0.1, 0.01], s=[True, False]), Point({"k": 8, "lr": 1.0, "s": True}, "missing", None)]
    root, texts = drawn(points)
    assert sum(one.tag == f"{SVG}path" for one in root.iter()) == 8
    assert {"k", "lr", "s", "loss", "True", "1 of 9 points have no loss"} <= set(texts)
    many = [Point({f"p{place}": number + place for place in range(20)}, "ok", float(number)) for number in range(5)]
    assert any("not shown: p12, p13" in text for text in drawn(many)[1])


def test_points_with_other_names_are_told(subtests: pytest.Subtests) -> None:
    rows = [*grid(k=[8, 16], s=[1, 2]), Point({"k": 8}, "ok", 0.5)]
    assert any("not shown: 1 points that lack a name" in text for text in drawn(rows)[1])
    for points, metric, sentence in (
        ([Point({"k": 1}, "failed", None)], "loss", "No point of the sweep has 'loss'"),
        ([Point({"k": 1}, "failed", None)], "", "No point of the sweep has reported a metric"),
        ([Point({"k": 1}, "ok", 1.0)], "loss", "All points of the sweep have the same values"),
        ([Point({"k": 1}, "ok", 1.0), Point({"l": 1}, "ok", 1.0)], "loss", "No point with a metric has all the names"),
    ):
        with subtests.test(sentence=sentence), pytest.raises(HpcmlError) as raised:
            plot.picture("train", points, metric, maximize=False)
        assert raised.value.message.startswith(sentence)
