"""The complete interface of a plugin: one protocol for each extension point and for each optional hook.

A policy checks the optional hooks of its plugins once, when it is compiled. `PostFilter` is in `post_filter`, the
declarations for the compiled loop are in `compiled_terms`.
Difference from the Kubernetes Scheduling Framework: plugins see windows of columns, not one node at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import Bools, Floats, Rows, Window

from .status import Allow, NoScore, Refusal, Skip, Wait

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.explain.relaxations import Relaxation

    from .diagnosis import Diagnosis
    from .request import Request
    from .waiting_pods import WaitingPods


class QueueSort(Protocol):
    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        """Return the sort key of a pending pod: smaller keys are scheduled first, equal keys in submission order."""


class PreFilter(Protocol):
    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal | Rows:
        """Prepare `request.memo`; return SKIP to skip `filter`, rows to limit the nodes, or a refusal."""


class Filter(Protocol):
    def filter(self, request: Request, nodes: Window) -> Bools:
        """Return the (n,) mask of nodes on which the pod may run."""

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        """Yield reasons, each with the (n,) mask of its nodes; together they cover the nodes that `filter` rejects."""


class PreScore(Protocol):
    def pre_score(self, request: Request, state: ClusterState) -> None | Skip | NoScore:
        """Prepare `request.memo`; return SKIP to skip this score, or ALONE (row scope) to skip all other scores."""


class Score(Protocol):
    def score(self, request: Request, nodes: Window) -> Floats:
        """Return the score of each node, shape (n,), 0-100 unless `normalize` follows; higher is better."""


class NormalizeScore(Protocol):
    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        """Map the raw scores of all nodes to 0-100, relative to the scores of the feasible nodes."""


class Reserve(Protocol):
    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        """Select the exact GPUs, zones and CPUs on the selected node."""

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Undo `reserve`. Called if a later step fails, possibly several times for one pod."""


class Permit(Protocol):
    def permit(self, request: Request, row: int, room: WaitingPods) -> Allow | Wait | Refusal:
        """Allow the placement, refuse it, or add it to the waiting pods."""


class PreBind(Protocol):
    def pre_bind(self, pod: PodSpec, node: str, allocation: Allocation) -> Refusal | None:
        """Prepare the pod's dependencies on its node."""


class Bind(Protocol):
    def bind(self, pod: PodSpec, node: str, allocation: Allocation) -> Refusal | None:
        """Write the binding to the cluster; exactly one plugin binds."""


class PostBind(Protocol):
    def post_bind(self, pod: PodSpec, node: str, allocation: Allocation) -> None:
        """Receive the notification that the pod was bound."""


# -- optional hooks --------------------------------------------------------------------------------------------------


@runtime_checkable
class ArrangesQueue(Protocol):
    """QueueSort plugin whose order depends on earlier placements."""

    def arrange(
        self, pods: Sequence[PodSpec], state: ClusterState, placed: Callable[[PodSpec], bool]
    ) -> Iterator[PodSpec]:
        """Yield the pods in an order that depends on `state`; `placed` returns whether a pod was placed."""


@runtime_checkable
class KeepsGangsTogether(Protocol):
    """QueueSort plugin that can keep the members of each gang together."""

    @property
    def together(self) -> bool:
        """Return whether the members of each gang directly follow its first member."""


@runtime_checkable
class OrdersByPriority(Protocol):
    """QueueSort plugin that can order by priority, then submission; gang members may follow their first member."""

    @property
    def by_priority(self) -> bool:
        """Return whether the order is by priority; the database can then read the first pending pods by an index."""


@runtime_checkable
class FindsEmulation(Protocol):
    """Plugin that decides how the instructions of a pod run on a node."""

    def emulated_on(self, request: Request, state: ClusterState) -> Bools:
        """Return the (N,) mask of nodes on which the pod would run by emulation or a cross toolchain."""


@runtime_checkable
class WantsMix(Protocol):
    """Plugin that reads the workload mix."""

    @property
    def wants_mix(self) -> bool:
        """Return whether a plugin with these parameters reads the mix (default: the mix of the placed pods)."""


@runtime_checkable
class MeasuresUse(Protocol):
    """Plugin that reads the measured use of nodes."""

    @property
    def measures(self) -> bool:
        """Return whether a plugin with these parameters reads measured use."""


@runtime_checkable
class CountsZoneMemory(Protocol):
    """Plugin that selects NUMA zones and may count memory by zone."""

    @property
    def counts_zone_memory(self) -> bool:
        """Return whether a plugin with these parameters counts memory by zone."""


@runtime_checkable
class HasStaticKey(Protocol):
    """STATIC plugin whose cached result is shared by all shapes with the same key."""

    def static_key(self, request: Request) -> Hashable:
        """Return a key; requests with the same key get the same results until the inventory changes."""


@runtime_checkable
class DescribesWait(Protocol):
    """Filter that describes the condition under which it would accept the pod."""

    def waits(self, request: Request) -> Message:
        """Describe the condition that would admit a refused pod: `a node with 4 CPUs free`."""


@runtime_checkable
class DescribesEviction(Protocol):
    """PostFilter that describes when preemption will be possible."""

    def waits_to_evict(self, request: Request, state: ClusterState) -> Message | None:
        """Describe the condition under which other pods could be evicted for the pod, or None."""


@runtime_checkable
class RelaxesRequests(Protocol):
    """Filter on a request field that the nearest fit cannot relax without the plugin."""

    def relaxations(self, shape: Shape, state: ClusterState) -> Iterator[Relaxation]:
        """Yield the relaxations of the shape's fields that this filter reads."""


@runtime_checkable
class HasConcerns(Protocol):
    """Permit plugin that handles only some pods."""

    def concerns(self, pod: PodSpec) -> bool:
        """Return whether the plugin handles this pod; if not, its `permit` is skipped."""


@runtime_checkable
class HandlesShapes(Protocol):
    """Plugin that cannot affect pods of most shapes in any state; the compiled loop places these without the plugin."""

    def handles(self, shape: Shape) -> bool:
        """Return whether the plugin can affect a pod of this shape."""


@runtime_checkable
class HandlesPods(Protocol):
    """Plugin that cannot affect most pods in the current state; the compiled loop places these without the plugin."""

    def handled_pods(self, state: ClusterState) -> Callable[[PodSpec], bool] | None:
        """Return a predicate for the pods that the plugin can affect now, None if there are none; once per batch."""


@runtime_checkable
class PreparesGangs(Protocol):
    """Permit plugin that decides for all members of a gang before the nodes of its first member are evaluated."""

    def prepare(self, request: Request, scheduler: Any) -> None:
        """Make the decision, if it was not made for another member of the registered queue.

        `scheduler` is a `handle.Handle`, a module that imports policies.
        """


@runtime_checkable
class OnMissed(Protocol):
    """Permit plugin that is notified if no feasible node is found for a pod, because waiting pods may depend on it."""

    def missed(self, request: Request, room: WaitingPods, diagnose: Callable[[], Diagnosis]) -> None:
        """Allow or reject waiting pods after no node was found for a pod and no pods were preempted for it."""


@runtime_checkable
class OnWithdrawn(Protocol):
    """Permit plugin that is notified if a placement is undone, because waiting pods may depend on it."""

    def withdrawn(self, request: Request, room: WaitingPods) -> None:
        """Allow or reject waiting pods after a placement was undone."""
