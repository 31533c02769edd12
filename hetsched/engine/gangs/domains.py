"""Topology domains: the nodes with equal values of one or more labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from hetsched.engine.cluster.columns import UNKNOWN, Ints
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.gangs import GangDomain

Levels = tuple[str, ...]  # a label and the labels of all wider levels


class Domains(NamedTuple):
    """All domains of one level.

    `of_row` (N,) is the position of each node's domain, UNKNOWN for nodes without one of the labels. `names` are the
    label values of each domain, the widest level first, joined by `/`. `first_rows` (D,) is the first row of each.
    """

    label: str
    of_row: Ints
    names: tuple[str, ...]
    first_rows: Ints

    def sums(self, values: Ints) -> Ints:
        """Return (D,) the sum of `values` (N,) over the nodes of each domain."""
        inside = self.of_row != UNKNOWN
        found = np.zeros(len(self.names), np.int64)
        np.add.at(found, self.of_row[inside], values[inside])
        return found

    def domain(self, position: int) -> GangDomain:
        return GangDomain(self.label, self.names[position], self.of_row == position)

    def positions_of(self, rows: Iterable[int]) -> set[int]:
        """Return the positions of the domains of these rows, with UNKNOWN if a row is in no domain."""
        return {int(self.of_row[row]) for row in rows}


def domains_of(state: ClusterState, levels: Levels) -> Domains:
    """Return the domains of a level, cached until the inventory changes."""
    return state.once(("gang-domains", levels), lambda: _domains(state, levels))


def _domains(state: ClusterState, levels: Levels) -> Domains:
    columns = [state.label(key) for key in levels]
    values = np.array([ids for ids, _ in columns])
    inside = (values != UNKNOWN).all(axis=0)
    of_row = np.full(len(inside), UNKNOWN, np.int64)
    found, first, inverse = np.unique(values[:, inside], axis=1, return_index=True, return_inverse=True)
    of_row[inside] = inverse.reshape(-1)
    names = tuple(
        "/".join(
            vocabulary.values[value] for value, (_, vocabulary) in reversed(list(zip(domain, columns, strict=True)))
        )
        for domain in found.T.tolist()
    )
    return Domains(levels[0], of_row, names, np.flatnonzero(inside)[first])
