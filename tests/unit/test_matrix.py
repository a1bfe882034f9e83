"""The table of bandwidths as text and as a picture, read back from the SVG's own elements."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hpcml.node.interconnect import picture
from hpcml.node.interconnect.measurement import GIB, Pair
from tests.said import says

SVG = "{http://www.w3.org/2000/svg}"


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


def tooltips(svg: str) -> dict[str, str]:
    """Return the tooltips of a picture's cells by what they say before the colon."""
    titles = [group.findtext(f"{SVG}title", "") for group in ET.fromstring(svg).iter(f"{SVG}g")]  # noqa: S314 - made here
    return {title.partition(":")[0]: title for title in titles if title}


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - made here


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
    assert lines[-1] == says("GiB/s", "! marks less than half of the others'")


def test_nothing_measured() -> None:
    assert matrix_text([]) == "Nothing was measured."
    assert words(matrix_svg([], "Title"))[-1] == "Nothing was measured."
    failed = [pair("n1", "n2", 0, error="gone")]
    assert matrix_text(failed).splitlines()[1].split() == ["n1", "·", "x"]
    assert "failed" in words(matrix_svg(failed, "Title"))


def test_figures_of_slow_pairs_differ_as_their_colours_do() -> None:
    pairs = [pair("n1", "n2", 0.2), pair("n2", "n1", 0.15)]
    assert set(words(matrix_svg(pairs, "t"))) >= {"0.20", "0.15"}
    assert matrix_text(pairs).splitlines()[1].split() == ["n1", "·", "0.20"]


def test_picture_of_pairs() -> None:
    names = ["n1-0", "n1-1", "n2-0", "n2-1"]
    svg = matrix_svg(all_pairs(names), "Bandwidth of <run> & $others$")
    found = tooltips(svg)
    assert len(found) == 12
    assert found["n1-0 to n2-1"] == "n1-0 to n2-1: 20 GiB/s"
    said = words(svg)
    assert said.count("20") == 8
    assert "Bandwidth of <run> & $others$" in said
    assert all(said.count(name) == 2 for name in names)
    assert "less than half of the others" not in said


def test_more_workers_than_fit_are_put_together_by_node() -> None:
    names = [f"n{node}-{number}" for node in (1, 2, 3, 7, 20) for number in range(13)]
    pairs = [pair(one.source, one.target, 3 if "n7" in {one.source[:2], one.target[:2]} and one.scope == "across" else one.bandwidth,
                  one.scope) for one in all_pairs(names)]  # fmt: skip
    found = tooltips(matrix_svg(pairs, "t"))
    assert len(found) == 25
    assert found["n3 to n3"] == "n3 to n3: 100 GiB/s"
    assert found["n3 to n7"] == "n3 to n7: 3.0 GiB/s; slow"
    assert len(matrix_text(pairs).splitlines()) == 7
    by_hand = picture.matrix_svg(pairs, "t", {name: "gpu-1" if name < "n2" else "gpu-2" for name in names})
    assert set(tooltips(by_hand)) == {f"{one} to {two}" for one in ("gpu-1", "gpu-2") for two in ("gpu-1", "gpu-2")}
