"""Cluster state: the inventory of every node and the allocation of every pod on it.

A decision must see all earlier decisions immediately, and a failed decision must not change the state. `assume` places
a pod on a row (the position of a node), and `forget` reverts this. Both write one load column and append the row to
`log`, so that a cached evaluation knows which rows to evaluate again. If the allocation of a running pod does not name
its GPUs or zones, `assume` selects them: the lowest GPUs with enough free capacity, and the zones that a kubelet with a
static CPU policy would use. The inventory changes only by `apply_report` or by a rebuild, which raises `epoch` and
drops all cached facts.
Invariants: the load is that of an empty cluster plus the sum over the placed pods; assume then forget restores every
cell; rows are in node-name order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from hetsched.contracts.objects.allocation import EMPTY, Allocation, CardGrant
from hetsched.contracts.objects.cards import cards_in_maintenance, cards_of
from hetsched.contracts.objects.cluster import ClusterContent, DisruptionBudget, ElasticQuota
from hetsched.contracts.objects.devices import Devices as KnownDevices
from hetsched.contracts.objects.node_report import GpuCard, IsaReport, NodeReport, Taint
from hetsched.contracts.objects.storage import Storage
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.framework.gangs import Gangs
from hetsched.engine.framework.request import CompiledShape, Request
from hetsched.engine.framework.status import ProtectedPods
from hetsched.engine.gpu.links import Table
from hetsched.engine.gpu.workload_mix import Mix, mix_of_shapes
from hetsched.engine.numa.predicted_assignment import predicts, with_predicted
from hetsched.engine.numa.reported_zones import availability, devices_by_zone, static_memory, zoned_devices, zones_of
from hetsched.engine.numa.topology_setup import Setup, bitset_words
from hetsched.engine.numa.zones import Zones

from .avoided_nodes import AvoidedNodes
from .charges import charge_amounts
from .columns import UNKNOWN_RESOURCE, ColumnLayout, Columns, ResourceRows, Vocabulary, Window
from .devices.state import DeviceState
from .digests import Digests
from .expected_use import UsageHistory, learn
from .label_columns import LabelColumn, LabelColumns, LabelNumbers
from .node_columns import emptied, resource_names, widened, write_facts
from .placed_pod import PlacedPod, grant_card
from .pod_terms import InterPodTerms
from .quotas import Quotas
from .samples import Samples, report_now
from .volumes import VolumeState

_COMPILED_LIMIT = 20_000
_LOG_LIMIT = 1_000_000

T = TypeVar("T")


class ClusterState:
    """The only mutable object of the engine: columns, placed pods and the log of changed rows."""

    def __init__(
        self,
        nodes: Iterable[NodeReport],
        running: Iterable[PodSpec] = (),
        namespaces: dict[str, dict[str, str]] | None = None,
        *,
        storage: Storage | None = None,
        devices: KnownDevices | None = None,
        quotas: Iterable[ElasticQuota] = (),
        budgets: Iterable[DisruptionBudget] = (),
        experience: UsageHistory | None = None,
        clocked: bool = False,
    ) -> None:
        self.clocked = clocked  # true: only `Usage.stale` decides which samples are stale; see `samples`
        self.reports = sorted(nodes, key=lambda report: report.name)
        self.namespaces = dict(namespaces or {})
        self.row_of = {report.name: row for row, report in enumerate(self.reports)}
        self.cards: list[tuple[GpuCard, ...]] = [cards_of(report) for report in self.reports]
        self.offers: Vocabulary[IsaReport] = Vocabulary()
        self.taint_sets: Vocabulary[tuple[Taint, ...]] = Vocabulary()
        self.models: Vocabulary[str] = Vocabulary([""])
        self.vendors: Vocabulary[str] = Vocabulary([""])
        self.setups: Vocabulary[Setup] = Vocabulary([Setup()])
        self.resources = ResourceRows(resource_names(self.reports))
        self.placed_pods: dict[str, PlacedPod] = {}
        self.on_row: list[dict[str, PlacedPod]] = [{} for _ in self.reports]
        self.neighbours = InterPodTerms()
        self.gangs = Gangs()
        self.quotas = Quotas(quotas)
        self.volumes = VolumeState(storage)
        self.devices = DeviceState(devices)
        self.budgets = tuple(budgets)
        self.spared = ProtectedPods()
        self.experience = experience or UsageHistory()
        self.avoided: Mapping[str, AvoidedNodes] = {}  # by owner; the mapping is replaced, never mutated
        self.derived: dict[object, Any] = {}  # caches that other modules derive from the state
        self.zones = Zones()
        self.links: dict[int, Table] = {}  # GPU link table of each row whose node reports one
        self.orphans: list[PodSpec] = []
        self.log: list[int] = []
        self.epoch = 0
        self._digests = Digests()
        self.mix, self.mix_is_set = Mix(), False
        self._once: tuple[int, dict[Any, Any]] = (-1, {})  # epoch, and the results of `once` in that epoch
        self._labels = LabelColumns(self.reports)
        self._compiled: dict[Shape, CompiledShape] = {}
        self._compiled_by_id: dict[int, tuple[Shape, CompiledShape]] = {}
        self._compiled_width = 0
        self._build_columns()
        # Pods with a known allocation are first; the others get the remaining GPUs, lowest index first.
        for pod in sorted(running, key=lambda pod: (pod.allocation is None, pod.created_at, pod.key)):
            row = self.row_of.get(pod.node_name)
            if row is None:
                self.orphans.append(pod)
            else:
                self.assume(self.compile(pod), row, pod.allocation or EMPTY)
        self.samples = Samples.of(self)
        self.columns.field("power_placed")[:] = 0  # the reported headroom already accounts for running pods
        for row, report in enumerate(self.reports):
            self.zones.explain(row, report, self.columns)

    @classmethod
    def of(
        cls,
        content: ClusterContent,
        *,
        nodes: Iterable[NodeReport] | None = None,
        running: Iterable[PodSpec] | None = None,
        clocked: bool = False,
    ) -> ClusterState:
        """Build the state of a cluster; `nodes` and `running` replace those of `content`."""
        return cls(
            content.nodes if nodes is None else nodes,
            content.running if running is None else running,
            content.namespaces,
            storage=content.storage,
            devices=content.devices,
            quotas=content.quotas,
            budgets=content.budgets,
            experience=learn(content.pod_usages),
            clocked=clocked,
        )

    # -- inventory -----------------------------------------------------------------------------------------------

    def _build_columns(self) -> None:
        resting = (cards_in_maintenance(report) for report in self.reports)
        most_cards = max((card.index + 1 for cards in (*self.cards, *resting) for card in cards), default=0)
        most_zones = max((len(zones_of(report)) for report in self.reports), default=0)
        power = int(any(report.power is not None for report in self.reports))
        words = max((bitset_words(report) for report in self.reports), default=0)
        self._zoned = set[str]().union(*(zoned_devices(report) for report in self.reports))
        devices = devices_by_zone(self._zoned, most_zones)
        kinds = sorted(set[str]().union(*(static_memory(report) for report in self.reports)))
        memory = {kind: number for number, kind in enumerate(kinds)}
        layout = ColumnLayout(len(self.resources), most_cards, most_zones, power, words, devices, memory)
        self.columns = Columns([report.name for report in self.reports], layout)
        for row in range(len(self.reports)):
            write_facts(self, row)
        self.all_rows = Window(self.columns)

    def apply_report(self, report: NodeReport) -> None:
        """Apply a changed report of a known node whose resources and GPUs fit the current layout."""
        row = self.row_of[report.name]
        sampled = report.usage != self.reports[row].usage
        explained = availability(report) == availability(self.reports[row])
        if not explained:
            self.zones.unexplained.pop(row, None)
        if report.power != self.reports[row].power:
            self.columns.field("power_placed")[:, row] = 0
        self.reports[row] = report
        self.cards[row] = cards_of(report)
        write_facts(self, row)
        if not explained:
            self.zones.explain(row, report, self.columns)
        if sampled:
            self.samples.take(self, row)
        self._digests.carry_over(self)  # the log names all changed rows
        self._facts_changed()
        self.log.append(row)

    def report_now(self, row: int) -> NodeReport:
        """Return a node's report with its sample and its power headroom updated to the current use."""
        return report_now(self, row)

    def stale(self) -> list[str]:
        """Return the nodes whose samples are stale."""
        return list(self.samples.stale)

    def _facts_changed(self) -> None:
        self.epoch += 1
        self._labels = LabelColumns(self.reports)
        self._compiled.clear()
        self._compiled_by_id.clear()
        self._compiled_width = 0

    def redefine(self, content: ClusterContent) -> None:
        """Replace namespaces, volumes, devices and budgets, and count their use by the placed pods again."""
        self.budgets = tuple(content.budgets)
        if content.namespaces != self.namespaces:
            self.namespaces = dict(content.namespaces)
            self.neighbours.drop_matches()
        if content.storage != self.volumes.storage:
            self.volumes = VolumeState(content.storage)
            for placed in self.placed_pods.values():
                if placed.compiled.shape.claims:
                    self.volumes.charge(placed, 1)
        if not self.devices.replace_claims(content.devices):
            self.devices = DeviceState(content.devices)
            for placed in self.placed_pods.values():
                self.devices.charge(placed, 1)
        self._digests.carry_over(self)
        self._facts_changed()

    def add_storage(self, more: Storage, devices: KnownDevices | None = None) -> None:
        """Add the volumes, claims and classes of pods that will be scheduled, without replacing existing objects."""
        if more:
            self.volumes.add(more)
        if devices:
            self.devices.add(devices)
        if more or devices:
            self._facts_changed()

    def use_mix(self, mix: Mix) -> None:
        """Set the workload mix, and drop all cached evaluations if it differs from the current one."""
        self.mix_is_set = True
        if mix != self.mix:
            self.mix = mix
            self._digests.carry_over(self)
            self.epoch += 1

    def placed_mix(self) -> Mix:
        """Return the workload mix of the placed pods; it depends only on these pods, not on their history."""
        return mix_of_shapes(placed.compiled.shape for placed in self.placed_pods.values())

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`, cached under `key` until the inventory or the workload mix changes."""
        epoch, known = self._once
        if epoch != self.epoch:
            epoch, known = self._once = (self.epoch, {})
        if key not in known:
            known[key] = make()
        found: T = known[key]
        return found

    def fits_layout(self, report: NodeReport) -> bool:
        """Return whether `apply_report` can apply this report; if not, the state must be rebuilt."""
        layout = self.columns.layout
        return (
            report.name in self.row_of
            and all(resource in self.resources.index for resource in report.allocatable)
            and all(card.index < layout.cards for card in (*cards_of(report), *cards_in_maintenance(report)))
            and len(zones_of(report)) <= layout.zones
            and (report.power is None or layout.power > 0)
            and bitset_words(report) <= layout.words
            and zoned_devices(report) <= self._zoned
            and static_memory(report) <= layout.memory.keys()
        )

    def has_label(self, key: str) -> bool:
        """Return whether a node has this label."""
        return self._labels.has(key)

    def label(self, key: str) -> LabelColumn:
        """Return the value ids (N,) of one node label, -1 where absent, and the vocabulary of values."""
        return self._labels.column(key)

    def label_numbers(self, key: str) -> LabelNumbers:
        """Return the numbers (V + 1,) of the values of one node label, and which values are numbers; the last entry
        belongs to nodes without the label.
        """
        return self._labels.numbers(key)

    # -- placed pods ---------------------------------------------------------------------------------------------

    def compile(self, pod: PodSpec) -> Request:
        """Compile a pod with its expected use; pods of one shape share the compiled shape."""
        if self.experience:
            pod = self.experience.applied(pod)
        shape = pod.shape
        known = self._compiled_by_id.get(id(shape))
        if known is not None and known[0] is shape:
            return Request(pod, known[1])
        compiled = self._compiled.get(shape)
        if compiled is None:
            known_names = self.resources.index
            for name, _ in shape.requests:
                if name not in known_names and UNKNOWN_RESOURCE not in known_names:
                    self._add_unknown_resource()
            compiled = CompiledShape(shape, self.columns.layout, self.resources)
        self._compiled_width += compiled.width
        if self._compiled_width > _COMPILED_LIMIT:
            self._compiled.clear()
            self._compiled_by_id.clear()
            self._compiled_width = compiled.width
        self._compiled[shape] = compiled
        self._compiled_by_id[id(shape)] = (shape, compiled)
        return Request(pod, compiled)

    def _add_unknown_resource(self) -> None:
        """Widen the blocks by a row for resources that no node has; the load of placed pods is unchanged."""
        old = self.columns
        self.resources.id(UNKNOWN_RESOURCE)
        layout = old.layout.wider(len(self.resources))
        self.columns = widened(old, layout)
        self.all_rows = Window(self.columns)
        self._facts_changed()
        for placed in self.placed_pods.values():
            placed.compiled = CompiledShape(placed.compiled.shape, layout, self.resources)

    def completes(self, compiled: CompiledShape, row: int, allocation: Allocation) -> bool:
        """Return whether `assume` may add GPUs, zones or CPUs to an allocation on a row."""
        return bool(_has_unknown_cards(compiled.shape, allocation) and self.cards[row]) or (
            predicts(self, compiled, row, allocation)
        )

    def assume(self, request: Request, row: int, allocation: Allocation = EMPTY) -> PlacedPod:
        """Place the pod of `request` on a row and complete its allocation."""
        if _has_unknown_cards(request.shape, allocation):
            cards = self._lowest_cards(request.shape, row)
            allocation = msgspec.structs.replace(allocation, gpus=cards)
        if request.compiled.kubelet_assigns:
            allocation = with_predicted(self, request.compiled, row, allocation)
        placed = PlacedPod(request.pod, request.compiled, row, allocation)
        key = request.pod.key
        if key in self.placed_pods:
            raise ValueError(f"{key} is already placed")
        self._charge(placed, 1)
        self.placed_pods[key] = self.on_row[row][key] = placed
        return placed

    def forget(self, key: str) -> PlacedPod | None:
        """Remove a placed pod and return it, or None if the pod is not placed."""
        placed = self.placed_pods.pop(key, None)
        if placed is not None:
            del self.on_row[placed.row][key]
            self._charge(placed, -1)
        return placed

    def restore(self, placed: PlacedPod) -> None:
        """Place a pod again, exactly as `forget` returned it."""
        key = placed.pod.key
        if key in self.placed_pods:
            raise ValueError(f"{key} is already placed")
        self._charge(placed, 1)
        self.placed_pods[key] = self.on_row[placed.row][key] = placed

    def _charge(self, placed: PlacedPod, sign: int) -> None:
        charge_amounts(placed, sign, self.columns, self.zones)
        if placed.compiled.has_rules:
            self.neighbours.charge(placed, sign)
        if placed.compiled.shape.claims:
            self.volumes.charge(placed, sign)
        if placed.allocation.devices:
            self.devices.charge(placed, sign)
        self._charge_group(placed.pod, sign)
        self.log.append(placed.row)
        self._bound_log()

    def _charge_group(self, pod: PodSpec, sign: int) -> None:
        """Add a placed pod to its gang and to the use of its namespace's quota (`sign` 1), or remove it (-1)."""
        if pod.gang is not None:
            self.gangs.charge(pod, sign)
        if self.quotas.limits:
            self.quotas.charge(pod, sign)

    def adopt(self, keys: list[str], pods: list[PlacedPod]) -> None:
        """Register pods, by key, whose load the compiled loop has already added to the columns.

        No pod is a member of a gang, because the loop does not place gang members.
        """
        self.placed_pods.update(zip(keys, pods, strict=True))
        on_row, grants = self.on_row, self.zones.grants
        for key, placed in zip(keys, pods, strict=True):
            on_row[placed.row][key] = placed
        for placed in pods if grants else ():
            if placed.row in grants:
                self.zones.charge(placed, 1, self.columns)
        if self.quotas.limits:
            for placed in pods:
                self.quotas.charge(placed.pod, 1)
        self.log.extend([placed.row for placed in pods])
        self._bound_log()

    def _bound_log(self) -> None:
        if len(self.log) > _LOG_LIMIT:
            # Drop a log that is too long. The new epoch also drops all evaluations that the log would update.
            self.log.clear()
            self.neighbours.drop_matches()
            self._facts_changed()

    def _lowest_cards(self, shape: Shape, row: int) -> tuple[CardGrant, ...]:
        demand = shape.gpu
        assert demand is not None
        milli_free = self.columns.field("card_milli_free")[:, row]
        held: list[CardGrant] = []
        for card in self.cards[row]:
            if len(held) < demand.count and milli_free[card.index] >= demand.milli:
                held.append(grant_card(card, demand.milli, demand.memory_mib))
        return tuple(held)

    # -- whole-state operations ----------------------------------------------------------------------------------

    def emptied(self) -> Window:
        """Return a window over all nodes as if no pods were placed; see `node_columns.emptied`."""
        return Window(emptied(self))

    def fork(self) -> ClusterState:
        """Return an independent copy."""
        other = object.__new__(ClusterState)
        other.__dict__.update(self.__dict__)
        other.columns = self.columns.copy()
        other.all_rows = Window(other.columns)
        other.reports, other.cards = list(self.reports), list(self.cards)
        other.samples = self.samples.copy()
        other.placed_pods = {
            key: PlacedPod(b.pod, b.compiled, b.row, b.allocation) for key, b in self.placed_pods.items()
        }
        other.on_row = [{key: other.placed_pods[key] for key in row} for row in self.on_row]
        other.neighbours = self.neighbours.copy(self)
        other.gangs = self.gangs.copy()
        other.quotas = self.quotas.copy()
        other.volumes = self.volumes.copy()
        other.devices = self.devices.copy()
        other.derived = {}
        other.zones, other.links = self.zones.copy(), dict(self.links)
        other.resources = ResourceRows(self.resources.values)
        other.taint_sets = Vocabulary(self.taint_sets.values)
        other.offers, other.models = Vocabulary(self.offers.values), Vocabulary(self.models.values)
        other.vendors, other.setups = Vocabulary(self.vendors.values), Vocabulary(self.setups.values)
        other._digests = self._digests.copy(self)
        other.log, other._labels, other._once = [], LabelColumns(other.reports), (-1, {})
        other._compiled, other._compiled_by_id, other._compiled_width = {}, {}, 0
        return other

    def digest(self) -> str:
        """Return a digest of the whole content: equal nodes and placed pods give equal digests in any process."""
        return self._digests.of(self)


def _has_unknown_cards(shape: Shape, allocation: Allocation) -> bool:
    """Return whether a pod uses GPUs that its allocation does not name, and that are no devices of its claims."""
    return shape.gpu is not None and not allocation.gpus and allocation.device_resources.isdisjoint(GPU_RESOURCES)
