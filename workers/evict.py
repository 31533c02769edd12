"""Request the eviction of preemption victims from the API servers of live clusters.

Rows define the requests. An attempt is claimed first, then made outside any transaction, and its result is recorded.
The victims of one nomination, or of one step of a rebalance plan, are a group: a dry run must succeed for each of them
before the first eviction, and the disruption budgets must allow all evictions of the group and of earlier groups. The
first rejection ends the nomination or the plan. `GROUPS_AT_ONCE` groups are processed together: their requests are sent
in parallel, those of one group one after the other. A victim that is still being bound is evicted once it is bound. An
accepted request does not prove that the pod was deleted; the informer reports deleted pods. No request is sent while
the cluster is out of sync.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import islice, takewhile

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.eviction import (
    EvictionResponse,
    EvictionResult,
    EvictionTarget,
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
    mark_refused,
    mark_requested,
    retry_later,
    still_wanted,
)
from hetsched.placement.lifecycle import State

MOST_TRIES = 8
GROUPS_AT_ONCE = 32
AT_ONCE = 16
_EVICTABLE = (State.BOUND.value, State.RUNNING.value)
Group = Sequence[ClaimedEviction]
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
    claimed = claim_evictions(cluster_id)
    leave, asked = 0, list[EvictionTarget]()
    groups: list[Group] = list(islice(claimed, GROUPS_AT_ONCE))
    if not groups:
        return 0
    api = api_of(cluster)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="evict") as threads:
        while groups:
            groups = _allowed_groups(threads, api, cluster, groups)
            leave += _evict_groups(threads, api, cluster, groups, asked)
            groups = list(islice(claimed, GROUPS_AT_ONCE))
        # Conditions and events are informational, so they are written after the last eviction.
        instance, now = f"{socket.gethostname()}/{os.getpid()}", rfc3339(timezone.now())
        list(threads.map(lambda victim: mark_victim(api, victim, now=now, instance=instance), asked))
    return leave


def _allowed_groups(threads: Executor, api: Api, cluster: Cluster, groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose evictions the API server and the budgets allow together; record the other responses."""
    ask = partial(evict, api, only_ask=True)
    dry_run = _passing(cluster, groups, lambda victims: list(threads.map(ask, victims)))
    return _passing(cluster, dry_run, partial(charge_budgets, api))


def _passing(
    cluster: Cluster, groups: Sequence[Group], check: Callable[[Sequence[EvictionTarget]], list[EvictionResponse]]
) -> list[Group]:
    """Check all victims of groups with several victims together; return the groups that may be evicted."""
    asking = [_evictable(group) if len(group) > 1 else [] for group in groups]
    victims = [_eviction_request(claimed) for evictable in asking for claimed in evictable]
    answers = iter(check(victims) if victims else ())
    pairs = [[(claimed, next(answers)) for claimed in evictable] for evictable in asking]
    return [group for group, of_group in zip(groups, pairs, strict=True) if _is_allowed(cluster, group, of_group)]


def _is_allowed(cluster: Cluster, group: Group, answers: Sequence[tuple[ClaimedEviction, EvictionResponse]]) -> bool:
    """Return whether a group may be evicted; if not, record the first rejection, or retry the group later."""
    for claimed, answer in answers:
        if not _continues_after(cluster, claimed, answer):
            return False
        if answer.result is EvictionResult.UNKNOWN:
            for other in group:
                retry_later(other, answer.retry_after_seconds)
            return False
    return True


def _evict_groups(
    threads: Executor, api: Api, cluster: Cluster, groups: Sequence[Group], asked: list[EvictionTarget]
) -> int:
    """Evict the victims of these groups, add those that the API server evicts to `asked`, and return how many leave."""
    leave, leaving = 0, list[Group]()
    for group in groups:
        displaced, victims = _displace(cluster, group)
        leave += displaced
        leaving.append(victims)
    wanted = still_wanted([claimed for group in leaving for claimed in group])
    if not is_synced(cluster):
        for group in leaving:
            for claimed in group:
                retry_later(claimed)
        return leave
    # A group ends at its first eviction that is not wanted any more: its nomination has ended.
    leaving = [list(takewhile(lambda claimed: claimed.eviction.pk in wanted, group)) for group in leaving]
    requests = [[_eviction_request(claimed) for claimed in group] for group in leaving]
    requested: list[ClaimedEviction] = []
    for group, answers in zip(leaving, threads.map(partial(_evict_in_order, api), requests), strict=True):
        for claimed, answer in zip(group, answers, strict=False):
            _continues_after(cluster, claimed, answer)
            if answer.result in (EvictionResult.ASKED, EvictionResult.GONE):
                requested.append(claimed)
            if answer.result is EvictionResult.ASKED:
                asked.append(_eviction_request(claimed))
    mark_requested(requested)
    return leave + len(requested)


def _displace(cluster: Cluster, group: Group) -> tuple[int, Group]:
    """Return placed victims to the queue; return their number, and the victims to evict in the API server."""
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
    answers: list[EvictionResponse] = []
    for victim in victims:
        answers.append(evict(api, victim))
        if answers[-1].result is EvictionResult.REFUSED:
            break
    return answers


def _evictable(group: Group) -> Group:
    return [claimed for claimed in group if claimed.victim.state in _EVICTABLE]


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


def _eviction_request(claimed: ClaimedEviction) -> EvictionTarget:
    victim = claimed.victim
    return EvictionTarget(claimed.eviction.pk, victim.namespace, victim.name, victim.uid, claimed.sentence)
