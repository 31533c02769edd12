"""Request the eviction of preemption victims from the API servers of live clusters.

Rows define the requests. An attempt is claimed first, then made outside any transaction, and its result is recorded. If
a nomination or a step of a rebalance plan has several victims, a dry run must succeed for each victim before the first
eviction, and the disruption budgets must allow all evictions together. The first rejection ends the nomination or the
plan. A victim that is still being bound is evicted once it is bound. An accepted request does not prove that the pod
was deleted; the informer reports deleted pods. No request is sent while the cluster is out of sync.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.eviction import (
    EvictionResponse,
    EvictionResult,
    ToEvict,
    charge_budgets,
    evict,
    mark_victim,
)
from hetsched.contracts.times import rfc3339
from hetsched.inventory.connections import api_of
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_events import is_synced
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict
from hetsched.placement.actions.evictions import (
    ClaimedEviction,
    claim_evictions,
    displace,
    end_overdue_nominations,
    is_still_wanted,
    mark_refused,
    mark_requested,
    retry_later,
)
from hetsched.placement.lifecycle import State

MOST_TRIES = 8
_EVICTABLE = (State.BOUND.value, State.RUNNING.value)
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.EVICT)
def run(cluster_id: int) -> int:
    """Request the due evictions of a live cluster; return how many pods are leaving."""
    cluster = Cluster.objects.filter(pk=cluster_id, kind=ClusterKind.KUBERNETES, connection__shadow_of="").first()
    if cluster is None:
        return 0
    end_overdue_nominations(cluster_id)
    if not is_synced(cluster):
        return 0
    api: Api | None = None
    leave = 0
    for group in claim_evictions(cluster_id):
        api = api or api_of(cluster)
        leave += _evict_group(api, cluster, group)
    return leave


def _evict_group(api: Api, cluster: Cluster, group: Sequence[ClaimedEviction]) -> int:
    """Evict the victims of one nomination or of one step of a rebalance plan; return how many are leaving."""
    evictable = [claimed for claimed in group if claimed.victim.state in _EVICTABLE]
    for claimed, answer in _dry_run(api, evictable) if len(group) > 1 else ():
        if not _continues_after(cluster, claimed, answer):
            return 0
        if answer.result is EvictionResult.UNKNOWN:
            for other in group:
                retry_later(other, answer.retry_after_seconds)
            return 0
    leave = 0
    for claimed in group:
        try:
            if claimed.victim.state == State.PLACED and (displaced := displace(cluster.pk, claimed)):
                leave += displaced
                continue
        except Conflict:
            pass  # another process has already advanced the pod
        if claimed.victim.state in (State.PLACED, State.BINDING):
            retry_later(claimed)
            continue
        if claimed not in evictable:
            mark_requested(claimed)  # the pod has already released its reservation
            continue
        if not is_still_wanted(claimed):
            return leave
        if not is_synced(cluster):
            retry_later(claimed)
            continue
        answer = evict(api, _eviction_request(claimed))
        if not _continues_after(cluster, claimed, answer):
            return leave
        if answer.result in (EvictionResult.ASKED, EvictionResult.GONE):
            mark_requested(claimed)
            leave += 1
        if answer.result is EvictionResult.ASKED:
            instance = f"{socket.gethostname()}/{os.getpid()}"
            mark_victim(api, _eviction_request(claimed), now=rfc3339(timezone.now()), instance=instance)
    return leave


def _dry_run(api: Api, victims: Sequence[ClaimedEviction]) -> Iterator[tuple[ClaimedEviction, EvictionResponse]]:
    """Yield the API server's response to a dry run of each eviction, then the responses of the disruption budgets to
    all evictions together.
    """
    for claimed in victims:
        yield claimed, evict(api, _eviction_request(claimed), only_ask=True)
    yield from zip(victims, charge_budgets(api, [_eviction_request(claimed) for claimed in victims]), strict=True)


def _continues_after(cluster: Cluster, claimed: ClaimedEviction, answer: EvictionResponse) -> bool:
    """Record a rejected or unknown eviction; return whether to continue with the other victims."""
    late = answer.result is EvictionResult.UNKNOWN and claimed.eviction.attempts >= MOST_TRIES
    if answer.result is EvictionResult.REFUSED or late:
        log.info("not evicted", cluster=cluster.name, pod=claimed.victim.key, node=claimed.node, reason=answer.message)
        mark_refused(cluster.pk, claimed, answer.message)
        return False
    if answer.result is EvictionResult.UNKNOWN:
        retry_later(claimed, answer.retry_after_seconds)
    return True


def _eviction_request(claimed: ClaimedEviction) -> ToEvict:
    victim = claimed.victim
    return ToEvict(claimed.eviction.pk, victim.namespace, victim.name, victim.uid, claimed.sentence)
