"""A process that commits placements and writes their effects, killed at a step; and the count of the written rows.

The effects of a placement are the link from the pod to its decision, the audit entry and the state of its workload, the
load of its node, and the live events of its pages. `project` runs in a forked process of its own process group, which
`tests.system.faulty` kills at one of `EFFECT_STEPS`.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CLUSTER = "live"
NODES = 4
OWNERS = 3  # of each four pods, three have a controller and share its workload


def add_live_cluster(log: str) -> int:
    """Add a live cluster of equal nodes, whose informer has epoch 1.

    From now on, this process and those of `project` append each live event that they have sent to the file `log`,
    which also contains all earlier events.
    """
    from hetsched.contracts.objects.observed import Changes
    from hetsched.journal.models import OutboxEvent
    from hetsched.placement.actions import apply_changes
    from tests.builders import a_node
    from tests.situations import a_live_cluster
    from tests.system.racer import open_all_topics

    open_all_topics()
    earlier = OutboxEvent.objects.values_list("topic", "revision")
    Path(log).write_text("".join(f"{topic} {revision}\n" for topic, revision in earlier))
    _record_sent_events(Path(log))
    cluster = a_live_cluster()
    nodes = [a_node(f"n{number}").offering("pods", 2000).build() for number in range(NODES)]
    apply_changes(cluster.pk, Changes(nodes=nodes), epoch=1)
    return cluster.pk


def project(prefix: str, pods: int, wish: dict[str, Any] | None = None) -> int:
    """Commit `pods` placements in two transactions, write all due effects, and send unsent events, in a new process.

    `wish` contains faults of `tests.system.faulty`.
    Returns the exit code, which is the negative number of the signal if the process was killed.
    """
    from django.db import connections

    for connection in connections.all():
        connection.close()
        if connection.vendor == "postgresql":
            connection.close_pool()  # the new process must not share its connections
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 1
    try:
        os.setpgid(0, 0)
        _project(prefix, pods, wish or {})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _project(prefix: str, pods: int, wish: dict[str, Any]) -> None:
    from hetsched.inventory.models import Cluster
    from hetsched.journal.publish import relay
    from hetsched.placement.actions import write_placement_effects
    from tests.system.faulty import install_faults

    install_faults(wish)  # a point after the send is reached after its record, because it wraps the recorder
    if pods:
        _place(prefix, range(pods // 2))
        _place(prefix, range(pods // 2, pods))
    cluster = Cluster.objects.get(name=CLUSTER)
    if cluster.effects_due_since is not None:
        write_placement_effects(cluster.pk)
    relay(older_than_seconds=0.0)


def _record_sent_events(log: Path) -> None:
    from hetsched.journal import publish

    real = publish._send

    def send(events: Sequence[Any], run: Any) -> None:
        real(events, run)  # type: ignore[arg-type]
        with log.open("a") as lines:
            lines.writelines(f"{event.topic} {event.revision}\n" for event in events)

    publish._send = send


def _place(prefix: str, numbers: range) -> None:
    """Commit the placements of arriving pods, without their effects, as the leader of a new epoch."""
    from hetsched.contracts.objects.observed import ObservedPod
    from hetsched.inventory.models import Cluster
    from hetsched.placement.scheduler_cache import cache_of
    from hetsched.scheduling.arrivals import ArrivalScheduler
    from hetsched.scheduling.leases import leading
    from tests.builders import a_pod
    from tests.situations import arrived

    cluster = Cluster.objects.get(name=CLUSTER)
    Cluster.objects.filter(pk=cluster.pk).update(leader_until=None)  # the previous process is dead
    lease = leading.take(cluster.pk, "test")
    assert lease is not None
    arrivals = []
    for number in numbers:
        name = f"{prefix}-{number}"
        owner = f"{prefix}-job-{number % 4}" if number % 4 < OWNERS else ""
        spec = a_pod(name).cpu("1m").memory("1Mi").having(uid=f"uid-{name}", controller=owner).build()
        arrivals.append(ObservedPod(spec.namespace, name, spec.uid, scheduler_name="hetsched", spec=spec))
    scheduler = ArrivalScheduler(cache_of(cluster.pk), cluster.name)
    batch = scheduler.place(arrived(arrivals), lease, 1, most=len(arrivals))
    assert len(batch.results) == len(arrivals)


def projection_counts(log: str) -> dict[str, int]:
    """Count the effects that each placement and each position of a topic lacks (lost) or has too often (doubled).

    `repeated` counts the events that were sent more than once; clients discard these by their position.
    """
    from hetsched.inventory.models import Cluster
    from hetsched.journal.models import OutboxEvent

    lost = sum(cluster.effects_due_since is not None for cluster in Cluster.objects.all())
    found = [*_decisions(), *_audit_entries(), *_events()]
    sent = Counter(Path(log).read_text().splitlines())
    written = {f"{topic} {revision}" for topic, revision in OutboxEvent.objects.values_list("topic", "revision")}
    lost += sum(max(0, -surplus) for surplus in found) + len(written - sent.keys())
    doubled = sum(max(0, surplus) for surplus in found) + len(sent.keys() - written)
    return {"lost": lost, "doubled": doubled, "repeated": sent.total() - len(sent)}


def _decisions() -> Iterator[int]:
    """Yield for each pod how many decisions it has too many; a pod without a link to its decision lacks one."""
    from hetsched.placement.models import Decision, Pod

    decided = Counter(Decision.objects.values_list("pod_id", flat=True))
    for pod, decision in Pod.objects.exclude(node=None).values_list("id", "decision_id"):
        yield decided[pod] - 1
        yield 0 if decision is not None else -1


def _audit_entries() -> Iterator[int]:
    """Yield for each workload how many entries, and how many pods in its entries, it has too many."""
    from hetsched.journal.models import AuditEntry
    from hetsched.placement.models import Pod, Workload

    rows = AuditEntry.objects.filter(action="workload.submit").values_list("object_name", "details")
    entries, audited = Counter(name for name, _ in rows), Counter[str]()
    for name, details in rows:
        audited[name] += details["pods"]
    pods = Counter(Pod.objects.values_list("workload_id", flat=True))
    for workload in Workload.objects.values_list("id", flat=True):
        yield entries[workload] - 1
        yield audited[workload] - pods[workload]


def _events() -> Iterator[int]:
    """Yield for each position of each topic how many events it has too many; an unsent event is missing."""
    from hetsched.journal.models import OutboxEvent, Topic

    rows = OutboxEvent.objects.values_list("topic", "revision", "published_at")
    there = Counter((topic, revision) for topic, revision, sent in rows if sent is not None)
    for topic, last in Topic.objects.values_list("name", "revision"):
        for revision in range(1, last + 1):
            yield there.pop((topic, revision), 0) - 1
    yield from there.values()  # positions that the topic does not have


def differing_pages() -> list[str]:
    """Return the topics whose page differs from the sum of its live events."""
    from tests.system.racer import differing_topics

    return differing_topics()


HANDLERS = (add_live_cluster, project, projection_counts, differing_pages)
