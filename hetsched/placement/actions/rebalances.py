"""Carry out a plan of moves that an operator confirmed, one move after the other.

Rule: before each move the engine tries it again on the cluster as it is; where the pod could not move by now, or would
come to another node, the plan stops there. Where placements exist only here, one transaction takes the pod off and
books it where it goes, with a decision of its own. On a live cluster the eviction API is asked, by the worker that
asks for all evictions, and the move is over when the pod's successor has a place. Either way the pod's owner keeps off
the node that it left for `KEPT_OFF`, as the plan was made. What a budget or a right refuses, and what takes longer than
`PATIENCE`, stops the plan.
Every move has its audit entry, under the name of who confirmed the plan.
Invariants: a move that was not confirmed is not made; nothing is made after the plan stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from hetsched.contracts.advice import Advice, Move
from hetsched.contracts.decision import Verdict
from hetsched.contracts.errors import InputError
from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.avoided_nodes import MOVED_AWAY
from hetsched.engine.simulation.moves import Moved
from hetsched.inventory.actions import cluster_topic, require_reason
from hetsched.inventory.ledger import Conflict, advance
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.inventory.node_events import in_step
from hetsched.journal.audit import SYSTEM, Actor
from hetsched.journal.audit import record as audit
from hetsched.journal.publish import publish_many
from hetsched.placement import dispatch
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Eviction, Pod, Rebalance, RebalanceMove, Rejection
from hetsched.placement.queries.advice import Footing, footing
from hetsched.placement.queue import Waiting
from hetsched.placement.retry import stir
from hetsched.policies.effective import active_specs

from .change import BACK_IN_QUEUE, Change
from .decisions import Result, record

PATIENCE = timedelta(minutes=15)
KEPT_OFF = timedelta(minutes=10)
_TRIES = 3
_HOLDING = [state.value for state in HOLDING]


class _Elsewhere(Exception):
    """Another worker is at this step, or the plan is over."""


def confirm_plan(cluster: Cluster, advice: Advice, steps: Sequence[int], *, actor: Actor, reason: str) -> Rebalance:
    """Have the moves of a plan carried out, those of these steps (from 0) only.

    Raises: InputError `ReasonMissing`, `NothingToMove`, `RebalanceRunning`, or `ClusterNotFollowed`.
    """
    reason = require_reason(reason)
    chosen = [move for step, move in enumerate(advice.moves) if step in set(steps)]
    if not chosen:
        raise InputError("NothingToMove", "no move of the plan is chosen", place="steps")
    if cluster.kind == ClusterKind.KUBERNETES and not in_step(cluster):
        raise InputError("ClusterNotFollowed", "what is known of the cluster is out of date", place="cluster")
    try:
        with transaction.atomic():
            plan = _written(cluster, advice, chosen, actor, reason)
            _tell(plan)
            dispatch.wake(cluster.pk, dispatch.REBALANCE)
    except IntegrityError:
        raise InputError(
            "RebalanceRunning",
            "another plan is being carried out",
            place="cluster",
            hint="Stop it, or wait for its end",
        ) from None
    return plan


def _written(cluster: Cluster, advice: Advice, chosen: Sequence[Move], actor: Actor, reason: str) -> Rebalance:
    now = timezone.now()
    plan = Rebalance.objects.create(
        cluster=cluster,
        goal=advice.goal.value,
        summary=advice.summary,
        token=advice.token,
        asked_by=actor.name[:255],
        role=actor.role[:100],
        reason=reason,
        created_at=now,
    )
    live = {pod.key: pod.pk for pod in _live(cluster, [one.pod for move in chosen for one in move.pods])}
    RebalanceMove.objects.bulk_create(
        RebalanceMove(
            rebalance=plan,
            step=step,
            pod_id=live.get(one.pod),
            pod_key=one.pod,
            uid=one.uid,
            source=one.from_,
            target=one.to,
            changed_at=now,
        )
        for step, move in enumerate(chosen, start=1)
        for one in move.pods
    )
    details = {"goal": plan.goal, "plan": plan.token, "pods": [one.pod for move in chosen for one in move.pods][:100]}
    audit(
        actor=actor.name, role=actor.role, action="rebalance.confirm", obj=_named(plan), reason=reason, details=details
    )
    return plan


def stop_plan(plan: Rebalance, *, actor: Actor, reason: str) -> None:
    """Make no further move of a plan; an eviction that nobody asked for yet is not asked for any more.

    Raises: InputError `ReasonMissing` or `RebalanceOver`.
    """
    reason = require_reason(reason)
    with transaction.atomic():
        if not _stop(plan, f"stopped by {actor.name}"):
            raise InputError("RebalanceOver", "it is over already", place="action")
        audit(actor=actor.name, role=actor.role, action="rebalance.stop", obj=_named(plan), reason=reason)


def go_on(cluster_id: int) -> int:
    """Do whatever can be done of a cluster's plan now; return how many moves were begun or came to an end."""
    plan = Rebalance.objects.select_related("cluster").filter(cluster_id=cluster_id, state=Rebalance.RUNNING).first()
    done = 0
    while plan is not None and plan.state == Rebalance.RUNNING and _step(plan):
        done += 1
        plan.refresh_from_db(fields=["state"])
    return done


