"""Lists of whole numbers as ranges, against nested loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.errors import ArgumentError
from nestling.storage.ranges import from_ranges, to_ranges, whole

LOOPS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 7)), max_size=4)


def looped(first, loops):
    """What the loops give, by the loops themselves."""
    values = [first]
    for count, step in loops:
        values = [value + step * i for value in values for i in range(count)]
    return np.array(values)


@given(st.integers(0, 9), LOOPS)
def test_what_loops_give_is_read_as_they_give_it(first, loops):
    values = looped(first, loops)
    assert (from_ranges([first, *map(list, loops)], len(values)) == values).all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_a_list_comes_back_or_is_not_written(values):
    ranges = to_ranges(np.array(values))
    if ranges is not None:
        assert from_ranges(ranges, len(values)).tolist() == values


REGULAR = {
    "one": [3],
    "some": [0, 1, 2, 3],
    "backwards": [3, 2, 1, 0],
    "heads": [0, 0, 0, 1, 1, 1],
    "shuffled": [0, 4, 1, 5, 2, 6, 3, 7],
    "twice": [0, 1, 2, 0, 1, 2],
    "of two tensors": [0, 1, 8, 9, 2, 3, 10, 11],
}


@pytest.mark.parametrize("values", REGULAR.values(), ids=REGULAR.keys())
def test_regular_lists_are_short(values):
    ranges = to_ranges(np.array(values))
    assert from_ranges(ranges, len(values)).tolist() == values
    assert sum(np.size(own) for own in ranges) <= 7


def test_an_irregular_list_is_not_written():
    assert to_ranges(np.array([0, 1, 3, 4, 5])) is None


WRONG = (
    [],
    [1.0],
    [True],
    [-1],
    [2**40],
    ["0"],
    [0, 3],
    [0, [3]],
    [0, [0, 1]],
    [0, [-1, 1]],
    [0, [2, -1]],
    [0, [9, 1]],
)
WRONG += ([0, [4, 0], [4, 0]], [0, [2, 2**31], [2, 2**31]], [0, [10**12, 0]], None, 3, {}, [None], [0, [2, None]])


@pytest.mark.parametrize("saved", WRONG, ids=repr)
def test_what_no_list_of_rows_is(saved):
    with pytest.raises((ArgumentError, TypeError, ValueError)):
        from_ranges(saved, 8)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 8, [1]], ids=repr)
def test_what_no_number_within_bounds_is(value):
    with pytest.raises(ArgumentError):
        whole(value, 0, 7)
