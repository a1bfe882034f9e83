"""The table of bandwidths as text and as a picture, read back from the SVG's own elements."""

from __future__ import annotations

import itertools
import re
import sys
from xml.etree import ElementTree as ET

import pytest

from hpcml.node.interconnect import picture
from hpcml.node.interconnect.measurement import GIB, Pair
from hpcml.node.interconnect.picture import MOST_NAMES

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


def matrix_text(pairs: list[Pair]) -> str:
    return picture.matrix_text(pairs, nodes_of(pairs))


def matrix_svg(pairs: list[Pair], title: str) -> str:
    return picture.matrix_svg(pairs, title, nodes_of(pairs))


def nodes_of(pairs: list[Pair]) -> dict[str, str]:
    return {name: name.partition("-")[0] for pair in pairs for name in (pair.source, pair.target)}


def cells(svg: str) -> dict[str, tuple[str, list[ET.Element]]]:
    """Return what is drawn of measured cells by what their tooltips say before the colon, with the whole tooltip."""
    drawn: dict[str, tuple[str, list[ET.Element]]] = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):  # noqa: S314 - made here
        if title := group.findtext(f"{SVG}title", ""):
            known, elements = drawn.setdefault(title.partition(":")[0], (title, []))
            assert known == title
            elements += [element for element in group.iter() if element is not group]
    return drawn


def tooltips(svg: str) -> dict[str, str]:
    return {name: title for name, (title, _) in cells(svg).items()}


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - made here


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
    assert (
        lines[-1]
        == "GiB/s from row to column; ! marks less than half of the others' bandwidth; x marks a failed transfer"
    )


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
    svg = matrix_svg(all_pairs(names), "Bandwidth of <run> & $others$")
    root = ET.fromstring(svg)  # noqa: S314 - made here
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == "Bandwidth of <run> & $others$"
    found = tooltips(svg)
    assert len(found) == 12
    assert found["n1-0 to n2-1"] == "n1-0 to n2-1: 20 GiB/s"
    said = words(svg)
    assert said.count("20") == 8
    assert said.count("100") >= 4
    assert "Bandwidth of <run> & $others$" in said
    assert all(said.count(name) == 2 for name in names)
    assert "less than half of the others" not in said


def test_a_slow_cell_is_marked_by_more_than_its_colour() -> None:
    svg = matrix_svg(all_pairs(["n1", "n2", "n3"], slow="n2"), "t")
    for name, (title, elements) in cells(svg).items():
        marks = [element for element in elements if VERMILION in element.get("style", "")]
        assert (len(marks) == 2) == ("n2" in name), name  # a frame and a corner
        assert title.endswith("; slow") == ("n2" in name)
    assert "less than half of the others' bandwidth" in words(svg)


def test_a_failed_cell_has_a_cross_and_no_figure() -> None:
    svg = matrix_svg([pair("n1", "n2", 20), pair("n2", "n1", 0, error="gone")], "t")
    title, elements = cells(svg)["n2 to n1"]
    assert title == "n2 to n1: failed"
    assert not [element for element in elements if element.tag == f"{SVG}text"]
    assert [element for element in elements if element.tag == f"{SVG}use"]  # the cross
    assert "failed" in words(svg)


@pytest.mark.parametrize("count", [2, 9, 24, MOST_NAMES])
def test_pictures_of_any_size_stay_inside_their_frame(count: int) -> None:
    names = [f"n{number}" for number in range(1, count + 1)]
    last = [one for one in all_pairs(names) if names[-1] in (one.source, one.target)]  # the last row and column
    svg = matrix_svg(last, "t")
    root = ET.fromstring(svg)  # noqa: S314 - made here
    width, height = (float(root.get(side, "0").removesuffix("pt")) for side in ("width", "height"))
    assert max(width, height) < 1200
    for path in (path for _, elements in cells(svg).values() for path in elements if path.tag == f"{SVG}path"):
        places = [float(number) for number in re.findall(r"-?[0-9.]+", path.get("d", ""))]
        assert all(0 <= x <= width for x in places[::2])
        assert all(0 <= y <= height for y in places[1::2])
    assert len(cells(svg)) == len(last)
    said = words(svg)
    assert all(said.count(name) == 2 for name in names)


def test_more_workers_than_fit_are_put_together_by_node() -> None:
    names = [f"n{node}-{number}" for node in (1, 2, 3, 7, 20) for number in range(13)]
    assert len(names) > MOST_NAMES
    pairs = [pair(one.source, one.target, 3 if "n7" in {one.source[:2], one.target[:2]} and one.scope == "across" else one.bandwidth,
                  one.scope) for one in all_pairs(names)]  # fmt: skip
    found = tooltips(matrix_svg(pairs, "t"))
    assert len(found) == 25
    assert found["n3 to n3"] == "n3 to n3: 100 GiB/s"
    assert found["n3 to n7"] == "n3 to n7: 3.0 GiB/s; slow"
    assert found["n20 to n3"] == "n20 to n3: 20 GiB/s"
    assert len(matrix_text(pairs).splitlines()) == 7
    pairs[0] = pair(pairs[0].source, pairs[0].target, 900, "within")  # n1-0 to n1-1: one of many
    assert tooltips(matrix_svg(pairs, "t"))["n1 to n1"] == "n1 to n1: 100 GiB/s"
    by_hand = picture.matrix_svg(pairs, "t", {name: "gpu-1" if name < "n2" else "gpu-2" for name in names})
    assert set(tooltips(by_hand)) == {f"{one} to {two}" for one in ("gpu-1", "gpu-2") for two in ("gpu-1", "gpu-2")}


def test_without_matplotlib_the_table_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    pairs = [pair("n1", "n2", 22.4)]
    assert "22" in matrix_text(pairs)
    with pytest.raises(ImportError, match="matplotlib"):
        matrix_svg(pairs, "t")


def test_the_scale_can_be_read_without_colours() -> None:
    pairs = [pair(f"n{number}", f"n{number + 1}", 5 * number) for number in range(2, 21)]
    drawn = cells(matrix_svg(pairs, "t"))
    light = []
    for one in pairs:
        styles = " ".join(element.get("style", "") for element in drawn[one.name.replace("→", "to")][1])
        fill = re.search("fill: #([0-9a-f]{6})", styles)
        assert fill is not None
        red, green, blue = bytes.fromhex(fill[1])
        light.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    assert all(after > before for before, after in itertools.pairwise(light))
    assert light[-1] - light[0] > 100


def test_the_scale_is_logarithmic_where_nvlink_stands_beside_the_network() -> None:
    wide = matrix_svg([pair("n1-0", "n1-1", 400, "within"), pair("n1-0", "n2-0", 1)], "t")
    assert "GiB/s, logarithmic" in words(wide)
    narrow = matrix_svg([pair("n1", "n2", 20), pair("n2", "n1", 10)], "t")
    assert "GiB/s" in words(narrow)
    assert "0" in words(narrow)
