"""Request the eviction of preemption victims from the API servers of live clusters.

Rows define the requests. An attempt is claimed first, then made outside any transaction, and its result is recorded.
The victims of one nomination, of the nominations that one decision made for a gang, or of one step of a rebalance plan
are a group: a dry run must succeed for each of them before the first eviction, and the disruption budgets must allow
all evictions of the group and of earlier groups that passed. The first rejection ends the nominations or the plan.
`GROUPS_AT_ONCE` groups are processed together: requests of different groups are sent in parallel, requests of one group
one after the other. A victim that is still being bound is evicted once it is bound. An accepted request does not prove
that the pod was deleted; the informer reports deleted pods. No request is sent while the cluster is out of sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, takewhile
from typing import NamedTuple

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods.eviction import (
    EvictionResponse,
    EvictionResult,
    EvictionTarget,
    charge_budgets,
    evict,
    mark_victim,
)
from hetsched.adapters.kubernetes.pods.pod_events import process_name
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
    mark_refused,
    mark_requested,
    retry_later,
    still_wanted,
)
from hetsched.placement.lifecycle import State

MOST_TRIES = 8
GROUPS_AT_ONCE = 32
AT_ONCE = 16
MARKS_AT_ONCE = 4
_EVICTABLE = (State.BOUND.value, State.RUNNING.value)
Group = Sequence[ClaimedEviction]
log = structlog.get_logger(__name__)


class Evictions(NamedTuple):
    """Result of evicting groups: the number of pods that are leaving, and the victims whose eviction was accepted."""

    leaving: int
    evicted: list[EvictionTarget]


@shared_task(name=dispatch.EVICT)
def run(cluster_id: int) -> int:
    """Request the due evictions of a live cluster; return how many pods are leaving their nodes."""
    cluster = Cluster.objects.filter(pk=cluster_id, kind=ClusterKind.KUBERNETES, connection__shadow_of="").first()
    if cluster is None:
        return 0
    end_overdue_nominations(cluster_id)
    if not is_synced(cluster):
        return 0
    groups = claim_evictions(cluster_id, GROUPS_AT_ONCE)
    if not groups:
        return 0
    api, leaving, marks = api_of(cluster), 0, list[Future[None]]()
    mark = partial(mark_victim, api, now=rfc3339(timezone.now()), instance=process_name())
    with ThreadPoolExecutor(AT_ONCE, "evict") as threads, ThreadPoolExecutor(MARKS_AT_ONCE, "mark") as marking:
        while groups:
            outcome = _evict_groups(threads, api, cluster, _allowed_groups(threads, api, cluster, groups))
            # Conditions and events are informational, so the next evictions do not wait for them.
            marks.extend(marking.submit(mark, victim) for victim in outcome.evicted)
            leaving += outcome.leaving
            groups = claim_evictions(cluster_id, GROUPS_AT_ONCE)
    for future in marks:
        future.result()
    return leaving


def _allowed_groups(threads: Executor, api: Api, cluster: Cluster, groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose evictions the API server and the budgets allow together; record the other responses."""
    dry_run = partial(evict, api, only_ask=True)

    def ask(victims: Sequence[Sequence[EvictionTarget]]) -> list[list[EvictionResponse]]:
        responses = threads.map(dry_run, chain.from_iterable(victims))
        return [list(islice(responses, len(group))) for group in victims]

    return _passing(cluster, _passing(cluster, groups, ask), partial(charge_budgets, api))


def _passing(
    cluster: Cluster,
    groups: Sequence[Group],
    check: Callable[[Sequence[Sequence[EvictionTarget]]], list[list[EvictionResponse]]],
) -> list[Group]:
    """Return the groups that may be evicted; one call of `check` covers all groups with several victims."""
    evictable = [_evictable(group) if len(group) > 1 else [] for group in groups]
    victims = [[_eviction_target(claimed) for claimed in group] for group in evictable]
    responses = check(victims) if any(victims) else [[] for _ in groups]
    return [
        group
        for group, asked, of_group in zip(groups, evictable, responses, strict=True)
        if _is_allowed(cluster, group, list(zip(asked, of_group, strict=True)))
    ]


