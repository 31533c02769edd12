"""What is decided next: the queue of a cluster, in the order of its default policy.

Rule: the pods that are due, as the next batches will take them if each of them is placed and nothing else comes. A pod
that waits for its back-off, or for a change of the cluster, is in no queue.
"""

from __future__ import annotations

from hetsched.placement.queue import Waiting, next_pods
from hetsched.placement.snapshot import warm


def forecast(cluster_id: int, limit: int) -> list[Waiting]:
    """Return the first `limit` pods in the order in which they will be tried."""
    copy = warm(cluster_id)
    with copy.held() as loaded:
        policy = copy.default_policy()
        pods = next_pods(cluster_id, policy, limit)
        if policy is None:
            return pods[:limit]
        by_key = {pod.spec.key: pod for pod in pods}
        order = policy.forecast([pod.spec for pod in pods], loaded.state)
    return [by_key[spec.key] for spec in order][:limit]
