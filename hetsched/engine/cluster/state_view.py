"""Structural type of the cluster state for the components that the state is made of.

The components take the state as an argument, and the state imports them; this type keeps the imports in one direction.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from hetsched.contracts.objects.node_report import NodeReport

from .booking import Booking
from .columns import Bools, Columns, Ints, ResourceRows, Vocabulary

T = TypeVar("T")


class StateView(Protocol):
    """Inventory and bookings of `ClusterState`, where the attributes are described."""

    clocked: bool
    columns: Columns
    epoch: int
    log: list[int]
    namespaces: dict[str, dict[str, str]]
    on_row: list[dict[str, Booking]]
    reports: list[NodeReport]
    resources: ResourceRows
    row_of: dict[str, int]
    vendors: Vocabulary[str]

    def has_label(self, key: str) -> bool: ...

    def label(self, key: str) -> tuple[Ints, Vocabulary[str]]: ...

    def label_numbers(self, key: str) -> tuple[Ints, Bools]: ...

    def once(self, key: Hashable, make: Callable[[], T]) -> T: ...
