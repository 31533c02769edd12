"""Check of the database invariants, as one function.

Each invariant is checked from the rows alone, by whole-table queries, independently of the code that maintains it.
Tests call the check after every step, crash tests call it after every kill, and an operator can call it at any time.
The names are those of the reliability rules: I1 exclusive CPUs, I2 capacity of nodes and zones, and load columns, I3
GPUs, I4 exclusive CPUs are disjoint from shared and reserved CPUs, I5 reserved devices exist, I7 instruction sets, I8
pods and reservations, I15 nothing lost, I16 idempotency, I17 events, I21 epochs, I25 lifecycle, I28 audit entries.
`promises` checks I6 topology, I13 gangs and I14 quotas.
Grants are checked against the allocatable amount of a zone, not against the capacity that online workloads leave,
because that capacity may fall below the grants at any time.
A pod that was resized in place is excluded from capacity checks: no decision established that its node has the
capacity.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec
from django.db import connection
from django.db.models import Count, F, Max, Min, Q, QuerySet, Sum

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.devices import Devices
from hetsched.contracts.objects.node_report import IsaReport
from hetsched.contracts.objects.workload import ImageDemand, IsaDemand
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.columns import UNKNOWN
from hetsched.engine.cluster.devices.usage import DeviceUsage
from hetsched.engine.isa.image_fit import emulator_covers, image_gap
from hetsched.inventory.models import Cluster, Node
from hetsched.isa import Isa, match, parse
from hetsched.journal.models import AuditEntry, OutboxEvent, Topic
from hetsched.placement.lifecycle import HOLDING, QUEUED, State, workload_state
from hetsched.placement.models import (
    Hold,
    IdempotencyKey,
    Nomination,
    Pod,
    Reservation,
    ReservedCard,
    ReservedCpu,
    ReservedDevice,
    Workload,
)
from hetsched.placement.reservation_ledger import EXCLUSIVE_CPU_POLICIES
from hetsched.storage.snapshot_read import consistent_reads

from . import promises
from .zones import single_node_state

_GUARDS = (
    "placement_pod_lifecycle", "placement_decision_append_only", "journal_auditentry_append_only",
    "policies_policyrevision_fixed",
)  # fmt: skip
_JUDGES = (
    "placement_reservation_one_active", "placement_card_one_holder", "placement_cpu_one_holder",
    "placement_pod_live_name", "placement_device_one_holder",
)  # fmt: skip

# All invariants that `check_invariants` checks.
CHECKED = (
    "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I13", "I14", "I15", "I16", "I17", "I21", "I25", "I28",
)  # fmt: skip
_ZONE_COLUMNS = ("zone_cpu_allocatable", "zone_cpu", "zone_cpu_free", "zone_memory", "zone_memory_free")


class Violation(msgspec.Struct, frozen=True):
    """One violated invariant."""

    id: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.id} {self.where}: {self.message}"


def check_invariants(cluster: Cluster | None = None) -> list[Violation]:
    """Return all violations in one cluster, or in all clusters and their shared tables, from one consistent read."""
    with consistent_reads():
        return list(_violations(cluster))


def _violations(cluster: Cluster | None) -> Iterator[Violation]:
    for one in Cluster.objects.all() if cluster is None else [Cluster.objects.get(pk=cluster.pk)]:
        for check in (_exclusive, _load, _zones, _cards_and_cpus_exist, _instruction_sets, _reservations, _workloads):
            yield from check(one)
        yield from (Violation(*fields) for fields in promises.find_breaches(one))
    if cluster is None:
        yield from (*_constraints(), *_idempotency(), *_events())
        yield from (Violation(*fields) for fields in promises.overdrawn_quotas())


def _exclusive(cluster: Cluster) -> Iterator[Violation]:
    """I1, I3: a whole GPU or an exclusive CPU has one holder; the shares of a GPU add up to at most the whole GPU."""
    held = Q(active=True, node__cluster=cluster)
    doubled = ReservedCpu.objects.filter(held, exclusive=True).values("node__name", "cpu").annotate(n=Count("id"))
    for cpu in doubled.filter(n__gt=1):
        yield Violation("I1", cpu["node__name"], f"CPU {cpu['cpu']} has {cpu['n']} exclusive holders")
    cards = ReservedCard.objects.filter(held).values("node__name", "card_index")
    for card in cards.annotate(n=Count("id", filter=Q(exclusive=True)), milli=Sum("milli")):
        if card["n"] > 1 or card["milli"] > 1000:
            message = f"card {card['card_index']}: {card['n']} exclusive holders, {card['milli']}/1000 allocated"
            yield Violation("I3", card["node__name"], message)
    devices = ReservedDevice.objects.filter(active=True, cluster=cluster).values("driver", "pool", "device")
    for device in devices.annotate(n=Count("id")).filter(n__gt=1):
        name = f"{device['driver']}/{device['pool']}/{device['device']}"
        yield Violation("I3", cluster.name, f"device {name} has {device['n']} holders")
    known = cluster.definitions.devices
    if known == Devices():  # such a cluster has nothing to exceed or to allocate twice
        return
    elsewhere = {
        found.device: key
        for key, claim in known.claims.items()
        for found in claim.allocated or ()
        if not found.admin and found.consumed is None
    }
    promised: dict[str, list[DeviceGrant]] = defaultdict(list)
    active = Reservation.objects.filter(active=True, cluster=cluster)
    columns = active.values_list("pod__namespace", "pod__name", "allocation")
    for namespace, name, allocation in columns.iterator(2000):
        for grant in allocation.devices:
            key = f"{namespace}/{grant.claim}"
            promised[key].append(grant)
            if not grant.admin and elsewhere.get(grant.device, key) != key:
                text = f"device {grant.device} is allocated to claim {elsewhere[grant.device]}"
                yield Violation("I3", f"{namespace}/{name}", text)
    for text in DeviceUsage(known, promised).excesses():
        yield Violation("I3", cluster.name, text)


def _load(cluster: Cluster) -> Iterator[Violation]:
    """I2: the sums of the reserved amounts fit the nodes and equal the load columns."""
    held: dict[int, Counter[str]] = defaultdict(Counter)
    ours: dict[int, Counter[str]] = defaultdict(Counter)
    undecided: dict[int, Counter[str]] = defaultdict(Counter)
    served: dict[int, Counter[str]] = defaultdict(Counter)
    expected_loads: dict[int, Counter[str]] = defaultdict(Counter)
    resized, without_effects = _resized(cluster), set(_without_effects(cluster).values_list("id", flat=True))
    rows = Reservation.objects.filter(cluster=cluster, active=True)
    columns = rows.values_list("id", "node_id", "requests", "allocation", "pod__origin")
    for pk, node_id, requests, allocation, origin in columns:
        held[node_id].update(requests)
        # Devices serve these resources, and I3 checks the devices.
        served[node_id].update({name: requests.get(name, 0) for name in allocation.device_resources})
        if pk not in without_effects:
            expected_loads[node_id].update(requests)
            expected_loads[node_id].update({"#pods": 1, "#gpu": sum(card.milli for card in allocation.gpus)})
        if pk in resized:
            undecided[node_id].update(requests)
        elif origin in Pod.GRANTED:
            ours[node_id].update(requests)
    totals: Counter[str] = Counter()
    for node in Node.objects.filter(cluster=cluster):
        sums = held[node.pk]
        stated = Counter({**node.requested, "#pods": node.pods, "#gpu": node.gpu_milli_used})
        totals.update(stated)
        if +stated != +expected_loads[node.pk]:
            expected = dict(expected_loads[node.pk])
            yield Violation("I2", node.name, f"load columns {dict(stated)} differ from the sum {expected}")
        for resource, amount in ours[node.pk].items():
            if resource in GPU_RESOURCES and node.report.gpus is not None:
                continue
            room = node.allocatable.get(resource, 2**60 if resource == "pods" else 0)
            decided = sums[resource] - undecided[node.pk][resource] - served[node.pk][resource]
            if amount and decided > room:
                yield Violation("I2", node.name, f"{resource}: {decided} reserved of {room}")
    stated = Counter({**cluster.requested, "#gpu": cluster.gpu_milli_used})
    del totals["#pods"]
    if +stated != +totals:
        yield Violation("I2", cluster.name, f"totals {dict(stated)} differ from the sum {dict(totals)}")


def _without_effects(cluster: Cluster) -> QuerySet[Reservation]:
    """Return the reservations whose effects on other rows (node loads, workload states) are not written yet."""
    since = cluster.effects_due_since
    rows = Reservation.objects.filter(cluster=cluster)
    return rows.none() if since is None else rows.filter(revision__gte=since)


def _resized(cluster: Cluster) -> set[int]:
    """Return the ids of the reservations of pods that were resized in place."""
    changed = Reservation.objects.filter(cluster=cluster, active=True, spec__isnull=False).select_related("pod")
    return {
        reservation.pk
        for reservation in changed
        if reservation.request.shape.requests != reservation.pod.spec.shape.requests
    }


def _zones(cluster: Cluster) -> Iterator[Violation]:
    """I2, I4: the grants to pods that hetsched placed fit each zone, and contain only CPUs that pods may use."""
    rows = Reservation.objects.filter(cluster=cluster, active=True).exclude(pk__in=_resized(cluster))
    granted_by_us = rows.filter(pod__origin__in=Pod.GRANTED).values_list("node_id", "allocation").iterator(2000)
    nodes = {node_id for node_id, allocation in granted_by_us if allocation.zones}
    for node in Node.objects.filter(pk__in=nodes):
        reservations = list(rows.filter(node=node).select_related("pod").defer("pod__spec").order_by("id"))
        ours = [reservation for reservation in reservations if reservation.pod.origin in Pod.GRANTED]
        state = single_node_state(node, reservations)
        facts = state.zones.nodes.get(0)
        if facts is None:
            continue  # the report lists no zones, so I5 reports the reserved CPUs
        column = {name: state.columns.field(name)[:, 0].tolist() for name in _ZONE_COLUMNS}
        granted = {facts.position(grant.name) for reservation in ours for grant in reservation.allocation.zones} - {
            None
        }
        for position in sorted(position for position in granted if position is not None):
            room, effective, free = (column[name][position] for name in _ZONE_COLUMNS[:3])
            memory, memory_free = (column[name][position] for name in _ZONE_COLUMNS[3:])
            where = f"zone {facts.names[position]}"
            if effective - free > room:
                yield Violation("I2", node.name, f"{where}: {effective - free}m CPU granted of {room}m")
            if memory != UNKNOWN and memory_free < 0:
                yield Violation("I2", node.name, f"{where}: {memory - memory_free} MiB granted of {memory}")
        for reservation in ours:
            for grant in (
                reservation.allocation.zones if reservation.allocation.cpu_policy in EXCLUSIVE_CPU_POLICIES else ()
            ):
                at = facts.position(grant.name)
                usable = None if at is None else facts.usable[at]
                lost = parse_cpuset(node.report.numa.lost_cpus or "") if node.report.numa else frozenset()
                wrong = parse_cpuset(grant.cpus or "") - (usable or frozenset()) - lost
                if usable is not None and wrong:
                    message = f"holds CPUs {sorted(wrong)} of {node.name}, which pods may not use in zone {grant.name}"
                    yield Violation("I4", reservation.pod.key, message)


def _cards_and_cpus_exist(cluster: Cluster) -> Iterator[Violation]:
    """I5: reserved GPUs and CPUs are in the node's report; the memory reserved on a GPU fits the GPU."""
    cards: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    active = Q(active=True, node__cluster=cluster, reservation__pod__origin__in=Pod.GRANTED)
    for node_id, index, memory in ReservedCard.objects.filter(active).values_list(
        "node_id", "card_index", "memory_mib"
    ):
        cards[node_id][index] += memory
    cpus: dict[int, set[int]] = defaultdict(set)
    for node_id, cpu in ReservedCpu.objects.filter(active).values_list("node_id", "cpu"):
        cpus[node_id].add(cpu)
    for node in Node.objects.filter(pk__in=list({*cards, *cpus})):
        # Include missing and unhealthy GPUs, because only new pods may not use them.
        known = {card.index: card for card in node.report.gpus or cards_of(node.report)}
        for index, memory in cards[node.pk].items():
            if index not in known:
                yield Violation("I5", node.name, f"card {index} is reserved but not in the report")
            elif (known[index].memory_mib or memory) < memory:
                yield Violation("I3", node.name, f"card {index}: {memory} MiB reserved of {known[index].memory_mib}")
        zones = node.report.numa.zones if node.report.numa else ()
        named = {cpu for zone in zones for cpu in parse_cpuset(zone.cpus or "")}
        named |= parse_cpuset(node.report.numa.lost_cpus or "") if node.report.numa else set()
        if cpus[node.pk] - named:
            yield Violation("I5", node.name, f"CPUs {sorted(cpus[node.pk] - named)} are reserved but not in any zone")


