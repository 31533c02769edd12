"""Races for the devices of random claims: several processes place and release the same pods at the same time.

The handlers run in helper processes (`driver`) that all act as leader of the same clusters. Each iteration of a process
decides a random part of the due pods of a random cluster on the cached state of the process, and releases placed pods.
The database keeps all reservations with the revisions at which they began and ended. The check replays them with
`DeviceAllocations`, which contains no code of hetsched, so that each allocation of the race is checked and not only the
last ones.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import msgspec

from tests.differential.clusters import Case
from tests.differential.device_allocations import DeviceAllocations
from tests.system.device_race_cases import MOST_PODS, race_case
from tests.system.racer import lead_always

PARTS = 2  # of the due pods, of which a sample contains one
WITHOUT_INDEX = "index"


def add_race(seed: int, fault: str = "") -> str:
    """Import the cluster of a seed with its pending pods; return the name of the cluster."""
    from django.db import connection

    from hetsched.adapters.objects.documents import load_documents
    from hetsched.adapters.objects.manifests import read_content
    from hetsched.journal.audit import SYSTEM
    from hetsched.placement.actions import import_cluster

    if fault == WITHOUT_INDEX:
        with connection.cursor() as cursor:
            cursor.execute("DROP INDEX IF EXISTS placement_device_one_holder")
    case = race_case(seed)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*case.objects, *case.pods]}).encode()
    content = read_content(load_documents(text, name="race"), workload=False)
    return import_cluster(content, name=f"devices-{seed}", kind="offline", actor=SYSTEM).name


def race_claims(clusters: list[str], seed: int, seconds: float, fault: str = "") -> dict[str, int]:
    """Place and release pods of these clusters for `seconds`; return counts."""
    from hetsched.inventory.models import Cluster
    from hetsched.placement import actions
    from hetsched.placement.lifecycle import State
    from hetsched.placement.models import Pod
    from hetsched.scheduling.leases import leading
    from hetsched.scheduling.scheduling_loop import SchedulingLoop
    from hetsched.scheduling.worker_host import WorkerHost

    draw, counts = random.Random(seed), Counter(claims=0, conflicts=0, released=0)
    _race_without_pauses(draw, counts)
    keys = dict(Cluster.objects.filter(name__in=clusters).values_list("id", "name"))
    loops = {pk: SchedulingLoop(WorkerHost(pk), pk, name, MOST_PODS) for pk, name in keys.items()}
    if fault:
        FAULTS[fault]()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pk, loop = draw.choice(list(loops.items()))
        try:
            lease = leading.take(pk, "race")
            assert lease is not None
            loop.iterate(lease)
            placed = list(Pod.objects.filter(cluster=pk, state=State.PLACED).values_list("id", flat=True))
            some = draw.sample(placed, draw.randint(len(placed) // 2, len(placed)))
            if some:
                actions.reject(pk, some, reason="the race")
                counts["released"] += len(some)
        except actions.Conflict:
            counts["conflicts"] += 1
    return dict(counts)


def _ignore_revisions() -> None:
    """Record decisions that are based on an earlier revision, for the rest of this process."""
    from hetsched.inventory.node_loads import advance
    from hetsched.placement.actions import decisions
    from hetsched.scheduling import scheduling_loop

    decisions.advance = lambda cluster_id, **_: advance(cluster_id)
    # The race continues with the nodes whose reservations the database rejects.
    scheduling_loop.record_reservation_conflicts = lambda *arguments: []


def _ignore_capacity() -> None:
    """Count no consumed capacity of shared devices, for the rest of this process."""
    from hetsched.engine.cluster.devices.usage import DeviceUsage

    count = DeviceUsage._count

    def without_amounts(usage: DeviceUsage, result: Any, sign: int) -> None:
        shared = result.consumed is not None
        count(usage, msgspec.structs.replace(result, consumed={}) if shared else result, sign)

    DeviceUsage._count = without_amounts  # type: ignore[method-assign]


def _ignore_counters() -> None:
    """Choose devices regardless of their counters, for the rest of this process."""
    from hetsched.engine.cluster.devices.search import DeviceSearch

    DeviceSearch._has_counters = lambda *_: True  # type: ignore[method-assign]


def _ignore_changes() -> None:
    """Apply no reservations of other processes to the scheduler cache, for the rest of this process."""
    from hetsched.placement import scheduler_cache

    scheduler_cache.CHANGED_RESERVATIONS = lambda **_: []  # type: ignore[assignment]


# Faults that the check must find.
FAULTS = {
    "comparison": _ignore_revisions,
    WITHOUT_INDEX: _ignore_revisions,  # `add_race` also drops the unique index
    "capacity": _ignore_capacity,
    "counters": _ignore_counters,
    "changes": _ignore_changes,
}


def _race_without_pauses(draw: random.Random, counts: Counter[str]) -> None:
    """Act as leader that decides random samples of the due pods, without back-off, and count claims and conflicts.

    No live events are sent, because no client receives them.
    """
    from datetime import timedelta

    from hetsched.journal import publish
    from hetsched.placement import dispatch
    from hetsched.placement.actions import Conflict, decisions, progress
    from hetsched.placement.lifecycle import State
    from hetsched.placement.scheduling_queue.active_queue import first_active_pods
    from hetsched.scheduling import scheduling_loop

    def sample(cluster_id: int, policy: Any, limit: int, *more: Any) -> list[Any]:
        due = first_active_pods(cluster_id, policy, limit, *more)
        # Explanations of rejected pods take most of the time, so a batch has only one.
        new = [pod for pod in due if pod.state == State.PENDING]
        old = [pod for pod in due if pod.state != State.PENDING]
        # Two processes often decide disjoint samples: no comparison of the states of pods detects their conflict.
        part = draw.randrange(PARTS)
        new = [pod for pod in new if pod.pod_id % PARTS == part]
        chosen = new + draw.sample(old, min(1, len(old)))
        return sorted(chosen, key=lambda pod: pod.pod_id)

    def record(cluster_id: int, results: Any, **more: Any) -> int:
        try:
            revision = decisions.record(cluster_id, results, **more)
        except Conflict:
            counts["conflicts"] += 1
            raise
        for result in results:
            if result.node_id is not None and result.allocation is not None:
                counts["claims"] += len({grant.claim for grant in result.allocation.devices})
        return revision

    lead_always()
    dispatch.wake = lambda *arguments: None  # type: ignore[assignment]
    publish._dispatch = lambda events: None  # type: ignore[assignment]
    decisions.NEWS_SOON = decisions.NEWS_AFTER = timedelta()
    decisions.backoff = progress.backoff = lambda attempts: timedelta()  # type: ignore[assignment]
    scheduling_loop.first_active_pods = sample
    scheduling_loop.record = record


def check_race(seed: int) -> dict[str, Any]:
    """Release all pods and return the number of allocated claims and the problems of all allocations of the race."""
    from hetsched.inventory.models import Cluster
    from hetsched.placement import actions
    from hetsched.placement.lifecycle import State
    from hetsched.placement.models import Pod, Reservation, ReservedDevice
    from hetsched.placement.queries.invariants import check_invariants

    found = Cluster.objects.get(name=f"devices-{seed}")
    violations = [str(violation) for violation in check_invariants(found)]
    placed = Pod.objects.filter(cluster=found, state=State.PLACED).values_list("id", flat=True)
    actions.release(found.pk, list(placed), to=State.SUCCEEDED, reason="the end of the race")
    rows = Reservation.objects.filter(cluster=found, pod__name__startswith="new-").order_by("id")
    columns = rows.values_list("revision", "released_revision", "pod__name", "node__name", "allocation")
    claims, problems = replay(race_case(seed), list(columns))
    held = ReservedDevice.objects.filter(cluster=found, active=True).values_list("reservation__pod__name", flat=True)
    problems += [f"{name} holds a device at the end" for name in held if name.startswith("new-")]
    return {"claims": claims, "problems": problems[:10], "violations": violations[:10]}


def replay(case: Case, reservations: list[tuple[int, int | None, str, str, Any]]) -> tuple[int, list[str]]:
    """Return how many claims got devices, and the invalid allocations, in the order of the revisions.

    A reservation is its first revision, the revision of its end, the pod, the node and the allocation.
    """
    from tests.differential.device_comparison import recorded, result_of

    claims = {each["metadata"]["name"]: each for each in case.objects if each["kind"] == "ResourceClaim"}
    allocations = DeviceAllocations(case.objects)
    for claim in claims.values():
        if "status" in claim:
            allocations.add(map(recorded, claim["status"]["allocation"]["devices"]["results"]))
    # At one revision, ends precede beginnings.
    begins = [(at, 1, number) for number, (at, *_) in enumerate(reservations)]
    ends = [(at, 0, number) for number, (_, at, *_) in enumerate(reservations) if at is not None]
    count, problems, holders, added = 0, list[str](), dict[str, str](), set[tuple[int, str]]()
    for at, begun, number in sorted([*begins, *ends]):
        _, _, pod, node, allocation = reservations[number]
        for name in dict.fromkeys(grant.claim for grant in allocation.devices):
            results = [result_of(grant) for grant in allocation.devices if grant.claim == name]
            if not begun:
                if (number, name) in added:
                    allocations.remove(results)
                    del holders[name]
                continue
            count += 1
            problem = allocations.problem(claims[name], node, results)
            if name in holders:
                problem = f"allocated for {holders[name]} at the same time"
            elif "status" in claims[name]:
                problem = "an allocated claim got devices"
            if problem:
                problems.append(f"revision {at}, {pod} on {node}, claim {name}: {problem}")
                continue
            allocations.add(results)
            added.add((number, name))
            holders[name] = pod
    problems += [f"{reservation[2]} holds its devices at the end" for reservation in reservations if not reservation[1]]
    return count, problems


def cached_promises(cluster: str) -> list[str]:
    """Return the claims to which the cached state of this process promises devices."""
    from hetsched.inventory.models import Cluster
    from hetsched.placement.scheduler_cache import cache_of

    with cache_of(Cluster.objects.get(name=cluster).pk).locked_snapshot() as snapshot:
        return sorted(name for name in snapshot.state.devices.promised if not name.startswith("default/used-"))


HANDLERS = (add_race, race_claims, check_race, cached_promises)
