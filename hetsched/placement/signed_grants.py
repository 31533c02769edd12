"""Signed allocations that node agents verify; each signature is valid for one pod on one node.

The key of a node is derived from SECRET_KEY, the cluster's name and the node's name. The server does not store it and
sends it only to that node's agent. Without a SECRET_KEY nothing is signed, and agents apply no allocations. Only
hetsched's own reservations are signed, never allocations that a pod specifies. A new SECRET_KEY changes the key of
every node: agents receive it with the next response, together with the newly signed allocations of their pods.
Invariant: every signed text describes an active reservation and contains the epoch of its decision.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
from django.conf import settings

from hetsched.adapters.kubernetes.pods.binding import annotations_of
from hetsched.adapters.objects import keys
from hetsched.adapters.objects.allocation import by_container
from hetsched.contracts.messages.signatures import node_key
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.storage.sealed_secrets import derived

from .lifecycle import HOLDING, State
from .models import Pod
from .models.reservations import Reservation

_PURPOSE = "keys of node agents"


def agent_key(cluster: str, node: str) -> bytes | None:
    """Return the key with which the agent of a node verifies allocations, or None without a SECRET_KEY."""
    return _agent_key(settings.SECRET_KEY, cluster, node) if settings.SECRET_KEY_GIVEN else None


@lru_cache(maxsize=16_384)
def _agent_key(_made_of: str, cluster: str, node: str) -> bytes | None:
    secret = derived(_PURPOSE)
    return None if secret is None else node_key(secret, cluster, node)


def grant_annotations(
    cluster: str, node: str, uid: str, spec: PodSpec, allocation: Allocation, epoch: int
) -> dict[str, str]:
    """Return the annotations with a pod's signed allocation on a node."""
    containers = by_container(msgspec.structs.replace(spec, allocation=allocation))
    key = agent_key(cluster, node)
    return annotations_of(allocation, uid=uid, node=node, epoch=epoch, containers=containers, key=key)


def signed_allocations_on(cluster_id: int, node: str) -> dict[str, str]:
    """Return the signed allocations, by pod uid, of the pods that hetsched placed on a node."""
    rows = Reservation.objects.filter(
        cluster_id=cluster_id,
        node__name=node,
        active=True,
        pod__state__in=HOLDING - {State.PLACED},
        pod__origin__in=Pod.OURS,
    ).exclude(pod__uid="")
    found = rows.select_related("pod", "cluster").order_by("pod_id")
    return {
        row.pod.uid: grant_annotations(
            row.cluster.name, node, row.pod.uid, row.pod.spec, row.pod.allocation or row.allocation, row.leader_epoch
        )[keys.ALLOCATION]
        for row in found
    }
