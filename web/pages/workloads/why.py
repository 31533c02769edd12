"""The explanation of one decision, prepared for display.

Reasons are in filter order. Each node is counted only for the first filter that rejected it, and for all reasons of
that filter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetsched.contracts.api.decision import NodeOutcome, funnel
from hetsched.contracts.message import Message, verbatim
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.waits import describe_waits
from hetsched.engine.cluster.avoided_nodes import MOVED_CODE, REFUSED_CODE
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.numa.device_zones import alignments
from hetsched.inventory.models import Node
from hetsched.placement.models import Decision, DevicePluginAllocation, Pod, Rejection
from hetsched.policies.models import PolicyRevision
from web.api.nodes.facts import DeviceAllocation, device_allocation
from web.translation import translate


def why(decision: Decision, pod: Pod) -> dict[str, Any]:
    """Return the context of `why.html` for a decision; for the latest decision of a pod, it includes the events that
    the pod waits for.
    """
    latest = pod.decision_id == decision.pk and pod.state == decision.verdict
    top = [row for row in decision.top if row.feasible]
    most = max((reason.nodes for reason in decision.reasons), default=0)
    return {
        "decision": decision,
        "reasons": [
            {
                "reason": reason,
                "ratio": reason.nodes / most if most else None,
                # Omit missing items that the message already names.
                "missing": [name for name in reason.missing if name not in reason.message],
            }
            for reason in decision.reasons
        ],
        "funnel": funnel(decision.reasons),
        "waits": translate(describe_waits(pod.waits_for if latest else decision.waits_for)),
        "tried_at": pod.tried_at if latest else None,
        "top": top,
        "weights": sum(score.weight for score in top[0].scores) if top else 0.0,
        "doubts": _conflicts(decision),
        "handed": _device_allocation(decision, pod),
        "unready": list(_unready_devices(decision, pod)),
        "alignments": list(alignments(decision.allocation)) if decision.allocation is not None else [],
    }


def _unready_devices(decision: Decision, pod: Pod) -> Iterator[Message]:
    """Yield the allocated devices of the pod that their driver reports as not ready."""
    grants = decision.allocation.devices if decision.allocation is not None else ()
    claims = pod.cluster.definitions.devices.claims if grants else {}
    for grant in grants:
        claim = claims.get(f"{pod.namespace}/{grant.claim}")
        for allocated in claim.allocated or () if claim is not None else ():
            if allocated.device == grant.device and allocated.not_ready:
                yield Message(
                    "device {device} of claim {claim} is not ready: {text}",
                    device=str(grant.device), claim=grant.claim, text=verbatim(allocated.not_ready),
                )  # fmt: skip


def score_weights(spec: PolicySpec) -> list[tuple[str, float]]:
    """Return the scoring plugins of a policy with their weights, without plugins that only filter."""
    registry = load_registry()
    return [
        (use.name, use.weight)
        for use in spec.plugins
        if use.weight and use.name in registry and "score" in registry[use.name].points
    ]


def omitted_scores(decision: Decision) -> str:
    """Return the scoring plugins that gave no score for this pod, with their weights."""
    rated: NodeOutcome | None = next((row for row in decision.top if row.feasible), None)
    if rated is None:
        return ""
    row = PolicyRevision.objects.filter(policy__name=decision.policy_name, version=decision.policy_version).first()
    took_part = {score.plugin for score in rated.scores}
    weights = score_weights(row.spec) if row is not None else []
    return ", ".join(f"{name} ×{weight:g}" for name, weight in weights if name not in took_part)


def _device_allocation(decision: Decision, pod: Pod) -> DeviceAllocation | None:
    """Return the GPUs that the node allocated for this decision, or None if they were not reported."""
    if pod.decision_id != decision.pk or decision.allocation is None or not decision.allocation.gpus:
        return None
    row = DevicePluginAllocation.objects.filter(pod=pod).first()
    return None if row is None else device_allocation(row)


def _conflicts(decision: Decision) -> list[dict[str, Any]]:
    """Return the contradicted facts of the nodes that a decision concerns."""
    names = {decision.node_name, *(row.name for row in decision.top)} - {""}
    rows = Node.objects.filter(cluster_id=decision.cluster_id).defer("report").order_by("name")
    found = list(rows.filter(name__in=names)) if names else []
    if any(reason.code in (REFUSED_CODE, MOVED_CODE) for reason in decision.reasons):
        refused = Rejection.objects.filter(owner=decision.pod.spec.owner, cleared_at=None).values("node_id")
        found += [node for node in rows.filter(pk__in=refused) if node.name not in names]
    return [{"node": node.name, "doubt": doubt} for node in found for doubt in node.doubts]
