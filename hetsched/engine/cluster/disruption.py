"""Disruption budgets: how many more of the pods that a budget means may leave.

Rule: head-room = booked pods that it means - the pods that should keep running. A pod that moves is back once it runs
again elsewhere, so of several moves one after the other each needs the head-room of its own pods alone.
Source: Kubernetes policy/v1 PodDisruptionBudget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetsched.contracts.cluster import DisruptionBudget
from hetsched.contracts.workload import PodSpec

from .selector_counts import Matcher

if TYPE_CHECKING:
    from .state import ClusterState


def matcher(budget: DisruptionBudget) -> Matcher:
    """Return the pods that a budget means."""
    return Matcher(budget.selector, (budget.namespace,))


def left_over(budget: DisruptionBudget, state: ClusterState) -> int:
    """Return how many more pods may leave before the budget is broken."""
    return int(state.neighbours.matching(state, (matcher(budget),)).sum()) - budget.desired_healthy


def head_room(pods: Sequence[PodSpec], state: ClusterState) -> dict[str, int]:
    """Return, by `namespace/name`, what these pods leave of the budgets that mean them; below 0 it is broken."""
    left: dict[str, int] = {}
    for budget in state.budgets:
        meant = sum(matcher(budget).matches(pod, state.namespaces) for pod in pods)
        if meant:
            left[f"{budget.namespace}/{budget.name}"] = left_over(budget, state) - meant
    return left
