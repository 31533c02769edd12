"""Write a batch of decisions.

Rule: one transaction: nothing was booked and no fact changed since the revision that was decided on, under the leader
epoch that decided; the policy versions that decided are still the active ones; every pod still waits; decisions and
reservations are inserted in bulk, the unique indexes judge, node columns follow.
Pods that have to leave for others are let go before anything is booked: ours wait again with the reason, those that an
import brought end. That they still run is part of the comparison. On a live cluster nobody can be let go here: the pod
is nominated for the node, and waits while the others are asked to leave; a nomination that this decision does not
repeat is over.
A pod that is refused again with the same verdict keeps its decision: the ledger grows with news, not with retries.
Other kinds of reasons, or another policy, are news after a minute: what waits long does not show what was long ago.
A change in who must leave for it is always news.
When anything of this does not hold, nothing is written and Conflict is raised: the caller forgets the batch and
decides anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import IntegrityError, connection, transaction

from hetsched.contracts.allocation import Allocation
from hetsched.contracts.decision import Evicted, NodeOutcome, Reason, Verdict
from hetsched.contracts.waits import WaitsFor, bits_of
from hetsched.engine.framework.queueing_hints import for_anything
from hetsched.inventory.ledger import Conflict, Contradiction, advance
from hetsched.inventory.models import ClusterKind
from hetsched.journal.audit import SYSTEM
from hetsched.journal.audit import record as audit
from hetsched.placement import dispatch
from hetsched.placement.bookings import Booked
from hetsched.placement.holds import CAME
from hetsched.placement.lifecycle import HOLDING, QUEUED, State
from hetsched.placement.models import Decision, Eviction, Nomination, Pod
from hetsched.placement.queue import Waiting, backoff
from hetsched.placement.retry import missed
from hetsched.policies.models import Policy
from hetsched.storage.bulk_rows import insert, new
from hetsched.storage.prepared_queries import Among, Prepared, PreparedUpdate
from hetsched.storage.snapshot_read import clock
from hetsched.storage.statements import change_many
from hetsched.storage.write_lock import turn

from .change import BACK_IN_QUEUE, Change
from .holds import use

NEWS_AFTER = timedelta(minutes=1)


class Nominated(msgspec.Struct, frozen=True):
    """Where a pod that waits will go, and with what, once those have left whom nobody can take off at once."""

    node_id: int
    node_name: str
    allocation: Allocation


class GivenRoom(msgspec.Struct, frozen=True):
    """The row of a hold, and its `namespace/name`, whose room a placed pod gets."""

    pod_id: int
    key: str


class Result(msgspec.Struct, frozen=True):
    """What was decided for one waiting pod. `node_id` is None unless it was placed; `evicted` left for it.

    With `nominated` it waits, and `evicted` are those who have to leave; none: they were told so before. `overridden`
    are pods whose nomination gives way to it. `room` is what was held for it and is free as soon as it is booked.
    """

    waiting: Waiting
    verdict: Verdict
    summary: str
    policy_name: str
    policy_version: int
    node_id: int | None = None
    node_name: str = ""
    allocation: Allocation | None = None
    score: float | None = None
    reasons: tuple[Reason, ...] = ()
    top: tuple[NodeOutcome, ...] = ()
    evicted: tuple[Evicted, ...] = ()
    waits_for: tuple[WaitsFor, ...] = for_anything("scheduler", "another try")
    nominated: Nominated | None = None
    overridden: tuple[str, ...] = ()
    room: GivenRoom | None = None

    @property
    def nominated_node(self) -> str:
        return "" if self.nominated is None else self.nominated.node_name


def record(
    cluster_id: int,
    results: Sequence[Result],
    *,
    revision: int,
    epoch: int | None,
    snapshot: str,
    binding: bool = False,
) -> int:
    """Write what was decided on `revision` by the leader of `epoch`; return the cluster's new revision.

    `binding`: whoever asks binds what is `bindable` as soon as this is committed, so those pods are *binding* at once.
    `epoch` None: not by the leader, who finds its own decisions void then; what is booked is of its epoch.
    Raises: Conflict, or Contradiction where what is to be held is held already.
    """
    try:
        with turn(), transaction.atomic():
            cluster = advance(cluster_id, revision=revision, epoch=epoch)
            _check_policies(results)
            change = Change(cluster)
            told = _news(results, change.now)
            decisions = _insert_decisions(change, told, revision, snapshot)
            for result in results:
                _evict(change, result)
            if cluster.kind == ClusterKind.KUBERNETES:
                _nominate(change, results)
            _move(change, results, {d.pod_id: d.pk for d in decisions}, revision)
            placed = [result for result in told if result.verdict is Verdict.PLACED]
            use(change, [result.room.pod_id for result in placed if result.room is not None], CAME)
            change.book([_booked(result) for result in placed], cluster.leader_epoch if epoch is None else epoch)
            for result in told:
                change.touch_row(result.waiting.pod_id, result.waiting.workload_id)
            begun = [result.waiting.pod_id for result in placed if binding and bindable(result)]
            _begin_binding(begun)
            change.close(decisions)
            if told and cluster.kind == ClusterKind.KUBERNETES:
                dispatch.wake(cluster_id, dispatch.TELL)
            if len(placed) > len(begun) and cluster.kind != ClusterKind.OFFLINE:
                dispatch.wake(cluster_id, dispatch.BIND)
    except IntegrityError as error:
        raise Contradiction(f"cluster {cluster_id}: {error}", len(results)) from error
    return cluster.revision


def bindable(result: Result) -> bool:
    """Tell whether a pod may be bound as soon as its decision is committed: nobody has to leave for it first."""
    return result.verdict is Verdict.PLACED and not result.evicted


def _begin_binding(pod_ids: Sequence[int]) -> None:
    """Say that these pods, placed just now, are written outside by whoever records them."""
    if pod_ids:
        _BEGIN(pods=pod_ids)


_BEGIN = PreparedUpdate(
    lambda: Pod.objects.filter(pk__in=Among("pods"), state=State.PLACED.value), state=State.BINDING.value
)
_VERSIONS = Prepared(lambda: Policy.objects.filter(name__in=Among("names", str)).values_list("name", "active_version"))


def _check_policies(results: Sequence[Result]) -> None:
    """Refuse what was decided by a version that is not active any more, or by none where there is one now.

    Raises: Conflict.
    """
    cited = {result.policy_name: result.policy_version for result in results}
    active = dict(_VERSIONS(names=cited))
    stale = sorted(name for name, version in cited.items() if active.get(name, 0) != version)
    if stale:
        raise Conflict(f"policy {stale[0]} has another active version by now")


def _evict(change: Change, result: Result) -> None:
    """Let those go who have to leave for one pod.

    Raises: Conflict when one of them holds nothing any more.
    """
    if not result.evicted or result.nominated is not None:
        return
    victims = _victims(change, result)
    reason = f"Preempted by {result.waiting.spec.key}"
    change.free(victims, reason)
    change.move([pod for pod in victims if pod.origin == Pod.SUBMITTED], State.PENDING, **BACK_IN_QUEUE, message=reason)
    ended = [pod for pod in victims if pod.origin == Pod.IMPORTED]
    change.move(ended, State.FAILED, queued=False, finished_at=change.now, message=reason)
    change.requeue()
    for pod in victims:
        _audit(pod, reason, result.node_name)


def _victims(change: Change, result: Result) -> list[Pod]:
    """Return those who have to leave for one pod.

    Raises: Conflict when one of them holds nothing any more.
    """
    keys = {item.pod for item in result.evicted}
    names = [key.partition("/")[2] for key in keys]
    held = Pod.objects.filter(cluster=change.cluster, name__in=names, state__in=[state.value for state in HOLDING])
    victims = [pod for pod in held.defer("spec").order_by("id") if pod.key in keys]
    if len(victims) != len(keys):
        gone, by = len(keys) - len(victims), result.waiting.spec.key
        raise Conflict(f"{gone} of {len(keys)} pods that should leave for {by} hold nothing")
    return victims


def _audit(victim: Pod, reason: str, node: str) -> None:
    audit(
        actor=SYSTEM.name,
        role=SYSTEM.role,
        action="pod.preempt",
        obj=("pod", victim.key),
        reason=reason,
        details={"node": node, "workload": victim.workload_id},
    )


def _nominate(change: Change, results: Sequence[Result]) -> None:
    """Begin the nominations that were decided, and end those that were not repeated or gave way.

    Raises: Conflict when one who has to leave holds nothing any more.
    """
    before = [result for result in results if result.waiting.decision_id is not None]  # only who was decided has any
    over = [result.waiting.pod_id for result in before if result.nominated is None or result.evicted]
    if over:
        change.end_nominations(over, "decided anew")
    overridden = {key: result for result in results for key in result.overridden}
    if overridden:
        rows = Nomination.objects.filter(cluster=change.cluster, active=True).select_related("pod").defer("pod__spec")
        for pod in [row.pod for row in rows if row.pod.key in overridden]:
            change.end_nominations([pod.pk], f"{overridden[pod.key].waiting.spec.key} needs the place")
            Pod.objects.filter(pk=pod.pk).update(queued=True, not_before=None, flushed=False)
    fresh = [result for result in results if result.nominated is not None and result.evicted]
    for result in fresh:
        nominated = result.nominated
        assert nominated is not None
        victims, budgets = _victims(change, result), {item.pod: item.pdb or "" for item in result.evicted}
        nomination = Nomination.objects.create(
            pod_id=result.waiting.pod_id,
            node_id=nominated.node_id,
            cluster=change.cluster,
            allocation=nominated.allocation,
            revision=change.cluster.revision,
            created_at=change.now,
        )
        Eviction.objects.bulk_create(
            Eviction(cluster=change.cluster, nomination=nomination, victim=pod, budget=budgets[pod.key][:320])
            for pod in victims
        )
        for pod in victims:
            _audit(pod, f"To be preempted by {result.waiting.spec.key}", nominated.node_name)
    if fresh:
        change.decide_anew()
        dispatch.wake(change.cluster.pk, dispatch.EVICT)


def _booked(result: Result) -> Booked:
    assert result.node_id is not None
    assert result.allocation is not None
    return Booked(result.waiting.pod_id, result.node_id, result.waiting.spec, result.allocation)


def _news(results: Sequence[Result], now: datetime) -> list[Result]:
    """Return the results that say something else than the pod's last decision."""
    again = [
        result.waiting.decision_id
        for result in results
        if result.waiting.decision_id is not None and result.waiting.state == result.verdict.value
    ]
    if not again:
        return list(results)
    rows = _TOLD_BEFORE(decisions=again)
    known: dict[int, tuple[Any, str, datetime]] = {
        pk: (_kinds(policy, reasons), node, at) for pk, policy, reasons, node, at in rows
    }

    def told(result: Result) -> bool:
        last = known.get(result.waiting.decision_id or 0)
        if last is None or result.evicted:
            return True
        kinds, nominated_node, at = last
        if nominated_node or result.nominated is not None:
            return nominated_node != result.nominated_node
        return now - at >= NEWS_AFTER and bool(kinds != _kinds(result.policy_name, _kept(result.reasons)))

    return [result for result in results if told(result)]


