"""The columns of a list: what stands in a cell, what a program gets of it, and how rows are ordered by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class Cell(msgspec.Struct, frozen=True):
    """What one cell shows. `look` is "", text (may wrap), chip, bar, time, mono or muted.

    `text` None is unknown and shown as a dash; `note` stands small below. The `tone` of a chip is good, wait, bad, info
    or ""; that of a bar, which has a `ratio` 0-1, is cpu, memory or gpu.
    """

    text: Any
    url: str = ""
    look: str = ""
    tone: str = ""
    ratio: float | None = None
    title: str = ""
    note: str = ""


class Column(msgspec.Struct, frozen=True):
    """One column. `value` gives programs a plain value; `cell` gives people more, if more is to be said.

    `order` names the columns of the database that it is sorted by; without it rows in memory sort by `value`, and those
    of the database do not sort. A `falling` column is most often wanted from the top.
    """

    name: str
    label: Any
    value: Callable[[Any], Any]
    cell: Callable[[Any], Cell] | None = None
    number: bool = False
    order: tuple[str, ...] = ()
    shown: bool = True
    heavy: bool = False
    sortable: bool = True
    falling: bool = False

    def cell_of(self, row: Any) -> Cell:
        return self.cell(row) if self.cell else Cell(self.value(row))
