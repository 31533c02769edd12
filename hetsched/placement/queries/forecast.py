"""Forecast of the next decisions: the queue of a cluster, in the order of its default policy.

The forecast lists the due pods in the order in which the next batches take them if each of them is placed and no other
pod arrives. A pod in back-off, or waiting for an event, is not included.
"""

from __future__ import annotations

from django.utils import timezone

from hetsched.placement.pending.decision_time import over_share
from hetsched.placement.pending.queue import PendingPod, next_pods
from hetsched.placement.snapshot import warm


def forecast(cluster_id: int, limit: int) -> list[PendingPod]:
    """Return the first `limit` pods in the order in which they will be tried."""
    copy = warm(cluster_id)
    with copy.held() as loaded:
        policy = copy.default_policy()
        pods = next_pods(cluster_id, policy, limit)
        if policy is None:
            return pods[:limit]
        by_key = {pod.spec.key: pod for pod in pods}
        behind = over_share(cluster_id, timezone.now().timestamp())
        order = policy.forecast([pod.spec for pod in pods], loaded.state, behind)
    return [by_key[spec.key] for spec in order][:limit]
