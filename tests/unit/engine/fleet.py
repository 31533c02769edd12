"""Run one plugin for one pod on a small cluster; build schedulers for tests of whole cycles.

Inputs are builders of `tests.builders`; results are by node name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import ActivePlugin, Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.framework.status import SKIP, Refusal
from tests.builders import NodeBuilder, PodBuilder

REGISTRY = load_registry()
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"

Pod = PodBuilder | PodSpec
Node = NodeBuilder | NodeReport
Namespaces = dict[str, dict[str, str]]


def built(thing: Any) -> Any:
    """Return a contract struct, given a struct or a builder."""
    return thing.build() if isinstance(thing, PodBuilder | NodeBuilder) else thing


def cluster(nodes: Iterable[Node], running: Iterable[Pod] = (), namespaces: Namespaces | None = None) -> ClusterState:
    return ClusterState([built(node) for node in nodes], [built(pod) for pod in running], namespaces)


def rebuilt(state: ClusterState) -> ClusterState:
    """Build the same cluster again from its node reports, its current samples and its running pods."""
    running = [
        msgspec.structs.replace(b.pod, node_name=state.reports[b.row].name, allocation=b.allocation)
        for b in state.placed_pods.values()
    ]
    reports = [state.report_now(row) for row in range(len(state.reports))]
    fresh = ClusterState(
        reports,
        running,
        state.namespaces,
        storage=state.volumes.storage,
        quotas=state.quotas.limits.values(),
        budgets=state.budgets,
        experience=state.experience,
    )
    fresh.use_mix(state.mix)
    return fresh


def policy_of(*uses: PluginUse | str, ties: Ties | None = None) -> Policy:
    """Compile a policy of the named plugins."""
    plugins = tuple(use if isinstance(use, PluginUse) else PluginUse(use) for use in uses)
    return compile_policy(PolicySpec("test", plugins, ties or Ties()), REGISTRY)


def active(name: str, params: dict[str, Any] | None = None) -> ActivePlugin:
    """Return one plugin as the only plugin of its policy."""
    return policy_of(PluginUse(name, params=params or {})).plugins[0]


def scheduler(
    nodes: Iterable[Node],
    running: Iterable[Pod] = (),
    *,
    policy: Policy | str = "default-kube",
    namespaces: Namespaces | None = None,
) -> Scheduler:
    chosen = compile_policy(BUILTIN[policy], REGISTRY) if isinstance(policy, str) else policy
    return Scheduler(cluster(nodes, running, namespaces), chosen)


class Answer:
    """A filter's result for one pod: the feasible nodes, and the reasons for all other nodes."""

    def __init__(self, fits: dict[str, bool], reasons: dict[str, list[Refusal]], *, skipped: bool) -> None:
        self.fits = fits
        self.reasons = reasons
        self.skipped = skipped

    @property
    def feasible(self) -> list[str]:
        return [name for name, fits in self.fits.items() if fits]

    def codes(self, name: str) -> list[str]:
        return [refusal.code for refusal in self.reasons[name]]


def ask(
    plugin: str,
    pod: Pod,
    nodes: Iterable[Node],
    running: Iterable[Pod] = (),
    *,
    namespaces: Namespaces | None = None,
    params: dict[str, Any] | None = None,
) -> Answer:
    """Run one plugin's filter over a cluster."""
    state, chosen = cluster(nodes, running, namespaces), active(plugin, params)
    request = state.compile(built(pod))
    names = state.columns.names
    if chosen.serves("pre-filter") and chosen.instance.pre_filter(request, state) is SKIP:
        return Answer(dict.fromkeys(names, True), {name: [] for name in names}, skipped=True)
    fits = dict(zip(names, chosen.instance.filter(request, state.all_rows).tolist(), strict=True))
    reasons: dict[str, list[Refusal]] = {name: [] for name in names}
    for refusal, rows in chosen.instance.refusals(request, state.all_rows):
        for row in np.flatnonzero(rows).tolist():
            reasons[names[row]].append(refusal)
    return Answer(fits, reasons, skipped=False)


def score(
    plugin: str,
    pod: Pod,
    nodes: Iterable[Node],
    running: Iterable[Pod] = (),
    *,
    namespaces: Namespaces | None = None,
    params: dict[str, Any] | None = None,
    feasible: Iterable[str] | None = None,
) -> dict[str, float] | None:
    """Return one plugin's normalised scores, None if it does not score; `feasible` names the candidates, all nodes by
    default.
    """
    state, chosen = cluster(nodes, running, namespaces), active(plugin, params)
    request = state.compile(built(pod))
    names = state.columns.names
    wanted = names if feasible is None else list(feasible)
    request.feasible = np.array([name in wanted for name in names], np.bool_)
    if chosen.serves("pre-score") and chosen.instance.pre_score(request, state) is SKIP:
        return None
    scores = chosen.instance.score(request, state.all_rows)
    if chosen.serves("normalize-score"):
        scores = chosen.instance.normalize(request, scores, request.feasible)
    return {name: value for name, value in zip(names, scores.tolist(), strict=True) if name in wanted}
