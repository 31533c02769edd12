"""Cached results of the searches for devices on each node.

Pods of one workload have claims with equal requests. The result of a search for such claims on a node changes only if
the use of a pool with devices of this node changes: one placement changes the result of few nodes.
Invariant: the cached results equal those of new searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hetsched.contracts.objects.devices import AttributeConstraint, Device, DeviceId, DeviceRequest, ResourceClaim

from .search import STOPPED, NodeDevices

# The requests and constraints of each claim, and the index of the first equal claim: a pod may use one claim twice.
Demand = tuple[tuple[tuple[DeviceRequest, ...], tuple[AttributeConstraint, ...], int], ...]
MOST_STOPPED = 8  # searches of one call, which take seconds together
_MOST_DEMANDS = 32  # a change of a pool that all nodes can access drops one result of each demand and node


class DeviceVerdicts:
    """Results of searches by demand and row: the reason why the devices of a node do not suffice, or an empty text."""

    def __init__(self) -> None:
        self._nodes: Mapping[int, NodeDevices] = {}
        self._rows: dict[str, list[int]] = {}  # pool -> rows of the nodes that can access one of its devices
        self._found: dict[Demand, dict[int, str]] = {}

    def search(
        self,
        claims: Sequence[ResourceClaim],
        nodes: Mapping[int, NodeDevices],
        devices: Sequence[Device],
        search: Callable[[NodeDevices], str],
    ) -> Mapping[int, str]:
        """Return the result for each row of `nodes`, which contains the devices that each node can access.

        After `MOST_STOPPED` stopped searches, the result of the remaining nodes is that of a stopped search.
        """
        if nodes is not self._nodes and nodes != self._nodes:
            self._found.clear()
            self._rows = {}
            for row, node in nodes.items():
                for pool in {devices[place].id.pool_key for place in node.places}:
                    self._rows.setdefault(pool, []).append(row)
        self._nodes = nodes
        demand = _demand(claims)
        if demand not in self._found and len(self._found) >= _MOST_DEMANDS:
            self._found.pop(next(iter(self._found)))
        found = self._found.setdefault(demand, {})
        stopped = 0
        for row, node in nodes.items():
            if row in found:
                continue
            if stopped == MOST_STOPPED:
                break
            found[row] = search(node)
            stopped += found[row] == STOPPED
        # The nodes that remain are searched by later calls.
        return found if len(found) == len(nodes) else {row: found.get(row, STOPPED) for row in nodes}

    def drop(self, devices: Iterable[DeviceId]) -> None:
        """Drop the results of the nodes that can access a pool of these devices, whose use has changed."""
        for pool in {device.pool_key for device in devices}:
            for row in self._rows.get(pool, ()):
                for found in self._found.values():
                    found.pop(row, None)


def _demand(claims: Sequence[ResourceClaim]) -> Demand:
    keys = [claim.key for claim in claims]
    return tuple((claim.requests, claim.constraints, keys.index(claim.key)) for claim in claims)
