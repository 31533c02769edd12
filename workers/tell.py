"""Tell a live cluster what was decided about its pods, and what became of its policies.

Rule: each pod remembers the decision that was told last; what differs from its latest is due, so a message that was
lost is made up for by the next run. Placements are told once they are bound, or taken back with what stood against
them (a right, an admission policy, another member of a gang). No transaction is open during a call.
A run tells `PODS_PER_STEP` pods and asks for another one: nobody who has to bind waits long behind it. While pods are
on their way to their nodes the API server is theirs first: one pod is told after the other, and the next run comes
after a rest; where that is so slow that a decision of `LATE` ago is still to be told, as many at once as ever. Pods
that could not be told come after all others, the one that failed longest ago first.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from celery import shared_task
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pod_events import Told, tell
from hetsched.adapters.kubernetes.policy_status import PolicyTold, tell_policy
from hetsched.contracts.decision import Verdict
from hetsched.contracts.times import rfc3339
from hetsched.inventory.connections import api_of
from hetsched.inventory.ledger import write_columns
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement import dispatch
from hetsched.placement.lifecycle import HOLDING, LISTED, UNPLACED, State
from hetsched.placement.models import Pod
from hetsched.policies.models import PolicyObject
from hetsched.storage.prepared_queries import Given, Prepared

PODS_PER_STEP = 100
REST_SECONDS = 0.1
LATE = timedelta(seconds=15)
AT_ONCE = 8
_BOUND = sorted(state.value for state in HOLDING - {State.PLACED, State.BINDING})
_UNPLACED = sorted(state.value for state in UNPLACED)


def untold(cluster_id: int | Given) -> Q:
    """Return the condition for pods whose latest decision the cluster does not know."""
    taken_back = Q(state=State.PENDING.value) & ~Q(message="")
    decided = Q(state__in=_UNPLACED) | Q(state__in=_BOUND) | taken_back
    news = Q(told_decision=None) | ~Q(told_decision=F("decision_id"))
    return Q(cluster_id=cluster_id, origin__in=Pod.OURS, decision__isnull=False) & decided & news


def untold_policies(cluster_id: int) -> Q:
    """Return the condition for policies whose object does not know what became of it."""
    return Q(cluster_id=cluster_id, told=False, gone=False)


@shared_task(name=dispatch.TELL)
def run(cluster_id: int) -> int:
    """Write conditions and events of what was decided; return how many pods were told."""
    cluster = Cluster.objects.filter(pk=cluster_id, kind=ClusterKind.KUBERNETES, connection__shadow_of="").first()
    if cluster is None:
        return 0
    policies = list(PolicyObject.objects.filter(untold_policies(cluster_id)))
    some, since = _due(cluster_id)
    if not some and not policies:
        return 0
    api = api_of(cluster)
    _tell_policies(api, policies)
    at = timezone.now()
    instance, now = f"{socket.gethostname()}/{os.getpid()}", rfc3339(at)
    with ThreadPoolExecutor(_at_once(cluster_id, since, at), thread_name_prefix="tell") as threads:
        done = list(threads.map(lambda one: tell(api, one, now=now, instance=instance), some))
    told = [Pod(pk=one.pod_id, told_decision=one.decision_id) for one, known in zip(some, done, strict=True) if known]
    failed = [Pod(pk=one.pod_id, tell_failed_at=at) for one, known in zip(some, done, strict=True) if not known]
    with transaction.atomic():
        write_columns(told, ("told_decision", "tell_failed_at"))
        write_columns(failed, ("tell_failed_at",))
    if told and len(some) == PODS_PER_STEP:
        if _are_on_their_way(cluster_id):
            dispatch.send(cluster_id, dispatch.TELL, in_seconds=REST_SECONDS)
        else:
            dispatch.wake(cluster_id, dispatch.TELL)
    return len(told)


def _at_once(cluster_id: int, since: datetime | None, now: datetime) -> int:
    """Return how many are told at once, of which the first was decided at `since`."""
    is_late = since is not None and since < now - LATE
    return 1 if not is_late and _are_on_their_way(cluster_id) else AT_ONCE


def _are_on_their_way(cluster_id: int) -> bool:
    """Tell whether pods wait for their nodes, or for the first look at them."""
    states = (State.PENDING.value, State.PLACED.value, State.BINDING.value)
    return Pod.objects.filter(cluster_id=cluster_id, state__in=states).filter(state__in=LISTED).exists()


def _tell_policies(api: Api, policies: Sequence[PolicyObject]) -> None:
    for one in policies:
        since = rfc3339(one.since)[:19] + "Z"
        if tell_policy(api, PolicyTold(one.name, one.uid, one.generation, one.version, since, one.problem)):
            # Judged again meanwhile, it is to be told again.
            PolicyObject.objects.filter(pk=one.pk, judged_at=one.judged_at).update(told=True)


def _due(cluster_id: int) -> tuple[list[Told], datetime | None]:
    """Return the next ones to be told, and when the first of them was decided."""
    rows = _DUE(cluster=cluster_id)
    some = [
        Told(pk, decision, namespace, name, uid, Verdict(verdict), _sentence(summary, state, message), node or "", kept)
        for pk, decision, namespace, name, uid, verdict, summary, state, message, node, kept, _ in rows
    ]
    return some, min((row[-1] for row in rows), default=None)


_DUE: Prepared[Any] = Prepared(
    lambda: (
        Pod.objects.filter(untold(Given("cluster")))
        .filter(state__in=LISTED)
        .order_by(F("tell_failed_at").asc(nulls_first=True), "id")
        .values_list(
            "id", "decision_id", "namespace", "name", "uid", "decision__verdict", "decision__summary", "state",
            "message", "node__name", "decision__nominated_node", "decision__created_at",
        )[:PODS_PER_STEP]
    )
)  # fmt: skip


def _sentence(summary: str, state: str, message: str) -> str:
    return f"{summary}, but was not bound: {message}" if state == State.PENDING.value else summary
