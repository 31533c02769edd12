"""Pods that a kubelet rejected, and pending pods that a kubelet would reject after kube-scheduler placed them.

kube-scheduler compares amounts of whole nodes, but the topology manager and the CPU manager of a kubelet compare NUMA
zones. Pending pods are placed one after another, as kube-scheduler would place them, so that the members of a gang use
the same zones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetsched.contracts.api.cluster_report import ClusterFinding
from hetsched.contracts.api.findings import Level
from hetsched.contracts.message import Message, verbatim
from hetsched.contracts.objects.observed import ObservedPod
from hetsched.contracts.objects.workload import PodSpec, is_ours
from hetsched.engine.cluster.columns import Bools
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.scoring import INFEASIBLE
from hetsched.engine.numa.kubelet_admission import KubeletAdmission

from .checked_cluster import AffectedObject, CheckedCluster, finding

MOST_PREDICTED = 1000
_ISA = "isa"
_FOREIGN_CODE = "An image or a program is not built for the node ({text})"
_BUILD = Message("Build the image for the architecture of the node, or restrict the pod to other nodes")
_REJECTED = "The node rejected pods ({text})"
_COMPARE = Message("Compare the request with the zones, devices and labels of the node; delete the failed pods")


def check_rejections(cluster: CheckedCluster) -> Iterator[ClusterFinding]:
    """Yield the nodes that rejected pods, by reason."""
    found: dict[tuple[str, str, bool], list[ObservedPod]] = {}
    for pod in cluster.observation.rejected:
        if pod.refusal is not None:
            found.setdefault((pod.node_name, pod.refusal.reason, _ISA in pod.refusal.facts), []).append(pod)
    for (node, reason, foreign_code), pods in found.items():
        if foreign_code:
            code, template, remedy = "ImageDoesNotRun", _FOREIGN_CODE, _BUILD
        else:
            code, template, remedy = "KubeletRejectedPods", _REJECTED, _COMPARE
        yield finding(
            code,
            Level.ERROR,
            AffectedObject("Node", node),
            Message(template, text=reason),
            remedy,
            evidence=[_quoted(pod) for pod in pods[:3]],
            affected=[pod.key for pod in pods],
        )


def _quoted(pod: ObservedPod) -> Message:
    assert pod.refusal is not None
    return Message("Status of {pod}: {detail}", pod=pod.key, detail=verbatim(pod.refusal.message or pod.refusal.reason))


def check_admission(cluster: CheckedCluster) -> Iterator[ClusterFinding]:
    """Yield pending pods of other schedulers with nodes that kube-scheduler would select but whose kubelet rejects."""
    pods = [pod for pod in cluster.content.pending if pod.shape.containers and pod.ready]
    pods = [pod for pod in pods if not is_ours(pod.scheduler_name)][:MOST_PREDICTED]
    if not any(KubeletAdmission.of(pod.shape, cluster.state) for pod in pods):
        return
    state = cluster.state.fork()
    scheduler = Scheduler(state, cluster.kube)
    groups: dict[AffectedObject, list[tuple[PodSpec, int, int, Message]]] = {}
    for pod in pods:
        rejected = _rejected(scheduler, pod)
        if rejected is not None:
            groups.setdefault(AffectedObject.of(pod), []).append((pod, *rejected))
        scheduler.schedule(pod, preempts=False)
    for group, members in groups.items():
        everywhere = any(wrong == feasible for _, feasible, wrong, _ in members)
        yield finding(
            "KubeletWouldReject",
            Level.ERROR if everywhere else Level.WARNING,
            group,
            Message("On every node that kube-scheduler can select, the kubelet would reject the pod")
            if everywhere
            else Message("On some nodes that kube-scheduler can select, the kubelet would reject the pod"),
            Message("Request CPUs and GPUs that fit into one NUMA zone, or schedule the pod with hetsched"),
            evidence=[
                Message("{pod}: {n} of {m} nodes, {detail}", pod=pod.key, n=wrong, m=feasible, detail=example)
                for pod, feasible, wrong, example in members[:3]
            ],
            affected=[pod.key for pod, _, _, _ in members],
        )


def _rejected(scheduler: Scheduler, pod: PodSpec) -> tuple[int, int, Message] | None:
    """Return the number of feasible nodes, the number of those whose kubelet would reject the pod, and an example.

    The result is None if no kubelet of a feasible node would reject the pod.
    """
    state = scheduler.state
    admission = KubeletAdmission.of(pod.shape, state)
    if admission is None:
        return None
    _, total = scheduler.evaluator.evaluate(state.compile(pod))
    feasible: Bools = total > INFEASIBLE
    rows, reasons = admission.reasons(state.all_rows)
    wrong = [(row, reason) for row, reason in zip(rows.tolist(), reasons, strict=True) if reason and feasible[row]]
    if not wrong:
        return None
    row, reason = wrong[0]
    example = Message("{node}: {detail}", node=state.columns.names[row], detail=verbatim(reason))
    return int(np.count_nonzero(feasible)), len(wrong), example
