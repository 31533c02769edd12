"""A pod compiled against one cluster: resource names become row numbers, and demands become vectors.

Everything that depends on the pod's `Shape` alone is compiled once per shape and shared by all its pods. `memo` is the
CycleState of the plugins; the evaluator shares it between pods of one shape under one policy.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import USAGE_RESOURCES, Bools, ColumnLayout, Floats, Ints, ResourceRows, Rows

T = TypeVar("T")
_PlainKey = str | tuple[Any, ...]
# A shape with more node requirements than this is counted as several ordinary shapes.
_WIDTH = 100
_USAGE_POSITIONS = {name: position for position, name in enumerate(USAGE_RESOURCES)}


def width(shape: Shape) -> int:
    """Return the cost of a shape in memory and time as a number of ordinary shapes; it grows with node requirements."""
    if not (shape.node_terms or shape.preferred_nodes or shape.node_selector):
        return 1
    terms = [*(shape.node_terms or ()), *(preferred.term for preferred in shape.preferred_nodes)]
    stated = len(shape.node_selector) + sum(len(term.expressions) + len(term.fields) for term in terms)
    return 1 + stated // _WIDTH


class CompiledShape:
    """Compiled form of a shape: its contribution to a node's load.

    Array shapes: `needs_rows` (k,) resource rows with a positive demand, `needs` (k,) amounts, `delta` (L,) one pod's
    contribution to a node's load column, `expected_extra` (4,) expected use minus requests, or None. `has_rules` is
    true if the shape has inter-pod affinity or host ports, `kubelet_pins` if a kubelet with the static CPU policy would
    give it exclusive CPUs, `zoned_devices` if it requests devices with known zones, `static_memory` if a kubelet with
    the static memory manager would give it memory. `width` is its cost in memory and evaluation time, as a number of
    ordinary shapes.
    """

    __slots__ = (
        "_requested", "delta", "expected_extra", "has_rules", "kubelet_pins", "nonzero", "shape",
        "static_memory", "width", "zoned_devices",
    )  # fmt: skip

    def __init__(self, shape: Shape, layout: ColumnLayout, resources: ResourceRows) -> None:
        self.shape = shape
        self.width = width(shape)
        self.has_rules = bool(shape.affinity or shape.anti_affinity or shape.preferred_affinity or shape.host_ports)
        index = resources.index
        self.kubelet_pins = shape.guaranteed
        self.zoned_devices = bool(layout.devices) and any(
            name in layout.devices for container in shape.containers for name, _ in container.devices
        )
        self.static_memory = bool(layout.memory) and any(container.memory for container in shape.containers)
        self._requested = layout.load["requested"]
        requested, nonzero, used = layout.shape_rows
        # Filled as a list: assigning single elements of an array takes ten times as long.
        delta = [0] * layout.load_rows
        for name, amount in shape.requests:
            if amount > 0:
                delta[requested + index[name]] += amount  # resources that no node has share a row
            if name in _USAGE_POSITIONS:
                delta[used + _USAGE_POSITIONS[name]] = amount
        delta[nonzero], delta[nonzero + 1] = shape.nonzero_cpu_millis, shape.nonzero_memory_bytes
        if layout.power:
            delta[layout.start("power_placed")] = shape.expected_watts or 0
        self.delta: Ints = np.array(delta, np.int64)
        self.nonzero: Ints = self.delta[nonzero : nonzero + 2]
        self.expected_extra: Ints | None = None
        if shape.expected_usage:
            expected, asked = dict(shape.expected_usage), dict(shape.requests)
            extra = [expected.get(name, asked.get(name, 0)) - asked.get(name, 0) for name in USAGE_RESOURCES]
            self.expected_extra = np.array(extra, np.int64)

    @property
    def kubelet_assigns(self) -> bool:
        """Return whether a kubelet of the cluster may assign exclusive CPUs, devices or memory to the shape."""
        return self.kubelet_pins or self.zoned_devices or self.static_memory

    @property
    def needs_rows(self) -> Rows:
        return np.flatnonzero(self.delta[self._requested])

    @property
    def needs(self) -> Ints:
        amounts: Ints = self.delta[self._requested]
        return amounts[amounts > 0]


class StateKey(Generic[T]):
    """Typed key of a CycleState entry whose value has type T; keys are compared by identity."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"StateKey({self.name!r})"


class CycleState(Protocol):
    """Data that the plugins store for one request; at run time a plain dictionary.

    Values under a `StateKey` are typed. Plugins without type annotations, and keys with parameters, use plain keys.
    """

    @overload
    def __getitem__(self, key: StateKey[T], /) -> T: ...
    @overload
    def __getitem__(self, key: _PlainKey, /) -> Any: ...

    @overload
    def __setitem__(self, key: StateKey[T], value: T, /) -> None: ...
    @overload
    def __setitem__(self, key: _PlainKey, value: Any, /) -> None: ...

    @overload
    def get(self, key: StateKey[T], /) -> T | None: ...
    @overload
    def get(self, key: _PlainKey, /) -> Any: ...

    def __contains__(self, key: object, /) -> bool: ...


def cycle_state() -> CycleState:
    """Return an empty CycleState."""
    entries: dict[Any, Any] = {}
    return entries


def shape_of(request: Request) -> Shape:
    return request.shape


class Request:
    """One pod in a scheduling cycle; `feasible` (N,) is set for cluster-scoped PreScore plugins.

    `near_cards` are the GPUs of the zones that a Reserve plugin selected, or None; later plugins prefer them. `scored`
    contains the raw and the normalised scores (N,) of the plugins that are cluster-scoped or normalise their scores,
    until the pod is scheduled.
    """

    __slots__ = ("cluster_weight", "compiled", "feasible", "memo", "near_cards", "pod", "scored", "shape")

    def __init__(self, pod: PodSpec, compiled: CompiledShape) -> None:
        self.pod = pod
        self.cluster_weight = 0.0  # sum of the weights of the cluster-scoped scores that took part
        self.scored: dict[str, tuple[Floats, Floats]] = {}
        self.shape = compiled.shape
        self.compiled = compiled
        self.memo = cycle_state()
        self.feasible: Bools | None = None
        self.near_cards: frozenset[int] | None = None
