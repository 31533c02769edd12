"""Simulate activity on a demo cluster: submit the next workloads of its stream and end those whose run time has passed.

Every tick submits at most `MOST_AT_ONCE` workloads until the cluster is filled up to `MARK_RATIO`, and none while
`MOST_WAITING` pods are pending. A workload's run time is defined in its manifest. Workloads that never fit or are
misconfigured are cancelled when their run time has passed, as their owners would do, and finished workloads are deleted
after an hour. All changes use the same actions as REST, so a demo cluster behaves like a real one.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec
import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.manifests import read_content
from hetsched.adapters.traces.simulated_fleet import demo_workload
from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message
from hetsched.inventory.actions import next_demo_sequence
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.journal.audit import Program
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, cancel, delete_finished_workloads, release, submit
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Workload

MARK_RATIO = 0.68  # share of the cluster's CPUs that is requested
MOST_AT_ONCE = 8
MOST_WAITING = 12
KEPT = timedelta(hours=1)
STREAM = Program("demo stream")
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.DEMO)
def tick() -> dict[str, int]:
    """Advance every demo cluster by one step; return counts of the changes."""
    done = {"finished": 0, "submitted": 0, "given_up": 0, "forgotten": 0}
    for cluster in Cluster.objects.filter(kind=ClusterKind.DEMO):
        done["finished"] += _finish(cluster)
        done["given_up"] += _give_up(cluster)
        done["forgotten"] += delete_finished_workloads(cluster.pk, finished_before=timezone.now() - KEPT)
        done["submitted"] += _submit(Cluster.objects.get(pk=cluster.pk))
    return done


def _submit(cluster: Cluster) -> int:
    waiting = Pod.objects.filter(cluster=cluster, state__in=[State.PENDING.value, State.NOT_NOW.value])
    if waiting.count() >= MOST_WAITING:
        return 0
    room = int(MARK_RATIO * cluster.capacity.get("cpu", 0)) - cluster.requested.get("cpu", 0)
    submitted = 0
    while room > 0 and submitted < MOST_AT_ONCE:
        sequence = next_demo_sequence(cluster)
        if sequence is None:
            break
        cluster.demo_sequence = sequence + 1
        items = demo_workload(cluster.demo_seed, sequence)
        manifest = encode({"apiVersion": "v1", "kind": "List", "items": items})
        content = read_content(
            load_documents(manifest, name=f"demo {sequence}"), workload=True, known=cluster.definitions
        )
        submit(cluster, content.pending, actor=STREAM, owner=_owner(cluster), manifest=manifest.decode())
        room -= sum(pod.shape.request("cpu") for pod in content.pending)
        submitted += 1
    return submitted


def duration(manifest: str) -> timedelta:
    """Return the run time of a demo workload from its manifest."""
    items = msgspec.json.decode(manifest)["items"]
    annotations = items[0]["metadata"].get("annotations", {})
    return timedelta(seconds=int(annotations.get(keys.DEMO_DURATION, "60")))


def _finish(cluster: Cluster) -> int:
    """End the pods whose run time has passed."""
    now = timezone.now()
    running = Pod.objects.filter(cluster=cluster, state=State.RUNNING.value, workload__owner=_owner(cluster))
    workloads = Workload.objects.filter(pk__in=running.order_by().values("workload_id"))
    lasts = {pk: duration(manifest) for pk, manifest in workloads.values_list("id", "manifest")}
    over = [
        pk
        for pk, workload_id, started_at in running.values_list("id", "workload_id", "started_at")
        if started_at and workload_id in lasts and started_at + lasts[workload_id] <= now
    ]
    try:
        return len(release(cluster.pk, over, to=State.SUCCEEDED, reason="completed")) if over else 0
    except Conflict as conflict:
        log.info("demo pods already ended", cluster=cluster.name, reason=str(conflict))
        return 0


def _give_up(cluster: Cluster) -> int:
    """Cancel rejected workloads whose run time has passed."""
    refused = [State.NEVER_FITS.value, State.MISCONFIGURED.value]
    given_up = 0
    for workload in Workload.objects.filter(cluster=cluster, state__in=refused, owner=_owner(cluster)):
        if workload.decided_at and workload.decided_at + duration(workload.manifest) <= timezone.now():
            cancel(workload, actor=STREAM, reason=Message("the owner cancelled the workload"))
            given_up += 1
    return given_up


def _owner(cluster: Cluster) -> str:
    return f"demo:{cluster.name}"