def _instruction_sets(cluster: Cluster) -> Iterator[Violation]:
    """I7: every pod that hetsched placed can run on its node, natively or under an emulation that the pod permits."""
    offers = {node.pk: node.report.isa for node in Node.objects.filter(cluster=cluster)}
    placed = Pod.objects.filter(cluster=cluster, origin__in=Pod.OURS, state__in=[s.value for s in HOLDING])
    for pod in placed.exclude(node=None).only("namespace", "name", "spec", "node_id").iterator(2000):
        demand, offer = pod.spec.shape.isa, offers.get(pod.node_id or 0)
        if demand is not None and (offer is None or not _can_run(demand, offer)):
            needs = to_plain(demand)
            yield Violation(
                "I7", pod.key, f"needs {needs}, but the node {f'has {offer.native}' if offer else 'is gone'}"
            )


def _can_run(demand: IsaDemand, offer: IsaReport) -> bool:
    if demand.images is not None and not _can_run_images(demand, demand.images, offer):
        return False
    if not demand.is_stated:
        return True
    native = [demand.native] if demand.native else [t for t in (demand.emulated, demand.cross, demand.qemu) if t]
    pairs = [(need, offer.native) for need in native if offer.native]
    pairs += [(need, isa) for need in (demand.emulated, demand.qemu) if need for isa in offer.emulated]
    pairs += [(need, isa) for need in (demand.cross, demand.qemu) if need for isa in offer.cross]
    return any(match(parse(need), _offered(isa)).satisfied for need, isa in pairs if isa)


