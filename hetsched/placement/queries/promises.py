"""Invariants I6, I13 and I14: placements within zones, whole gangs and quotas of owners.

The checks use the rows alone and report only violations that the rows prove.
    I6   a pod that requests a single NUMA zone, and whose CPUs hetsched chose, has a single zone; a pod with exclusive
         CPUs has in each zone at least as many CPUs as it reserves there
    I13  if its policy places gangs whole, either no member of a gang is placed or at least the minimum is, unless a
         member was displaced or ended or the gang is recorded as incomplete; such a record exists no longer than the
         gang's timeout
    I14  the amounts of the unfinished workloads of an owner are within the quota that applied when they were accepted
The rows cannot prove I13 for a gang whose members another scheduler placed one after the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.models import Cluster
from hetsched.placement.lifecycle import FINISHED, HOLDING, QUEUED
from hetsched.placement.models import Charge, PartiallyBoundGang, Pod, Reservation
from hetsched.placement.reservation_ledger import EXCLUSIVE_CPU_POLICIES
from hetsched.policies.models import PolicyRevision
from hetsched.storage.literals import Literal
from hetsched.storage.snapshot_read import database_now

Breach = tuple[str, str, str]
LATE = timedelta(minutes=10)  # longer than the interval of the periodic cleanups

_HOLDING = [state.value for state in HOLDING]
_BY_THE_KUBELET = "static"


def find_breaches(cluster: Cluster) -> Iterator[Breach]:
    """Yield (invariant, place, message) for each violation of I6 and I13 in a cluster."""
    yield from _zones(cluster)
    yield from _gangs(cluster)
    yield from _half_gangs(cluster)


def _zones(cluster: Cluster) -> Iterator[Breach]:
    placed = Pod.objects.filter(cluster=cluster, origin__in=Pod.OURS, state__in=_HOLDING).exclude(allocation=None)
    for pod in placed.only("namespace", "name", "spec", "allocation").iterator(2000):
        held, wish = pod.allocation, pod.spec.shape.numa
        if held is None or not held.zones or held.cpu_policy == _BY_THE_KUBELET:
            continue
        if wish is not None and wish.aware and len(held.zones) > 1:
            yield "I6", pod.key, f"asks for one zone but has {', '.join(zone.name for zone in held.zones)}"
        for zone in held.zones if held.cpu_policy in EXCLUSIVE_CPU_POLICIES else ():
            cpus = len(parse_cpuset(zone.cpus or ""))
            if 1000 * cpus < zone.cpu_millis:
                yield "I6", pod.key, f"has {zone.cpu_millis}m reserved in zone {zone.name} but {cpus} CPUs"


def _gangs(cluster: Cluster) -> Iterator[Breach]:
    counted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    rows = Pod.objects.filter(cluster=cluster).exclude(gang=Literal(""))
    for namespace, gang, state in rows.values_list("namespace", "gang", "state"):
        counted[namespace, gang][state] += 1
    known = {state.value for state in HOLDING | QUEUED}
    for (namespace, gang), states in sorted(counted.items()):
        holding = sum(states[state] for state in _HOLDING)
        if not holding or holding == states.total() or set(+states) - known:
            continue
        members = list(rows.filter(namespace=namespace, gang=gang).select_related("decision"))
        least = max((pod.spec.gang.min_available for pod in members if pod.spec.gang is not None), default=0)
        if holding >= least or not all(_was_placed_whole(pod) for pod in members if pod.state in _HOLDING):
            continue
        if Reservation.objects.filter(pod__in=members, active=False).exists():
            continue  # A member was displaced: it is scheduled again while the other members stay.
        if not PartiallyBoundGang.objects.filter(cluster=cluster, namespace=namespace, gang=gang).exists():
            yield "I13", f"{namespace}/{gang}", f"{holding} members are placed, but the gang needs {least}"


def _was_placed_whole(pod: Pod) -> bool:
    """Return True if hetsched placed a pod under a policy that places gangs whole."""
    if pod.origin not in (Pod.SUBMITTED, Pod.WATCHED) or pod.decision is None:
        return False
    by = PolicyRevision.objects.filter(policy__name=pod.decision.policy_name, version=pod.decision.policy_version)
    return any(use.name in load_registry().gang_plugins for revision in by for use in revision.spec.plugins)


def _half_gangs(cluster: Cluster) -> Iterator[Breach]:
    for gang in PartiallyBoundGang.objects.filter(cluster=cluster):
        if database_now() > gang.since + timedelta(seconds=gang.patience_seconds) + LATE:
            yield (
                "I13",
                str(gang),
                f"has been partially bound since {gang.since:%Y-%m-%d %H:%M:%S}, longer than its timeout",
            )


def overdrawn_quotas() -> Iterator[Breach]:
    """Yield (I14, owner, message) for each owner whose amounts exceed the quota."""
    held: dict[str, Counter[str]] = defaultdict(Counter)
    bounds: dict[str, dict[str, int]] = {}
    rows = Charge.objects.exclude(workload__state__in=[state.value for state in FINISHED])
    for owner, amounts, most in rows.values_list("owner", "amounts", "bounds"):
        held[owner].update(amounts)
        bounds[owner] = {name: max(bound, bounds.get(owner, {}).get(name, 0)) for name, bound in most.items()}
    for owner, most in sorted(bounds.items()):
        for name, bound in most.items():
            if held[owner][name] > bound:
                yield "I14", owner, f"{name}: {held[owner][name]} charged of {bound}"