def _is_allowed(cluster: Cluster, group: Group, responses: Sequence[tuple[ClaimedEviction, EvictionResponse]]) -> bool:
    """Return whether a group may be evicted; if not, record the first rejection, or retry the group later."""
    for claimed, response in responses:
        if not _continues_after(cluster, claimed, response):
            return False
        if response.result is EvictionResult.UNKNOWN:
            for other in group:
                retry_later(other, response.retry_after_seconds)
            return False
    return True


def _evict_groups(threads: Executor, api: Api, cluster: Cluster, groups: Sequence[Group]) -> Evictions:
    """Evict the victims of these groups: placed pods return to the queue, the others are evicted in the API server."""
    displaced, victims = 0, list[Group]()
    for group in groups:
        returned, of_group = _displace(cluster, group)
        displaced += returned
        victims.append(of_group)
    wanted = still_wanted([claimed for group in victims for claimed in group])
    if not is_synced(cluster):
        for group in victims:
            for claimed in group:
                retry_later(claimed)
        return Evictions(displaced, [])
    # If an eviction is no longer wanted because its nomination has ended, skip it and the rest of the group.
    victims = [list(takewhile(lambda claimed: claimed.eviction.pk in wanted, group)) for group in victims]
    targets = [[_eviction_target(claimed) for claimed in group] for group in victims]
    requested, evicted = list[ClaimedEviction](), list[EvictionTarget]()
    for group, responses in zip(victims, threads.map(partial(_evict_in_order, api), targets), strict=True):
        for claimed, response in zip(group, responses, strict=False):
            _continues_after(cluster, claimed, response)
            if response.result in (EvictionResult.ASKED, EvictionResult.GONE):
                requested.append(claimed)
            if response.result is EvictionResult.ASKED:
                evicted.append(_eviction_target(claimed))
    mark_requested(requested)
    return Evictions(displaced + len(requested), evicted)


def _displace(cluster: Cluster, group: Group) -> tuple[int, Group]:
    """Requeue victims that are placed but not bound; return how many pods left, and the victims to evict by API."""
    leave, victims = 0, []
    for claimed in group:
        try:
            if claimed.victim.state == State.PLACED and (displaced := displace(cluster.pk, claimed)):
                leave += displaced
                continue
        except Conflict:
            pass  # another process has already advanced the pod
        if claimed.victim.state in (State.PLACED, State.BINDING):
            retry_later(claimed)
        elif claimed.victim.state not in _EVICTABLE:
            mark_requested([claimed])  # the pod has already released its reservation
        else:
            victims.append(claimed)
    return leave, victims


def _evict_in_order(api: Api, victims: Sequence[EvictionTarget]) -> list[EvictionResponse]:
    """Request evictions one after the other, up to the first rejection; return the responses."""
    responses: list[EvictionResponse] = []
    for victim in victims:
        responses.append(evict(api, victim))
        if responses[-1].result is EvictionResult.REFUSED:
            break
    return responses


def _evictable(group: Group) -> Group:
    return [claimed for claimed in group if claimed.victim.state in _EVICTABLE]


def _continues_after(cluster: Cluster, claimed: ClaimedEviction, response: EvictionResponse) -> bool:
    """Record an eviction that was rejected or has an unknown result; return whether to continue with other victims."""
    late = response.result is EvictionResult.UNKNOWN and claimed.eviction.attempts >= MOST_TRIES
    if response.result is EvictionResult.REFUSED or late:
        log.info(
            "not evicted", cluster=cluster.name, pod=claimed.victim.key, node=claimed.node, reason=response.message
        )
        mark_refused(cluster.pk, claimed, response.message)
        return False
    if response.result is EvictionResult.UNKNOWN:
        retry_later(claimed, response.retry_after_seconds)
    return True


def _eviction_target(claimed: ClaimedEviction) -> EvictionTarget:
    victim = claimed.victim
    return EvictionTarget(claimed.eviction.pk, victim.namespace, victim.name, victim.uid, claimed.sentence)