def _can_run_images(demand: IsaDemand, images: ImageDemand, offer: IsaReport) -> bool:
    emulators = offer.emulated if demand.emulated or demand.qemu else ()
    return image_gap(images, offer) is None or any(emulator_covers(images, isa) for isa in emulators)


def _offered(text: str) -> Isa:
    try:
        return parse(text, source="node-label")
    except InputError:
        return parse(text, source="cpuinfo")


def _reservations(cluster: Cluster) -> Iterator[Violation]:
    """I8: only pods that hold resources have a reservation, one each and on their node; nominated pods are pending."""
    holding = [state.value for state in HOLDING]
    pods = Pod.objects.filter(cluster=cluster)
    counted = pods.annotate(n=Count("reservations", filter=Q(reservations__active=True)))
    for pod in counted.filter(state__in=holding).exclude(n=1).exclude(node=None, origin=Pod.IMPORTED):
        yield Violation("I8", pod.key, f"is {pod.state} with {pod.n} active reservations")
    for pod in counted.exclude(state__in=holding).exclude(n=0):
        yield Violation("I8", pod.key, f"is {pod.state} but still has {pod.n} reservations")
    elsewhere = Reservation.objects.filter(cluster=cluster, active=True).exclude(node=F("pod__node"))
    for reservation in elsewhere.select_related("pod"):
        yield Violation("I8", reservation.pod.key, "has a reservation on a node other than its own")
    decided = Q(decision__verdict="placed") | Q(pk__in=_without_effects(cluster).values("pod"))
    for undecided in pods.filter(state__in=holding, origin__in=Pod.OURS).exclude(decided):
        yield Violation("I8", undecided.key, f"is {undecided.state} without a decision that placed it")
    nominated = Nomination.objects.filter(cluster=cluster, active=True)
    for nomination in nominated.exclude(pod__state__in=[state.value for state in QUEUED]).select_related("pod"):
        yield Violation("I8", nomination.pod.key, f"is {nomination.pod.state} but still nominated")
    held_pods = pods.filter(origin=Pod.HELD, state__in=holding)
    for held_pod in held_pods.exclude(hold__state__in=Hold.OPEN).only("namespace", "name"):
        yield Violation("I8", held_pod.key, "is reserved capacity of a hold that has ended")
    ahead = Reservation.objects.filter(cluster=cluster).filter(
        Q(leader_epoch__gt=cluster.leader_epoch) | Q(revision__gt=cluster.revision)
    )
    if ahead.exists():
        yield Violation("I21", cluster.name, "has reservations with a later revision or epoch than its own")


