"""The extension points: the whole surface that a plugin can serve, on one screen.

Rule: a plugin serves exactly the points whose methods it has. Names and order are those of the Kubernetes Scheduling
Framework: QueueSort | PreFilter, Filter, PostFilter, PreScore, Score, NormalizeScore, Reserve, Permit | PreBind, Bind,
PostBind; Unreserve undoes Reserve. What differs: plugins see windows of columns, not one node at a time.
Source: Kubernetes documentation, "Scheduling Framework" (stable since 1.19).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from hetsched.contracts.allocation import Allocation
from hetsched.contracts.workload import PodSpec
from hetsched.engine.cluster.columns import Bools, Floats, Rows, Window

from .status import Allow, Alone, Eviction, Refusal, Skip, Wait

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.explain.diagnosis import Diagnosis

    from .post_filter import Attempt
    from .request import Request
    from .waiting_pods import PermitRoom


class Reads(enum.StrEnum):
    """Whether placements can change what a plugin answers; STATIC answers are kept until the inventory changes."""

    STATIC = "static"
    LOAD = "load"


class Scope(enum.StrEnum):
    """Whether a row's answer depends on that row alone, or on the whole cluster (then it is never reused)."""

    ROW = "row"
    CLUSTER = "cluster"


class QueueSort(Protocol):
    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        """Order waiting pods, smallest first; submission order breaks ties."""

    def arrange(
        self, pods: Sequence[PodSpec], state: ClusterState, placed: Callable[[PodSpec], bool]
    ) -> Iterator[PodSpec]:
        """Optional: yield the pods in an order that `state` decides; `placed` says what became of those yielded."""


class PreFilter(Protocol):
    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal | Rows:
        """Prepare `request.memo`; SKIP leaves this plugin's filter out, rows narrow the nodes, a refusal ends it."""


class Filter(Protocol):
    def filter(self, request: Request, nodes: Window) -> Bools:
        """Return (n,) True where the pod may run."""

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        """Yield reasons with the rows (n,) they hold for; together they cover the rows `filter` refuses."""

    def waits(self, request: Request) -> str:
        """Optional: say what has to come before a refused pod may be let in: `a node with 4 CPUs free`."""


class PostFilter(Protocol):
    def post_filter(self, request: Request, diagnosis: Attempt, state: ClusterState) -> Eviction | None:
        """Say which pods could leave so that the pod fits; called only when no node was feasible."""


class PreScore(Protocol):
    def pre_score(self, request: Request, state: ClusterState) -> None | Skip | Alone:
        """Prepare `request.memo`; SKIP leaves this score out for the request, ALONE (row scope) all other scores."""


class Score(Protocol):
    def score(self, request: Request, nodes: Window) -> Floats:
        """Return (n,) scores, 0-100 unless `normalize` follows; more is better."""


class NormalizeScore(Protocol):
    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        """Map raw scores of all nodes to 0-100, looking at the feasible ones."""


class Reserve(Protocol):
    def reserve(self, request: Request, row: int, state: ClusterState) -> Allocation | Refusal | None:
        """Choose the exact cards, zones and CPUs on the chosen node."""

    def unreserve(self, request: Request, row: int, state: ClusterState) -> None:
        """Undo `reserve`; called for every later failure, any number of times."""


class Permit(Protocol):
    def permit(self, request: Request, row: int, room: PermitRoom) -> Allow | Wait | Refusal:
        """Allow the placement, refuse it, or hold it in the room."""

    def concerns(self, pod: PodSpec) -> bool:
        """Optional: tell whether the plugin has a say about this pod; where it has none, it is not asked."""

    def missed(self, request: Request, room: PermitRoom, diagnose: Callable[[], Diagnosis]) -> None:
        """Optional: a pod found no node, and nobody will leave for it: say what becomes of those who wait for it."""

    def withdrawn(self, request: Request, room: PermitRoom) -> None:
        """Optional: a booking was undone: say what becomes of those who wait for it."""


class PreBind(Protocol):
    def pre_bind(self, pod: PodSpec, node: str, allocation: Allocation) -> Refusal | None:
        """Make ready what the pod needs on its node."""


class Bind(Protocol):
    def bind(self, pod: PodSpec, node: str, allocation: Allocation) -> Refusal | None:
        """Write the decision outside; exactly one plugin binds."""


class PostBind(Protocol):
    def post_bind(self, pod: PodSpec, node: str, allocation: Allocation) -> None:
        """Learn that the pod was bound."""


POINTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "queue-sort": ("sort_key", ("pod",)),
    "pre-filter": ("pre_filter", ("request", "state")),
    "filter": ("filter", ("request", "nodes")),
    "post-filter": ("post_filter", ("request", "diagnosis", "state")),
    "pre-score": ("pre_score", ("request", "state")),
    "score": ("score", ("request", "nodes")),
    "normalize-score": ("normalize", ("request", "scores", "feasible")),
    "reserve": ("reserve", ("request", "row", "state")),
    "unreserve": ("unreserve", ("request", "row", "state")),
    "permit": ("permit", ("request", "row", "room")),
    "pre-bind": ("pre_bind", ("pod", "node", "allocation")),
    "bind": ("bind", ("pod", "node", "allocation")),
    "post-bind": ("post_bind", ("pod", "node", "allocation")),
}
COMPANIONS = {
    "refusals": ("request", "nodes"),
    "static_key": ("request",),
    "waits": ("request",),
    "arrange": ("pods", "state", "placed"),
    "concerns": ("pod",),
    "missed": ("request", "room", "diagnose"),
    "withdrawn": ("request", "room"),
}
