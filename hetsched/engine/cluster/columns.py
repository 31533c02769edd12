"""The snapshot as columns: one array row per fact, one array column per node.

A decision reads thousands of nodes, and Python objects per node cost a hundred times more than arrays. Facts are stored
in two int64 blocks, `static` (the inventory) and `load` (changed by placements), divided into named fields by a
`ColumnLayout`. Nodes are in name order, so the first maximum of a score belongs to the first node by name. The engine
calls the position of a node in this order its row, although the arrays store each node as a column. A `Window` shows
the fields of all nodes, of a few changed nodes or of hypothetical nodes; plugins see only windows.
Invariants: windows are read-only to plugins; a field of a window equals the field over all nodes, restricted to the
nodes of the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

UNKNOWN = -1
UNLIMITED = 2**60
WHOLE_CARD_MILLI = 1000
WORD_BITS = 62  # bits of a CPU set per int64 cell; with 64 bits, a cell could be negative

USAGE_RESOURCES = ("cpu", "memory", "hetsched.io/network-mbps", "hetsched.io/disk-mbps")

_SINGLE = ("ready", "unschedulable", "taint_set", "isa_offer", "topology_setup", "cards_healthy", "cards_present")

T = TypeVar("T")


class Vocabulary(Generic[T]):
    """Small dense ids for values that many nodes share (ISA offers, taint sets, GPU models, label values)."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        self.values: list[T] = []
        self.index: dict[T, int] = {}
        for value in values:
            self.id(value)

    def id(self, value: T) -> int:
        found = self.index.get(value)
        if found is None:
            found = self.index[value] = len(self.values)
            self.values.append(value)
        return found

    def __len__(self) -> int:
        return len(self.values)


# Key of the row shared by all resources that no node has; pods may request any number of such resources. It is not
# a valid resource name.
UNKNOWN_RESOURCE = ""


