"""Protocol of the cluster state for the components that it is composed of.

The state imports its components, and they have the state as an argument; this protocol avoids circular imports.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from hetsched.contracts.objects.node_report import NodeReport

from .columns import Bools, Columns, Ints, ResourceRows, Vocabulary
from .placed_pod import PlacedPod

T = TypeVar("T")


class StateView(Protocol):
    """The inventory and the placed pods of `ClusterState`, which documents the attributes."""

    clocked: bool
    columns: Columns
    epoch: int
    log: list[int]
    namespaces: dict[str, dict[str, str]]
    on_row: list[dict[str, PlacedPod]]
    reports: list[NodeReport]
    resources: ResourceRows
    row_of: dict[str, int]
    vendors: Vocabulary[str]

    def has_label(self, key: str) -> bool: ...

    def label(self, key: str) -> tuple[Ints, Vocabulary[str]]: ...

    def label_numbers(self, key: str) -> tuple[Ints, Bools]: ...

    def once(self, key: Hashable, make: Callable[[], T]) -> T: ...
