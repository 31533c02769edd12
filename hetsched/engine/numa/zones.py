"""NUMA zones of every node: their allocations, and the pods that each CPU is assigned to.

The amounts are in `zone_columns`. A grant of the policy `exclusive`, `immovable` or the kubelet's `static` assigns the
CPUs that it names; grants of the policies `numa` and `none` only reserve amounts. `predicted` grants are treated like
CPUs that the kubelet selected. Memory of a static memory manager is assigned in blocks on sets of zones; the free
memory of a zone is computed from all blocks of the node, in the order of their pods.

The kubelet's actual assignment (`NumaReport.grants`, from the agent) replaces the predicted one of the same pod. The
assignment of a pod that the control plane does not know (`foreign`) is reserved while it is reported.

`available` of a zone (NodeResourceTopology) is used if no agent reports. With use = allocatable - available, the part
of the use that the placed pods do not explain is reserved until the next report:
    unexplained = use - allocations of placed pods            if the kubelet pins and the sum over all zones is >= 0
    unexplained = max(0, use - allocations of placed pods)    otherwise
A pod that was running at the time of the report is thus counted once, and a later pod is added.

Invariants: adding and then removing a pod restores every cell and every holder; in a zone with named CPUs, at least as
many whole CPUs are unassigned as `free` states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.message import BY_KUBELET
from hetsched.contracts.objects.node_report import KubeletGrant, NodeReport
from hetsched.contracts.objects.pinned_memory import MemoryGrant
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import CPU, MEMORY, MIB
from hetsched.engine.cluster.columns import UNKNOWN, WHOLE_CARD_MILLI, Columns
from hetsched.engine.cluster.placed_pod import PlacedPod

from .memory_manager import Block, occupied
from .reported_zones import use_of, zones_of
from .topology_setup import setup_of
from .zone_columns import NodeZones, TakenAmounts, write_facts, write_memory

SHARING = frozenset({"none", "numa"})  # CPU policies under which a container uses the shared pool


class _Grants(NamedTuple):
    """Assignments that one node's kubelet reports, by uid or key of the pod, and the GPU indexes by uuid."""

    by_pod: dict[str, KubeletGrant]
    cards: dict[str, int]

    def of(self, pod: PodSpec) -> KubeletGrant | None:
        """Return the grant of a pod: by its uid, or by its name if the uid of either is unknown.

        The kubelet's uid of a static pod is not that of its mirror pod, so static pods are also identified by name. A
        grant with the same name but another uid belongs to an earlier pod.
        """
        if pod.uid in self.by_pod:
            return self.by_pod[pod.uid]
        named = self.by_pod.get(pod.key)
        return named if named is None or not pod.uid or not pod.preemptible or named.pod == pod.key else None


