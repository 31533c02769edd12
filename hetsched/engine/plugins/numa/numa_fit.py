"""Give pods zones with enough free capacity and exact CPUs, and skip nodes whose kubelet would reject them.

Problem: a node with 8 free CPUs in two zones may not have 6 free CPUs in one zone, and CPUs used by online workloads
are not free. If only the kubelet detects this after the binding, the pod is scheduled, rejected and recreated in a
loop.
Rule: `zone_demand` defines the request and the zones of a pod, `zones` their free capacity, `cpu_selection` the CPUs,
and `topology_manager` whether the kubelet of the node would admit the pod. The plugin applies to (1) pods that ask for
NUMA placement by the topology-awareness or the CPU-policy annotation, and (2) other pods with whole-CPU requests on
nodes with topology awareness enabled. With `pods` "whole-cpus", (2) applies on all nodes, as in crane. If the kubelet
pins the CPUs of a pod, the plugin only predicts the kubelet's choice.
    exclusive, immovable   whole CPUs of each zone, in the order `spread` or `pack`
    numa                   the shared CPUs of the zones;  none   amounts of the zones, no pinned CPUs
`gpu-fit` prefers GPUs in the chosen zone. With `cards` "require", the pod fits only if the zone has these GPUs. The
zones are chosen together with the devices of resource claims (`engine.numa.device_zones`).
Source: cassini (Tencent 2022); gocrane crane-scheduler `pkg/plugins/noderesourcetopology`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.cpuset import format_cpuset
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.node_report import ZONE_PROBLEM
from hetsched.contracts.params import Params
from hetsched.contracts.units import CPU, MEMORY, MIB, format_amount
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import UNKNOWN, Bools, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import LoopReserve
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Refusal, Skip
from hetsched.engine.numa.cpu_grants import pinned, shared
from hetsched.engine.numa.device_zones import CPU_ZONES, CpuZones, chosen_zones
from hetsched.engine.numa.kubelet_admission import KubeletAdmission
from hetsched.engine.numa.resource_managers import SMT_ALIGNMENT_ERROR
from hetsched.engine.numa.topology_manager import TOPOLOGY_AFFINITY_ERROR
from hetsched.engine.numa.zone_demand import MEMO, Share, ZoneDemand

CAPACITY_UNREADABLE = Refusal(
    ZONE_PROBLEM,
    Message("the offline_capacity of a NUMA zone cannot be read, so the zone is not used"),
    unknown=True,
    resolvable=True,
)
TOPOLOGY_UNKNOWN = Refusal("TopologyUnknown", Message("the node's NUMA zones are unknown"), unknown=True)
MEMORY_UNKNOWN = Refusal(
    "ZoneMemoryUnknown", Message("the memory of the node's NUMA zones is unknown"), unknown=True, resolvable=True
)
CHANGED = Refusal(
    "ZoneCpuInsufficient", Message("the selected NUMA zones no longer have enough free CPUs or memory"), resolvable=True
)


class NumaFitParams(Params, frozen=True):
    """Affected pods, counted resources, and the selection of CPUs."""

    order: Annotated[
        Literal["spread", "pack"],
        msgspec.Meta(title="CPU order", description="spread: one thread of each core first. pack: whole cores first."),
    ] = "spread"
    memory: Annotated[
        bool, msgspec.Meta(title="Check memory", description="A zone must also have enough free memory for the pod.")
    ] = False
    cards: Annotated[
        Literal["prefer", "require"],
        msgspec.Meta(title="GPUs in the zone", description="Prefer or require a zone with the GPUs of the pod."),
    ] = "prefer"
    pods: Annotated[
        Literal["asking", "whole-cpus"],
        msgspec.Meta(
            title="Pods",
            description=(
                "asking: pods that request zones and, on nodes with topology awareness, pods that request whole CPUs. "
                "whole-cpus: on all nodes, pods that request zones or whole CPUs, as in crane."
            ),
        ),
    ] = "asking"


@plugin(
    "numa-fit",
    summary="Select NUMA zones and CPUs; exclude nodes whose kubelet would reject the pod.",
    params=NumaFitParams,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_CAPACITY, Event.NODE_LABELS, Event.POD_RELEASED}),
)
class NumaFit:
    params: NumaFitParams
    compiled_reserve = LoopReserve.NOTHING  # shapes that this plugin filters are left to the scheduling cycle

    @property
    def counts_zone_memory(self) -> bool:
        return self.params.memory

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        cpus = self.cpu_zones(request, state)
        return SKIP if cpus.demand is None and cpus.admission is None else None

    def cpu_zones(self, request: Request, state: ClusterState) -> CpuZones:
        """Return the inputs of the zones of a pod's CPUs; they are computed once for each request."""
        found = request.memo.get(CPU_ZONES)
        if found is None:
            params, shape = self.params, request.shape
            found = CpuZones(None, None)
            if shape.numa is not None or shape.containers:
                demand = ZoneDemand.of(
                    shape,
                    state,
                    everyone=params.pods == "whole-cpus",
                    memory=params.memory,
                    local=params.cards == "require",
                )
                found = CpuZones(demand, KubeletAdmission.of(shape, state))
            request.memo[CPU_ZONES] = found
            request.memo[MEMO] = found.demand
        return found

    def filter(self, request: Request, nodes: Window) -> Bools:
        demand, admission = request.memo[CPU_ZONES]
        fits: Bools = np.ones(nodes.n, np.bool_) if demand is None else demand.fits(nodes)
        return fits if admission is None else fits & admission.admits(nodes)

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        demand, admission = request.memo[CPU_ZONES]
        remaining: Bools = np.ones(nodes.n, np.bool_)
        for refusal, rows in (*_zone_refusals(demand, nodes), *_kubelet_refusals(admission, nodes)):
            if (remaining & rows).any():
                yield refusal, remaining & rows
            remaining = remaining & ~rows

    def waits(self, request: Request) -> Message:
        demand: ZoneDemand | None = request.memo[CPU_ZONES].demand
        if demand is None:
            return Message("a node whose kubelet would admit the pod")
        return Message("a node with {cpu} free CPUs in suitable NUMA zones", cpu=format_amount(CPU, demand.cpu_millis))

    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        cpus = request.memo.get(CPU_ZONES)
        if cpus is None:
            return None
        request.near_cards = None
        node = Window(state.columns, np.array([row], np.intp))
        aligned: tuple[int, ...] = ()
        if cpus.admission is not None:
            for refusal, rows in _kubelet_refusals(cpus.admission, node):
                if rows[0]:
                    return refusal
            _, verdicts = cpus.admission.verdicts(node)
            aligned = verdicts[0].aligned if verdicts else ()
        demand = cpus.demand
        shares: list[Share] = []
        if demand is not None and demand.bound[node.static("topology_setup")[0]]:
            choice = chosen_zones(cpus, request, row, state)
            if choice is None:
                return CHANGED
            shares = choice.shares
        near = aligned or tuple(share.position for share in shares)
        if near:
            request.near_cards = frozenset(np.flatnonzero(np.isin(node.static("card_zone")[:, 0], near)).tolist())
        if demand is None or not shares:
            return None
        zones = tuple(self._grant(request, demand, row, share, state) for share in shares)
        return Allocation(zones=zones, cpu_policy=demand.cpu_policy)

    def _grant(self, request: Request, demand: ZoneDemand, row: int, share: Share, state: ClusterState) -> ZoneGrant:
        cpus: list[int] | frozenset[int] | None = None
        if demand.pinned:
            count = share.cpu_millis // 1000
            cpus = pinned(state, row, share.position, count, self.params.order, request.shape.load_profile)
        elif demand.cpu_policy == "numa":
            cpus = shared(state, row, share.position)
        name = state.zones.nodes[row].names[share.position]
        return ZoneGrant(name, None if cpus is None else format_cpuset(cpus), share.cpu_millis, share.memory_mib)

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Do nothing: the zones and CPUs are released when the assumed pod is removed."""


def _zone_refusals(demand: ZoneDemand | None, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
    """Yield refusals for zones without enough capacity, each with the (n,) mask of its nodes.

    A refusal states the largest amounts that the zones of these nodes have free.
    """
    if demand is None:
        return
    setup = nodes.static("topology_setup")
    yield TOPOLOGY_UNKNOWN, demand.unknown[setup]
    bound, aware = demand.bound[setup], demand.aware[setup]
    free = nodes.load("zone_cpu_free")
    unreadable = nodes.static("zone_unreadable") > 0
    lent = nodes.static("zone_cpu_allocatable") - nodes.static("zone_cpu")
    hidden, lent = np.where(unreadable, lent, 0), np.where(unreadable, 0, lent)
    cpu = format_amount(CPU, demand.cpu_millis)
    one = bound & aware & ~demand.room(nodes).any(axis=0)
    if one.any():
        enough = free + hidden >= demand.cpu_millis
        yield CAPACITY_UNREADABLE, one & (unreadable & enough & _else_suitable(demand, nodes)).any(axis=0)
        short = one & ~enough.any(axis=0)
        yield _lent(short & (free + lent >= demand.cpu_millis).any(axis=0), lent, cpu)
        most = format_amount(CPU, int(free[:, short].max(initial=0)))
        yield (
            _short_of_cpu(
                Message("no NUMA zone has {cpu} free CPUs; at most {most} are free in one zone", cpu=cpu, most=most)
            ),
            short,
        )
        yield from _without_memory(demand, nodes, one, enough)
        text = Message("no NUMA zone with {cpu} free CPUs has the requested GPUs", cpu=cpu)
        yield Refusal("ZoneCardsInsufficient", text, ("gpu-number",), resolvable=True), one
    crossing = bound & ~aware & ~demand.crosses(nodes)
    if crossing.any():
        total = demand.whole(nodes).sum(axis=0)
        short = crossing & (total < demand.cpus)
        uncertain = short & (demand.whole(nodes, hidden).sum(axis=0) >= demand.cpus)
        yield from _without_memory(demand, nodes, uncertain, None)
        yield CAPACITY_UNREADABLE, uncertain
        yield _lent(short & (total + lent.sum(axis=0) // 1000 >= demand.cpus), lent, cpu)
        most = str(int(total[short].max(initial=0)))
        yield (
            _short_of_cpu(
                Message(
                    "the NUMA zones together have {most} whole CPUs free, but {cpu} are requested", most=most, cpu=cpu
                )
            ),
            short,
        )
        yield from _without_memory(demand, nodes, crossing, None)


def _short_of_cpu(message: Message) -> Refusal:
    return Refusal("ZoneCpuInsufficient", message, missing=(CPU,), resolvable=True)


def _lent(rows: Bools, lent: Ints, cpu: str) -> tuple[Refusal, Bools]:
    most = format_amount(CPU, int(lent[:, rows].max(initial=0)))
    text = Message(
        "{cpu} CPUs do not fit now because online workloads or maintenance reduce the allocatable CPUs of a zone by "
        "up to {most}",
        cpu=cpu,
        most=most,
    )
    return Refusal("ZoneCapacityLent", text, missing=(CPU,), resolvable=True), rows


def _else_suitable(demand: ZoneDemand, nodes: Window) -> Bools:
    """Return the (Z, n) mask of zones with enough GPUs, and enough or unknown memory, for the whole pod."""
    suitable: Bools = np.ones((nodes.columns.layout.zones, nodes.n), np.bool_)
    if demand.memory_mib:
        unknown = nodes.static("zone_memory") == UNKNOWN
        suitable &= unknown | (nodes.load("zone_memory_free") >= demand.memory_mib)
    return suitable & demand.near(nodes) if demand.local else suitable


def _without_memory(
    demand: ZoneDemand, nodes: Window, rows: Bools, with_cpu: Bools | None
) -> Iterator[tuple[Refusal, Bools]]:
    """Yield refusals of rows without enough memory, each with its (n,) mask.

    The memory is missing in every zone of `with_cpu` (Z, n) or, if that is None, in all zones together.
    """
    if not demand.memory_mib:
        return
    asked = format_amount(MEMORY, demand.memory_mib * MIB)
    free: Ints = np.maximum(nodes.load("zone_memory_free"), 0)
    unknown = nodes.static("zone_memory") == UNKNOWN
    if with_cpu is None:
        short, text = (
            free.sum(axis=0) < demand.memory_mib,
            Message("the NUMA zones together have less than {amount} of free memory", amount=asked),
        )
        unknown = unknown & (nodes.static("zone_cpus") > 0)
    else:
        short = ~(with_cpu & (free >= demand.memory_mib)).any(axis=0)
        text = Message("no NUMA zone has both enough free CPUs and {amount} of free memory", amount=asked)
        unknown = unknown & with_cpu
    yield MEMORY_UNKNOWN, rows & short & unknown.any(axis=0)
    yield Refusal("ZoneMemoryInsufficient", text, missing=(MEMORY,), resolvable=True), rows & short


_FEW_CORES = Refusal(
    "KubeletCoresInsufficient",
    Message("the kubelet would reject the pod with {name}: too few whole cores are free", name=SMT_ALIGNMENT_ERROR),
    (CPU,),
    resolvable=True,
)


@lru_cache(maxsize=64)
def _misaligned(policy: str, scope: str) -> Refusal:
    template = "the kubelet would reject the pod with {name}: topology manager policy {policy}, scope {scope}"
    text = Message(template, name=TOPOLOGY_AFFINITY_ERROR, policy=policy, scope=scope)
    return Refusal("TopologyAffinityPredicted", text, resolvable=True)


@lru_cache(maxsize=64)
def _no_whole_core(threads: int) -> Refusal:
    template = (
        "the kubelet would reject the pod with {name}: the number of CPUs is not a multiple of {number}, "
        "the CPUs of a core"
    )
    return Refusal("SmtAlignmentPredicted", Message(template, name=SMT_ALIGNMENT_ERROR, number=threads), (CPU,))


@lru_cache(maxsize=64)
def _few_cpus(reason: str) -> Refusal:
    template = "the kubelet would reject the pod with {name}: too few CPUs are left for exclusive use"
    return Refusal("KubeletCpusInsufficient", Message(template, name=reason), (CPU,), resolvable=True)


@lru_cache(maxsize=64)
def _short_of_memory(reason: str, policy: str) -> Refusal:
    template = (
        "the kubelet would reject the pod with {name}: no NUMA nodes that topology manager policy {policy} allows have "
        "enough free memory and huge pages"
    )
    text = Message(template, name=reason, policy=policy)
    return Refusal("KubeletMemoryInsufficient", text, (MEMORY,), resolvable=True)


def _kubelet_refusals(admission: KubeletAdmission | None, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
    """Yield one refusal for each admission error that the kubelets are predicted to report, with its (n,) mask."""
    if admission is None:
        return
    rows, reasons = admission.reasons(nodes)
    # The errors without the memory manager show where memory is the only cause.
    _, others = admission.reasons(nodes, memory=False) if any(reasons) else (rows, reasons)
    rows_by_refusal: dict[Refusal, list[int]] = {}
    for row, reason, other in zip(rows.tolist(), reasons, others, strict=True):
        setup = admission.setup(nodes, row)
        if reason and not other:
            rows_by_refusal.setdefault(_short_of_memory(reason, setup.policy), []).append(row)
        elif reason == TOPOLOGY_AFFINITY_ERROR:
            scope = "pod" if setup.pod_scope else "container"
            rows_by_refusal.setdefault(_misaligned(setup.policy, scope), []).append(row)
        elif reason == SMT_ALIGNMENT_ERROR:
            threads = setup.kubelet.topology.cpus_per_core if setup.kubelet.topology is not None else 1
            if any(container.cpus % threads for container in admission.containers):
                rows_by_refusal.setdefault(_no_whole_core(threads), []).append(row)
            else:
                rows_by_refusal.setdefault(_FEW_CORES, []).append(row)
        elif reason:
            rows_by_refusal.setdefault(_few_cpus(reason), []).append(row)
    for refusal, refused in rows_by_refusal.items():
        mask: Bools = np.zeros(nodes.n, np.bool_)
        mask[refused] = True
        yield refusal, mask
