"""Layers and their origins, and records built from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcml.config_trust import Origin
from hpcml.errors import ConfigError
from hpcml.sites import schema
from hpcml.sites.settings_layers import Layers, build, from_assignments, from_environment, read_toml


def layers(*tables: dict[str, Any]) -> Layers:
    made = Layers()
    for number, table in enumerate(tables):
        made.add(table, f"layer {number}", Origin.TYPED)
    return made


def test_a_later_layer_replaces_values_and_lists_and_merges_tables() -> None:
    made = layers({"a": {"x": 1, "y": [1, 2]}, "b": 1}, {"a": {"y": [3], "z": 4}})
    assert made.nested() == {"a": {"x": 1, "y": [3], "z": 4}, "b": 1}
    assert [made.origin(key) for key in ("a.x", "a.y", "a", "b", "c")] == [
        "layer 0", "layer 1", "layer 0", "layer 0", "default",
    ]  # fmt: skip


def test_an_empty_table_takes_away_what_was_below() -> None:
    assert layers({"environment": {"A": "1"}}, {"environment": {}}).nested() == {"environment": {}}
    assert layers({"environment": {}}, {"environment": {"A": "1"}}).nested() == {"environment": {"A": "1"}}


def test_a_name_with_a_dot_is_one_name() -> None:
    made = layers({"partitions": {"gpu.long": {"max_nodes": 2}}})
    assert build(schema.Site, made).partitions["gpu.long"].max_nodes == 2


@pytest.mark.parametrize(
    ("word", "table"),
    [("a.b=1", {"a": {"b": 1}}), ("a=x y", {"a": "x y"}), ("a='1'", {"a": "1"}), ("a=[\"x\"]", {"a": ["x"]}), ("a=true", {"a": True}),
     ("a=01:00:00", {"a": "01:00:00"}), ("a=1\nb=2", {"a": "1\nb=2"}), ("a=b=c", {"a": "b=c"}), ("a=x#y", {"a": "x#y"})],
)  # fmt: skip
def test_assignments(word: str, table: dict[str, Any]) -> None:
    assert from_assignments([word]) == table


@pytest.mark.parametrize("word", ["a", "=1", "a..b=1"])
def test_what_is_no_assignment(word: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        from_assignments([word])


def test_the_environment_spells_keys() -> None:
    capitals = {"HPCML_ENVIRONMENT__OMP_NUM_THREADS": "2"}
    assert [table for table, _ in from_environment(capitals)] == [{"environment": {"OMP_NUM_THREADS": 2}}]
    environment = {"HPCML_WORKERS__PER_NODE": "8", "HPCML_RUN_DIR": "/x", "OTHER__X": "1"}
    assert list(from_environment(environment)) == [({"workers": {"per_node": 8}}, "HPCML_WORKERS__PER_NODE")]


@pytest.mark.parametrize(
    ("table", "place", "hint"),
    [({"workers": {"thread": 1}}, "layer 0: workers.thread", "Did you mean threads?"),
     ({"zzz": 1}, "layer 0: zzz", "Valid keys: code, "),
     ({"workers": 3}, "layer 0: workers", "[table]"),
     ({"workers": {"threads": -1}}, "layer 0: workers.threads", "4, without quotes"),
     ({"resources": {"exclusive": 1}}, "layer 0: resources.exclusive", "true or false"),
     ({"runtime": {"modules": [1]}}, "layer 0: runtime.modules", '["one", "two"]'),
     ({"name": ["x"]}, "layer 0: name", '"text"')],
)  # fmt: skip
def test_what_the_schema_does_not_know_is_told_with_its_place(table: dict[str, Any], place: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(schema.Site, layers(table))
    assert error.value.place == place
    assert hint in error.value.hint


def test_numbers_and_times_may_stand_without_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        "[defaults]\ntime = 01:30:00\n[resources]\nmemory_per_node = 4000\n[environment]\nOMP_NUM_THREADS = 1\n"
    )
    site = build(schema.Site, layers(read_toml(path)))
    time, memory = site.defaults.time, site.resources.memory_per_node
    assert (time.text, time, memory.text, memory) == ("01:30:00", 5400, "4000", 4000 * 1024**2)
    assert site.environment == {"OMP_NUM_THREADS": "1"}
