"""Execution of a rebalance plan that an operator confirmed, one move after the other.

Before each move the engine tries the move again on the current state of the cluster. The plan stops if the pod cannot
move any more or would be placed on another node. A gang is one move of all its members: the plan also stops if a member
joined the gang after the confirmation, or if in a live cluster the API server refuses the eviction of a member in a dry
run.
In a cluster that is not live, one transaction ends the pod's reservation and creates one on the target, with a decision
for this move. In a live cluster the eviction worker calls the eviction API, and the move ends when the pod's
replacement is placed. In both cases the pod's owner backs off from the old node for `KEPT_OFF`, as the plan assumed.
The plan stops if a disruption budget or missing permissions prevent an eviction, or if a move takes longer than
`PATIENCE`.
Every move has an audit entry with the name of the operator who confirmed the plan.
Invariants: only confirmed moves are executed; no move is executed after the plan stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from django.utils import timezone

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.avoided_nodes import MOVED_AWAY
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.simulation.moves import AppliedMove
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.inventory.node_events import is_synced
from hetsched.inventory.node_loads import Conflict, advance
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Eviction, Pod, Rebalance, RebalanceMove, Rejection
from hetsched.placement.queries.advice import AdviceBasis, advice_basis
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_queue.unschedulable_pods import requeue_pods
from hetsched.placement.scheduling_result import Result
from hetsched.policies.effective import active_specs
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import BACK_IN_QUEUE, ClusterTransaction, write_messages
from .decisions import record
from .rebalance_state import (
    HOLDING_STATES,
    StepTaken,
    audit_move,
    check_open,
    finish_plan,
    live_pods,
    publish_plan,
    record_move,
    stop_by_system,
)

PATIENCE = timedelta(minutes=15)
KEPT_OFF = timedelta(minutes=10)
_TRIES = 3


def advance_plan(cluster_id: int) -> int:
    """Begin or end as many steps of a cluster's plan as possible now; return how many steps began or ended."""
    plan = Rebalance.objects.select_related("cluster").filter(cluster_id=cluster_id, state=Rebalance.RUNNING).first()
    done = 0
    while plan is not None and plan.state == Rebalance.RUNNING and _step(plan):
        done += 1
        plan.refresh_from_db(fields=["state"])
    return done


def _step(plan: Rebalance) -> bool:
    """Execute one step of a plan; return False if the plan has to wait or has ended."""
    open_ones = plan.moves.filter(state__in=[RebalanceMove.WAITING, RebalanceMove.LEAVING]).select_related("pod")
    first = open_ones.order_by("step").first()
    if first is None:
        finish_plan(plan)
        return False
    moves = list(open_ones.filter(step=first.step).order_by("id"))
    if first.state == RebalanceMove.LEAVING:
        return _has_ended(plan, moves)
    try:
        return _begin(plan, moves)
    except StepTaken:
        return False
    except Conflict as conflict:
        return not stop_by_system(plan, Message("step {n}: {detail}", n=first.step, detail=conflict.message))


def _begin(plan: Rebalance, moves: Sequence[RebalanceMove]) -> bool:
    """Begin a step, or complete it if no eviction is needed."""
    cluster = Cluster.objects.get(pk=plan.cluster_id)
    if cluster.kind == ClusterKind.KUBERNETES and not is_synced(cluster):
        return False  # the data may be stale, so the step waits
    for attempt in range(_TRIES):
        found = advice_basis(cluster, _spec(cluster))
        moved, problem = _try_step(found, moves)
        if moved is None:
            stop_by_system(plan, Message("step {n}: {detail}", n=moves[0].step, detail=problem))
            return False
        try:
            if cluster.kind == ClusterKind.KUBERNETES:
                _request_evictions(plan, moves)
            else:
                _move_locally(plan, moves, found, moved)
            return True
        except Conflict:
            if attempt == _TRIES - 1:
                raise
    return False


def _spec(cluster: Cluster) -> PolicySpec:
    found = active_specs({cluster.policy_name}).get(cluster.policy_name)
    if found is None:
        raise Conflict(Message("policy {policy} has no active version", policy=cluster.policy_name))
    return found


