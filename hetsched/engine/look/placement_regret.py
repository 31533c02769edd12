"""Regret of running pods: how much better the policy scores the node that it would choose for them now.

Each pod is removed from the state, scheduled by the policy, and restored. `explain.comparison` defines the regret. If a
cluster has more than `MOST_COMPARED` pods, pods at equal distances in the order of their names are compared.
"""

from __future__ import annotations

from hetsched.contracts.api.cluster_report import MOST_NAMED, PlacementRegret, PodRegret
from hetsched.engine.explain.comparison import compare
from hetsched.engine.framework.cycle import Scheduler

from .checked_cluster import CheckedCluster

MOST_COMPARED = 300
_DIGITS = 6


def placement_regret(cluster: CheckedCluster) -> PlacementRegret:
    """Compare the nodes of running pods with the choices of the policy; the state is unchanged afterwards."""
    state = cluster.state
    scheduler = Scheduler(state, cluster.policy)
    keys = sorted(placed.pod.key for placed in cluster.bound if placed.pod.ready)
    step = max(-(-len(keys) // MOST_COMPARED), 1)
    found: list[PodRegret] = []
    for key in keys[::step]:
        placed = state.forget(key)
        assert placed is not None
        node = state.columns.names[placed.row]
        comparison = compare(scheduler, placed.pod, node, top_nodes=1)
        state.restore(placed)
        if comparison.regret is not None and comparison.rank is not None:
            found.append(PodRegret(key, node, comparison.chosen, comparison.regret, comparison.rank))
    better = [one for one in found if one.better != one.node and one.regret > 0]
    better.sort(key=lambda one: (-one.regret, one.pod))
    mean = sum(max(one.regret, 0.0) for one in found) / len(found) if found else 0.0
    return PlacementRegret(len(keys), len(found), len(better), round(mean, _DIGITS), tuple(better[:MOST_NAMED]))
