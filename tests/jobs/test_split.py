"""gallery/split.py: the same rows whatever the partitions, exactly the share, none twice and none lost."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gallery import split
from gallery.job import RefusedError


@pytest.mark.parametrize("rows", [10, split.BLOCK + 5])
def test_partitions_make_no_difference_and_no_row_is_lost(rows: int) -> None:
    numbers = np.arange(rows)
    found = []
    for chunk in (rows, -(-rows // 3), max(rows // 10, 1)):
        x = da.from_array(np.stack([numbers, -numbers], axis=1), chunks=(chunk, 2))
        y = da.from_array(numbers, chunks=chunk)
        x_train, x_test, y_train, y_test = split.split(x, y, 7, 0.2)
        assert all(all(size > 0 for size in part.chunks[0]) for part in (x_train, x_test, y_train, y_test))
        assert x_train.numblocks[1] == 1
        assert (len(x_train), len(x_test)) == (len(y_train), len(y_test)) == (rows - round(rows / 5), round(rows / 5))
        np.testing.assert_array_equal(x_train[:, 0].compute(), y_train.compute())
        np.testing.assert_array_equal(x_test[:, 1].compute(), -y_test.compute())
        found.append((y_train.compute(), y_test.compute()))
    np.testing.assert_array_equal(np.sort(np.concatenate(found[0])), numbers)
    for train, test in found[1:]:
        np.testing.assert_array_equal(train, found[0][0])
        np.testing.assert_array_equal(test, found[0][1])


@given(st.integers(1, 300_000), st.integers(0, 300_000), st.integers(0, 9), st.floats(0.01, 0.99))
@settings(max_examples=30)
def test_a_part_of_the_rows_is_drawn_as_in_the_whole(total: int, at: int, seed: int, share: float) -> None:
    start = min(at, total - 1)
    whole = split.is_test(0, total, total, seed, share)
    assert whole.sum() == round(total * share)
    np.testing.assert_array_equal(split.is_test(start, total, total, seed, share), whole[start:])


def test_seeds_differ_and_too_few_rows_are_refused() -> None:
    assert (split.is_test(0, 1000, 1000, 1, 0.5) != split.is_test(0, 1000, 1000, 2, 0.5)).any()
    one = da.ones(2, chunks=1)
    with pytest.raises(RefusedError, match="2 rows leave none"):
        split.split(one, one, 0, 0.2)