def _try_step(found: AdviceBasis, moves: Sequence[RebalanceMove]) -> tuple[AppliedMove | None, str]:
    """Try a step on a copy of the current state; return the move, or None with the reason why it is not possible."""
    board = found.board
    unit = []
    for move in moves:
        placed = board.state.placed_pods.get(move.pod_key)
        if placed is None or board.state.columns.names[placed.row] != move.source or placed.pod.uid != move.uid:
            return None, Message("{pod} is no longer on {node}", pod=move.pod_key, node=move.source)
        if move.pod_key in found.kept:
            return None, Message("{pod} is already moving to another node", pod=move.pod_key)
        unit.append(placed)
    keys = {move.pod_key for move in moves}
    for placed in unit:
        gang = gang_key(placed.pod)
        if gang is not None and (others := board.state.gangs.placed[gang] - keys):
            text = "{pod} joined the gang of {pods}, and a gang moves as a whole"
            return None, Message(text, pod=min(others), pods=placed.pod.key)
    moved = board.move(tuple(unit))
    if moved is None:
        return None, Message(
            "{pod} cannot move now: no node fits, or a disruption budget prevents it", pod=moves[0].pod_key
        )
    for move, outcome in zip(moves, moved.outcomes, strict=True):
        if outcome.node != move.target:
            return None, Message(
                "{pod} would now be placed on {node}, not on {target}",
                pod=move.pod_key,
                node=outcome.node or "",
                target=move.target,
            )
    return moved, ""


# -- clusters that are not live ----------------------------------------------------------------------------------------


def _move_locally(plan: Rebalance, moves: Sequence[RebalanceMove], found: AdviceBasis, moved: AppliedMove) -> None:
    """End the reservations of a step's pods and create new reservations on their targets, in one transaction.

    Raises: Conflict if something was reserved since the state was read.
    """
    message = _move_message(plan)
    with write_transaction():
        change = ClusterTransaction(advance(plan.cluster_id, revision=found.revision))
        check_open(plan, moves)
        pods = {pod.key: pod for pod in live_pods(plan.cluster, [move.pod_key for move in moves])}
        if len(pods) != len(moves):
            raise Conflict("a pod of the step was deleted")
        leaving = [pods[move.pod_key] for move in moves]
        change.free(leaving, message)
        _back_off_owners(change.cluster, moves, pods, message)
        change.move(leaving, State.PENDING, **BACK_IN_QUEUE, message=message)
        requeue_pods(change.cluster, {Event.POD_RELEASED}, at_once=True)
        change.close()
        at = change.cluster.revision
        results = [
            _result(plan, pods[move.pod_key], move, found, position, moved) for position, move in enumerate(moves)
        ]
        record(plan.cluster_id, results, revision=at, epoch=None, snapshot=_state_digest(found, moved))
        _publish_message(plan.cluster_id, leaving, message)
        for move in moves:
            record_move(move, RebalanceMove.MOVED, actual_node=move.target)
            audit_move(plan, move, "pod.move")
        dispatch.wake(plan.cluster_id)


def _publish_message(cluster_id: int, pods: Sequence[Pod], message: Message) -> None:
    """Write the message of pods that `record` placed, which has published them without a message."""
    change = ClusterTransaction(advance(cluster_id))
    write_messages((message, pod.pk) for pod in pods)
    change.touch(pods)
    change.close()


def _state_digest(found: AdviceBasis, moved: AppliedMove) -> str:
    """Return the digest of the state without the pods of a step, and leave these pods removed from `found`."""
    for placed in moved.unit:
        found.board.state.forget(placed.pod.key)
    return found.board.state.digest()


