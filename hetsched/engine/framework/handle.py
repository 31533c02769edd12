"""Interface of a scheduler for explanations and PostFilter attempts.

The scheduling cycle calls explanations and PostFilter plugins; this protocol avoids circular imports. The name is that
of the Scheduling Framework.
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
        """Return whether devices, CPUs and zones for the pod can be reserved now on a feasible row."""
