"""Commit of a batch of decisions.

One transaction checks and writes the batch. It checks that nothing was reserved and no node or pod changed since the
revision on which the decisions were made, that the leader epoch of the decisions is the current one, that their policy
versions are still active, and that every pod still has the state and the decision with which it was read. If any check
fails, nothing is written and Conflict is raised: the caller discards the batch and decides again. Unique indexes
enforce exclusivity.
Preemption victims are removed before anything is reserved: hetsched's own pods return to the queue with the reason, and
imported pods fail. The batch is rejected if a victim has no active reservation. In a live cluster victims cannot be
removed here: the pod is nominated for the node and waits while its victims are evicted. An earlier nomination of the
pod ends unless the new decision repeats it.
A pod that is rejected again with the same result keeps its decision, so retries add no rows to the decision history.
A rejection for other reasons or under another policy creates a decision after a quarter of the time that the pod had
waited at its last decision, at least `NEWS_SOON` and at most `NEWS_AFTER`. A pod that is rejected for other reasons
within this interval is retried after it. A change of the victims is recorded immediately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, connection

from hetsched.contracts.api.decision import PREEMPTION_PENDING, Reason, Verdict
from hetsched.contracts.message import Message, as_text
from hetsched.contracts.waits import bits_of
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_loads import Conflict, Contradiction, advance
from hetsched.placement.in_place import fingerprint
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, Pod
from hetsched.placement.models.holds import CAME
from hetsched.placement.reservation_ledger import ReservedPod
from hetsched.placement.scheduling_queue.backoff_queue import backoff
from hetsched.placement.scheduling_queue.unschedulable_pods import happened_since
from hetsched.placement.scheduling_result import Result
from hetsched.policies.effective import active_versions
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import insert, new
from hetsched.storage.json_fields import written
from hetsched.storage.snapshot_read import clock
from hetsched.storage.statements import change_many
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import ClusterTransaction, move_rows
from .holds import use_capacity
from .preemption import evict_now, nominate

NEWS_SOON, NEWS_AFTER = timedelta(seconds=1), timedelta(minutes=1)


def record(
    cluster_id: int,
    results: Sequence[Result],
    *,
    revision: int,
    epoch: int | None,
    snapshot: str,
    binding: bool = False,
    leaves_effects: bool = False,
    spent: Mapping[str, float] | None = None,
) -> int:
    """Write the decisions made on `revision` by the leader of `epoch`; return the cluster's new revision.

    `binding` is True if the caller binds the `can_bind_now` pods right after the commit; their state is then *binding*.
    `leaves_effects` is True if the caller will write the effects of its earlier placements.
    `spent` maps namespaces to the seconds that their decisions took since the last call.
    `epoch` is None if the caller is not the leader. The commit then invalidates the leader's decisions in progress, and
    the reservations store the leader's epoch.
    Raises: Conflict; Contradiction if the resources are reserved already.
    """
    try:
        with write_transaction():
            cluster = advance(cluster_id, revision=revision, epoch=epoch)
            check_policies(results)
            change = ClusterTransaction(cluster)
            if spent:
                change.charge(spent)
            recorded, news_at = _results_to_record(results, change.now)
            decisions = _insert_decisions(change, recorded, revision, snapshot)
            deciding = {decision.pod_id: decision.pk for decision in decisions}
            for result in results:
                evict_now(change, result, deciding.get(result.waiting.pod_id))
            if cluster.kind == ClusterKind.KUBERNETES:
                nominate(change, results)
            _move(change, results, deciding, revision, news_at)
            placed = [result for result in recorded if result.verdict is Verdict.PLACED]
            used = [result.used_reservation.pod_id for result in placed if result.used_reservation is not None]
            use_capacity(change, used, CAME)
            change.reserve(
                [reserved_pod(result) for result in placed], cluster.leader_epoch if epoch is None else epoch
            )
            change.touch_rows(result.waiting.pod_id for result in recorded)
            begun = [result.waiting.pod_id for result in placed if binding and can_bind_now(result)]
            _begin_binding(begun)
            change.close(decisions, leaves_effects=leaves_effects)
            if recorded and cluster.kind == ClusterKind.KUBERNETES:
                dispatch.wake(cluster_id, dispatch.REPORT)
            if len(placed) > len(begun) and cluster.kind != ClusterKind.OFFLINE:
                dispatch.wake(cluster_id, dispatch.BIND)
    except IntegrityError as error:
        raise Contradiction(f"cluster {cluster_id}: {error}", len(results)) from error
    return cluster.revision


def can_bind_now(result: Result) -> bool:
    """Return True if a pod may be bound as soon as its decision is committed: it has no victims to wait for."""
    return result.verdict is Verdict.PLACED and not result.evicted


def _begin_binding(pod_ids: Sequence[int]) -> None:
    """Mark these newly placed pods as being bound by the caller of `record`."""
    if pod_ids:
        move_rows(pod_ids, State.BINDING)


def check_policies(results: Sequence[Result]) -> None:
    """Reject decisions that used an inactive policy version, or no version although one is active now.

    Raises: Conflict.
    """
    cited = {result.policy_name: result.policy_version for result in results}
    active = active_versions()
    stale = sorted(name for name, version in cited.items() if active.get(name, 0) != version)
    if stale:
        raise Conflict(Message("policy {policy} now has another active version", policy=stale[0]))


def reserved_pod(result: Result) -> ReservedPod:
    """Return the reservation to insert for a placed pod."""
    assert result.node_id is not None
    assert result.allocation is not None
    spec, changed = result.waiting.spec, result.reserved_spec is not None
    return ReservedPod(
        result.waiting.pod_id, result.node_id, result.reserved_spec or spec, result.allocation, changed=changed
    )


def _results_to_record(results: Sequence[Result], now: datetime) -> tuple[list[Result], dict[int, datetime]]:
    """Return the results to record now, and the earliest time to record each postponed result, by pod id.

    A result is postponed if its pod was rejected for other reasons too soon after its last decision.
    """
    again = [
        result.waiting.decision_id
        for result in results
        if result.waiting.decision_id is not None and result.waiting.state == result.verdict.value
    ]
    if not again:
        return list(results), {}
    columns = ("policy_name", "reasons", "summary", "nominated_node", "created_at", "pod__created_at")
    known = {
        pk: columns_of
        for some in batched(again)
        for pk, *columns_of in Decision.objects.filter(pk__in=some).values_list("pk", *columns)
    }
    recorded: list[Result] = []
    later: dict[int, datetime] = {}
    for result in results:
        last = known.get(result.waiting.decision_id or 0)
        if last is None or result.evicted:
            recorded.append(result)
            continue
        policy, reasons, summary, nominated_node, at, came = last
        if nominated_node != result.nominated_node:
            recorded.append(result)
        elif _rejection_key(policy, reasons, summary) != _rejection_key(
            result.policy_name, _stored_reasons(result.reasons), result.summary
        ):
            due = at + min(max((at - came) / 4, NEWS_SOON), NEWS_AFTER)
            if due <= now:
                recorded.append(result)
            else:
                later[result.waiting.pod_id] = due
    return recorded, later


def _stored_reasons(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Return the reasons to store with a decision: none if the deployment keeps only verdicts.

    The summary is stored in any case.
    """
    return () if settings.HETSCHED_KEEP_WITH_DECISION == "verdict" else reasons


