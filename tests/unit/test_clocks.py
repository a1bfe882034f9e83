"""What is said of the nodes' clocks: only what is certain, and who is wrong."""

from __future__ import annotations

import time

import pytest

from hpcml.node.versions_and_clocks import Clocks

NOW = 1_800_000_000.0
BEHIND, AHEAD = 86400.0, 3600.0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setenv("HPCML_BEGAN", str(NOW - 20))  # the roles took up to 20 s to start and to be seen
    return Clocks("n1", BEHIND, AHEAD)


@pytest.mark.parametrize("told", [NOW, NOW - 19, NOW + 9, NOW - 29])
def test_what_the_start_itself_explains_is_nothing(clocks: Clocks, told: float) -> None:
    clocks.take("n2", told)
    assert (clocks.note, clocks.fatal) == ("", "")


@pytest.mark.parametrize(
    ("told", "words"),
    [(NOW - 920, "900 s or more behind n1's"), (NOW + 900, "900 s or more ahead of n1's"), (NOW + 30, "30 s or more ahead of n1's")],
)  # fmt: skip
def test_a_difference_that_the_certificate_bears(clocks: Clocks, told: float, words: str) -> None:
    clocks.take("n2", told)
    clocks.take("n3", NOW)
    assert (clocks.note, clocks.fatal) == (f"clocks differ: the clock of n2 is {words}", "")


@pytest.mark.parametrize(
    ("told", "fatal"),
    [(NOW - BEHIND - 30, True), (NOW - BEHIND + 30, False), (NOW + AHEAD + 30, True), (NOW + AHEAD - 30, False)],
)
def test_a_difference_that_it_does_not_bear(clocks: Clocks, told: float, *, fatal: bool) -> None:
    clocks.take("n2", told)
    clocks.take("n3", NOW)
    assert bool(clocks.fatal) == fatal
    assert "n2" in clocks.note


def test_a_first_node_that_is_wrong_is_named_itself(clocks: Clocks) -> None:
    for node, late in (("n1", 0.0), ("n2", 7200.0), ("n3", 7201.0), ("n4", 7199.0)):
        clocks.take(node, NOW + late)
    assert "clocks differ: the clock of n1 is 7199 s" in clocks.fatal
