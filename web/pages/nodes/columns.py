"""The columns of the node list."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.contracts.units import CPU, MEMORY
from hetsched.inventory.tiles import shorten_isa

from ..amounts import amount_words, bytes_words, percent
from ..lists.columns import Cell, Column
from .fields import free, ratio, whole
from .rows import NodeListRow

ISA_SHOWN_CHARACTERS = 44
_TONES = {"cordoned": "wait", "not-ready": "bad", "gone": "bad"}


def _name_cell(row: NodeListRow) -> Cell:
    return Cell(row.name, url=reverse("node", args=[row.name]))


def _state_cell(row: NodeListRow) -> Cell:
    words = {"ready": _("ready"), "cordoned": _("cordoned"), "not-ready": _("not ready"), "gone": _("removed")}
    return Cell(words[row.state], look="chip" if row.state in _TONES else "muted", tone=_TONES.get(row.state, ""))


def _isa_cell(row: NodeListRow) -> Cell:
    if not row.isa:
        return Cell(_("unknown"), look="muted")
    return Cell(shorten_isa(row.isa, ISA_SHOWN_CHARACTERS), look="mono", title=row.isa)


def _bar_cell(row: NodeListRow, resource: str) -> Cell:
    used = row.ratio(resource)
    return Cell(None) if used is None else Cell(percent(used), look="bar", tone=resource, ratio=used)


def _card_memory_cell(row: NodeListRow) -> Cell:
    found = row.summary.card_memory_bytes
    return Cell(None if found is None else bytes_words(found))


def _reported_cell(row: NodeListRow) -> Cell:
    return Cell(row.updated_at, look="time")


def _amount_column(name: str, label: Any, resource: str, amount: Callable[[NodeListRow], float | None]) -> Column:
    """Return the column of an amount of CPU or memory, which is hidden by default."""

    def cell(row: NodeListRow) -> Cell:
        found = amount(row)
        return Cell(None if found is None else amount_words(resource, int(found)))

    return Column(name, label, amount, cell, number=True, shown=False, falling=True)


COLUMNS = (
    Column("name", gettext_lazy("Node"), lambda row: row.name, _name_cell),
    Column("state", gettext_lazy("State"), lambda row: row.state, _state_cell),
    Column("pool", gettext_lazy("Pool"), lambda row: row.pool),
    Column("arch", gettext_lazy("Family"), lambda row: row.family, shown=False),
    Column("isa", gettext_lazy("ISA"), lambda row: row.isa or None, _isa_cell),
    Column("cpu", gettext_lazy("CPU"), ratio(CPU), partial(_bar_cell, resource="cpu"), falling=True),
    Column("memory", gettext_lazy("Memory"), ratio(MEMORY), partial(_bar_cell, resource="memory"), falling=True),
    Column("gpu", gettext_lazy("GPU"), ratio("gpu"), partial(_bar_cell, resource="gpu"), falling=True),
    Column("pods", gettext_lazy("Pods"), lambda row: row.pods, number=True, falling=True),
    _amount_column("free.cpu", gettext_lazy("Free CPUs"), CPU, free(CPU)),
    _amount_column("free.memory", gettext_lazy("Free memory"), MEMORY, free(MEMORY)),
    Column("free.gpu", gettext_lazy("Free GPUs"), free("gpu"), number=True, shown=False, falling=True),
    _amount_column("total.cpu", gettext_lazy("CPUs"), CPU, whole(CPU)),
    _amount_column("total.memory", gettext_lazy("Memory capacity"), MEMORY, whole(MEMORY)),
    Column("total.gpu", gettext_lazy("GPUs"), lambda row: row.cards, number=True, shown=False, falling=True),
    Column(
        "gpu.model",
        gettext_lazy("GPU model"),
        lambda row: ", ".join(row.summary.models) or None,
        shown=False,
        heavy=True,
    ),
    Column(
        "gpu.memory",
        gettext_lazy("GPU memory"),
        lambda row: row.summary.card_memory_bytes,
        _card_memory_cell,
        number=True,
        shown=False,
        heavy=True,
        falling=True,
    ),
    Column("zones", gettext_lazy("Zones"), lambda row: row.summary.zones, number=True, shown=False, heavy=True),
    Column("reported", gettext_lazy("Reported"), lambda row: row.updated_at, _reported_cell, shown=False, falling=True),
)
