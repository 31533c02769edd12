"""Reasons why pending pods wait, with the nearest fit, from a what-if of all pending pods without preemption."""

from __future__ import annotations

from collections.abc import Iterator

from hetsched.contracts.api.cluster_report import ClusterFinding
from hetsched.contracts.api.decision import Unplaced, Verdict
from hetsched.contracts.api.findings import Level
from hetsched.contracts.message import Message, joined
from hetsched.engine.simulation.what_if import what_if

from .checked_cluster import AffectedObject, CheckedCluster, finding

MOST_PENDING = 2000
_MOST_REASONS = 4
_GATED = "SchedulingGated"
_KINDS = {
    Verdict.MISCONFIGURED: ("PodMisconfigured", Level.ERROR, Message("The request of the pending pods is invalid")),
    Verdict.NEVER_FITS: (
        "PodNeverFits",
        Level.ERROR,
        Message("The cluster cannot run the pending pods as requested, not even without other pods"),
    ),
    Verdict.NOT_NOW: ("PodWaits", Level.WARNING, Message("The pending pods do not fit now")),
}


def check_pending(cluster: CheckedCluster, evaluated_at: str) -> Iterator[ClusterFinding]:
    """Yield the pending pods with their verdicts, reasons and nearest fits; equal verdicts of one owner are joined."""
    pods = cluster.content.pending[:MOST_PENDING]
    if not pods:
        return
    answer = what_if(cluster.state, cluster.policy, pods, evaluated_at=evaluated_at)
    specs = {pod.key: pod for pod in pods}
    groups: dict[tuple[AffectedObject, Verdict, str], list[Unplaced]] = {}
    for unplaced in answer.unplaced:
        code = unplaced.reasons[0].code if unplaced.reasons else ""
        about = AffectedObject.of(specs[unplaced.pod])
        groups.setdefault((about, unplaced.verdict, code), []).append(unplaced)
    for (about, _, _), members in groups.items():
        yield _waiting(about, members, len(cluster.state.reports))
    nodes: dict[AffectedObject, dict[str, str]] = {}
    for placement in answer.placements:
        if placement.pod in specs:
            nodes.setdefault(AffectedObject.of(specs[placement.pod]), {})[placement.pod] = placement.node
    for about, fits in nodes.items():
        pod, node = next(iter(fits.items()))
        yield finding(
            "PodFits",
            Level.NOTE,
            about,
            Message("The pending pods fit now"),
            Message(
                "Check that the scheduler {name} runs and which event it recorded for the pod",
                name=specs[pod].scheduler_name,
            ),
            evidence=[Message("{pod} fits on {node}", pod=pod, node=node)],
            affected=list(fits),
        )


def _waiting(about: AffectedObject, members: list[Unplaced], nodes: int) -> ClusterFinding:
    first = members[0]
    code, level, message = _KINDS[first.verdict]
    reasons = sorted(first.reasons, key=lambda reason: -reason.nodes)[:_MOST_REASONS]
    if reasons and reasons[0].code == _GATED:
        code, level, message = "PodGated", Level.NOTE, Message("The pending pods have scheduling gates")
    shown = [
        Message("{detail} ({n} of {m} nodes)", detail=reason.message, n=reason.nodes, m=nodes)
        if reason.nodes
        else reason.message
        for reason in reasons
    ]
    detail = joined("; ", shown or [Message("the cluster has no nodes")])
    evidence = [Message("Reasons for {pod}: {detail}", pod=first.pod, detail=detail)]
    evidence += [
        Message("Nearest fit: {detail}, on {nodes}", detail=fit.change, nodes=joined(", ", fit.nodes[:3]))
        for fit in first.nearest_fit[:3]
    ]
    affected = [member.pod for member in members]
    return finding(code, level, about, message, _remedy(code, first), evidence=evidence, affected=affected)


def _remedy(code: str, pod: Unplaced) -> Message:
    if code == "PodGated":
        return Message("Wait for the controller that removes the gates, or remove them")
    if pod.verdict is Verdict.MISCONFIGURED:
        field = next((reason.field for reason in pod.reasons if reason.field), None)
        return Message("Correct {name}", name=field) if field else Message("Correct the request")
    if pod.nearest_fit:
        return Message("Change the request: {detail}", detail=pod.nearest_fit[0].change)
    if pod.verdict is Verdict.NEVER_FITS:
        return Message("Change the request, or add a node that fits it")
    return Message("Wait until pods end, add nodes, or move pods (hetsched advise --goal room)")
