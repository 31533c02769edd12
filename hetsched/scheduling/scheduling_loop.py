"""The scheduling loop: one leader per cluster decides batches until no pod is due.

Each iteration refreshes the snapshot, decides a batch and records it by compare-and-set. After releasing the leader
lease the task checks the queue once more, because a wake-up in the meantime found the lease taken.
A batch of one pod costs nearly as much as one of ten. If more pods are due as soon as a batch that emptied the queue is
written, the leader pauses `RESTS` times the duration of that batch, at most `LONGEST_REST_SECONDS`, and decides the
pods that arrived by then together.
A lost compare-and-set discards the batch. If database constraints reject a batch, the next one is half as large, down
to the one pod or gang that causes it: that one gets the verdict *not now* with the reason `LedgerRefused`, and the
others continue. A node to which this happens repeatedly is quarantined. No transaction is open while the engine runs.
Invariant: pods assumed in the snapshot but not recorded are dropped after any failure.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.utils import timezone

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.message import Message
from hetsched.contracts.waits import Event, WaitsFor
from hetsched.engine.framework.policy import Policy
from hetsched.inventory.connections import in_shadow
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_events import in_step
from hetsched.journal import counters, figures
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, Contradiction, Result, record
from hetsched.placement.actions.ledger_conflicts import note_disagreement
from hetsched.placement.scheduler_cache import SchedulerCache, warm
from hetsched.placement.scheduling_queue.active_queue import PendingPod, is_any_due, next_pods
from hetsched.placement.scheduling_queue.decision_time import NOTED_SECONDS, over_share
from hetsched.policies.effective import active_specs
from hetsched.scheduling.leases import Lease, leading

from .scheduling_cycle import SchedulingCycle

MOST_CONFLICTS = 5
RESTS = 2
LONGEST_REST_SECONDS = 0.05
LONGEST_BATCH_SECONDS = 2.5  # a pod that arrives during a batch waits until it ends
TURN_SECONDS = 5.0  # the task then ends and enqueues its successor: other clusters and canaries share this worker
log = structlog.get_logger(__name__)


def run(cluster_id: int) -> int:
    """Decide for a cluster until no pod is due or `TURN_SECONDS` are over; return how many decisions were recorded."""
    decided = 0
    until = time.monotonic() + TURN_SECONDS
    counters.add(figures.CANARY, "schedule")
    while is_any_due(cluster_id):
        if time.monotonic() > until:
            dispatch.send(cluster_id, dispatch.SCHEDULE)
            break
        lease = leading.take(cluster_id, f"{socket.gethostname()}/{os.getpid()}")
        if lease is None:
            break
        try:
            recorded, beaten = _lead(lease, until)
        finally:
            leading.give_up(lease)
        decided += recorded
        # Other clusters need this worker too; the sweep wakes the task again.
        if beaten or not (recorded or _may_decide(cluster_id)):
            break
    return decided


def _may_decide(cluster_id: int) -> bool:
    """Return whether the cluster's data is in sync and the cluster is not in shadow mode."""
    cluster = Cluster.objects.filter(pk=cluster_id).only("id", "kind").first()
    if cluster is None or cluster.kind != ClusterKind.KUBERNETES:
        return cluster is not None
    return in_step(cluster) and not in_shadow(cluster_id)


