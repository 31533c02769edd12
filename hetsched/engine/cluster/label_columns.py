"""Columns of node labels, computed when a plugin first reads a label.

Pods may name any number of labels, so only labels that at least one node has get a column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsched.contracts.objects.labels import integer
from hetsched.contracts.objects.node_report import NodeReport

from .columns import Bools, Ints, Vocabulary

LabelColumn = tuple[Ints, Vocabulary[str]]
LabelNumbers = tuple[Ints, Bools]


class LabelColumns:
    """Label columns of the nodes with these reports, in row order; a changed report needs a new object."""

    def __init__(self, reports: Sequence[NodeReport]) -> None:
        self._reports = reports
        self._keys: frozenset[str] | None = None
        self._columns: dict[str, LabelColumn] = {}
        self._numbers: dict[str, LabelNumbers] = {}
        self._absent: LabelColumn | None = None  # shared by all labels that no node has

    def has(self, key: str) -> bool:
        """Return whether a node has this label."""
        if self._keys is None:
            self._keys = frozenset().union(*(report.labels for report in self._reports))
        return key in self._keys

    def column(self, key: str) -> LabelColumn:
        """Return the value ids (N,) of one label, -1 where absent, and the vocabulary of values."""
        found = self._columns.get(key)
        if found is not None:
            return found
        if not self.has(key):
            if self._absent is None:
                self._absent = np.full(len(self._reports), -1, np.int64), Vocabulary()
            return self._absent
        values: Vocabulary[str] = Vocabulary()
        ids = [values.id(report.labels[key]) if key in report.labels else -1 for report in self._reports]
        found = self._columns[key] = (np.array(ids, np.int64), values)
        return found

    def numbers(self, key: str) -> LabelNumbers:
        """Return the numbers (V + 1,) of the values of one label, and which values are numbers.

        The last entry belongs to nodes without the label, whose value id is -1.
        """
        _, values = self.column(key)
        if not len(values):
            return _NO_NUMBERS
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = _numbers(values)
        return found


def _numbers(values: Vocabulary[str]) -> LabelNumbers:
    numbers = [integer(value) for value in values.values] + [None]
    return np.array([number or 0 for number in numbers], np.int64), np.array([n is not None for n in numbers], np.bool_)


_NO_NUMBERS = _numbers(Vocabulary())
