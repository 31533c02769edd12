"""Disruption budgets: how many more of the selected pods may be evicted.

Head-room = number of placed pods that the budget selects and that are not terminating - number of pods that must keep
running. A moved pod counts again once it runs on its new node, so each of several consecutive moves needs head-room
only for its own pods.
Source: Kubernetes policy/v1 PodDisruptionBudget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetsched.contracts.objects.cluster import DisruptionBudget
from hetsched.contracts.objects.workload import PodSpec

from .selector_counts import Matcher

if TYPE_CHECKING:
    from .state import ClusterState


def matcher(budget: DisruptionBudget) -> Matcher:
    """Return the matcher for the pods that a budget selects."""
    return Matcher(budget.selector, (budget.namespace,), with_terminating=False)


def evictions_left(budget: DisruptionBudget, state: ClusterState) -> int:
    """Return how many more pods may be evicted before the budget is violated."""
    return int(state.neighbours.matching(state, (matcher(budget),)).sum()) - budget.desired_healthy


def disruptions_allowed(pods: Sequence[PodSpec], state: ClusterState) -> dict[str, int]:
    """Return the head-room that each affected budget has left after the eviction of these pods.

    The keys are `namespace/name` of the budgets; a negative value means that the budget would be violated.
    """
    allowed: dict[str, int] = {}
    for budget in state.budgets:
        selected = sum(matcher(budget).matches(pod, state.namespaces) for pod in pods)
        if selected:
            allowed[f"{budget.namespace}/{budget.name}"] = evictions_left(budget, state) - selected
    return allowed
