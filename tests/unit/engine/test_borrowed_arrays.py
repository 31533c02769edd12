"""Arguments of compiled functions without counted references."""

from typing import NamedTuple

import numpy as np
from numba import njit

from hetsched.engine.compiled.machine_code import borrowed


class Block(NamedTuple):
    values: np.ndarray
    offset: int


@njit
def _add_offset(block, row):
    block = borrowed(block)
    part = block.values[row, 1:3]
    part += block.offset
    return part.sum()


def test_views_read_and_write_the_memory_of_the_caller():
    values = np.arange(8.0).reshape(2, 4)
    # Row 1 is 4, 5, 6, 7; 5 + 10 + 6 + 10 = 31.
    assert _add_offset(Block(values, 10), 1) == 31
    assert values.tolist() == [[0, 1, 2, 3], [4, 15, 16, 7]]


def test_memory_remains_valid_after_many_calls():
    for _ in range(1_000):
        values = np.ones((2, 4))
        assert _add_offset(Block(values, 1), 0) == 4
        del values