def _workloads(cluster: Cluster) -> Iterator[Violation]:
    """I15, I28: every workload has all its pods in valid states, the state that follows from the states of its pods,
    and an audit entry.
    """
    states: dict[str, Counter[str]] = defaultdict(Counter)
    rows = Pod.objects.filter(cluster=cluster).exclude(workload=None).order_by().values_list("workload_id", "state")
    for workload_id, state, count in rows.annotate(n=Count("id")):
        states[workload_id][state] += count
    known = {state.value for state in State}
    submitted = set(AuditEntry.objects.filter(action="workload.submit").values_list("object_name", flat=True))
    with_effects = Workload.objects.filter(cluster=cluster).exclude(
        pk__in=_without_effects(cluster).values("pod__workload"), state=State.PENDING.value
    )
    for pk, stated, pod_count in with_effects.values_list("id", "state", "pod_count"):
        counted = states[pk]
        if counted.total() != pod_count or set(counted) - known:
            yield Violation("I15", pk, f"{pod_count} pods were submitted, but the pods are {dict(counted)}")
        elif workload_state(counted) != stated:
            yield Violation("I15", pk, f"is {stated}, but its pods are {dict(counted)}")
        if pk not in submitted:
            yield Violation("I28", pk, "has no audit entry for its submission")


