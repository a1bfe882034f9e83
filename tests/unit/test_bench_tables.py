"""The tables of the benches in the pages, against the files that they are made of."""

from __future__ import annotations

import pytest

import tables


def test_pages_show_what_the_files_hold() -> None:
    """`python3 tests/bench/tables.py` writes them."""
    assert tables.main(["--check"]) == 0


def test_a_page_without_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match="the page lacks"):
        tables.page_with("nothing here", "start", "a table")
