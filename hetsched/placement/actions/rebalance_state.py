"""State changes of a rebalance plan and of its moves: end, stop, audit and publish."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils import timezone

from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from hetsched.journal.audit import record as audit
from hetsched.journal.publish import publish_many
from hetsched.placement.lifecycle import HOLDING
from hetsched.placement.models import Eviction, Pod, Rebalance, RebalanceMove
from hetsched.storage.write_lock import write_transaction

HOLDING_STATES = [state.value for state in HOLDING]


class StepTaken(Exception):
    """Another worker executes this step, or the plan has ended."""


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


def record_move(move: RebalanceMove, state: str, *, came_to: str = "") -> None:
    move.state, move.came_to, move.changed_at = state, came_to, timezone.now()
    move.save(update_fields=["state", "came_to", "changed_at"])


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
    """Make the live pages of the cluster reload; its topic itself contains no plans."""
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