def under_way(cluster_id: int) -> bool:
    """Tell whether a plan of a cluster is being carried out."""
    return Rebalance.objects.filter(cluster_id=cluster_id, state=Rebalance.RUNNING).exists()


def forget_plans(cluster_id: int, *, before: datetime) -> int:
    """Delete plans that were over before a moment; the audit trail keeps what was moved."""
    return Rebalance.objects.filter(cluster_id=cluster_id, finished_at__lt=before).delete()[0]


def _step(plan: Rebalance) -> bool:
    """Take one step of a plan; False where there is nothing to do but wait, or it is over."""
    open_ones = plan.moves.filter(state__in=[RebalanceMove.WAITING, RebalanceMove.LEAVING]).select_related("pod")
    first = open_ones.order_by("step").first()
    if first is None:
        _finish(plan)
        return False
    moves = list(open_ones.filter(step=first.step).order_by("id"))
    if first.state == RebalanceMove.LEAVING:
        return _settled(plan, moves)
    try:
        return _begin(plan, moves)
    except _Elsewhere:
        return False
    except Conflict as conflict:
        return not _give_up(plan, f"step {first.step}: {conflict}")


def _begin(plan: Rebalance, moves: Sequence[RebalanceMove]) -> bool:
    """Begin a step, or make it where it can be made at once."""
    cluster = Cluster.objects.get(pk=plan.cluster_id)
    if cluster.kind == ClusterKind.KUBERNETES and not in_step(cluster):
        return False  # what is known may be old: wait
    for attempt in range(_TRIES):
        found = footing(cluster, _spec(cluster))
        moved, problem = _tried(found, moves)
        if moved is None:
            _give_up(plan, f"step {moves[0].step}: {problem}")
            return False
        try:
            if cluster.kind == ClusterKind.KUBERNETES:
                _ask_to_leave(plan, moves)
            else:
                _move_here(plan, moves, found, moved)
            return True
        except Conflict:
            if attempt == _TRIES - 1:
                raise
    return False


def _spec(cluster: Cluster) -> PolicySpec:
    found = active_specs({cluster.policy_name}).get(cluster.policy_name)
    if found is None:
        raise Conflict(f"policy {cluster.policy_name} has no active version")
    return found


def _tried(found: Footing, moves: Sequence[RebalanceMove]) -> tuple[Moved | None, str]:
    """Try a step on a copy of the present; say what keeps it from being what was confirmed."""
    board = found.board
    unit = []
    for move in moves:
        booking = board.state.bookings.get(move.pod_key)
        if booking is None or board.state.columns.names[booking.row] != move.source or booking.pod.uid != move.uid:
            return None, f"{move.pod_key} is not on {move.source} any more"
        if move.pod_key in found.kept:
            return None, f"{move.pod_key} is on its way elsewhere"
        unit.append(booking)
    moved = board.move(tuple(unit))
    if moved is None:
        return None, f"{moves[0].pod_key} cannot move now: no node has room for it, or a disruption budget keeps it"
    for move, outcome in zip(moves, moved.outcomes, strict=True):
        if outcome.node != move.target:
            return None, f"{move.pod_key} would come to {outcome.node} by now, not to {move.target}"
    return moved, ""


# -- where placements exist only here ----------------------------------------------------------------------------------


def _move_here(plan: Rebalance, moves: Sequence[RebalanceMove], found: Footing, moved: Moved) -> None:
    """Take the pods of a step off and book them where they go, in one transaction.

    Raises: Conflict when something was booked since the state was read.
    """
    told = f"Moved by {plan.asked_by}: {plan.reason}"[:500]
    with transaction.atomic():
        change = Change(advance(plan.cluster_id, revision=found.revision))
        _check_open(plan, moves)
        pods = {pod.key: pod for pod in _live(plan.cluster, [move.pod_key for move in moves])}
        if len(pods) != len(moves):
            raise Conflict("a pod of the step is gone")
        leaving = [pods[move.pod_key] for move in moves]
        change.free(leaving, told)
        _keep_off(change.cluster, moves, pods, told)
        change.move(leaving, State.PENDING, **BACK_IN_QUEUE, message=told)
        stir(change.cluster, {Event.POD_RELEASED}, at_once=True)
        change.close()
        at = change.cluster.revision
        results = [
            _result(plan, pods[move.pod_key], move, found, position, moved) for position, move in enumerate(moves)
        ]
        record(plan.cluster_id, results, revision=at, epoch=None, snapshot=_decided_on(found, moved))
        Pod.objects.filter(pk__in=[pod.pk for pod in leaving]).update(message=told)
        for move in moves:
            _note(move, RebalanceMove.MOVED, came_to=move.target)
            _audit_move(plan, move, "pod.move")
        dispatch.wake(plan.cluster_id)