def _lead(lease: Lease, until: float) -> tuple[int, bool]:
    """Decide batches under one lease; return how many decisions were recorded, and whether too many batches were lost.

    No batch begins after `until`, by the monotonic clock.
    """
    copy = warm(lease.cluster_id)
    name = Cluster.objects.values_list("name", flat=True).get(pk=lease.cluster_id)
    decided = conflicts = 0
    most = settings.HETSCHED_BATCH
    while True:
        began = time.monotonic()
        try:
            found = batch(lease, copy, name, most)
        except Contradiction as refusal:
            counters.add(figures.BATCHES, name, "refused")
            log.warning("batch refused", cluster=lease.cluster_id, pods=refusal.pods, reason=str(refusal))
            most = max(1, min(most, refusal.pods) // 2)
            continue
        except Conflict as conflict:
            conflicts += 1
            counters.add(figures.BATCHES, name, "lost")
            log.info("batch lost", cluster=lease.cluster_id, epoch=lease.epoch, reason=str(conflict))
            if conflicts > MOST_CONFLICTS or not leading.renew(lease):
                return decided, True
            time.sleep(random.uniform(0, 0.02 * 2**conflicts))  # noqa: S311 - jitter, not a secret
            continue
        decided += len(found.results)
        if not found.more and not (found.results and is_any_due(lease.cluster_id)):
            return decided, False
        if time.monotonic() > until:
            return decided, False
        conflicts = 0
        most = min(2 * most, settings.HETSCHED_BATCH)
        if not found.more:
            time.sleep(min(LONGEST_REST_SECONDS, RESTS * (time.monotonic() - began)))


class Recorded(msgspec.Struct, frozen=True):
    """One recorded batch, empty when no pod was due; `more`: other pods are due as well."""

    results: Sequence[Result] = ()
    more: bool = False


def batch(lease: Lease, copy: SchedulerCache, name: str, most: int, *, follows: bool = False) -> Recorded:
    """Decide and record a batch of about `most` pods.

    `follows`: the caller is the informer process, knows that the cluster is in sync, and binds the placed pods itself.
    Raises: Conflict; Contradiction where database constraints reject the reservations of several pods.
    """
    if follows and in_shadow(lease.cluster_id):
        return Recorded()  # shadow mode was just entered: the informer is about to end
    if not follows and not _may_decide(lease.cluster_id):
        return Recorded()
    with copy.held() as loaded:
        # Loading a snapshot may outlast the lease. The loaded snapshot is kept for the next iteration.
        if not follows and not leading.renew(lease):
            raise Conflict("another leader was elected")
        # The pods are read after the revision: any later change to them makes the compare-and-set fail.
        revision, snapshot = loaded.revision, loaded.state.digest()
        pods, policy = _queue(lease.cluster_id, copy)
        if not pods:
            return Recorded()
        names = {pod.policy for pod in pods}
        known = {} if policy is None else {policy.spec.name: policy.spec}
        specs = known if names == known.keys() else active_specs(names)
        decided = SchedulingCycle(copy, loaded, specs, settings.HETSCHED_TOP_NODES)
        done = False
        try:
            behind = over_share(lease.cluster_id, timezone.now().timestamp())
            seconds = min(settings.HETSCHED_LEASE_SECONDS / 4, LONGEST_BATCH_SECONDS)
            results = decided.decide(pods, policy, seconds, most, behind)
            where: dict[str, Any] = {"revision": revision, "epoch": lease.epoch, "snapshot": snapshot}
            where["spent"] = spent = {name: took for name, took in copy.spent.items() if took >= NOTED_SECONDS}
            try:
                at = record(lease.cluster_id, results, binding=follows, **where)
            except Contradiction as refusal:
                if most > 1:
                    raise
                out_of_use = note_disagreement(lease.cluster_id, _nodes(results))
                if out_of_use:
                    log.error("node quarantined", cluster=lease.cluster_id, nodes=out_of_use, reason=str(refusal))
                results = [_set_aside(result, refusal) for result in results]
                at = record(lease.cluster_id, results, **where)
                decided.failed = True
            copy.recorded(at, [result.waiting.spec.key for result in results])
            for namespace in spent:
                del copy.spent[namespace]
            done = not decided.failed
        finally:
            if not done:
                copy.forget()
    _count(name, results, decided.took_seconds)
    return Recorded(results, len(results) < len(pods) or len(pods) >= settings.HETSCHED_BATCH)


def _count(name: str, results: Sequence[Result], took_seconds: Sequence[float]) -> None:
    """Update the metrics of a recorded batch."""
    counters.add(figures.BATCHES, name, "recorded")
    for seconds in took_seconds:
        counters.observe(figures.DECISION_SECONDS, seconds, name)
    for result in results:
        counters.add(figures.DECISIONS, name, result.verdict.value)
        if result.waiting.flushed and result.verdict is Verdict.PLACED:
            counters.add(figures.FLUSHED, name)
        for reason in result.reasons:
            counters.add(figures.REASONS, name, reason.plugin, reason.code)


def _nodes(results: Sequence[Result]) -> set[int]:
    """Return the nodes that pods were placed on."""
    return {result.node_id for result in results if result.node_id is not None}


def _set_aside(result: Result, refusal: Contradiction) -> Result:
    """Return a *not now* result for a pod whose placement the database constraints reject."""
    log.error("placement set aside", pod=result.waiting.spec.key, node=result.node_name, reason=str(refusal))
    message = Message("its placement conflicts with an existing reservation that the scheduler cache does not contain")
    reason = Reason("LedgerRefused", "ledger", 0, message)
    waiting = result.waiting
    summary = Message("{pod} waits: {said}", pod=waiting.spec.key, said=message)
    refused = Result(waiting, Verdict.NOT_NOW, summary, result.policy_name, result.policy_version, reasons=(reason,))
    waits = WaitsFor("ledger", (Event.POD_RELEASED, Event.TIME), Message("the release of the conflicting reservation"))
    return msgspec.structs.replace(refused, waits_for=(waits,))


def _queue(cluster_id: int, copy: SchedulerCache) -> tuple[list[PendingPod], Policy | None]:
    """Return the pods to take the next batch from, and the default policy, which orders them."""
    policy = copy.default_policy()
    return next_pods(cluster_id, policy, settings.HETSCHED_BATCH), policy
