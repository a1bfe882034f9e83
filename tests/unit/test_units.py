"""Durations, sizes and host lists: what is written is read back, and what is wrong is a ValueError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("90:30", 5430), ("1:02:03", 3723), ("2-0", 172800), ("1-12:30", 131400), ("1-12:00:05", 129605), ("90m", 5400),
     ("90min", 5400), ("2h", 7200), ("1d12h", 129600), ("1w", 604800), ("1w1d", 691200), (" 5 ", 300), ("45s", 45)],
)  # fmt: skip
def test_time_limits(text: str, seconds: int) -> None:
    assert units.parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["abc", "0", "0:00:00", "-5", "1:99", "1:2:3:4", "1.5", "10x", "1-", "1-2-3", ":30", "1:99:00", "UNLIMITED",
                                  " ", "9" * 30, "1d-3"])  # fmt: skip
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"time limit|an empty time|more than 59"):
        units.parse_time_limit(text)


@given(st.integers(1, 10**8))
def test_a_time_limit_is_read_back(seconds: int) -> None:
    assert units.parse_time_limit(units.format_time_limit(seconds)) == seconds


@given(st.text(max_size=20) | st.text("0123456789:-.dhmsGM[],n ", max_size=30))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for parse in (units.parse_time_limit, units.parse_seconds, units.parse_memory, units.expand_hosts):
        try:
            parse(text)
        except ValueError as error:
            assert str(error)


@given(st.integers(0, 10**9 - 1), st.sampled_from(["", "s"]))
def test_seconds_are_read(number: int, unit: str) -> None:
    assert units.parse_seconds(f"{number}{unit}") == number


@given(st.integers(1, 10**9))
def test_memory_is_read_back(mebibytes: int) -> None:
    assert units.parse_memory(units.format_memory_for_slurm(mebibytes * 1024**2)) == mebibytes * 1024**2


@pytest.mark.parametrize(("text", "size"), [
    ("4000", 4000 << 20), ("1K", 1 << 10), ("2G", 2 << 30), ("0.5T", 1 << 39), ("1 GiB", 1 << 30), ("3mb", 3 << 20),
    ("512B", 512),
])  # fmt: skip
def test_memory(text: str, size: int) -> None:
    assert units.parse_memory(text) == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.84, "0.8 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1:00"), (185, "3:05"), (3600, "1:00:00"),
     (36000, "10:00:00"), (176400, "2-01:00:00")],
)  # fmt: skip
def test_seconds_as_a_person_reads_them(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (20 << 30, "20 GiB"), (9.96 * 1024, "10 KiB"),
    (1 << 60, "1048576 TiB"),
])  # fmt: skip
def test_bytes_as_a_person_reads_them(size: float, text: str) -> None:
    assert units.format_bytes(size) == text


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("n[1-3,7],login", ("n1", "n2", "n3", "n7", "login")), ("n[008-010]", ("n008", "n009", "n010")),
     ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2"))],
)  # fmt: skip
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert units.expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[1-3", "n1]", "n[]", "n[3-1]", "n[[1]]", "n[1-99999999]"])
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        units.expand_hosts(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(25, "25 s"), (5.5, "5.5 s"), (119, "119 s"), (120, "2 min"), (600, "10 min")]
)
def test_a_deadline_in_a_sentence(seconds: float, text: str) -> None:
    assert units.format_deadline(seconds) == text
