"""Interface of a scheduler for explanations and PostFilter attempts.

The scheduling cycle calls both; this type keeps the imports in one direction. Name as in the Scheduling Framework.
"""

from __future__ import annotations

from typing import Protocol

from hetsched.engine.cluster.state import ClusterState

from .policy import Policy
from .request import Request
from .scoring import Evaluator


class Handle(Protocol):
    """Cluster state, policy and evaluator of one scheduler."""

    state: ClusterState
    policy: Policy
    evaluator: Evaluator

    def can_reserve(self, request: Request, row: int) -> bool:
        """Return whether the exact devices, CPUs and zones on a feasible row can be reserved now."""