def _rejection_key(policy: str, reasons: Sequence[Reason], summary: str) -> tuple[object, ...]:
    """Return the key by which rejections are compared: policy and reasons, regardless of order and node counts.

    The victims that a nominated pod waits for are left out: fewer of them remain at each retry. If no reasons are
    stored, the summary replaces them.
    """
    kinds = frozenset(
        (reason.plugin, reason.code, "" if reason.code == PREEMPTION_PENDING else reason.message, reason.missing)
        for reason in reasons
    )
    return policy, kinds, "" if kinds else summary


def _insert_decisions(
    change: ClusterTransaction, results: Sequence[Result], revision: int, snapshot: str
) -> list[Decision]:
    rows = [decision_row(change.cluster, result, revision, snapshot, change.now) for result in results]
    insert(rows)
    return rows


def decision_row(cluster: Cluster, result: Result, revision: int, snapshot: str, now: datetime) -> Decision:
    """Build an unsaved decision row; `revision` and `snapshot` (a digest) identify the cluster state that was used."""
    return new(
        Decision,
        cluster_id=cluster.pk,
        workload_id=result.waiting.workload_id,
        pod_id=result.waiting.pod_id,
        namespace=result.waiting.spec.namespace,
        pod_name=result.waiting.spec.name,
        verdict=result.verdict.value,
        node_name=result.node_name,
        policy_name=result.policy_name,
        policy_version=result.policy_version,
        policy_rule=result.waiting.policy_rule,
        snapshot=snapshot,
        cluster_revision=revision,
        inventory_revision=cluster.inventory_revision,
        score=result.score,
        summary=result.summary,
        allocation=result.allocation if result.nominated is None else result.nominated.allocation,
        reasons=_stored_reasons(result.reasons),
        top=result.top,
        evictions=result.evicted,
        waits_for=() if result.verdict is Verdict.PLACED else result.waits_for,
        used_reservation=result.used_reservation.key if result.used_reservation is not None else "",
        nominated_node=result.nominated_node,
        created_at=now,
    )


