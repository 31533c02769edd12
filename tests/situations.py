"""Shortcuts to common initial situations of tests of apps and workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.allocation import Allocation, CardGrant
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.observed import ObservedPod
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.journal.audit import SYSTEM, Program
from hetsched.placement.actions import import_cluster, record, submit
from hetsched.placement.models import Pod, Workload
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from hetsched.placement.scheduling_result import Result
from hetsched.policies.models import Policy
from hetsched.scheduling.arrival_buffer import ArrivalBuffer
from hetsched.scheduling.leases import Lease, leading
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.builtins import builtin_policies

ALICE = Program("alice", "operator")


def a_cluster(*nodes: NodeBuilder, name: str = "fleet", running: tuple[PodBuilder, ...] = (), **more: Any) -> Cluster:
    """Import a cluster of these nodes (by default one node with 8 CPUs, 32Gi and two GPUs), and create the built-in
    policies.
    """
    if not Policy.objects.exists():
        builtin_policies()
    reports: tuple[NodeReport, ...] = tuple(node.build() for node in nodes or (a_node("n1").gpus(2),))
    content = ClusterContent(nodes=reports, running=tuple(pod.build() for pod in running))
    return import_cluster(content, name=name, actor=ALICE, **more)


def a_live_cluster() -> Cluster:
    """Create a live cluster without nodes, whose informer has epoch 1, and the built-in policies."""
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    return made


class BindingHost:
    """Host of a scheduling loop that may always decide and binds its pods itself."""

    binds = True
    leaves_effects = False

    def __init__(self, *, copies_labels: bool = False) -> None:
        self.copies_labels = copies_labels

    def may_decide(self) -> bool:
        return True

    def still_leads(self, lease: Lease) -> bool:
        return True


def submitted(cluster: Cluster, *pods: PodBuilder | PodSpec, **more: Any) -> Workload:
    """Submit these pods (by default one with 1 CPU and 1Gi) as one workload."""
    specs = [pod if isinstance(pod, PodSpec) else pod.build() for pod in pods or (a_pod("p"),)]
    answer = submit(Cluster.objects.get(pk=cluster.pk), specs, **{"actor": ALICE, **more})
    return Workload.objects.get(pk=answer.workload_id)


def arrived(pods: Iterable[ObservedPod], buffer: ArrivalBuffer | None = None) -> ArrivalBuffer:
    """Return a buffer of these arriving pods, or add them to `buffer`."""
    buffer = ArrivalBuffer() if buffer is None else buffer
    new = list(pods)
    for pod in new:
        buffer.note_new(pod.key)
    assert buffer.take(new, accepts=True) == []
    return buffer


def acquire_lease(cluster: Cluster) -> Lease:
    """Acquire the lease of a cluster that has no leader."""
    taken = leading.take(cluster.pk, "test")
    assert taken is not None
    return taken


def placing(cluster: Cluster, node: str, *cards: CardGrant) -> list[Result]:
    """Return results that place every due pod on one node, each with these GPUs as its allocation."""
    node_id = Node.objects.get(cluster=cluster, name=node).pk
    return [
        Result(
            pod, Verdict.PLACED, f"{pod.spec.key} placed", "hetsched", 1, node_id, node, Allocation(gpus=cards), 50.0
        )
        for pod in first_active_pods(cluster.pk, None, 500)
    ]


def refusing(cluster: Cluster, verdict: Verdict = Verdict.NOT_NOW) -> list[Result]:
    """Return results that reject every due pod."""
    return [Result(pod, verdict, "no", "hetsched", 1) for pod in first_active_pods(cluster.pk, None, 500)]


def recorded(cluster: Cluster, results: list[Result], epoch: int | None = None) -> int:
    """Record decisions on the current state of the cluster."""
    fresh = Cluster.objects.get(pk=cluster.pk)
    epoch = fresh.leader_epoch if epoch is None else epoch
    return record(cluster.pk, results, revision=fresh.revision, epoch=epoch, snapshot="digest")


def placed(cluster: Cluster, node: str, *pods: PodBuilder) -> list[Pod]:
    """Submit pods and place them on a node."""
    workload = submitted(cluster, *pods)
    recorded(cluster, placing(cluster, node))
    return list(workload.pods.order_by("id"))
