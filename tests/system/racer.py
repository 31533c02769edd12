"""One of several processes that all act as leader of the same cluster and keep deciding regardless of the lease.

It submits, decides and releases at random until its time is up, and prints a JSON document with counts.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

CLAIMS = 24  # device claims of the cluster, each of which several pods request


def race(seed: int, seconds: float) -> dict[str, Any]:
    """Race for `seconds` and return counts; every failure except a lost comparison is recorded as an error."""
    from hetsched.contracts.objects.workload import DeviceUse
    from hetsched.inventory.models import Cluster
    from hetsched.placement import actions
    from hetsched.placement.lifecycle import State
    from hetsched.placement.models import Pod
    from hetsched.scheduling import scheduling_loop, worker_host
    from tests.builders import a_pod
    from tests.situations import submitted

    lead_always()
    draw, cluster = random.Random(seed), Cluster.objects.get()
    done: dict[str, Any] = {"submitted": 0, "decided": 0, "released": 0, "conflicts": 0, "errors": []}
    recorded = scheduling_loop.record

    def counted(*arguments: Any, **named: Any) -> int:
        try:
            return recorded(*arguments, **named)
        except actions.Conflict:
            done["conflicts"] += 1
            raise

    scheduling_loop.record = counted
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        number = done["submitted"]
        try:
            match draw.choices(("submit", "decide", "release"), (4, 4, 2))[0]:
                case "submit":
                    pods = [a_pod(f"p{seed}-{number + place}").cpu("100m") for place in range(8)]
                    for place, pod in enumerate(pods):
                        if place % 8 in (2, 6):
                            pod.shaped(devices=(DeviceUse("gpu", f"claim-{draw.randrange(CLAIMS)}"),))
                        if place % 2:
                            pod.gpu(1, milli=draw.choice((1000, 300)))
                    submitted(cluster, *pods, priority=5 * (number // 8 % 2))
                    done["submitted"] += len(pods)
                case "decide":
                    done["decided"] += worker_host.run(cluster.pk)
                case "release":
                    placed = list(Pod.objects.filter(state="placed").values_list("id", flat=True))
                    if placed:
                        ids = draw.sample(placed, min(10, len(placed)))
                        actions.release(cluster.pk, ids, to=State.SUCCEEDED, reason="its end")
                        done["released"] += len(ids)
        except actions.Conflict:
            done["conflicts"] += 1
        except Exception as error:
            done["errors"].append(repr(error)[:300])
    return done


def lead_always() -> None:
    """Let this process act as leader of every cluster, without pauses, because a worker that pauses does not race."""
    from hetsched.scheduling import worker_host
    from hetsched.scheduling.leases import Lease, leading

    leading.take = lambda cluster_id, holder: Lease(cluster_id, _epoch(cluster_id))  # type: ignore[assignment]
    leading.renew = lambda lease: True  # type: ignore[assignment]
    leading.release = lambda lease: None  # type: ignore[assignment]
    worker_host.LONGEST_REST_SECONDS = 0.0


def _epoch(cluster_id: int) -> int:
    from hetsched.inventory.models import Cluster

    return Cluster.objects.values_list("leader_epoch", flat=True).get(pk=cluster_id)


def differing_topics() -> list[str]:
    """Return the topics whose document is not the result of its deltas, and the differences."""
    from hetsched.journal.models import OutboxEvent, Topic
    from hetsched.journal.publish import difference, merge
    from hetsched.placement.queries.topics import snapshot

    differing = []
    for topic in Topic.objects.values_list("name", flat=True):
        document: dict[str, Any] = {}
        for data in OutboxEvent.objects.filter(topic=topic).order_by("revision").values_list("data", flat=True):
            document = merge(document, data)
        fresh = snapshot(topic).data
        if topic.startswith(("node:", "workload:")):  # no event contains the fields of before the topic was open
            fresh = _restricted(fresh, document)
        if document != fresh:
            differing.append(f"{topic}: {difference(document, fresh)}")
    return differing


def _restricted(document: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a document that another one also has."""
    return {
        key: _restricted(value, known[key]) if isinstance(value, dict) and isinstance(known[key], dict) else value
        for key, value in document.items()
        if key in known
    }


def open_all_topics() -> None:
    """Let the topics of all nodes and workloads have events, as if clients had subscribed to them."""
    from hetsched.journal import publish

    publish.closed_topics = lambda topics: set()  # type: ignore[assignment]


def main() -> None:
    import django

    django.setup()
    open_all_topics()
    from hetsched.placement import dispatch

    dispatch.wake = lambda *arguments: None  # type: ignore[assignment]
    if sys.argv[1] == "check":
        from hetsched.journal.models import AuditEntry
        from hetsched.placement.models import Reservation
        from hetsched.placement.queries.invariants import check_invariants

        violations = [str(violation) for violation in check_invariants()]
        evicted = AuditEntry.objects.filter(action="pod.preempt").count()
        allocations = Reservation.objects.values_list("allocation", flat=True)
        grants = [grant for allocation in allocations for grant in allocation.devices]
        shares = sum(grant.consumed is not None for grant in grants)
        found = {"violations": violations, "differing": differing_topics(), "evicted": evicted}
        print(json.dumps({**found, "devices": len(grants) - shares, "shares": shares}))
    else:
        print(json.dumps(race(int(sys.argv[1]), float(sys.argv[2]))))


if __name__ == "__main__":
    main()
