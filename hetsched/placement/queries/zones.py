"""NUMA zones of one node with its reservations, computed by the engine.

An engine state with only this node is built from the node's report and its active reservations, so the zones are those
that a decision uses.
"""

from __future__ import annotations

from collections.abc import Iterable

from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.numa.zones_at_risk import ZoneAtRisk, overcommitted
from hetsched.inventory.models import Node
from hetsched.placement.models import Reservation


def single_node_state(node: Node, reservations: Iterable[Reservation]) -> ClusterState:
    """Return an engine state that contains only this node with these reservations."""
    pods = (
        PodSpec(
            namespace=reservation.pod.namespace,
            name=reservation.pod.name,
            uid=reservation.pod.uid,
            shape=Shape(),
            node_name=node.name,
            allocation=reservation.allocation,
        )
        for reservation in reservations
    )
    return ClusterState([node.report], pods)


def zones_at_risk(node: Node, reservations: Iterable[Reservation]) -> list[ZoneAtRisk]:
    """Return the zones in which more CPU is granted than the zone has now, with the pods that hold this CPU."""
    return list(overcommitted(single_node_state(node, reservations))) if node.report.numa is not None else []
