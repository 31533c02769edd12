"""The complete interface of a plugin, one protocol for each extension point.

Difference from the Kubernetes Scheduling Framework: plugins see windows of columns, not one node at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Bools, Floats, Rows, Window
from hetsched.engine.cluster.state import ClusterState

from .diagnosis import Diagnosis
from .post_filter import Attempt
from .request import Request
from .status import Allow, Eviction, NoScore, Refusal, Skip, Wait
from .waiting_pods import PermitRoom


class QueueSort(Protocol):
    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        """Order pending pods, smallest first; submission order breaks ties."""

    def arrange(
        self, pods: Sequence[PodSpec], state: ClusterState, placed: Callable[[PodSpec], bool]
    ) -> Iterator[PodSpec]:
        """Optional: yield the pods in an order that depends on `state`; `placed` returns whether a pod was placed."""


class PreFilter(Protocol):
    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal | Rows:
        """Prepare `request.memo`; SKIP skips this plugin's filter, rows narrow the nodes, a refusal ends the cycle."""


class Filter(Protocol):
    def filter(self, request: Request, nodes: Window) -> Bools:
        """Return (n,) True where the pod may run."""

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        """Yield reasons with the rows (n,) they hold for; together they cover the rows that `filter` refuses."""

    def waits(self, request: Request) -> str:
        """Optional: describe the condition that would admit a refused pod: `a node with 4 CPUs free`."""


class PostFilter(Protocol):
    def post_filter(self, request: Request, diagnosis: Attempt, state: ClusterState) -> Eviction | None:
        """Return the victims whose eviction makes the pod fit; called only if no node was feasible."""

    def waits_to_evict(self, request: Request, state: ClusterState) -> str | None:
        """Optional: describe the condition that would let other pods leave for a refused pod, None without one."""


class PreScore(Protocol):
    def pre_score(self, request: Request, state: ClusterState) -> None | Skip | NoScore:
        """Prepare `request.memo`; SKIP skips this score for the request, ALONE (row scope) skips all other scores."""


class Score(Protocol):
    def score(self, request: Request, nodes: Window) -> Floats:
        """Return (n,) scores, 0-100 unless `normalize` follows; higher is better."""


class NormalizeScore(Protocol):
    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        """Map the raw scores of all nodes to 0-100, based on the feasible ones."""


class Reserve(Protocol):
    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        """Select the exact GPUs, zones and CPUs on the selected node."""

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Undo `reserve`; called for every later failure, possibly several times."""


class Permit(Protocol):
    def permit(self, request: Request, row: int, room: PermitRoom) -> Allow | Wait | Refusal:
        """Allow the placement, refuse it, or add it to the waiting pods."""

    def concerns(self, pod: PodSpec) -> bool:
        """Optional: return whether the plugin handles this pod; if not, its `permit` is skipped."""

    def missed(self, request: Request, room: PermitRoom, diagnose: Callable[[], Diagnosis]) -> None:
        """Optional: a pod found no node and no pod is preempted for it; allow or reject the pods that wait for it."""

    def withdrawn(self, request: Request, room: PermitRoom) -> None:
        """Optional: a placement was undone; allow or reject the pods that wait for it."""


class PreBind(Protocol):
    def pre_bind(self, pod: PodSpec, node: str, allocation: Allocation) -> Refusal | None:
        """Prepare the pod's dependencies on its node."""


class Bind(Protocol):
    def bind(self, pod: PodSpec, node: str, allocation: Allocation) -> Refusal | None:
        """Write the binding to the cluster; exactly one plugin binds."""


class PostBind(Protocol):
    def post_bind(self, pod: PodSpec, node: str, allocation: Allocation) -> None:
        """Receive the notification that the pod was bound."""