def _decided_on(found: Footing, moved: Moved) -> str:
    """Return the digest of the state from which the pods of a step are gone, and end the board with that."""
    for booking in moved.unit:
        found.board.state.forget(booking.pod.key)
    return found.board.state.digest()


def _result(
    plan: Rebalance, pod: Pod, move: RebalanceMove, found: Footing, position: int, moved: Moved
) -> Result:  # fmt: skip
    outcome = moved.outcomes[position]
    policy = found.board.scheduler_of(outcome.pod).policy.spec
    waiting = Waiting(
        pod.pk,
        pod.workload_id,
        pod.spec,
        policy.name,
        pod.policy_rule,
        State.PENDING.value,
        0,
        pod.decision_id,
        pod.uid,
    )
    return Result(
        waiting,
        Verdict.PLACED,
        f"{pod.key} moved from {move.source} to {move.target}, score {outcome.score:.1f}; confirmed by {plan.asked_by}",
        policy.name,
        policy.version,
        node_id=found.node_ids[move.target],
        node_name=move.target,
        allocation=outcome.allocation,
        score=round(outcome.score, 6),
    )


# -- on a live cluster -------------------------------------------------------------------------------------------------


def _ask_to_leave(plan: Rebalance, moves: Sequence[RebalanceMove]) -> None:
    """Have the pods of a step evicted, and keep those that take their places off the nodes that they leave."""
    told = f"Moved by {plan.asked_by}: {plan.reason}"[:500]
    with transaction.atomic():
        cluster = advance(plan.cluster_id)
        _check_open(plan, moves)
        pods = {pod.key: pod for pod in _live(cluster, [move.pod_key for move in moves])}
        for move in moves:
            pod = pods.get(move.pod_key)
            # Another one may bear its name by now; only the one that was tried may leave.
            if pod is None or pod.uid != move.uid or pod.node is None or pod.node.name != move.source:
                raise Conflict(f"{move.pod_key} is gone from {move.source}")
        Eviction.objects.bulk_create(
            Eviction(cluster=cluster, victim=pods[move.pod_key], reason=told) for move in moves
        )
        _keep_off(cluster, moves, pods, told)
        for move in moves:
            _note(move, RebalanceMove.LEAVING)
            _audit_move(plan, move, "pod.evict")
        dispatch.wake(plan.cluster_id, dispatch.EVICT)


def _settled(plan: Rebalance, moves: Sequence[RebalanceMove]) -> bool:
    """Tell whether a step that began came to an end; one that is refused or takes too long ends the plan."""
    kept = Eviction.objects.filter(victim__in=[m.pod_id for m in moves], state=Eviction.WANTED).exclude(message="")
    refused = kept.select_related("victim").first()
    if refused is not None:
        return not _give_up(plan, f"{refused.victim.key} may not be evicted: {refused.message}")
    for move in moves:
        pod = move.pod
        if pod is not None and pod.state in _HOLDING:
            return _wait(plan, move, f"{move.pod_key} did not leave")
        successor = _successor(pod, move)
        if pod is not None and pod.spec.controller and successor is None:
            return _wait(plan, move, f"who takes the place of {move.pod_key} was not placed")
    with transaction.atomic():
        for move in moves:
            found = _successor(move.pod, move)
            _note(move, RebalanceMove.MOVED, came_to=found or "")
        _tell(plan)
    return True


def _wait(plan: Rebalance, move: RebalanceMove, late: str) -> bool:
    if timezone.now() > move.changed_at + PATIENCE:
        _give_up(plan, f"{late} within {int(PATIENCE.total_seconds() // 60)} minutes")
    return False


def _successor(pod: Pod | None, move: RebalanceMove) -> str | None:
    """Return the node of a pod that the same controller made since, once it holds a place."""
    if pod is None or not pod.spec.controller:
        return None
    rows = Pod.objects.filter(
        cluster_id=pod.cluster_id, namespace=pod.namespace, created_at__gte=move.changed_at, state__in=_HOLDING
    )
    for other in rows.select_related("node").order_by("-id")[:200]:
        if other.pk != pod.pk and other.spec.owner == pod.spec.owner and other.node is not None:
            return other.node.name
    return None