def _move(
    change: ClusterTransaction,
    results: Sequence[Result],
    decision_ids: dict[int, int],
    revision: int,
    news_at: dict[int, datetime],
) -> None:
    """Write the decided state and the queue columns of each pod.

    A pod stays queued if one of its registered events occurred during the decision. `news_at` maps pod ids to times:
    these pods also stay queued, but are not tried before their time.
    Raises: Conflict if a pod has changed since it was read: a user retried it, or another process decided it.
    """
    rows = [_row(result, decision_ids, change, revision, news_at.get(result.waiting.pod_id)) for result in results]
    sql = (
        f"UPDATE {Pod._meta.db_table} SET state = %s, queued = %s, node_id = %s, allocation = %s, "  # noqa: S608
        f"decided_at = CASE WHEN decision_id = %s THEN decided_at ELSE {clock()} END, decision_id = %s, attempts = %s, "
        "not_before = %s, tried_at = %s, waits_for = %s, helped_by = %s, flushed = %s, message = '', "
        "fingerprint = COALESCE(%s, fingerprint) "
        "WHERE id = %s AND state = %s AND COALESCE(decision_id, 0) = %s"
    )
    moved = change_many(sql, rows)
    if moved != len(rows):
        raise Conflict(f"{len(rows) - moved} of {len(rows)} pods have changed since they were read")


def _row(
    result: Result, decision_ids: dict[int, int], change: ClusterTransaction, revision: int, news_at: datetime | None
) -> tuple[Any, ...]:
    waiting, now = result.waiting, change.now
    waits = () if result.verdict is Verdict.PLACED else result.waits_for
    adapt = connection.ops.adapt_datetimefield_value
    decision_id = decision_ids.get(waiting.pod_id, waiting.decision_id)
    attempts = waiting.attempts + 1
    retried = result.verdict is Verdict.NOT_NOW
    not_before = now + backoff(attempts) if retried else None
    if news_at is not None:
        not_before = max(news_at, not_before or news_at)
    return (
        State(result.verdict.value).value,
        news_at is not None or happened_since(change.cluster, waits, revision=revision),
        result.node_id,
        written(result.allocation, as_text),
        decision_id,
        decision_id,
        attempts,
        adapt(not_before),
        adapt(now),
        written(waits),
        bits_of(waits),
        False,
        None if result.reserved_spec is None else fingerprint(result.reserved_spec),
        waiting.pod_id,
        waiting.state,
        waiting.decision_id or 0,
    )
