"""Pods on nodes that do not run their instructions, and pods that kube-scheduler may place on such nodes.

kube-scheduler compares labels only: it reads neither the platforms of images nor required CPU features. For pods of
another scheduler, the nodes that their selectors, affinity and tolerations allow are therefore compared with the nodes
that run their instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hetsched.contracts.api.cluster_report import ClusterFinding
from hetsched.contracts.api.findings import Level
from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_report import IsaReport
from hetsched.contracts.objects.workload import IsaDemand, PodSpec, Shape, is_ours
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.columns import Bools
from hetsched.engine.framework.status import Refusal
from hetsched.engine.isa.isa_fit import NO, SECOND, refusal_of, run_on

from .checked_cluster import AffectedObject, CheckedCluster, finding

_SELECT = Message(
    "Set the nodeSelector kubernetes.io/arch, or a node affinity for nodes that run the pod, or schedule the pod with "
    "hetsched"
)
_MOVE = Message("Exclude the node by the nodeSelector or affinity of the pod, or build its images for the node")
_REPORT = Message("Label the node with its instruction set (hetsched.io/isa), or run the node agent")


class _Fault(NamedTuple):
    group: AffectedObject
    refusal: Refusal


def check_instruction_sets(cluster: CheckedCluster) -> Iterator[ClusterFinding]:
    """Yield pods that run, or may be placed, on nodes with a wrong or unknown instruction set."""
    faults: dict[_Fault, list[tuple[str, str]]] = {}
    for key, placed in cluster.state.placed_pods.items():
        demand = placed.pod.shape.isa
        report = cluster.state.reports[placed.row]
        refusal = None if demand is None else _refusal(demand, report.isa)
        if refusal is not None:
            faults.setdefault(_Fault(AffectedObject.of(placed.pod), refusal), []).append((key, report.name))
    for (group, refusal), pods in faults.items():
        evidence = [
            Message("{pod} on {node}: {detail}", pod=pod, node=node, detail=refusal.message) for pod, node in pods[:3]
        ]
        yield finding(
            refusal.code,
            Level.WARNING if refusal.unknown else Level.ERROR,
            group,
            Message("Nodes do not report whether they can run the pods")
            if refusal.unknown
            else Message("Pods run on nodes without the required instruction set or image platform"),
            _REPORT if refusal.unknown else _MOVE,
            evidence=evidence,
            affected=[pod for pod, _ in pods],
        )
    misplaced = {group for group, refusal in faults if not refusal.unknown}
    yield from _possible_misplacements(cluster, misplaced)


def _refusal(demand: IsaDemand, offer: IsaReport) -> Refusal | None:
    if run_on("lattice", "native-first", demand, offer).rank >= SECOND:
        return None
    return refusal_of("lattice", "native-first", demand, offer)


def _possible_misplacements(cluster: CheckedCluster, misplaced: set[AffectedObject]) -> Iterator[ClusterFinding]:
    """Yield pods that kube-scheduler may place on a node that does not run them; groups in `misplaced` are omitted."""
    groups: dict[Shape, dict[AffectedObject, list[PodSpec]]] = {}
    pods = [*(placed.pod for placed in cluster.bound), *cluster.content.pending]
    for pod in pods:
        group = AffectedObject.of(pod)
        if pod.shape.isa is not None and pod.ready and not is_ours(pod.scheduler_name) and group not in misplaced:
            groups.setdefault(pod.shape, {}).setdefault(group, []).append(pod)
    for by_group in groups.values():
        first = next(iter(by_group.values()))[0]
        allowed, wrong = _allowed_rows(cluster, first)
        if not wrong.any():
            continue
        row = int(np.flatnonzero(wrong)[0])
        assert first.shape.isa is not None
        example = refusal_of("lattice", "native-first", first.shape.isa, cluster.state.reports[row].isa)
        message = Message(
            "{n} of the {m} nodes that the selectors, affinity and tolerations allow do not run the pod",
            n=int(wrong.sum()),
            m=int(allowed.sum()),
        )
        evidence = [Message("{name}: {detail}", name=cluster.state.columns.names[row], detail=example.message)]
        for group, members in by_group.items():
            keys = [pod.key for pod in members]
            yield finding(
                "MayLandOnWrongNode", Level.WARNING, group, message, _SELECT, evidence=evidence, affected=keys
            )


def _allowed_rows(cluster: CheckedCluster, pod: PodSpec) -> tuple[Bools, Bools]:
    """Return the rows (N,) on which kube-scheduler may place the pod if they were empty, and those that do not run it.

    A node whose capacity is smaller than the request is not allowed.
    """
    state, scheduler = cluster.state, cluster.kube_scheduler
    request = state.compile(pod)
    allowed: Bools = scheduler.evaluator.prepare(request).static_mask.copy()
    allocatable = state.columns.field("allocatable")
    for name, amount in pod.shape.requests:
        if name not in GPU_RESOURCES:
            allowed &= allocatable[state.resources.index[name]] >= amount
    if pod.shape.gpu is not None:
        allowed &= (state.columns.field("card_milli") > 0).sum(axis=0) >= pod.shape.gpu.count
    demand = pod.shape.isa
    assert demand is not None
    ranks = [run_on("lattice", "native-first", demand, offer).rank == NO for offer in state.offers.values]
    return allowed, allowed & np.array(ranks, np.bool_)[state.all_rows.static("isa_offer")]
