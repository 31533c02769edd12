"""Preemption as part of a batch: nominate pods for the nodes of their victims, or evict the victims immediately.

In a live cluster a decision with victims becomes a nomination with one `Eviction` row for each victim; `evictions`
carries them out. In a cluster without kubelets the victims leave their nodes in the transaction of the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from hetsched.contracts.message import Message
from hetsched.inventory.node_loads import Conflict
from hetsched.journal.audit import SYSTEM, record_many
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Eviction, Nomination, Pod, Preemption
from hetsched.placement.scheduling_result import Result
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import insert, new

from .. import dispatch
from .change import BACK_IN_QUEUE, ClusterTransaction

_HOLDING = [state.value for state in HOLDING]


def evict_now(change: ClusterTransaction, result: Result, decision_id: int | None) -> None:
    """Remove the victims of one decision from their nodes, in a cluster without kubelets.

    Raises: Conflict if a victim has no active reservation.
    """
    if not result.evicted or result.nominated is not None:
        return
    (victims,) = _victims(change, [result])
    reason = Message("Preempted by {pods}", pods=result.waiting.spec.key)
    change.free(victims, reason)
    change.move([pod for pod in victims if pod.origin == Pod.SUBMITTED], State.PENDING, **BACK_IN_QUEUE, message=reason)
    ended = [pod for pod in victims if pod.origin == Pod.IMPORTED]
    change.move(ended, State.FAILED, queued=False, finished_at=change.now, message=reason)
    change.requeue()
    pod, by = result.waiting, result.waiting.spec
    rows = [
        new(
            Preemption,
            victim_id=victim.pk,
            preemptor_id=pod.pod_id,
            decision_id=decision_id,
            namespace=by.namespace,
            name=by.name,
            node_name=result.node_name,
            created_at=change.now,
        )
        for victim in victims
    ]
    insert(rows)
    _audit((victim, reason, result.node_name) for victim in victims)


def nominate(change: ClusterTransaction, results: Sequence[Result]) -> None:
    """Create the nominations of a batch; end earlier nominations that were not repeated or are superseded.

    Raises: Conflict if a victim has no active reservation.
    """
    # pods without an earlier decision have no nomination
    before = [result for result in results if result.waiting.decision_id is not None]
    over = [result.waiting.pod_id for result in before if result.nominated is None or result.nominated.is_new]
    if over:
        change.end_nominations(over, Message("a new decision was made"), with_gangs=False)
    overridden = {key: result for result in results for key in result.overridden}
    if overridden:
        rows = Nomination.objects.filter(cluster=change.cluster, active=True).select_related("pod").defer("pod__spec")
        for pod in [row.pod for row in rows if row.pod.key in overridden]:
            change.end_nominations(
                [pod.pk], Message("{pod} needs the resources", pod=overridden[pod.key].waiting.spec.key)
            )
            Pod.objects.filter(pk=pod.pk).update(queued=True, not_before=None, flushed=False)
    fresh = [result for result in results if result.nominated is not None and result.nominated.is_new]
    if fresh:
        _insert_nominations(change, fresh)
        change.discard_decisions()
        dispatch.wake(change.cluster.pk, dispatch.EVICT)


def _insert_nominations(change: ClusterTransaction, results: Sequence[Result]) -> None:
    """Insert the nominations of these results, and the evictions of their victims.

    Raises: Conflict if a victim has no active reservation.
    """
    victims = _victims(change, results)
    nominations = [_nomination(change, result) for result in results]
    insert(nominations)
    evictions, selected = [], []
    for result, nomination, pods in zip(results, nominations, victims, strict=True):
        budgets = {item.pod: item.pdb or "" for item in result.evicted}
        reason = Message("Selected for preemption by {pod}", pod=result.waiting.spec.key)
        for pod in pods:
            row = {"cluster_id": change.cluster.pk, "nomination_id": nomination.pk, "victim_id": pod.pk}
            evictions.append(new(Eviction, **row, budget=budgets[pod.key][:320]))
            selected.append((pod, reason, result.nominated_node))
    insert(evictions)
    _audit(selected)


def _nomination(change: ClusterTransaction, result: Result) -> Nomination:
    assert result.nominated is not None
    return new(
        Nomination,
        pod_id=result.waiting.pod_id,
        node_id=result.nominated.node_id,
        cluster_id=change.cluster.pk,
        allocation=result.nominated.allocation,
        revision=change.cluster.revision,
        created_at=change.now,
    )


def _victims(change: ClusterTransaction, results: Sequence[Result]) -> list[list[Pod]]:
    """Return the victims of each decision.

    Raises: Conflict if a victim has no active reservation.
    """
    names = sorted({item.pod.partition("/")[2] for result in results for item in result.evicted})
    pods = {
        pod.key: pod
        for some in batched(names)
        for pod in Pod.objects.filter(cluster=change.cluster, name__in=some, state__in=_HOLDING).defer("spec")
    }
    found = []
    for result in results:
        keys = {item.pod for item in result.evicted}
        if missing := len(keys - pods.keys()):
            raise Conflict(f"{missing} of {len(keys)} victims of {result.waiting.spec.key} have no active reservation")
        found.append(sorted((pods[key] for key in keys), key=attrgetter("pk")))
    return found


def _audit(victims: Iterable[tuple[Pod, str, str]]) -> None:
    """Add an audit entry for each victim, given with the reason and the name of the node."""
    about = [
        (("pod", victim.key), reason, {"node": node, "workload": victim.workload_id})
        for victim, reason, node in victims
    ]
    record_many(SYSTEM, "pod.preempt", about)
