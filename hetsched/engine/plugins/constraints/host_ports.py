"""Never assign the same host port of a node to two pods.

Rule: two pods conflict on a node if they request the same host port and protocol on the same address, or if either
requests it on all addresses (0.0.0.0).
Source: kube-scheduler's NodePorts plugin.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import HostPort, Shape
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.cluster.pod_terms import ANY_ADDRESS
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[list[tuple[HostPort, Bools]]] = StateKey("host-ports")


@plugin(
    "host-ports",
    summary="Requested host ports must be free.",
    scope=Scope.CLUSTER,
    helped_by=frozenset({Event.NODE_ADDED, Event.POD_RELEASED}),
)
class HostPorts:
    def handles(self, shape: Shape) -> bool:
        return bool(shape.host_ports)

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        if not request.shape.host_ports:
            return SKIP
        request.memo[_PREPARED] = [(port, _taken(port, state)) for port in request.shape.host_ports]
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        fits: Bools = np.ones(nodes.n, np.bool_)
        for _, taken in request.memo[_PREPARED]:
            fits &= ~nodes.pick(taken)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        for port, taken in request.memo[_PREPARED]:
            text = f"{port.port}/{port.protocol}"
            yield (
                Refusal("HostPortConflict", Message("host port {port} is in use", port=text), (text,), resolvable=True),
                nodes.pick(taken),
            )

    def waits(self, request: Request) -> Message:
        ports = ", ".join(f"{port.port}/{port.protocol}" for port in request.shape.host_ports)
        return Message("a node on which host port {names} is free", names=ports)


def _taken(port: HostPort, state: ClusterState) -> Bools:
    """Return the (N,) mask of nodes on which a placed pod uses a conflicting port."""
    taken = np.zeros(len(state.reports), np.bool_)
    wanted = port.ip or ANY_ADDRESS
    for address, holders in state.neighbours.ports.get((port.protocol, port.port), {}).items():
        if ANY_ADDRESS in (wanted, address) or wanted == address:
            taken[np.fromiter(holders, np.intp, len(holders))] = True
    return taken
