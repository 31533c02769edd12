"""State changes of a rebalance plan and of its moves: confirm, stop, end, audit and publish."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db import IntegrityError
from django.utils import timezone

from hetsched.contracts.api.advice import Advice, Move
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.inventory.actions import cluster_topic, require_reason
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_events import is_synced
from hetsched.journal.audit import SYSTEM, Actor
from hetsched.journal.audit import record as audit
from hetsched.journal.publish import publish_many
from hetsched.placement.lifecycle import HOLDING
from hetsched.placement.models import Eviction, Pod, Rebalance, RebalanceMove
from hetsched.storage.write_lock import write_transaction

from .. import dispatch

HOLDING_STATES = [state.value for state in HOLDING]


class StepTaken(Exception):
    """Raised if another worker executes this step, or the plan has ended."""


def confirm_plan(cluster: Cluster, advice: Advice, steps: Sequence[int], *, actor: Actor, reason: str) -> Rebalance:
    """Confirm the moves of a plan with these step indices (from 0), so that a worker executes them.

    Raises: InputError `ReasonMissing`, `NothingToMove`, `RebalanceRunning`, or `ClusterNotFollowed`.
    """
    reason = require_reason(reason)
    chosen = [move for step, move in enumerate(advice.moves) if step in set(steps)]
    if not chosen:
        raise InputError("NothingToMove", "no move of the plan is selected", place="steps")
    if cluster.kind == ClusterKind.KUBERNETES and not is_synced(cluster):
        raise InputError("ClusterNotFollowed", "the data of the cluster is stale", place="cluster")
    try:
        with write_transaction():
            plan = _create_plan(cluster, advice, chosen, actor, reason)
            publish_plan(plan)
            dispatch.wake(cluster.pk, dispatch.REBALANCE)
    except IntegrityError:
        raise InputError(
            "RebalanceRunning",
            "another plan is in progress",
            place="cluster",
            hint="Stop that plan, or wait until it ends",
        ) from None
    return plan


def _create_plan(cluster: Cluster, advice: Advice, chosen: Sequence[Move], actor: Actor, reason: str) -> Rebalance:
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
    live = {
        pod.key: pod.pk for pod in live_pods(cluster, [moved_pod.pod for move in chosen for moved_pod in move.pods])
    }
    RebalanceMove.objects.bulk_create(
        RebalanceMove(
            rebalance=plan,
            step=step,
            pod_id=live.get(moved_pod.pod),
            pod_key=moved_pod.pod,
            uid=moved_pod.uid,
            source=moved_pod.from_,
            target=moved_pod.to,
            changed_at=now,
        )
        for step, move in enumerate(chosen, start=1)
        for moved_pod in move.pods
    )
    details = {
        "goal": plan.goal,
        "plan": plan.token,
        "pods": [moved_pod.pod for move in chosen for moved_pod in move.pods][:100],
    }
    audit(
        actor=actor.name,
        role=actor.role,
        action="rebalance.confirm",
        obj=plan_name(plan),
        reason=reason,
        details=details,
    )
    return plan


def stop_plan(plan: Rebalance, *, actor: Actor, reason: str) -> None:
    """Stop a plan: execute no further move, and drop evictions that were not requested yet.

    Raises: InputError `ReasonMissing` or `RebalanceOver`.
    """
    reason = require_reason(reason)
    with write_transaction():
        if not stop_running(plan, Message("stopped by {name}", name=actor.name)):
            raise InputError("RebalanceOver", "the plan has already ended", place="action")
        audit(actor=actor.name, role=actor.role, action="rebalance.stop", obj=plan_name(plan), reason=reason)


def has_running_plan(cluster_id: int) -> bool:
    """Return True if a plan of the cluster is in progress."""
    return Rebalance.objects.filter(cluster_id=cluster_id, state=Rebalance.RUNNING).exists()


def prune_plans(cluster_id: int, *, before: datetime) -> int:
    """Delete plans that ended before a time; the audit trail keeps the moves."""
    return Rebalance.objects.filter(cluster_id=cluster_id, finished_at__lt=before).delete()[0]


def live_pods(cluster: Cluster, keys: Sequence[str]) -> list[Pod]:
    names = [key.partition("/")[2] for key in keys]
    rows = Pod.objects.filter(cluster=cluster, name__in=names, state__in=HOLDING_STATES).select_related("node")
    return [pod for pod in rows.order_by("id") if pod.key in set(keys)]


def check_open(plan: Rebalance, moves: Sequence[RebalanceMove]) -> None:
    """Check under the cluster's lock that no other worker began this step and that the plan still runs.

    Raises: StepTaken.
    """
    waiting = plan.moves.filter(pk__in=[m.pk for m in moves], state=RebalanceMove.WAITING)
    if waiting.filter(rebalance__state=Rebalance.RUNNING).count() != len(moves):
        raise StepTaken


def record_move(move: RebalanceMove, state: str, *, actual_node: str = "") -> None:
    move.state, move.actual_node, move.changed_at = state, actual_node, timezone.now()
    move.save(update_fields=["state", "actual_node", "changed_at"])


def stop_running(plan: Rebalance, message: str) -> bool:
    """Stop a running plan; return False if the plan has already ended."""
    now = timezone.now()
    with write_transaction():
        running = Rebalance.objects.filter(pk=plan.pk, state=Rebalance.RUNNING)
        if not running.update(state=Rebalance.STOPPED, message=message, finished_at=now):
            return False
        left = plan.moves.filter(state__in=[RebalanceMove.WAITING, RebalanceMove.LEAVING])
        Eviction.objects.filter(move__in=left, state=Eviction.WANTED).update(state=Eviction.DROPPED)
        left.update(state=RebalanceMove.STOPPED, message=message, changed_at=now)
        publish_plan(plan)
    return True


def stop_by_system(plan: Rebalance, message: str) -> bool:
    """Stop a plan that cannot continue, with the system as actor; return False if the plan has already ended."""
    with write_transaction():
        if not stop_running(plan, message):
            return False
        audit(actor=SYSTEM.name, role=SYSTEM.role, action="rebalance.stop", obj=plan_name(plan), reason=message)
    return True


def finish_plan(plan: Rebalance) -> None:
    running = Rebalance.objects.filter(pk=plan.pk, state=Rebalance.RUNNING)
    with write_transaction():
        if running.update(state=Rebalance.DONE, finished_at=timezone.now()):
            audit(actor=plan.asked_by, role=plan.role, action="rebalance.done", obj=plan_name(plan), reason=plan.reason)
            publish_plan(plan)


def publish_plan(plan: Rebalance) -> None:
    """Trigger a reload of the cluster's live pages; the cluster's topic itself contains no plans."""
    publish_many({cluster_topic(plan.cluster): {}})


def audit_move(plan: Rebalance, move: RebalanceMove, action: str) -> None:
    audit(
        actor=plan.asked_by,
        role=plan.role,
        action=action,
        obj=("pod", move.pod_key),
        reason=plan.reason,
        details={"rebalance": plan.pk, "step": move.step, "from": move.source, "to": move.target},
    )


def plan_name(plan: Rebalance) -> tuple[str, str]:
    return ("rebalance", f"{plan.cluster.name}/{plan.pk}")
