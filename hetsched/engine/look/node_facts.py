"""Facts that nodes do not report although placements depend on them, and objects that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

from hetsched.contracts.api.cluster_report import ClusterFinding
from hetsched.contracts.api.findings import Level
from hetsched.contracts.message import Message, verbatim
from hetsched.contracts.objects.cards import cards_of

from .checked_cluster import AffectedObject, CheckedCluster, finding

_CLUSTER = AffectedObject("Cluster", "")
_AGENT = Message("Run the node agent (hetsched agent), or add the facts as labels or objects")


def check_node_facts(cluster: CheckedCluster) -> Iterator[ClusterFinding]:
    """Yield missing and unreadable facts; nodes with the same missing fact share one finding."""
    reports = cluster.state.reports
    unknown = [report.name for report in reports if report.isa.native is None and not report.isa.arch]
    if unknown:
        message = Message("Nodes do not report their architecture or instruction set")
        yield finding("NodeIsaUnknown", Level.WARNING, _CLUSTER, message, _AGENT, affected=unknown)
    cards = {report.name: cards_of(report) for report in reports}
    needed = any(
        shape.gpu is not None and (shape.gpu.models or shape.gpu.memory_mib or shape.gpu.cores)
        for shape in cluster.gpu_shapes
    )
    nameless = [name for name, some in cards.items() if any(card.model is None for card in some)]
    if nameless:
        message = Message("Nodes do not report the models of their GPUs")
        level = Level.WARNING if needed else Level.NOTE
        yield finding("GpuModelUnknown", level, _CLUSTER, message, _AGENT, affected=nameless)
    unzoned = [report.name for report in reports if report.numa is None and len(cards[report.name]) > 1]
    if unzoned:
        message = Message(
            "Nodes with several GPUs do not report their NUMA zones, so rejections by kubelets cannot be predicted"
        )
        yield finding("NumaUnknown", Level.NOTE, _CLUSTER, message, _AGENT, affected=unzoned)
    for report in reports:
        if report.problems:
            yield finding(
                "NodeFactUnreadable",
                Level.WARNING,
                AffectedObject("Node", report.name),
                Message("Facts of the node cannot be read"),
                Message("Correct the label, annotation or object that the evidence names"),
                evidence=[verbatim(problem) for problem in report.problems],
            )


def check_unreadable(cluster: CheckedCluster) -> Iterator[ClusterFinding]:
    """Yield the objects that were ignored because they cannot be read."""
    for odd in cluster.observation.quarantined:
        yield finding(
            "ObjectUnreadable",
            Level.WARNING,
            AffectedObject(odd.kind, odd.name),
            Message("The object cannot be read and is ignored"),
            Message("Correct the object"),
            evidence=[verbatim(odd.message)],
        )
