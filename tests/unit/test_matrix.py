"""The table of bandwidths as text and as a picture, read back from the SVG's own elements."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from hpcml.node.fabric.measurement import GIB, Pair
from hpcml.node.fabric.picture import MOST_NAMES, _colour, _natural, _nodes, matrix_svg, matrix_text

SVG = "{http://www.w3.org/2000/svg}"
VERMILION = "#d55e00"


def pair(source: str, target: str, speed: float, scope: str = "across", error: str = "") -> Pair:
    return Pair(source, target, scope, GIB, 1 / speed if speed else 0.0, error)


def all_pairs(names: list[str], slow: str = "") -> list[Pair]:
    """Return every pair of workers NODE-NUMBER: 100 GiB/s within a node, 20 across, 5 to and from a slow one."""
    found = []
    for one in names:
        for two in names:
            within = one.partition("-")[0] == two.partition("-")[0]
            if one != two:
                speed = 100 if within else 5 if slow and slow in (one, two) else 20
                found.append(pair(one, two, speed, "within" if within else "across"))
    return found


def cells(picture: str) -> dict[str, ET.Element]:
    """Return the groups of measured cells by what their tooltips say before the colon."""
    groups = ET.fromstring(picture).iter(f"{SVG}g")  # noqa: S314 - made here
    titled = {group.findtext(f"{SVG}title", ""): group for group in groups}
    return {title.partition(":")[0]: group for title, group in titled.items() if title}


def words(picture: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]  # noqa: S314 - made here


def test_text() -> None:
    assert matrix_text([pair("n1", "n2", 22.4), pair("n2", "n1", 20.6)]) == (
        "from n1 n2\nn1    · 22\nn2   21  ·\nGiB/s from row to column"
    )


def test_text_with_marks_keeps_its_columns() -> None:
    pairs = [*all_pairs(["n1", "n2", "n3", "n10"], slow="n3"), pair("n1", "n10", 0, error="gone")]
    text = matrix_text(pairs)
    lines = text.splitlines()
    assert lines[0].split() == ["from", "n1", "n2", "n3", "n10"]
    assert [line.split()[0] for line in lines[1:5]] == ["n1", "n2", "n3", "n10"]
    assert lines[3].split()[1:] == ["5.0!", "5.0!", "·", "5.0!"]
    assert lines[1].split()[1:] == ["·", "20", "5.0!", "20x"]  # measured twice, failed once
    ends = {match.end() for line in lines[1:5] for match in re.finditer(r"\d(?=[ !x]|$)", line)}
    assert len(ends - {2, 3}) == 4  # figures end in four columns, one for each name
    assert lines[-1] == "GiB/s from row to column; ! is less than half of the others; x has failed"


def test_text_numbers_the_columns_where_names_are_long() -> None:
    lines = matrix_text(all_pairs([f"lrdn0001-{number}" for number in range(11)])).splitlines()
    assert lines[0].split() == ["from", *(str(number) for number in range(1, 12))]
    assert lines[1].startswith(" 1 lrdn0001-0 ")
    assert lines[11].startswith("11 lrdn0001-10")


@pytest.mark.parametrize("speed", [0.004, 0.2, 9.9, 431])
def test_figures_are_short(speed: float) -> None:
    figure = matrix_text([pair("n1", "n2", speed)]).splitlines()[1].split()[-1]
    assert len(figure) <= 4
    assert float(figure) == pytest.approx(speed, rel=0.1, abs=0.005)


def test_nothing_measured() -> None:
    assert matrix_text([]) == "Nothing was measured."
    assert words(matrix_svg([], "Title"))[-1] == "Nothing was measured."
    failed = [pair("n1", "n2", 0, error="gone")]
    assert matrix_text(failed).splitlines()[1].split() == ["n1", "·", "x"]
    assert "failed" in words(matrix_svg(failed, "Title"))


def test_picture_of_pairs() -> None:
    names = ["n1-0", "n1-1", "n2-0", "n2-1"]
    picture = matrix_svg(all_pairs(names), "Bandwidth of <run> & others")
    root = ET.fromstring(picture)  # noqa: S314 - made here
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == "Bandwidth of <run> & others"
    found = cells(picture)
    assert len(found) == 12
    title = found["n1-0 to n2-1"].findtext(f"{SVG}title")
    assert title == "n1-0 to n2-1: 20 GiB/s"
    said = words(picture)
    assert said.count("20") == 8
    assert said.count("100") >= 4
    assert all(said.count(name) == 2 for name in names)
    assert "less than half of the others" not in said


def test_a_slow_cell_is_marked_by_more_than_its_colour() -> None:
    picture = matrix_svg(all_pairs(["n1", "n2", "n3"], slow="n2"), "t")
    found = cells(picture)
    for name, group in found.items():
        marks = [element for element in group if VERMILION in (element.get("stroke"), element.get("fill"))]
        title = group.findtext(f"{SVG}title", "")
        assert (len(marks) == 2) == ("n2" in name), name  # a frame and a corner
        assert title.endswith("; slow") == ("n2" in name)
    assert "less than half of the others" in words(picture)


def test_a_failed_cell_has_a_cross_and_no_figure() -> None:
    picture = matrix_svg([pair("n1", "n2", 20), pair("n2", "n1", 0, error="gone")], "t")
    group = cells(picture)["n2 to n1"]
    assert group.findtext(f"{SVG}title") == "n2 to n1: failed"
    assert group.find(f"{SVG}text") is None
    assert group.find(f"{SVG}path") is not None
    assert "failed" in words(picture)


@pytest.mark.parametrize("count", [2, 3, 9, 24, 64])
def test_pictures_of_any_size_stay_inside_their_frame(count: int) -> None:
    names = [f"n{number}" for number in range(1, count + 1)]
    picture = matrix_svg(all_pairs(names), "t")
    root = ET.fromstring(picture)  # noqa: S314 - made here
    width, height = (float(root.get(side, "0")) for side in ("width", "height"))
    assert max(width, height) < 1200
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("width") != "100%":
            x, y, across, down = (float(rect.get(name, "nan")) for name in ("x", "y", "width", "height"))
            assert 0 <= x <= x + across <= width
            assert 0 <= y <= y + down <= height
    assert len(cells(picture)) == count * (count - 1)
    said = words(picture)
    assert all(said.count(name) == 2 for name in names)


def test_more_workers_than_fit_are_put_together_by_node() -> None:
    names = [f"n{node}-{number}" for node in range(1, 21) for number in range(4)]
    assert len(names) > MOST_NAMES
    pairs = [pair(one.source, one.target, 3 if "n7" in {one.source[:2], one.target[:2]} and one.scope == "across" else one.bandwidth,
                  one.scope) for one in all_pairs(names)]  # fmt: skip
    found = cells(matrix_svg(pairs, "t"))
    assert len(found) == 400
    assert found["n3 to n3"].findtext(f"{SVG}title") == "n3 to n3: 100 GiB/s"
    assert found["n3 to n7"].findtext(f"{SVG}title") == "n3 to n7: 3.0 GiB/s; slow"
    assert found["n20 to n3"].findtext(f"{SVG}title") == "n20 to n3: 20 GiB/s"
    assert len(matrix_text(pairs).splitlines()) == 22
    pairs[0] = pair(pairs[0].source, pairs[0].target, 900, "within")  # n1-0 to n1-1: one of twelve
    assert cells(matrix_svg(pairs, "t"))["n1 to n1"].findtext(f"{SVG}title") == "n1 to n1: 100 GiB/s"
    by_hand = cells(matrix_svg(pairs, "t", {name: "here" if name < "n2" else "there" for name in names}))
    assert set(by_hand) == {f"{one} to {two}" for one in ("here", "there") for two in ("here", "there")}


def test_a_number_at_the_end_of_a_nodes_own_name_is_not_a_workers() -> None:
    assert _nodes(["gpu-1", "gpu-2"]) == {"gpu-1": "gpu-1", "gpu-2": "gpu-2"}
    assert _nodes(["n1", "n2"]) == {"n1": "n1", "n2": "n2"}
    assert _nodes(["gpu-7-0", "gpu-7-1"]) == {"gpu-7-0": "gpu-7", "gpu-7-1": "gpu-7"}


def test_names_in_the_order_that_people_expect() -> None:
    assert sorted(["n10-1", "n9-0", "n10-0", "login", "n1"], key=_natural) == ["login", "n1", "n9-0", "n10-0", "n10-1"]


def test_the_scale_can_be_read_without_colours() -> None:
    light = [
        0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (_colour(step / 20) for step in range(21))
    ]
    assert all(after > before for before, after in itertools.pairwise(light))
    assert light[-1] - light[0] > 150
    assert _colour(-1) == _colour(0)
    assert _colour(2) == _colour(1)


def test_the_scale_is_logarithmic_where_nvlink_stands_beside_the_network() -> None:
    wide = matrix_svg([pair("n1-0", "n1-1", 400, "within"), pair("n1-0", "n2-0", 1)], "t")
    assert "GiB/s, logarithmic" in words(wide)
    narrow = matrix_svg([pair("n1", "n2", 20), pair("n2", "n1", 10)], "t")
    assert "GiB/s" in words(narrow)
    assert "0" in words(narrow)
