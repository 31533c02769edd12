"""NUMA demand of a pod: where it fits, and which zones it gets.

The demand is the sum of whole CPU requests that are equal to their limits, over all containers except init containers.
A pod is topology-aware on a node by its own setting, else by the node's label, else if the kubelet has the policy
`single-numa-node`. An aware pod gets one zone:
    it fits if a zone has free CPU >= the sum (and enough free memory, if memory counts);
    it gets the zone with the most free CPU, among the zones with its GPUs if there are any, ties by lowest name
Any other pod may cross zones:
    whole of a zone = floor(effective CPU) - taken, in whole CPUs, at least 0;
    it fits if the sum of whole over the zones >= the requested CPUs;
    it gets CPUs of the zone with the most whole (ties: most free CPU, lowest name), then of the next zone, and
    so on until it has enough
A zone with enough free CPU has as many CPUs to pin, because allocatable does not exceed the named CPUs. For an aware
pod without whole CPUs, the sum is its total request, and it gets no named CPUs. On nodes with a static CPU manager the
kubelet decides; a pod that requires zones is not placed on a node whose zones are unknown.
Source: cassini (Tencent 2022); gocrane crane-scheduler `pkg/plugins/noderesourcetopology`; public contract section 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.units import CPU, MEMORY, mib_rounded_up
from hetsched.engine.cluster.columns import UNKNOWN, Bools, Ints, Window
from hetsched.engine.framework.request import StateKey
from hetsched.engine.gpu.eligibility import CardDemand

from .zones import SHARING

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

MEMO: StateKey[ZoneDemand | None] = StateKey("zone-demand")


class Share(NamedTuple):
    """Amounts that a pod gets in one zone; `position` is that of the zone."""

    position: int
    cpu_millis: int
    memory_mib: int


class ZoneDemand:
    """A shape's NUMA demand, evaluated for the topology setups of one state.

    `asked` is true if the pod itself requests zones; otherwise the pod is bound to zones only on nodes that treat it as
    aware. `cpus` are its whole CPUs, 0 if it has none and only its amount is counted; `cards` is its GPU demand, and
    `local` requires an aware pod's GPUs in its zone. `aware`, `bound` and `unknown` have shape (S,), one value for each
    of the S setups: whether the pod is treated as aware, is bound to zones, and has unknown zones.
    """

    __slots__ = (
        "asked", "aware", "bound", "cards", "cpu_millis", "cpu_policy", "cpus", "local", "memory_mib", "pinned",
        "unknown",
    )  # fmt: skip

    def __init__(self, shape: Shape, state: ClusterState, *, asked: bool, memory: bool, local: bool) -> None:
        wish = shape.numa
        counted = [container for container in shape.containers if container.cpus and not container.init]
        if counted:
            self.cpus = sum(container.cpus for container in counted)
            self.cpu_millis = 1000 * self.cpus
            bytes_asked = sum(container.memory_bytes for container in counted)
        else:
            self.cpus, self.cpu_millis, bytes_asked = 0, shape.request(CPU), shape.request(MEMORY)
        self.memory_mib = mib_rounded_up(bytes_asked) if memory else 0
        self.cpu_policy = wish.cpu_policy if wish is not None and self.cpus else "none"
        self.pinned = self.cpu_policy not in SHARING
        self.asked = asked
        gpu = shape.gpu
        self.cards = CardDemand(gpu, state) if gpu is not None and gpu.count else None
        self.local = local and self.cards is not None
        setups = state.setups.values
        own = None if wish is None else wish.aware
        self.aware: Bools = np.array([setup.aware if own is None else own for setup in setups], np.bool_)
        ours = np.array([setup.zoned and not setup.pins for setup in setups], np.bool_)
        self.bound: Bools = ours if asked else ours & self.aware
        self.unknown: Bools = np.array([asked and not (setup.zoned or setup.pins) for setup in setups], np.bool_)

    @staticmethod
    def of(
        shape: Shape, state: ClusterState, *, everyone: bool = False, memory: bool = False, local: bool = False
    ) -> ZoneDemand | None:
        """Derive a shape's demand, or None if no node binds it to zones.

        A pod requests zones by awareness or a CPU policy; with `everyone`, as in crane, also by whole CPUs alone,
        unless its policy is explicitly `none`. `memory` includes the memory request, `local` requires GPUs in the pod's
        zone.
        """
        wish = shape.numa
        counted = any(container.cpus and not container.init for container in shape.containers)
        aware = wish is not None and wish.aware is True
        if not counted and not (aware and shape.request(CPU)):
            return None
        if wish is not None and wish.aware is None and wish.cpu_policy == "none":
            return None
        asked = everyone or aware or (wish is not None and wish.cpu_policy != "none")
        demand = ZoneDemand(shape, state, asked=asked, memory=memory, local=local)
        return demand if demand.bound.any() or demand.unknown.any() else None

    # -- over windows ------------------------------------------------------------------------------------------------

    def room(self, nodes: Window) -> Bools:
        """Return the (Z, n) mask of zones that have room for the whole pod."""
        fits: Bools = nodes.load("zone_cpu_free") >= self.cpu_millis
        if self.memory_mib:
            fits = fits & (nodes.load("zone_memory_free") >= self.memory_mib)
        return fits & self.near(nodes) if self.local else fits

    def near(self, nodes: Window) -> Bools:
        """Return the (Z, n) mask of zones that have the requested GPUs; a GPU without a known zone is in every zone."""
        zones = nodes.columns.layout.zones
        if self.cards is None or not zones:
            return np.ones((zones, nodes.n), np.bool_)
        usable, zone = self.cards.usable(nodes), nodes.static("card_zone")
        positions: Ints = np.arange(zones)
        inside = usable & ((zone == positions[:, None, None]) | (zone == UNKNOWN))
        enough: Bools = inside.sum(axis=1) >= self.cards.demand.count
        return enough

    def whole(self, nodes: Window, extra: Ints | int = 0) -> Ints:
        """Return the number of whole CPUs that each zone can contribute to a pod that crosses zones, shape (Z, n).

        `extra` (Z, n) in millicores is added to the effective CPU.
        """
        effective, free = nodes.static("zone_cpu"), nodes.load("zone_cpu_free")
        whole: Ints = np.maximum(((effective + extra) // 1000 * 1000 - (effective - free)) // 1000, 0)
        return whole

    def fits(self, nodes: Window) -> Bools:
        """Return an (n,) mask: True where the zones have room for the pod, or the pod is not bound to zones."""
        setup = nodes.static("topology_setup")
        bound, aware = self.bound[setup], self.aware[setup]
        enough = ~self.unknown[setup]
        if (bound & aware).any():
            enough = enough & (~(bound & aware) | self.room(nodes).any(axis=0))
        if (bound & ~aware).any():
            enough = enough & (~bound | aware | self.crosses(nodes))
        return enough

    def crosses(self, nodes: Window) -> Bools:
        """Return an (n,) mask: True where all zones of a node together have room for the pod."""
        fits: Bools = np.add.reduce(self.whole(nodes), axis=0) >= self.cpus
        if self.memory_mib:
            free = np.maximum(nodes.load("zone_memory_free"), 0)
            fits = fits & (np.add.reduce(free, axis=0) >= self.memory_mib)
        return fits

    def zones_used(self, nodes: Window) -> Ints:
        """Return the number of zones that the pod would use on each node, shape (n,); 0 if it gets none."""
        setup = nodes.static("topology_setup")
        bound, aware = self.bound[setup], self.aware[setup]
        used: Ints = np.where(bound & aware & self.room(nodes).any(axis=0), 1, 0)
        crossing = bound & ~aware
        if crossing.any():
            whole, order = self._order(nodes)
            needed = _first_enough(np.take_along_axis(whole, order, axis=0), self.cpus)
            if self.memory_mib:
                memory = np.take_along_axis(np.maximum(nodes.load("zone_memory_free"), 0), order, axis=0)
                needed = np.maximum(needed, _first_enough(memory, self.memory_mib))
            used = np.where(crossing & self.crosses(nodes), needed, used)
        return used

    def _order(self, nodes: Window) -> tuple[Ints, Ints]:
        """Return whole CPUs by zone, and the zones in the order in which a crossing pod uses them, both (Z, n)."""
        whole = self.whole(nodes)
        order: Ints = np.lexsort((-nodes.load("zone_cpu_free"), -whole), axis=0)
        return whole, order

    # -- on one node -------------------------------------------------------------------------------------------------

    def choices(self, node: Window, preferred: Bools) -> Iterator[list[Share]]:
        """Yield the zones and amounts that the pod may get on the only node of a window, the best choice first.

        An aware pod gets one zone: the `preferred` (Z,) zones are first, then the zone with the most free CPU. Any
        other pod may cross zones. Its other choices are the single zones that have room for it.
        """
        if not self.aware[node.static("topology_setup")[0]]:
            yield from self._crossings(node)
            return
        room, free = np.flatnonzero(self.room(node)[:, 0]), node.load("zone_cpu_free")[:, 0]
        for position in sorted(room.tolist(), key=lambda zone: (not preferred[zone], -free[zone], zone)):
            yield [Share(position, self.cpu_millis, self.memory_mib)]

    def _crossings(self, node: Window) -> Iterator[list[Share]]:
        crossing = self._cross(node)
        if not crossing:
            return
        yield crossing
        memory_free = np.maximum(node.load("zone_memory_free")[:, 0], 0)
        fits = (self.whole(node)[:, 0] >= self.cpus) & (memory_free >= self.memory_mib)
        for position in np.flatnonzero(fits).tolist():
            if [share.position for share in crossing] != [position]:
                yield [Share(position, self.cpu_millis, self.memory_mib)]

    def _cross(self, node: Window) -> list[Share]:
        if not self.crosses(node)[0]:
            return []
        whole, order = self._order(node)
        memory_free = np.maximum(node.load("zone_memory_free")[:, 0], 0)
        cpus, memory = self.cpus, self.memory_mib
        shares: list[Share] = []
        for position in order[:, 0].tolist():
            if cpus == memory == 0:
                break
            share = Share(position, 1000 * min(int(whole[position, 0]), cpus), min(int(memory_free[position]), memory))
            cpus, memory = cpus - share.cpu_millis // 1000, memory - share.memory_mib
            if share.cpu_millis or share.memory_mib:
                shares.append(share)
        return sorted(shares)


def _first_enough(amounts: Ints, asked: int) -> Ints:
    """Return, for each column, the smallest number of leading rows whose sum reaches `asked`, shape (n,)."""
    short: Ints = (np.cumsum(amounts, axis=0) < asked).sum(axis=0) + 1
    return short
