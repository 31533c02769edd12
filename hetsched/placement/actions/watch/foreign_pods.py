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
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import insert

from ..change import ClusterTransaction
from .displaced_pods import displace_pods
from .pod_problems import pod_problem

_ROWS_AT_ONCE = 1000


def charge_foreign_pods(change: ClusterTransaction, charged: Sequence[ObservedPod], *, displaces: bool) -> int:
    """Reserve the resources of pods that another scheduler placed; return how many pods were added.

    With `displaces`, pods and holds that no longer fit their node are displaced.
    """
    node_ids = _ids_of_nodes(change.cluster, (seen.node_name for seen in charged))
    known = [(_charged_spec(seen.spec, seen.node_name), pod_problem(seen)) for seen in charged if seen.spec is not None]
    specs = [spec for spec, _ in known]
    reserved_node_ids: set[int] = set()
    # The rows of a first list would need more memory than all other data of the informer, so they are made in batches.
    for some in batched(list(zip(known, _allocations(specs, node_ids), strict=True)), _ROWS_AT_ONCE):
        pods = []
        for (spec, problem), allocation in some:
            pod = Pod.charged(change.cluster, spec, node_ids.get(spec.node_name), allocation, change.now)
            pod.message = problem
            pods.append(pod)
        insert(pods)
        reserved = [ReservedPod(pod.pk, pod.node_id, pod.spec, pod.allocation or EMPTY) for pod in pods if pod.node_id]
        change.reserve(reserved, change.cluster.leader_epoch)
        reserved_node_ids.update(reserved_pod.node_id for reserved_pod in reserved)
    if reserved_node_ids and displaces:
        displace_pods(change, reserved_node_ids, by=format_pods([spec.key for spec in specs], 3))
    return len(specs)


def _charged_spec(spec: PodSpec, node_name: str) -> PodSpec:
    """Return a pod on its node, without the allocation in its annotation.

    Any user can write the annotation, so `_allocations` chooses GPUs and CPUs for the requests.
    """
    if spec.allocation is None and spec.node_name == node_name:
        return spec
    return msgspec.structs.replace(spec, allocation=None, node_name=node_name)


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
    found: dict[str, int] = {}
    for some in batched(list(set(names))):
        found.update(Node.objects.filter(cluster=cluster, name__in=some).order_by().values_list("name", "id"))
    return found


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
