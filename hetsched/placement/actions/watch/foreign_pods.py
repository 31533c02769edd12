"""Pods that another scheduler placed: the resources of each are reserved as soon as its node is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hetsched.contracts.message import format_pods
from hetsched.contracts.objects.allocation import EMPTY, Allocation
from hetsched.contracts.objects.observed import ObservedPod
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.cluster_snapshot import state_of
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from hetsched.placement.reservation_ledger import ReservedPod
from hetsched.storage.bulk_rows import insert
from hetsched.storage.hot_statements import NODES

from ..change import ClusterTransaction
from .displaced_pods import displace_pods
from .pod_problems import pod_problem


def charge_foreign_pods(change: ClusterTransaction, charged: Sequence[ObservedPod], *, displaces: bool) -> int:
    """Reserve the resources of pods that another scheduler placed; return how many pods were added.

    With `displaces`, pods and holds that no longer fit their node are displaced.
    """
    node_ids = _ids_of_nodes(change.cluster, (seen.node_name for seen in charged))
    # Do not use the allocation in the pod's annotation, because any user can write it: `_allocations` chooses GPUs and
    # CPUs for the requests.
    specs, messages = list[PodSpec](), list[str]()
    for seen in charged:
        if seen.spec is not None:
            specs.append(msgspec.structs.replace(seen.spec, allocation=None, node_name=seen.node_name))
            messages.append(pod_problem(seen))
    pods = [
        Pod.charged(change.cluster, spec, node_ids.get(spec.node_name), allocation, change.now)
        for spec, allocation in zip(specs, _allocations(specs, node_ids), strict=True)
    ]
    for pod, message in zip(pods, messages, strict=True):
        pod.message = message
    insert(pods)
    reserved = [ReservedPod(pod.pk, pod.node_id, pod.spec, pod.allocation or EMPTY) for pod in pods if pod.node_id]
    change.reserve(reserved, change.cluster.leader_epoch)
    if reserved and displaces:
        node_ids_of_reserved = {reserved_pod.node_id for reserved_pod in reserved}
        displace_pods(change, node_ids_of_reserved, by=format_pods([pod.key for pod in pods], 3))
    return len(pods)


def charge_unassigned_pods(change: ClusterTransaction) -> None:
    """Reserve the resources of pods that were observed before their nodes."""
    homeless = Pod.objects.filter(cluster=change.cluster, origin=Pod.IMPORTED, node=None, state=State.RUNNING.value)
    node_ids = _ids_of_nodes(change.cluster, (pod.spec.node_name for pod in homeless))
    early = [pod for pod in homeless if pod.spec.node_name in node_ids]
    reserved = []
    for pod, allocation in zip(early, _allocations([pod.spec for pod in early], node_ids), strict=True):
        node_id = node_ids[pod.spec.node_name]
        Pod.objects.filter(pk=pod.pk).update(node_id=node_id, allocation=allocation)
        reserved.append(ReservedPod(pod.pk, node_id, pod.spec, allocation))
    change.reserve(reserved, change.cluster.leader_epoch)


def _ids_of_nodes(cluster: Cluster, names: Iterable[str]) -> dict[str, int]:
    wanted = set(names)
    nodes: list[Node] = NODES(ids=(), cluster=cluster.pk, names=wanted) if wanted else []
    return {node.name: node.pk for node in nodes}


def _allocations(specs: Sequence[PodSpec], node_ids: Mapping[str, int]) -> list[Allocation]:
    """Return the allocations of these pods; the engine fills in free GPUs and CPUs of NUMA zones."""
    exact = [spec for spec in specs if spec.node_name in node_ids and (spec.shape.gpu or spec.shape.containers)]
    if not exact:
        return [EMPTY] * len(specs)
    state = state_of({node_ids[spec.node_name] for spec in exact})
    taken = {
        spec.key: state.assume(state.compile(spec), state.row_of[spec.node_name]).allocation
        for spec in exact
        if spec.key not in state.placed_pods
    }
    return [taken.get(spec.key, EMPTY) for spec in specs]