def _result(
    plan: Rebalance, pod: Pod, move: RebalanceMove, found: AdviceBasis, position: int, moved: AppliedMove
) -> Result:  # fmt: skip
    outcome = moved.outcomes[position]
    policy = found.board.scheduler_of(outcome.pod).policy.spec
    waiting = PendingPod(
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
    summary = Message(
        "{pod} moved from {source} to {target}, score {score}; confirmed by {name}",
        pod=pod.key,
        source=move.source,
        target=move.target,
        score=f"{outcome.score:.1f}",
        name=plan.asked_by,
    )
    return Result(
        waiting,
        Verdict.PLACED,
        summary,
        policy.name,
        policy.version,
        node_id=found.node_ids[move.target],
        node_name=move.target,
        allocation=outcome.allocation,
        score=round(outcome.score, 6),
    )


# -- on a live cluster -------------------------------------------------------------------------------------------------


def _request_evictions(plan: Rebalance, moves: Sequence[RebalanceMove]) -> None:
    """Request the eviction of a step's pods, and let each pod's owner back off from the node that the pod leaves."""
    message = _move_message(plan)
    with write_transaction():
        cluster = advance(plan.cluster_id)
        check_open(plan, moves)
        pods = {pod.key: pod for pod in live_pods(cluster, [move.pod_key for move in moves])}
        for move in moves:
            pod = pods.get(move.pod_key)
            # Another pod may have this name by now; only the pod with the uid that the engine moved may be evicted.
            if pod is None or pod.uid != move.uid or pod.node is None or pod.node.name != move.source:
                raise Conflict(Message("{pod} was deleted from {node}", pod=move.pod_key, node=move.source))
        Eviction.objects.bulk_create(
            Eviction(cluster=cluster, victim=pods[move.pod_key], move=move, reason=message) for move in moves
        )
        _back_off_owners(cluster, moves, pods, message)
        for move in moves:
            record_move(move, RebalanceMove.LEAVING)
            audit_move(plan, move, "pod.evict")
        dispatch.wake(plan.cluster_id, dispatch.EVICT)


def _has_ended(plan: Rebalance, moves: Sequence[RebalanceMove]) -> bool:
    """Return True if a begun step has ended; stop the plan if an eviction was refused or the step takes too long."""
    evictions = Eviction.objects.filter(move__in=moves, state=Eviction.WANTED).exclude(message="")
    refused = evictions.select_related("victim").first()
    if refused is not None:
        return not stop_by_system(
            plan, Message("{pod} may not be evicted: {detail}", pod=refused.victim.key, detail=refused.message)
        )
    for move in moves:
        pod = move.pod
        if pod is not None and pod.state in HOLDING_STATES:
            return _wait(plan, move, "{pod} was not deleted within {n} minutes")
        successor = _successor(pod, move)
        if pod is not None and pod.spec.controller and successor is None:
            return _wait(plan, move, "the replacement of {pod} was not placed within {n} minutes")
    with write_transaction():
        for move in moves:
            found = _successor(move.pod, move)
            record_move(move, RebalanceMove.MOVED, actual_node=found or "")
        publish_plan(plan)
    return True


def _wait(plan: Rebalance, move: RebalanceMove, late: str) -> bool:
    if timezone.now() > move.changed_at + PATIENCE:
        stop_by_system(plan, Message(late, pod=move.pod_key, n=int(PATIENCE.total_seconds() // 60)))
    return False


def _move_message(plan: Rebalance) -> Message:
    return Message("Moved by {name}: {text}", name=plan.asked_by, text=plan.reason)


def _successor(pod: Pod | None, move: RebalanceMove) -> str | None:
    """Return the node of the replacement of a moved pod, or None until the replacement holds resources."""
    if pod is None or not pod.spec.controller:
        return None
    rows = Pod.objects.filter(
        cluster_id=pod.cluster_id, namespace=pod.namespace, created_at__gte=move.changed_at, state__in=HOLDING_STATES
    )
    for other in rows.select_related("node").order_by("-id")[:200]:
        if other.pk != pod.pk and other.spec.owner == pod.spec.owner and other.node is not None:
            return other.node.name
    return None


# -- rows --------------------------------------------------------------------------------------------------------------


def _back_off_owners(cluster: Cluster, moves: Sequence[RebalanceMove], pods: Mapping[str, Pod], message: str) -> None:
    """Record, as the plan assumed, that each pod's owner backs off from the node that the pod leaves."""
    now = timezone.now()
    nodes = {node.name: node for node in Node.objects.filter(cluster=cluster, name__in=[m.source for m in moves])}
    live = cluster.kind == ClusterKind.KUBERNETES
    # A pod has at most one row here: if a kubelet rejected the pod before, the earlier row is kept.
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
                message=message,
                created_at=now,
                until=now + KEPT_OFF,
                ran_elsewhere=True,  # this row does not limit the owner's pods on other nodes
            )
            for move in moves
        ),
        ignore_conflicts=True,
    )
