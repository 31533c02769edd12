"""Report of a cluster: all checks, in one sorted list."""

from __future__ import annotations

from collections.abc import Iterator

from hetsched.contracts.api.cluster_report import (
    IMAGE_PLATFORMS,
    LEVELS,
    ClusterFinding,
    ClusterObservation,
    ClusterReport,
    UncheckedPart,
)
from hetsched.contracts.api.decision import PolicyRef
from hetsched.contracts.message import Message
from hetsched.engine.framework.policy import Policy

from .checked_cluster import CheckedCluster
from .devices import check_device_conditions, check_device_health
from .gpus import StrandedGpus, check_fragmented, check_stranded, stranded_gpus, summary_of_gpus
from .instruction_sets import check_instruction_sets
from .kubelets import MOST_PREDICTED, check_admission, check_rejections
from .node_facts import check_node_facts, check_unreadable
from .pending_pods import MOST_PENDING, check_pending
from .placement_regret import placement_regret


def report_of(observation: ClusterObservation, policy: Policy, kube: Policy, *, evaluated_at: str) -> ClusterReport:
    """Check a cluster; `policy` places pods without preemption, `kube` has the filters of kube-scheduler.

    `evaluated_at` is RFC 3339 UTC.
    """
    cluster = CheckedCluster(observation, policy, kube)
    stranded = stranded_gpus(cluster)
    findings = sorted(
        _findings(cluster, stranded, evaluated_at),
        key=lambda one: (LEVELS.index(one.level), one.code, one.kind, one.name),
    )
    return ClusterReport(
        evaluated_at=evaluated_at,
        snapshot=cluster.state.digest(),
        policy=PolicyRef(policy.spec.name, policy.spec.version),
        nodes=len(cluster.state.reports),
        running=len(cluster.content.running),
        pending=len(cluster.content.pending),
        gpus=summary_of_gpus(cluster, stranded),
        counts={level.value: sum(one.level is level for one in findings) for level in LEVELS},
        findings=tuple(findings),
        regret=placement_regret(cluster),
        unchecked=(*observation.unchecked, *_unchecked(cluster)),
    )


def _findings(cluster: CheckedCluster, stranded: StrandedGpus, evaluated_at: str) -> Iterator[ClusterFinding]:
    yield from check_instruction_sets(cluster)
    yield from check_rejections(cluster)
    yield from check_admission(cluster)
    yield from check_device_health(cluster)
    yield from check_device_conditions(cluster)
    yield from check_stranded(cluster, stranded)
    yield from check_fragmented(cluster)
    yield from check_pending(cluster, evaluated_at)
    yield from check_node_facts(cluster)
    yield from check_unreadable(cluster)


def _unchecked(cluster: CheckedCluster) -> Iterator[UncheckedPart]:
    """Yield the parts that are left out because of their size or because facts are unknown."""
    pending = cluster.content.pending
    if len(pending) > MOST_PENDING:
        reason = Message("only the first {n} of {m} pending pods were examined", n=MOST_PENDING, m=len(pending))
        yield UncheckedPart("pending pods", reason)
    if sum(bool(pod.shape.containers) for pod in pending) > MOST_PREDICTED:
        reason = Message("kubelets were predicted for at most {n} pending pods", n=MOST_PREDICTED)
        yield UncheckedPart("kubelet admission", reason)
    architectures = {report.labels.get("kubernetes.io/arch", "") for report in cluster.state.reports} - {""}
    pods = [*cluster.content.running, *pending]
    images = {image for pod in pods for image in pod.images} - {
        facts.image for pod in pods for facts in pod.image_facts if facts.platforms
    }
    if len(architectures) > 1 and images:
        reason = Message(
            "the platforms of {n} images are unknown, and the nodes have several architectures", n=len(images)
        )
        yield UncheckedPart(IMAGE_PLATFORMS, reason)
