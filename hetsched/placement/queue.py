"""Which pods the scheduler looks at next.

Rule: priority, then submission order; other queue orders are the policy's own sort over all that waits. A pod that
did not fit waits a little longer after each try (1, 2, 4, 8, then 10 s), so a few large pods do not eat every batch.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from django.db.models import Q, QuerySet
from django.utils import timezone

from hetsched.contracts.workload import PodSpec

from .models import Pod

LONGEST_BACKOFF_SECONDS = 10


class Waiting(msgspec.Struct, frozen=True):
    """One pod that waits, with what a decision about it needs."""

    pod_id: int
    workload_id: str | None
    spec: PodSpec
    policy: str
    policy_rule: str
    state: str
    attempts: int
    decision_id: int | None


def backoff(attempts: int) -> timedelta:
    """Return how long a pod waits after its n-th unsuccessful try."""
    return timedelta(seconds=min(2 ** max(attempts - 1, 0), LONGEST_BACKOFF_SECONDS))


def due(now: datetime | None = None) -> Q:
    """Return the condition for pods that the scheduler should look at by now."""
    return Q(queued=True) & (Q(not_before=None) | Q(not_before__lte=now or timezone.now()))


def due_pods(cluster_id: int) -> QuerySet[Pod]:
    return Pod.objects.filter(due(), cluster_id=cluster_id)


def waiting(cluster_id: int, limit: int | None) -> list[Waiting]:
    """Return the pods to look at, in queue order; None for all of them."""
    rows = due_pods(cluster_id).order_by("-priority", "id")
    fields = ("id", "workload_id", "spec", "policy", "policy_rule", "state", "attempts", "decision_id")
    return [Waiting(*row) for row in rows.values_list(*fields)[:limit]]
