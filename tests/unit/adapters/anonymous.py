"""Decisions for the content of a cluster, with positions instead of the names of pods and nodes."""

from __future__ import annotations

from typing import Any

from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.simulation.what_if import what_if

REGISTRY = load_registry()
HETSCHED = BUILTIN["hetsched"]


def decided(content: ClusterContent, policy: PolicySpec = HETSCHED) -> dict[str, Any]:
    """Place the pending pods; return, for each pod, its placement or its rejections by node."""
    nodes = {node.name: place for place, node in enumerate(content.nodes)}
    pods = {pod.key: place for place, pod in enumerate((*content.pending, *content.running))}
    compiled = compile_policy(policy, REGISTRY)
    answer = what_if(ClusterState.of(content), compiled, content.pending, evaluated_at="", explain=True)
    return {
        "placed": {
            pods[placement.pod]: (
                nodes[placement.node],
                placement.score,
                placement.isa.mode,
                [zone.cpus for zone in placement.zones],
                [(card.index, card.milli, card.memory_mib) for card in placement.gpus],
            )
            for placement in answer.placements
        },
        "unplaced": {
            pods[unplaced.pod]: (
                unplaced.verdict,
                sorted((reason.code, reason.plugin, reason.nodes) for reason in unplaced.reasons),
            )
            for unplaced in answer.unplaced
        },
        "nodes": {
            (pods[outcome.pod], nodes[outcome.name]): (
                outcome.feasible,
                outcome.refused and outcome.refused.code,
                [(score.plugin, score.weighted) for score in outcome.scores],
                outcome.rank,
            )
            for outcome in answer.nodes or ()
        },
        "evicted": sorted((pods[evicted.pod], nodes[evicted.node]) for evicted in answer.evictions),
    }
