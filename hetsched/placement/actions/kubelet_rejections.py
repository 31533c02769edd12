"""Pods that kubelets rejected, and the clearing of a rejection once a pod of the same owner runs.

Rejections are written inside the informer's transaction, so the pod fails and its owner backs off from the node in one
commit. A rejection marks the node facts that allowed the placement as in conflict. When a back-off ends, the affected
pods are requeued. `scheduling_queue.node_backoffs` defines how long a back-off lasts.
Invariants: a pod's rejection is counted once; the node's capacity does not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from hetsched.contracts.message import verbatim
from hetsched.contracts.objects.fact_conflicts import FactConflict
from hetsched.contracts.objects.observed import ObservedPod
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.times import rfc3339
from hetsched.contracts.waits import Event
from hetsched.inventory.actions import require_reason
from hetsched.inventory.fact_conflicts import clear_conflicts, clear_owner_conflicts, record_conflicts
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_loads import advance
from hetsched.journal import counters, metric_names
from hetsched.journal.audit import Actor
from hetsched.placement.models import Pod, Rejection
from hetsched.placement.scheduling_queue.node_backoffs import (
    OWNER_BACKOFF_WITHIN,
    RESET_AFTER,
    node_backoff,
    owner_backoff,
)
from hetsched.placement.scheduling_queue.unschedulable_pods import requeue_pods
from hetsched.storage.batches import batched
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import ClusterTransaction


def record_rejections(change: ClusterTransaction, refused: Sequence[tuple[Pod, ObservedPod]]) -> list[Node]:
    """Write new rejections, inside the caller's transaction; return the nodes with changed conflicts."""
    if not refused:
        return []
    uids = [seen.uid for _, seen in refused]
    known = set(Rejection.objects.filter(cluster=change.cluster, uid__in=uids).values_list("uid", flat=True))
    fresh = [(row, seen) for row, seen in refused if seen.uid not in known and row.node_id is not None]
    if not fresh:
        return []
    specs = _specs(row for row, _ in fresh)
    owners = {specs[row.pk].owner for row, _ in fresh}
    rounds = _Rounds(change, owners)
    doubts: dict[int, list[FactConflict]] = defaultdict(list)
    rows = []
    for row, seen in fresh:
        assert seen.refusal is not None
        spec, why = specs[row.pk], seen.refusal
        rows.append(rounds.next(row, spec, why.reason, why.message))
        for fact in why.facts:
            conflict = FactConflict(fact, rfc3339(change.now), row.key, why.reason, why.message[:300], spec.owner)
            doubts[row.node_id or 0].append(conflict)
    Rejection.objects.bulk_create(rows, batch_size=500)
    reasons = [row.reason for row in rows]
    transaction.on_commit(lambda: _count(change.cluster.name, reasons))
    return record_conflicts(change.cluster, doubts)


def _count(cluster: str, reasons: Iterable[str]) -> None:
    for reason in reasons:
        counters.add(metric_names.KUBELET_REFUSALS, cluster, reason)


class _Rounds:
    """The latest rejections by owner and node, from which the back-off after a further rejection follows."""

    def __init__(self, change: ClusterTransaction, owners: Iterable[str]) -> None:
        self._change = change
        open_ones = Rejection.objects.filter(cluster=change.cluster, cleared_at=None, owner__in=owners).order_by("id")
        self._last: dict[tuple[str, int], Rejection] = {}
        self._lately: dict[str, set[int]] = defaultdict(set)
        for row in open_ones:
            self._last[row.owner, row.node_id] = row
            if not row.ran_elsewhere and row.created_at > change.now - OWNER_BACKOFF_WITHIN:
                self._lately[row.owner].add(row.node_id)

    def next(self, pod: Pod, spec: PodSpec, reason: str, message: str) -> Rejection:
        """Return a new, unsaved rejection record for the pod, with its back-off."""
        assert pod.node_id is not None
        now, pair = self._change.now, (spec.owner, pod.node_id)
        last = self._last.get(pair)
        step, until = 1, now + node_backoff(1)
        if last is not None and now < last.until:
            step, until = last.step, last.until  # in flight at the last rejection: same step
        elif last is not None and now < last.until + RESET_AFTER:
            step = last.step + 1
            until = now + node_backoff(step)
        nodes = self._lately[spec.owner]
        nodes.add(pod.node_id)
        rest = owner_backoff(len(nodes))
        self._last[pair] = found = Rejection(
            cluster=self._change.cluster,
            node_id=pod.node_id,
            owner=spec.owner[:320],
            controller=spec.controller[:320],
            pod=pod.key,
            uid=pod.uid,
            reason=reason[:120],
            message=verbatim(message),
            step=step,
            created_at=now,
            until=until,
            rest_until=None if rest is None else now + rest,
        )
        return found