# -- rows --------------------------------------------------------------------------------------------------------------


def _keep_off(cluster: Cluster, moves: Sequence[RebalanceMove], pods: Mapping[str, Pod], told: str) -> None:
    """Keep the owners of a step's pods off the nodes that these leave, as the plan was made."""
    now = timezone.now()
    nodes = {node.name: node for node in Node.objects.filter(cluster=cluster, name__in=[m.source for m in moves])}
    live = cluster.kind == ClusterKind.KUBERNETES
    # A row for each pod; one that a kubelet refused before keeps the row that says so.
    Rejection.objects.bulk_create(
        (
            Rejection(
                cluster=cluster,
                node=nodes[move.source],
                owner=pods[move.pod_key].spec.owner[:320],
                controller=pods[move.pod_key].spec.controller[:320],
                pod=move.pod_key,
                uid=(move.uid if live else "") or f"moved-{move.pk}",
                reason=MOVED_AWAY,
                message=told,
                created_at=now,
                until=now + KEPT_OFF,
                ran_elsewhere=True,  # it says nothing about the owner's pods elsewhere
            )
            for move in moves
        ),
        ignore_conflicts=True,
    )


def _live(cluster: Cluster, keys: Sequence[str]) -> list[Pod]:
    names = [key.partition("/")[2] for key in keys]
    rows = Pod.objects.filter(cluster=cluster, name__in=names, state__in=_HOLDING).select_related("node")
    return [pod for pod in rows.order_by("id") if pod.key in set(keys)]


def _check_open(plan: Rebalance, moves: Sequence[RebalanceMove]) -> None:
    """Hold the cluster's lock, and see that nobody began this step or ended the plan.

    Raises: _Elsewhere.
    """
    waiting = plan.moves.filter(pk__in=[m.pk for m in moves], state=RebalanceMove.WAITING)
    if waiting.filter(rebalance__state=Rebalance.RUNNING).count() != len(moves):
        raise _Elsewhere


def _note(move: RebalanceMove, state: str, *, came_to: str = "") -> None:
    move.state, move.came_to, move.changed_at = state, came_to, timezone.now()
    move.save(update_fields=["state", "came_to", "changed_at"])


def _stop(plan: Rebalance, message: str) -> bool:
    """End a plan before its end; False where it is over already."""
    now = timezone.now()
    with transaction.atomic():
        running = Rebalance.objects.filter(pk=plan.pk, state=Rebalance.RUNNING)
        if not running.update(state=Rebalance.STOPPED, message=message[:500], finished_at=now):
            return False
        left = plan.moves.filter(state__in=[RebalanceMove.WAITING, RebalanceMove.LEAVING])
        Eviction.objects.filter(
            victim__in=left.values("pod_id"), nomination=None, state=Eviction.WANTED, cluster_id=plan.cluster_id
        ).update(state=Eviction.DROPPED)
        left.update(state=RebalanceMove.STOPPED, message=message[:500], changed_at=now)
        _tell(plan)
    return True


def _give_up(plan: Rebalance, message: str) -> bool:
    """End a plan that cannot go on, which nobody asked for; False where it is over already."""
    with transaction.atomic():
        if not _stop(plan, message):
            return False
        audit(actor=SYSTEM.name, role=SYSTEM.role, action="rebalance.stop", obj=_named(plan), reason=message[:2000])
    return True


def _finish(plan: Rebalance) -> None:
    running = Rebalance.objects.filter(pk=plan.pk, state=Rebalance.RUNNING)
    with transaction.atomic():
        if running.update(state=Rebalance.DONE, finished_at=timezone.now()):
            audit(actor=plan.asked_by, role=plan.role, action="rebalance.done", obj=_named(plan), reason=plan.reason)
            _tell(plan)


def _tell(plan: Rebalance) -> None:
    """Have pages that follow the cluster look again; the topic itself says nothing of plans."""
    publish_many({cluster_topic(plan.cluster): {}})


def _audit_move(plan: Rebalance, move: RebalanceMove, action: str) -> None:
    audit(
        actor=plan.asked_by,
        role=plan.role,
        action=action,
        obj=("pod", move.pod_key),
        reason=plan.reason,
        details={"rebalance": plan.pk, "step": move.step, "from": move.source, "to": move.target},
    )


def _named(plan: Rebalance) -> tuple[str, str]:
    return ("rebalance", f"{plan.cluster.name}/{plan.pk}")
