"""List columns: cell content, exported value, and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class Cell(msgspec.Struct, frozen=True):
    """The content of one cell. `look` is "", text (may wrap), chip, bar, time, mono or muted.

    If `text` is None, the value is unknown and shown as a dash; `note` is shown in small type below. The `tone` of a
    chip is good, wait, bad, info or "". A bar has a `ratio` of 0-1, and its tone is cpu, memory or gpu.
    """

    text: Any
    url: str = ""
    look: str = ""
    tone: str = ""
    ratio: float | None = None
    title: str = ""
    note: str = ""


class Column(msgspec.Struct, frozen=True):
    """One column. `value` is the exported value; `cell` is the displayed content if it differs.

    `order` names the database columns for sorting. Without it, rows in memory are sorted by `value`, and database rows
    cannot be sorted. If `falling` is true, the first click on the header sorts in descending order.
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
