"""The scheduling loop: one leader per cluster decides batches until nothing is due.

Rule: take the lease; refresh the warm state, decide a batch, record it by compare-and-set, again; give the lease up and
look once more, because a wake-up that came meanwhile found the lease taken. A batch of one costs nearly as much as one
of ten: where others are due as soon as a batch is written, though it took all there were, the leader rests `RESTS`
times as long as that took, `LONGEST_REST_SECONDS` at most, and decides what came until then together. A lost comparison
forgets the batch. Where the rows themselves refuse one, the next is half as large, down to the one pod or gang that
they refuse: it is told *not now* with the reason `LedgerRefused`, and the others go on; a node that this happens to
again and again is put out of use. No transaction is open while the engine runs.
Invariant: what the warm state assumed and could not record is dropped, whatever went wrong.
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
from celery import shared_task
from django.conf import settings

from hetsched.contracts.decision import Reason, Verdict
from hetsched.contracts.waits import Event, WaitsFor
from hetsched.engine.framework.policy import Policy
from hetsched.inventory.connections import in_shadow
from hetsched.inventory.lease import Lease, leading
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_events import in_step
from hetsched.journal import counters, figures
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, Contradiction, Result, record
from hetsched.placement.actions.ledger_conflicts import note_disagreement
from hetsched.placement.queue import Waiting, is_any_due, next_pods
from hetsched.placement.snapshot import Warm, warm
from hetsched.policies.effective import active_specs
from hetsched.storage.prepared_queries import Given, Prepared

from .decisions import Batch

MOST_CONFLICTS = 5
RESTS = 2
LONGEST_REST_SECONDS = 0.05
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.SCHEDULE)
def run(cluster_id: int) -> int:
    """Decide for a cluster until no pod is due; return how many decisions were recorded."""
    decided = 0
    while is_any_due(cluster_id):
        lease = leading.take(cluster_id, f"{socket.gethostname()}/{os.getpid()}")
        if lease is None:
            break
        try:
            recorded, beaten = _lead(lease)
        finally:
            leading.give_up(lease)
        decided += recorded
        # Other clusters want this worker too; the sweep has it tried again.
        if beaten or not (recorded or _may_decide(cluster_id)):
            break
    return decided


def _may_decide(cluster_id: int) -> bool:
    """Tell whether what is known of a cluster is as it is, and deciding for it is not left to another scheduler."""
    cluster = _KIND.first(cluster=cluster_id)
    if cluster is None or cluster.kind != ClusterKind.KUBERNETES:
        return cluster is not None
    return in_step(cluster) and not in_shadow(cluster_id)


_KIND = Prepared(lambda: Cluster.objects.filter(pk=Given("cluster")).only("id", "kind"))
_NAME = Prepared(lambda: Cluster.objects.filter(pk=Given("cluster")).values_list("name", flat=True))


def _lead(lease: Lease) -> tuple[int, bool]:
    """Decide batch after batch under one lease; return how many were recorded, and whether too many were lost."""
    copy = warm(lease.cluster_id)
    (name,) = _NAME(cluster=lease.cluster_id)
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
        conflicts = 0
        most = min(2 * most, settings.HETSCHED_BATCH)
        if not found.more:
            time.sleep(min(LONGEST_REST_SECONDS, RESTS * (time.monotonic() - began)))


class Recorded(msgspec.Struct, frozen=True):
    """One recorded batch, empty when nothing was due; `more`: other pods are due as well."""

    results: Sequence[Result] = ()
    more: bool = False


def batch(lease: Lease, copy: Warm, name: str, most: int, *, follows: bool = False) -> Recorded:
    """Decide and record a batch of about `most` pods.

    `follows`: whoever asks follows the cluster, knows that it is in step, and binds itself what was placed.
    Raises: Conflict, or Contradiction where the rows refuse what several pods would hold.
    """
    if follows and in_shadow(lease.cluster_id):
        return Recorded()  # since a moment ago: the follower of before is about to end
    if not follows and not _may_decide(lease.cluster_id):
        return Recorded()
    with copy.held() as loaded:
        # Folding a cold state may outlast the lease; it is kept, so that the next turn starts warm.
        if not follows and not leading.renew(lease):
            raise Conflict("another leader took over meanwhile")
        # The pods are read after the revision: whatever changes them from here on makes the comparison fail.
        revision, snapshot = loaded.revision, loaded.state.digest()
        pods, policy = _queue(lease.cluster_id, copy)
        if not pods:
            return Recorded()
        names = {pod.policy for pod in pods}
        known = {} if policy is None else {policy.spec.name: policy.spec}
        specs = known if names == known.keys() else active_specs(names)
        decided = Batch(copy, loaded, specs, settings.HETSCHED_TOP_NODES)
        done = False
        try:
            results = decided.decide(pods, policy, settings.HETSCHED_LEASE_SECONDS / 4, most)
            where: dict[str, Any] = {"revision": revision, "epoch": lease.epoch, "snapshot": snapshot}
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
            copy.recorded(at)
            done = not decided.failed
        finally:
            if not done:
                copy.forget()
    _count(name, results, decided.took_seconds)
    return Recorded(results, len(results) < len(pods) or len(pods) >= settings.HETSCHED_BATCH)


def _count(name: str, results: Sequence[Result], took_seconds: Sequence[float]) -> None:
    """Count what was recorded."""
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
    """Return the same pod as one whose placement the rows refuse."""
    log.error("placement set aside", pod=result.waiting.spec.key, node=result.node_name, reason=str(refusal))
    message = "the ledger does not admit its placement: what it would hold is held already, unseen by the scheduler"
    reason = Reason("LedgerRefused", "ledger", 0, message)
    waiting, summary = result.waiting, f"{result.waiting.spec.key} waits: {message}"
    refused = Result(waiting, Verdict.NOT_NOW, summary, result.policy_name, result.policy_version, reasons=(reason,))
    waits = WaitsFor("ledger", (Event.POD_RELEASED, Event.TIME), "whoever holds what it would hold to leave")
    return msgspec.structs.replace(refused, waits_for=(waits,))


def _queue(cluster_id: int, copy: Warm) -> tuple[list[Waiting], Policy | None]:
    """Return the pods that the next batch is taken from, and the default policy, by which they are ordered."""
    policy = copy.default_policy()
    return next_pods(cluster_id, policy, settings.HETSCHED_BATCH), policy
