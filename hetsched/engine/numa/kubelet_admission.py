"""Where the kubelet would reject a pod: its verdict, predicted from the columns.

Rule: the verdict matters on nodes whose zones are known, where the kubelet pins the CPUs of a Guaranteed pod, or where
its topology policy binds a pod's cards. Nodes in equal states share one prediction. A card counts as free for the
kubelet while nobody holds any of it; cards whose zone nobody stated give no hint.
What a kubelet that pins would take is booked by zone (`predicted`), until its own choice is read back.
Source: see `kubelet`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetsched.contracts.allocation import ZoneGrant
from hetsched.contracts.workload import Shape
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Bools, Ints, Rows, Window

from .topology_manager import Container, Machine, Verdict, verdict
from .zones import Setup

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

_BINDING = ("restricted", "single-numa-node")


def kubelet_containers(shape: Shape) -> tuple[Container, ...]:
    """Return what a kubelet aligns of a pod: cards, and whole CPUs if the pod is Guaranteed."""
    return tuple(
        Container(container.cpus if shape.guaranteed else 0, container.cards, container.init)
        for container in shape.containers
        if container.cards or (container.cpus and shape.guaranteed)
    )


class Admission:
    """The verdicts on one shape, on the nodes of one state."""

    __slots__ = ("_matters", "_setups", "_vendor", "containers")

    def __init__(self, shape: Shape, state: ClusterState) -> None:
        self.containers = kubelet_containers(shape)
        pinned, with_cards = (any(part) for part in zip(*(c[:2] for c in self.containers), strict=True))
        self._setups = list(state.setups.values)
        self._matters: Bools = np.array(
            [s.zoned and ((s.pins and pinned) or (s.policy in _BINDING and with_cards)) for s in self._setups], np.bool_
        )
        vendor = shape.gpu.vendor if shape.gpu is not None else ""
        self._vendor = state.vendors.index.get(vendor, 0)

    @staticmethod
    def of(shape: Shape, state: ClusterState) -> Admission | None:
        """Return the verdicts on a shape, None if no kubelet of the cluster has a say."""
        if not shape.containers or not kubelet_containers(shape):
            return None
        admission = Admission(shape, state)
        return admission if admission._matters.any() else None

    def verdicts(self, nodes: Window) -> tuple[Rows, list[Verdict]]:
        """Return the rows of a window where a kubelet has a say, and what each says."""
        rows = np.flatnonzero(self._matters[nodes.static("topology_setup")])
        if not rows.size:
            return rows, []
        states = self._states(nodes)[rows]
        keys = [state.tobytes() for state in states]
        known = {key: self._verdict(state) for key, state in dict(zip(keys, states, strict=True)).items()}
        return rows, [known[key] for key in keys]

    def admits(self, nodes: Window) -> Bools:
        """Return (n,) True where no kubelet would reject the pod."""
        admitted: Bools = np.ones(nodes.n, np.bool_)
        rows, found = self.verdicts(nodes)
        admitted[rows] = [not one.reason for one in found]
        return admitted

    def setup(self, nodes: Window, row: int) -> Setup:
        return self._setups[int(nodes.static("topology_setup")[row])]

    def _states(self, nodes: Window) -> Ints:
        """Return (n, 1 + 4Z) all that a verdict depends on: setup, CPUs and free ones, cards and free ones by zone."""
        zones: Ints = np.arange(len(nodes.static("zone_cpus")))
        present = nodes.static("card_milli") > 0
        if self._vendor:
            vendor = nodes.static("card_vendor")
            present = present & ((vendor == self._vendor) | (vendor == 0))
        free = present & (nodes.load("card_milli_free") >= WHOLE_CARD_MILLI)
        inside = nodes.static("card_zone") == zones[:, None, None]
        blocks = (
            nodes.static("topology_setup")[None],
            nodes.static("zone_cpus"),
            np.maximum(nodes.load("zone_cpus_free"), 0),
            (inside & present).sum(axis=1),
            (inside & free).sum(axis=1),
        )
        return np.ascontiguousarray(np.concatenate(blocks).T)

    def _verdict(self, state: Ints) -> Verdict:
        setup = self._setups[int(state[0])]
        by_zone = state[1:].reshape(4, -1)
        count = max(1, len(np.trim_zeros(by_zone[0] + by_zone[2], "b")))
        containers = self.containers if setup.pins else tuple(c._replace(cpus=0) for c in self.containers)
        machine = Machine(*(tuple(part.tolist()) for part in by_zone[:, :count]))
        return verdict(setup.policy, setup.pod_scope, machine, containers)


def predicted(state: ClusterState, row: int, shape: Shape) -> tuple[ZoneGrant, ...]:
    """Return what a kubelet that pins would take of its zones for a pod, nothing if it would reject it."""
    admission = Admission.of(shape, state)
    facts = state.zones.nodes.get(row)
    if admission is None or facts is None:
        return ()
    _, found = admission.verdicts(Window(state.columns, np.array([row], np.intp)))
    cpus = found[0].cpus if found else ()
    return tuple(ZoneGrant(facts.names[position], None, 1000 * count) for position, count in enumerate(cpus) if count)