class _ResourceRows(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return self[UNKNOWN_RESOURCE]


class ResourceRows(Vocabulary[str]):
    """Resource name -> row; names that no node has map to the row of `UNKNOWN_RESOURCE`, if there is one."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__()
        self.index = _ResourceRows()
        for name in names:
            self.id(name)


class ColumnLayout:
    """Mapping of fields to rows of the two blocks.

    Each field is listed with its size and its unit. The sizes are R, the number of resources; G, the highest number of
    GPUs of a node; Z, the highest number of zones of a node, which all `zone_` fields have; or a number. Fields without
    a size have one row.
    Static fields: `allocatable` (R; millicores, bytes, counts), `card_model`, `card_vendor` (G; vocabulary ids),
    `card_memory` (G; MiB, -1 unknown), `card_cores` (G; -1 unknown), `card_milli` (G; 1000, or 0 if absent or
    unhealthy), `card_resting` (G; 1000 where only maintenance makes `card_milli` 0), `cards_healthy` (count),
    `cards_present` (count, including GPUs that are unhealthy or in maintenance), `ready`, `unschedulable` (0/1),
    `taint_set`, `isa_offer`, `topology_setup` (ids), `measured` (4; 0/1).
    Load fields: `requested` (R), `nonzero` (2; millicores, bytes), `card_milli_free`, `card_memory_free` (G; MiB),
    `used` (4; the `USAGE_RESOURCES`: sampled where `measured` is 1, else requested).
    NUMA zones, absent in a cluster without them: static `zone_cpu` (Z; effective millicores), `zone_cpu_allocatable`
    (the same before the use of online workloads is subtracted), `zone_unreadable` (0/1; its offline capacity cannot be
    read), `zone_memory` (MiB, -1 unknown), `zone_cpus` (count), `zone_cpus_usable` (count, not reserved), `card_zone`
    (G; position of a GPU's zone, -1 unknown); load `zone_cpu_free` (negative if the capacity fell below the
    allocations), `zone_memory_free`, `zone_cpus_free` (CPUs that can still be pinned).
    Kubelets with the static CPU policy: static `kubelet_cpus` (words of bits; the CPUs of the node's topology that are
    not reserved), load `kubelet_cpus_free` (those that are not assigned). Extended resources whose devices have zones,
    by `devices` (name -> number) x Z: static `zone_devices`, load `zone_devices_free`.
    Kubelets with the static memory manager, by `memory` (kind -> number) x Z, in bytes: static `static_memory`, load
    `static_memory_free`; and for each zone the set of zones, as bits, that its memory is assigned with: load
    `memory_group` (Z; 0 if no memory of the zone is assigned).
    Power, 0 rows in a cluster whose nodes do not report it, else 1: static `power_state` (0 unknown, else 1 + the
    position in `POWER_STATES`), `power_headroom` (watts, -1 unknown); load `power_placed` (watts of the pods added
    since the node's report, minus those removed).
    """

    __slots__ = (
        "cards", "devices", "load", "load_rows", "memory", "power", "resources", "shape_rows", "static",
        "static_rows", "words", "zones",
    )  # fmt: skip

    def __init__(
        self,
        resources: int,
        cards: int,
        zones: int = 0,
        power: int = 0,
        words: int = 0,
        devices: Mapping[str, int] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> None:
        self.words = words
        self.devices = dict(devices or {})
        self.memory = dict(memory or {})
        self.resources = resources
        self.cards = cards
        self.zones = zones
        self.power = power
        self.static, self.static_rows = _slices(
            ("allocatable", resources), ("card_model", cards), ("card_vendor", cards), ("card_memory", cards),
            ("card_cores", cards), ("card_milli", cards), ("card_resting", cards), ("measured", len(USAGE_RESOURCES)),
            *((name, 1) for name in _SINGLE), ("zone_cpu", zones), ("zone_cpu_allocatable", zones),
            ("zone_unreadable", zones),
            ("zone_memory", zones), ("zone_cpus", zones), ("zone_cpus_usable", zones),
            ("card_zone", cards if zones else 0), ("power_state", power), ("power_headroom", power),
            ("kubelet_cpus", words), ("zone_devices", len(self.devices) * zones),
            ("static_memory", len(self.memory) * zones),
        )  # fmt: skip
        self.load, self.load_rows = _slices(
            ("requested", resources), ("nonzero", 2), ("card_milli_free", cards), ("card_memory_free", cards),
            ("used", len(USAGE_RESOURCES)), ("zone_cpu_free", zones), ("zone_memory_free", zones),
            ("zone_cpus_free", zones), ("power_placed", power), ("kubelet_cpus_free", words),
            ("zone_devices_free", len(self.devices) * zones), ("static_memory_free", len(self.memory) * zones),
            ("memory_group", zones if self.memory else 0),
        )  # fmt: skip
        # First rows of the fields that every shape contributes to.
        self.shape_rows = self.start("requested"), self.start("nonzero"), self.start("used")

    def wider(self, resources: int) -> ColumnLayout:
        """Return a copy of this layout for `resources` resources."""
        return ColumnLayout(resources, self.cards, self.zones, self.power, self.words, self.devices, self.memory)

    def start(self, field: str) -> int:
        """Return the first row of a field in its block."""
        cut = self.load.get(field)
        if cut is None:
            cut = self.static[field]
        return cut.start if isinstance(cut, slice) else cut


def _slices(*fields: tuple[str, int]) -> tuple[dict[str, slice | int], int]:
    """Lay out fields one after another; return the position of each and the number of rows."""
    cut: dict[str, slice | int] = {}
    start = 0
    for name, size in fields:
        cut[name] = start if name in _SINGLE else slice(start, start + size)
        start += size
    return cut, start


class Columns:
    """All fields of all nodes; only the cluster state writes to them."""

    __slots__ = ("layout", "load", "names", "static")

    def __init__(
        self, names: Sequence[str], layout: ColumnLayout, static: Ints | None = None, load: Ints | None = None
    ):
        self.names = list(names)
        self.layout = layout
        count = len(self.names)
        self.static = np.zeros((layout.static_rows, count), np.int64) if static is None else static
        self.load = np.zeros((layout.load_rows, count), np.int64) if load is None else load

    def field(self, name: str) -> Ints:
        """Return one field as a writable view, (size, N) or (N,)."""
        cut = self.layout.static.get(name)
        block = self.static
        if cut is None:
            cut, block = self.layout.load[name], self.load
        view: Ints = block[cut]
        return view

    def copy(self) -> Columns:
        return Columns(self.names, self.layout, self.static.copy(), self.load.copy())


class Window:
    """Read-only view of the fields of some nodes.

    Array shapes: with n = number of nodes in the window, a field of size k is (k, n), a field without a size (n,).
    """

    __slots__ = ("_fields", "columns", "n", "rows")

    def __init__(self, columns: Columns, rows: Rows | None = None) -> None:
        self.columns = columns
        self.rows = rows
        self.n = len(columns.names) if rows is None else len(rows)
        self._fields: dict[str, Ints] = {}

    def static(self, name: str) -> Ints:
        """Return a field of the static block, that is, of the inventory."""
        field = self._fields.get(name)
        if field is None:
            field = self._fields[name] = self._cut(self.columns.static[self.columns.layout.static[name]])
        return field

    def load(self, name: str) -> Ints:
        """Return a field of the load block, which placements change."""
        field = self._fields.get(name)
        if field is None:
            field = self._fields[name] = self._cut(self.columns.load[self.columns.layout.load[name]])
        return field

    def _cut(self, field: Ints) -> Ints:
        # Values are copied only for the fields that are read; over all rows, a field is a view and nothing is copied.
        return field if self.rows is None else field.take(self.rows, axis=-1)

    def pick(self, values: NDArray[Any]) -> NDArray[Any]:
        """Restrict an array over all nodes, (N,), to the nodes of this window, (n,)."""
        return values if self.rows is None else values.take(self.rows)

    def names(self) -> list[str]:
        names = self.columns.names
        return names if self.rows is None else [names[row] for row in self.rows]
