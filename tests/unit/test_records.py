"""Typed records from tables of JSON, and back."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import pytest

from hpcml import typed_json


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(NamedTuple):
    size: int
    share: float = 0.5


def _positive(value: Any) -> int:
    if not isinstance(value, int) or value <= 0:
        raise ValueError("is malformed")
    return value


class Outer(NamedTuple):
    name: str
    inner: Inner
    colour: Colour = Colour.BLUE
    pairs: tuple[tuple[str, int], ...] = ()
    by_name: Mapping[str, Inner] = {}
    maybe: int | None = None
    number: int | float | None = None
    flag: bool = False
    anything: Any = None
    port: Annotated[int, _positive] = 1


WHOLE = Outer("a", Inner(1, 2.0), Colour.RED, (("x", 1), ("y", 2)), {"n": Inner(3)}, 4, 1.5, True, {"b": [1]}, 9)


def test_a_record_is_what_its_table_says() -> None:
    assert typed_json.read(Outer, json.loads(json.dumps(typed_json.plain(WHOLE)))) == WHOLE


def test_what_an_older_version_did_not_write_is_the_default_and_what_a_newer_one_wrote_is_ignored() -> None:
    assert typed_json.read(Outer, {"name": "a", "inner": {"size": 1}, "new": [1]}) == Outer("a", Inner(1))


@pytest.mark.parametrize(("change", "says"), [
    ({"name": 1}, "name is not a text"),
    ({"inner": []}, "inner is not a table"),
    ({"inner": {"size": True}}, "inner.size is not a whole number"),
    ({"inner": {"size": 10**400}}, "inner.size is not a whole number"),
    ({"inner": {"share": 1}}, "inner.size is missing"),
    ({"inner": {"size": 1, "share": float("nan")}}, "inner.share is not a number"),
    ({"inner": {"size": 1, "share": 10**400}}, "inner.share is not a number"),
    ({"colour": "green"}, "colour is not one of red, blue"),
    ({"colour": ["red"]}, "colour is not one of red, blue"),
    ({"pairs": [["x"]]}, "pairs.[] does not have 2 values"),
    ({"pairs": [["x", "y"]]}, "pairs.[] is not a whole number"),
    ({"pairs": "xy"}, "pairs is not a list"),
    ({"by_name": {"n": {"size": "1"}}}, "by_name.n.size is not a whole number"),
    ({"by_name": 3}, "by_name is not a table"),
    ({"maybe": "4"}, "maybe is not a whole number"),
    ({"number": "4"}, "number is not a number"),
    ({"flag": 1}, "flag is not true or false"),
    ({"port": -1}, "port is malformed"),
])  # fmt: skip
def test_a_value_of_another_type_is_named_by_its_key(change: dict[str, Any], says: str) -> None:
    table = {"name": "a", "inner": {"size": 1}, **change}
    with pytest.raises(typed_json.DamagedError) as caught:
        typed_json.read(Outer, table)
    assert str(caught.value) == says
    record, problems = typed_json.salvage(Outer, table)
    assert problems == ([] if says.endswith("missing") else [says])
    assert record._replace(name="a", inner=Inner(1)) == Outer("a", Inner(1)), "the rest is as it was, or the default"


def test_no_field_may_miss_where_a_table_must_be_whole() -> None:
    with pytest.raises(typed_json.DamagedError, match=r"inner\.share is missing"):
        typed_json.read(Outer, {"name": "a", "inner": {"size": 1}}, whole=True)


@pytest.mark.parametrize("table", [[], None, 3, "x"])
def test_what_is_no_table(table: object) -> None:
    with pytest.raises(typed_json.DamagedError, match=r"^is not a table"):
        typed_json.read(Outer, table)
    assert typed_json.salvage(Outer, table)[0] == Outer("", Inner(0))


class Whole(NamedTuple):
    outer: Outer
    inner: Inner = Inner(1)
    name: str = "?"

    @property
    def shout(self) -> str:
        return self.name.upper()

    def sized(self, size: int) -> tuple[str, int]:
        return self.name, self.outer.inner.size + size


def test_a_record_on_demand_tells_of_what_is_damaged_when_that_is_used() -> None:
    told: list[str] = []
    table = {"name": "a", "inner": {"size": []}, "outer": {"inner": {"size": 2}, "flag": 3}}
    record = typed_json.on_demand(Whole, table, told.append, (Outer,))
    assert (record.shout, record.sized(1), record.outer.port, told) == ("A", ("a", 3), 1, [])
    assert (record.outer.flag, record.outer.flag, told) == (False, False, ["outer.flag is not true or false"])
    assert (record.inner, told[1:]) == (Inner(0), ["inner.size is not a whole number"])
    assert not hasattr(record, "nothing")
    with pytest.raises(typed_json.DamagedError, match=r"inner\.size is not"):
        _ = typed_json.on_demand(Whole, table).inner
    assert typed_json.on_demand(Whole, {"outer": 3}, told.append, (Outer,)).outer.name == ""
    assert told[2:] == ["outer is not a table"]


def test_a_record_on_demand_is_freed_at_once() -> None:
    """A listing reads thousands of plans: none may wait for the collector of cycles."""
    record = typed_json.on_demand(Whole, {}, print, (Outer,))
    assert (record.sized(1), record.shout) == (("?", 1), "?")
    gone = weakref.ref(record)
    del record
    assert gone() is None


def test_a_record_may_be_spread_in_the_table_of_its_holder() -> None:
    table = typed_json.plain(Outer("a", Inner(1)), spread=(Inner,))
    assert (table["size"], table["share"]) == (1, 0.5)
    assert typed_json.read(Outer, table, spread=(Inner,)) == Outer("a", Inner(1))


def test_digits_of_floats() -> None:
    assert typed_json.plain({"a": (1.23456, 2)}, digits=3) == {"a": [1.235, 2]}
