"""Interface of a scheduler for explanations and PostFilter attempts.

The scheduling cycle calls explanations and PostFilter plugins; this protocol avoids circular imports. The name is that
of the Scheduling Framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState

from .policy import Policy
from .request import Request
from .scoring import EvaluatedPod, Evaluator
from .status import Eviction


class Trial(NamedTuple):
    """Result of a trial: the numbers of placed and attempted pods, and the first pod without a feasible node."""

    placed: int
    attempts: int
    failed: Request | None


class Handle(Protocol):
    """Cluster state, policy and evaluator of one scheduler."""

    state: ClusterState
    policy: Policy
    evaluator: Evaluator

    def can_reserve(self, request: Request, row: int) -> bool:
        """Return whether devices, CPUs and zones for the pod can be reserved now on a feasible row."""

    def evaluate(self, pod: PodSpec) -> EvaluatedPod:
        """Evaluate a pod on the current state."""

    def prepare(self, pod: PodSpec) -> None:
        """Let plugins decide for all members of a gang before the nodes of its first member are evaluated."""

    def trial(
        self, pods: Sequence[PodSpec], least: int, select: Callable[[Request], Eviction | None] | None = None
    ) -> AbstractContextManager[Trial]:
        """Place pods, without Permit and PostFilter, until fewer than `least` can be placed; undo this at the end.

        `select` may name victims for a pod that fits no node.
        """