def _constraints() -> Iterator[Violation]:
    """I1, I25: the unique indexes and triggers that enforce the invariants exist."""
    query = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'index')",
        "postgresql": "SELECT tgname FROM pg_trigger UNION SELECT indexname FROM pg_indexes",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(query)
        present = {name for (name,) in cursor.fetchall()}
    for name in _GUARDS:
        if name not in present:
            yield Violation("I25", name, "the trigger is missing")
    for name in _JUDGES:
        if name not in present:
            yield Violation("I1", name, "the unique index is missing")


def _idempotency() -> Iterator[Violation]:
    """I16: each key has one response, for the workload or hold that it names."""
    for key in IdempotencyKey.objects.all():
        about = key.workload_id or key.hold_id
        if key.response.get("id") != about:
            yield Violation("I16", key.key, f"answers {key.response.get('id')} for {about}")


def _events() -> Iterator[Violation]:
    """I17: a topic's events are numbered without a gap up to its revision."""
    kept = (
        OutboxEvent.objects.order_by()
        .values("topic")
        .annotate(n=Count("id"), low=Min("revision"), high=Max("revision"))
    )
    rows = {row["topic"]: row for row in kept}
    revisions = dict(Topic.objects.values_list("name", "revision"))
    for topic, row in rows.items():
        if row["n"] != row["high"] - row["low"] + 1 or row["high"] != revisions.get(topic):
            yield Violation("I17", topic, f"events {row['low']}-{row['high']}: {row['n']}; at {revisions.get(topic)}")