def clear_rejections(change: ClusterTransaction, rows: Sequence[Pod]) -> list[Node]:
    """Clear rejections of owners with a running pod, inside the caller's transaction; return the changed nodes."""
    open_ones = Rejection.objects.filter(cluster=change.cluster, cleared_at=None)
    if not rows or not open_ones.exists():
        return []
    specs = _specs(rows)
    ran: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        if row.node_id is not None:
            ran[row.node_id].add(specs[row.pk].owner)
    cleared = 0
    for node_id, owners in ran.items():
        cleared += open_ones.filter(node_id=node_id, owner__in=owners).update(cleared_at=change.now)
        open_ones.filter(owner__in=owners).update(ran_elsewhere=True)
    if cleared:
        _requeue_backed_off(change.cluster)
    return clear_owner_conflicts(change.cluster, ran)


def requeue_after_backoff(cluster_id: int, now: datetime) -> int:
    """Requeue pods at the end of their back-off; return how many back-offs ended since the last call."""
    over = Q(until__lte=now) & (Q(woken_at=None) | Q(woken_at__lt=F("until")))
    rested = Q(rest_until__lte=now) & (Q(woken_at=None) | Q(woken_at__lt=F("rest_until")))
    due = Rejection.objects.filter(over | rested, cluster_id=cluster_id, cleared_at=None)
    if not due.exists():
        return 0
    with write_transaction():
        cluster = advance(cluster_id)
        ended = due.update(woken_at=now)
        _requeue_backed_off(cluster)
    return ended


def trust_node(cluster: Cluster, node_name: str, *, actor: Actor, reason: str) -> Node:
    """Clear the conflicts of a node's facts, and end the back-off of every owner from the node.

    Raises: InputError `NodeUnknown`, `ReasonMissing`, or `NothingInDoubt`.
    """
    reason = require_reason(reason)
    with write_transaction():
        locked = advance(cluster.pk)
        open_ones = Rejection.objects.filter(cluster=cluster, node__name=node_name, cleared_at=None)
        freed = open_ones.update(cleared_at=timezone.now())
        node = clear_conflicts(locked, node_name, freed=freed, actor=actor, reason=reason)
        if freed:
            _requeue_backed_off(locked)
    return node


def prune_rejections(cluster_id: int, *, before: datetime) -> int:
    """Delete old rejections that have no effect any more: no back-off lasts, and `step` would start at 1 again."""
    rows = Rejection.objects.filter(cluster_id=cluster_id)
    old = Q(cleared_at__lt=before) | Q(until__lt=before - RESET_AFTER)
    return rows.filter(old).delete()[0]


def _requeue_backed_off(cluster: Cluster) -> None:
    """Requeue the pods in back-off immediately; the caller holds the cluster's lock."""
    requeue_pods(cluster, {Event.TIME}, at_once=True)
    dispatch.wake(cluster.pk)


def _specs(rows: Iterable[Pod]) -> dict[int, PodSpec]:
    found: dict[int, PodSpec] = {}
    for some in batched(sorted(row.pk for row in rows)):
        found.update(Pod.objects.filter(pk__in=some).values_list("pk", "spec"))
    return found
