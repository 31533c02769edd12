"""A pod compiled against one cluster: names become rows, demands become vectors.

Rule: everything that depends on the pod's `Shape` alone is compiled once per shape and shared by all its pods. `memo`
is where plugins keep what they prepared; the evaluator shares it between pods of one shape under one policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hetsched.contracts.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import USAGE_RESOURCES, Bools, Ints, Rows

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState


class CompiledShape:
    """What a shape adds to a node, ready for the ledger.

    Shapes: `needs_rows` (k,) resource rows with a positive demand, `needs` (k,) amounts, `delta` (L,) what one pod
    adds to a node's load column, `expected_extra` (4,) what its expected use differs from its requests, or None.
    `has_rules` tells whether it makes demands on its neighbours, `kubelet_pins` whether a kubelet that pins would
    give it CPUs of its own.
    """

    __slots__ = ("_requested", "delta", "expected_extra", "has_rules", "kubelet_pins", "nonzero", "shape")

    def __init__(self, shape: Shape, state: ClusterState) -> None:
        self.shape = shape
        self.has_rules = bool(shape.affinity or shape.anti_affinity or shape.preferred_affinity or shape.host_ports)
        self.kubelet_pins = shape.guaranteed
        layout, index = state.columns.layout, state.resources.index
        self._requested = layout.load["requested"]
        requested, nonzero, used = layout.start("requested"), layout.start("nonzero"), layout.start("used")
        # Filled as a list: an array takes ten times as long for every single element.
        delta = [0] * layout.load_rows
        for name, amount in shape.requests:
            delta[requested + index[name]] = max(amount, 0)
        delta[nonzero], delta[nonzero + 1] = shape.nonzero_cpu_millis, shape.nonzero_memory_bytes
        asked = dict(shape.requests)
        for position, name in enumerate(USAGE_RESOURCES, start=used):
            delta[position] = asked.get(name, 0)
        if layout.power:
            delta[layout.start("power_placed")] = shape.expected_watts or 0
        self.delta: Ints = np.array(delta, np.int64)
        self.nonzero: Ints = self.delta[nonzero : nonzero + 2]
        self.expected_extra: Ints | None = None
        if shape.expected_usage:
            expected = dict(shape.expected_usage)
            extra = [expected.get(name, asked.get(name, 0)) - asked.get(name, 0) for name in USAGE_RESOURCES]
            self.expected_extra = np.array(extra, np.int64)

    @property
    def needs_rows(self) -> Rows:
        return np.flatnonzero(self.delta[self._requested])

    @property
    def needs(self) -> Ints:
        amounts: Ints = self.delta[self._requested]
        return amounts[amounts > 0]


class Request:
    """One pod on its way through a scheduling cycle; `feasible` (N,) is known to cluster-scoped PreScore steps.

    `near_cards` are the cards of the zones that a Reserve step chose, None where none did: later steps prefer them.
    """

    __slots__ = ("cluster_weight", "compiled", "feasible", "memo", "near_cards", "pod", "shape")

    def __init__(self, pod: PodSpec, compiled: CompiledShape) -> None:
        self.pod = pod
        self.cluster_weight = 0.0  # sum of the weights of the cluster-scoped scores that took part
        self.shape = compiled.shape
        self.compiled = compiled
        self.memo: dict[Any, Any] = {}
        self.feasible: Bools | None = None
        self.near_cards: frozenset[int] | None = None
