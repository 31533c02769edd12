"""Verdicts of kube-scheduler's own code and of hetsched for the same case.

kube-scheduler's side is the Go program `tests/kube/scheduler_verdicts`. hetsched's side reads the objects as it reads
manifests, and runs the filters and the preemption of the policy `default-kube`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.extender_verbs import filter_nodes
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry

from .clusters import Case
from .program import JsonProgram

FEASIBLE, RESOLVABLE, UNRESOLVABLE = "feasible", "resolvable", "unresolvable"
# kube-scheduler's score plugins, and the plugins of hetsched with the same rule.
PLUGINS = {
    "NodeResourcesFit": "least-allocated", "NodeResourcesBalancedAllocation": "balanced-allocation",
    "NodeAffinity": "node-affinity", "TaintToleration": "taints", "InterPodAffinity": "pod-affinity",
    "PodTopologySpread": "topology-spread", "ImageLocality": "image-locality",
}  # fmt: skip


class PodVerdict(msgspec.Struct):
    """The verdict for one pod.

    `nodes` maps each node to *feasible*, *resolvable* (preemption may help) or *unresolvable*, and `reasons` maps the
    other nodes to the reason. `scores` maps hetsched's plugins to the weighted scores of the feasible nodes, relative
    to the best node; plugins with equal scores for all nodes are left out. `victims` maps nodes to the pods that
    preemption would evict there, and `selected` is the node that preemption selects. kube-scheduler's side lists the
    victims of every node, hetsched's side only those of the selected node.
    """

    nodes: dict[str, str]
    reasons: dict[str, str] = {}
    scores: dict[str, dict[str, float]] = {}
    victims: dict[str, frozenset[str]] = {}
    selected: str = ""


class KubeScheduler(JsonProgram):
    """The program with kube-scheduler's code, used in a `with` statement; one process judges many cases."""

    def __init__(self, program: Path) -> None:
        super().__init__(str(program))

    def judge(self, case: Case) -> list[PodVerdict]:
        """Return the verdict for each pod of the case. Raises: RuntimeError if the program rejects the case."""
        answers: list[dict[str, Any]] = self.ask({"objects": case.objects, "pods": case.pods})
        for answer in answers:
            if answer.get("error"):
                raise RuntimeError(f"seed {case.seed}: {answer['error']}")
        return [_read(answer) for answer in answers]


def _read(answer: dict[str, Any]) -> PodVerdict:
    nodes = {name: found["state"] for name, found in answer["nodes"].items()}
    reasons = {
        name: "; ".join(f"{plugin}: {', '.join(texts)}" for plugin, texts in sorted(found["reasons"].items()))
        for name, found in answer["nodes"].items()
        if found["state"] != FEASIBLE
    }
    scores = {PLUGINS[name]: found for name, found in (answer.get("scores") or {}).items() if name in PLUGINS}
    victims = {name: frozenset(pods) for name, pods in (answer.get("victims") or {}).items()}
    return PodVerdict(nodes, reasons, _relative(scores), victims, answer.get("selected", ""))


def _relative(scores: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the scores relative to the best node of each plugin, without plugins that do not distinguish nodes."""
    return {
        plugin: {node: score - max(found.values()) for node, score in found.items()}
        for plugin, found in scores.items()
        if len(set(found.values())) > 1
    }


_SPEC = BUILTIN["default-kube"]
POLICY = compile_policy(
    msgspec.structs.replace(_SPEC, plugins=(*_SPEC.plugins, PluginUse("preemption"))), load_registry(), implied=True
)


def judge(case: Case) -> list[PodVerdict]:
    """Return hetsched's verdict for each pod of the case."""
    content = parse_cluster([("cluster.json", as_list(case.objects))])
    (*pods,) = parse_workload([("pods.json", as_list(case.pods))], known=content).pending
    state = ClusterState.of(content)
    scheduler = Scheduler(state, POLICY)
    return [_judge(scheduler, pod, [node.name for node in content.nodes]) for pod in pods]


def as_list(objects: Sequence[Any]) -> bytes:
    """Format objects as a document that hetsched reads."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()


def _judge(scheduler: Scheduler, pod: PodSpec, names: Sequence[str]) -> PodVerdict:
    found = filter_nodes(scheduler, pod, names)
    nodes = dict.fromkeys(found.feasible, FEASIBLE)
    nodes |= dict.fromkeys(found.rejected, RESOLVABLE) | dict.fromkeys(found.unresolvable, UNRESOLVABLE)
    verdict = PodVerdict(nodes, {**found.rejected, **found.unresolvable})
    if found.feasible:
        scores: dict[str, dict[str, float]] = {}
        for node in matrix(scheduler, pod):
            for one in node.scores:
                scores.setdefault(one.plugin, {})[node.name] = one.weighted
        verdict.scores = _relative(scores)
    else:
        eviction = scheduler.schedule(pod).eviction if pod.ready else None
        if eviction is not None:
            verdict.victims, verdict.selected = {eviction.node: frozenset(eviction.victims)}, eviction.node
    return verdict