class Zones:
    """Zones of each row (`nodes`), the pods that each CPU is assigned to (`held`), and the memory `blocks` of each pod.

    Rows without zones are left out.

    `grants` are the assignments that the kubelets report; `unexplained` is the use that no placed pod explains, as
    (load field, zone position, amount).
    """

    def __init__(self) -> None:
        self.nodes: dict[int, NodeZones] = {}
        self.held: dict[int, dict[int, tuple[str, ...]]] = {}
        self.blocks: dict[int, dict[str, tuple[Block, ...]]] = {}
        self.grants: dict[int, _Grants] = {}
        self.unexplained: dict[int, tuple[tuple[str, int, int], ...]] = {}
        self._foreign: dict[int, dict[str, KubeletGrant]] = {}  # grants of pods that are not placed pods

    def copy(self) -> Zones:
        other = Zones()
        other.nodes, other.grants, other.unexplained = dict(self.nodes), dict(self.grants), dict(self.unexplained)
        other.held = {row: dict(cpus) for row, cpus in self.held.items()}
        other.blocks = {row: dict(blocks) for row, blocks in self.blocks.items()}
        other._foreign = {row: dict(grants) for row, grants in self._foreign.items()}
        return other

    def copy_row(self, row: int, other: Zones) -> None:
        """Copy the allocations of one row from another instance."""
        self.held.pop(row, None)
        self.blocks.pop(row, None)
        self._foreign.pop(row, None)
        if row in other.held:
            self.held[row] = dict(other.held[row])
        if row in other.blocks:
            self.blocks[row] = dict(other.blocks[row])
        if row in other._foreign:
            self._foreign[row] = dict(other._foreign[row])

    # -- facts -------------------------------------------------------------------------------------------------------

    def write(self, row: int, report: NodeReport, columns: Columns) -> None:
        """Write the facts of one row's zones without allocations; the caller adds its placed pods again."""
        self.nodes.pop(row, None)
        self.held.pop(row, None)
        self.blocks.pop(row, None)
        self.grants.pop(row, None)
        if columns.layout.zones:
            facts = write_facts(row, report, columns)
            if facts is not None:
                self.nodes[row] = facts
        grants = report.numa.grants if report.numa is not None else ()
        if grants:
            self._write_grants(row, report, grants, columns)

    # -- assignments by the kubelet and other schedulers ---------------------------------------------------------------

    def _write_grants(self, row: int, report: NodeReport, grants: Sequence[KubeletGrant], columns: Columns) -> None:
        cards = {card.uuid: card.index for card in report.gpus or () if card.uuid and card.index < columns.layout.cards}
        by_pod = {key: grant for grant in grants for key in (grant.name, grant.pod) if key}
        self.grants[row] = _Grants(by_pod, cards)
        for grant in grants:
            if grant.foreign:
                self._charge_unowned(row, grant, 1, columns)

    def release_grants(self, row: int, columns: Columns) -> None:
        """Release the grants of pods that the control plane does not know, before the facts of a row are written."""
        for grant in list(self._foreign.get(row, {}).values()):
            self._charge_unowned(row, grant, -1, columns)

    def _charge_unowned(self, row: int, grant: KubeletGrant, sign: int, columns: Columns) -> None:
        known = self._foreign.setdefault(row, {})
        if (grant.pod in known) == (sign > 0):
            return
        if sign > 0:
            known[grant.pod] = grant
        else:
            del known[grant.pod]
        if not known:
            del self._foreign[row]
        milli, memory = columns.field("card_milli_free"), columns.field("card_memory_free")
        total = columns.field("card_memory")
        for uuid in grant.gpus:
            index = self.grants[row].cards.get(uuid)
            if index is not None:
                milli[index, row] -= sign * WHOLE_CARD_MILLI
                memory[index, row] -= sign * max(int(total[index, row]), 0)
        facts = self.nodes.get(row)
        if facts is not None:
            taken, holder = TakenAmounts(facts, columns, row, sign), f"{BY_KUBELET}{grant.pod}"
            self._take_grant(taken, grant, holder)
            if grant.memory and facts.memory:
                self._assign_memory(taken, grant.memory, holder)

    def _take_grant(self, taken: TakenAmounts, grant: KubeletGrant, holder: str) -> None:
        cpus = _ids(grant.cpus) & taken.facts.zone_of_cpu.keys()
        if cpus:
            self._hold(taken, sorted(cpus), holder)
        for zone, counts in grant.devices.items():
            taken.devices(counts, taken.facts.position(zone))

    def _assign_memory(self, taken: TakenAmounts, grants: Sequence[MemoryGrant], holder: str) -> None:
        """Add or remove the memory of a pod, and write the free memory of the zones of its row."""
        facts, held = taken.facts, self.blocks.setdefault(taken.row, {})
        if taken.sign > 0:
            held[holder] = tuple(_block(facts, grant) for grant in grants)
        else:
            held.pop(holder, None)
        if not held:
            del self.blocks[taken.row]
        zones = occupied(facts.memory, (block for _, blocks in sorted(held.items()) for block in blocks))
        write_memory("static_memory_free", zones, taken.row, taken.columns)
        taken.columns.field("memory_group")[: len(zones), taken.row] = [zone.group for zone in zones]

    def explain(self, row: int, report: NodeReport, columns: Columns) -> None:
        """Compare the reported availability of zones with the placed pods, and reserve the unexplained use."""
        self.unexplained.pop(row, None)
        facts, zones = self.nodes.get(row), zones_of(report)
        if facts is None or not any(zone.available for zone in zones):
            return
        cpus, found = [], []
        for position, zone in enumerate(zones):
            allocatable, effective, free, memory, memory_free = (
                int(columns.field(name)[position, row])
                for name in ("zone_cpu_allocatable", "zone_cpu", "zone_cpu_free", "zone_memory", "zone_memory_free")
            )
            cpus.append(use_of(zone, CPU, allocatable) - (effective - free))
            if memory != UNKNOWN:
                use = use_of(zone, MEMORY, memory * MIB) // MIB
                found.append(("zone_memory_free", position, max(use - (memory - memory_free), 0)))
            for resource, number in columns.layout.devices.items():
                at = number * columns.layout.zones + position
                total, remaining = (int(columns.field(name)[at, row]) for name in ("zone_devices", "zone_devices_free"))
                found.append(("zone_devices_free", at, max(use_of(zone, resource, total) - (total - remaining), 0)))
        if not setup_of(report).pins or sum(cpus) < 0:
            cpus = [max(amount, 0) for amount in cpus]
        for position, amount in enumerate(cpus):
            found.append(("zone_cpu_free", position, amount))
            found.append(("zone_cpus_free", position, -(-amount // 1000)))
        self.unexplained[row] = tuple(one for one in found if one[2])
        self.charge_unexplained(row, columns)

    def charge_unexplained(self, row: int, columns: Columns) -> None:
        """Subtract the unexplained use from the free amounts of a row's zones, after its facts were written."""
        for field, position, amount in self.unexplained.get(row, ()):
            columns.field(field)[position, row] -= amount

    # -- allocations -------------------------------------------------------------------------------------------------

    def charge(self, placed: PlacedPod, sign: int, columns: Columns) -> None:
        """Subtract an allocation from the zones of its row (`sign` 1), or add it back (-1).

        The kubelet's actual assignment to the pod is used instead of the predicted one.
        """
        grants = self.grants.get(placed.row)
        granted = grants.of(placed.pod) if grants is not None else None
        if granted is not None and granted.foreign:
            self._charge_unowned(placed.row, granted, -sign, columns)
        facts = self.nodes.get(placed.row)
        if facts is None:
            return
        taken = TakenAmounts(facts, columns, placed.row, sign)
        memory = granted.memory if granted is not None and granted.memory else placed.allocation.memory
        if memory and facts.memory:
            self._assign_memory(taken, memory, placed.pod.key)
        if granted is not None and (granted.cpus or granted.devices):
            self._take_grant(taken, granted, placed.pod.key)
            for grant in placed.allocation.zones:
                taken.amounts(facts.position(grant.name), 0, grant.memory_mib)
            return
        sharing = _policy(placed) in SHARING
        named: set[int] = set()
        for grant in placed.allocation.zones:
            position = facts.position(grant.name)
            ids = frozenset[int]() if sharing else _ids(grant.cpus or "")
            if ids and (position is None or facts.usable[position] is not None):
                named |= ids & facts.zone_of_cpu.keys()
                taken.amounts(position, 0, grant.memory_mib)
            else:
                millis = grant.cpu_millis or 1000 * len(ids)
                taken.amounts(position, millis, grant.memory_mib, 0 if sharing else millis // 1000)
        for grant in placed.allocation.predicted:
            ids = _ids(grant.cpus or "") & facts.zone_of_cpu.keys() if facts.topology is not None else frozenset()
            named |= ids
            remaining = grant.cpu_millis - 1000 * len(ids)
            taken.amounts(facts.position(grant.name), remaining, grant.memory_mib, remaining // 1000)
            if grant.devices:
                taken.devices(grant.devices, facts.position(grant.name))
        if named:
            self._hold(taken, sorted(named), placed.pod.key)

    def _hold(self, taken: TakenAmounts, cpus: Sequence[int], key: str) -> None:
        """Add or remove a holder of CPUs; a CPU assigned to two pods is free when both are removed."""
        held = self.held.setdefault(taken.row, {})
        for cpu in cpus:
            others = tuple(holder for holder in held.get(cpu, ()) if holder != key)
            holders = tuple(sorted((*others, key))) if taken.sign > 0 else others
            if holders:
                held[cpu] = holders
            else:
                del held[cpu]
            usable = taken.facts.usable[taken.facts.zone_of_cpu[cpu]]
            taken.cpu(cpu, int(not others and usable is not None and cpu in usable))
        if not held:
            del self.held[taken.row]

    def free_cpus(self, row: int, position: int) -> frozenset[int] | None:
        """Return the CPUs of a zone that can be pinned, or None if the zone does not name its CPUs."""
        usable = self.nodes[row].usable[position]
        return None if usable is None else usable - self.held.get(row, {}).keys()


def _policy(placed: PlacedPod) -> str:
    """Return the CPU policy of a pod's zones; older allocations do not contain it, but the pod's annotation does."""
    allocation = placed.allocation
    if allocation.cpu_policy is not None:
        return allocation.cpu_policy
    if any(grant.cpus for grant in allocation.zones):
        return "exclusive"
    wish = placed.pod.shape.numa
    return "none" if wish is None else wish.cpu_policy


def _block(facts: NodeZones, grant: MemoryGrant) -> Block:
    """Return the block of a grant; zones that are no longer reported are left out."""
    positions = {position for name in grant.zones if (position := facts.position(name)) is not None}
    return Block(sum(1 << position for position in positions), grant.kind, grant.size)


@lru_cache(maxsize=16384)
def _ids(text: str) -> frozenset[int]:
    return parse_cpuset(text)