_TOLD_BEFORE: Prepared[Any] = Prepared(
    lambda: Decision.objects.filter(pk__in=Among("decisions")).values_list(
        "pk", "policy_name", "reasons", "nominated_node", "created_at"
    )
)


def _kept(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Return the reasons that go into the ledger; the summary tells them in one sentence anyhow."""
    return () if settings.HETSCHED_KEEP_WITH_DECISION == "verdict" else reasons


def _kinds(policy: str, reasons: Sequence[Reason]) -> tuple[str, frozenset[tuple[str, str]]]:
    return policy, frozenset((reason.plugin, reason.code) for reason in reasons)


def _insert_decisions(change: Change, results: Sequence[Result], revision: int, snapshot: str) -> list[Decision]:
    rows = [
        new(
            Decision,
            cluster_id=change.cluster.pk,
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
            inventory_revision=change.cluster.inventory_revision,
            score=result.score,
            summary=result.summary,
            allocation=result.allocation if result.nominated is None else result.nominated.allocation,
            reasons=_kept(result.reasons),
            top=result.top,
            evictions=result.evicted,
            waits_for=() if result.verdict is Verdict.PLACED else result.waits_for,
            room=result.room.key if result.room is not None else "",
            nominated_node=result.nominated_node,
            created_at=change.now,
        )
        for result in results
    ]
    insert(rows)
    return rows


def _move(change: Change, results: Sequence[Result], decision_ids: dict[int, int], revision: int) -> None:
    """Move every pod out of the queue, each with its own columns; what it waits for may have happened meanwhile.

    Raises: Conflict when one of them does not wait any more.
    """
    rows = [_row(result, decision_ids, change, revision) for result in results]
    waiting = ", ".join(f"'{state.value}'" for state in sorted(QUEUED))
    sql = (
        f"UPDATE {Pod._meta.db_table} SET state = %s, queued = %s, node_id = %s, allocation = %s, "  # noqa: S608
        f"decided_at = CASE WHEN decision_id = %s THEN decided_at ELSE {clock()} END, decision_id = %s, attempts = %s, "
        "not_before = %s, tried_at = %s, waits_for = %s, helped_by = %s, flushed = %s, message = '' "
        f"WHERE id = %s AND state IN ({waiting})"
    )
    moved = change_many(sql, rows)
    if moved != len(rows):
        raise Conflict(f"{len(rows) - moved} of {len(rows)} pods do not wait any more")


def _row(result: Result, decision_ids: dict[int, int], change: Change, revision: int) -> tuple[Any, ...]:
    waiting, now = result.waiting, change.now
    waits = () if result.verdict is Verdict.PLACED else result.waits_for
    adapt = connection.ops.adapt_datetimefield_value
    decision_id = decision_ids.get(waiting.pod_id, waiting.decision_id)
    attempts = waiting.attempts + 1
    retried = result.verdict is Verdict.NOT_NOW
    return (
        State(result.verdict.value).value,
        missed(change.cluster, waits, revision=revision),
        result.node_id,
        msgspec.json.encode(result.allocation).decode() if result.allocation is not None else None,
        decision_id,
        decision_id,
        attempts,
        adapt(now + backoff(attempts)) if retried else None,
        adapt(now),
        msgspec.json.encode(waits).decode(),
        bits_of(waits),
        False,
        waiting.pod_id,
    )
