"""Gangs: pods that start together or not at all.

Two gangs that each reserve half of the resources that they need would deadlock. A rejected gang therefore reserves
nothing, and the scheduler does not attempt to place its other members. The state tracks which members are placed, by
any scheduler. A caller that has the complete queue registers it, so that the remaining members are known. A gang is
rejected as soon as its placed members and the members that the scheduler has not attempted yet are together fewer than
the minimum. It remains rejected until the next queue is registered. The first member without a feasible node is
recorded with its reasons. Without a registered queue, only the placed members are known.
Source: Kubernetes scheduler-plugins, KEP-2 and KEP-42 (coscheduling).
Invariants: `placed` equals a full scan of the placed pods; a copy of the registry has the placed members but no
registered queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import Bools

from .diagnosis import Diagnosis
from .status import Refusal


def gang_key(pod: PodSpec) -> str | None:
    """Return `namespace/name` of the gang a pod belongs to."""
    return None if pod.gang is None else f"{pod.namespace}/{pod.gang.name}"


def preempted_whole(pod: PodSpec, gangs: Gangs) -> bool:
    """Return whether a placed pod may only be preempted together with its gang.

    A gang of the registered queue starts as a whole, so a member that was placed from the queue has not started yet.
    """
    gang = pod.gang
    return gang is not None and (gang.disruption_mode == "All" or gangs.group_of(pod) is not None)


def together(pods: Sequence[PodSpec]) -> Sequence[PodSpec]:
    """Return `pods` with the members of each gang directly behind its first member; other pods keep their order."""
    gangs: dict[str, list[PodSpec]] = {}
    for pod in pods:
        if pod.gang is not None:
            gangs.setdefault(f"{pod.namespace}/{pod.gang.name}", []).append(pod)
    if not gangs:
        return pods
    ordered: list[PodSpec] = []
    for pod in pods:
        key = gang_key(pod)
        if key is None:
            ordered.append(pod)
        else:
            ordered += gangs.pop(key, ())
    return ordered


class GangDomain(NamedTuple):
    """Topology domain that was selected for a gang: node label, name of the domain, and the (N,) mask of its nodes."""

    label: str
    name: str
    rows: Bools


class GangMembers:
    """Members of one gang in a registered queue, with the results of the scheduler's attempts to place them.

    `untried` holds the members without an attempt. `refusal` is why the gang was rejected. `breaker` is the first
    member without a feasible node, with its diagnosis; `never` holds the members that fit no node even when it is
    empty. `preempts` is whether the gang can start after the eviction of other pods; None if this was not searched yet.
    """

    __slots__ = ("_known", "breaker", "checked", "members", "never", "preempts", "refusal", "unfit", "untried")

    def __init__(self) -> None:
        self.members: dict[str, PodSpec] = {}
        self.untried: set[str] = set()
        self.unfit: list[str] = []  # members whose own request is invalid
        self.checked = False
        self.refusal: Refusal | None = None
        self.breaker: tuple[str, Diagnosis] | None = None
        self.never: set[str] = set()
        self.preempts: bool | None = None
        self._known: dict[Shape, Verdict] = {}

    def check_again(self) -> None:
        """Discard the result of the check of the gang as a whole, because the state has changed."""
        self.checked, self.refusal = False, None

    def has_failed(self, shape: Shape) -> bool:
        """Return whether the scheduler has attempted to place a member of this shape and found no feasible node."""
        return shape in self._known

    def missed(self, pod: PodSpec, diagnosis: Diagnosis | None) -> None:
        """Record that a member has no feasible node; without `diagnosis`, the last verdict on its shape is used."""
        if diagnosis is not None:
            self._known[pod.shape] = diagnosis.verdict
            self.breaker = self.breaker or (pod.key, diagnosis)
        if self._known[pod.shape] is Verdict.NEVER_FITS:
            self.never.add(pod.key)


class Gangs:
    """Registry of PodGroups: the placed members of each gang, and its members in the registered queue.

    `domains` holds the selected topology domain of each gang that the scheduler has prepared: None if its members may
    run anywhere, a refusal if there is no domain. It is discarded with the queue.
    """

    def __init__(self) -> None:
        self.placed: dict[str, set[str]] = {}
        self.groups: dict[str, GangMembers] = {}
        self.domains: dict[str, GangDomain | Refusal | None] = {}
        self.backoff_until: dict[str, float] = {}  # gang -> end of its back-off on the caller's clock, seconds

    def charge(self, pod: PodSpec, sign: int) -> None:
        """Add a placed member to its gang (`sign` 1), or remove it (-1); pods without a gang are ignored."""
        key = gang_key(pod)
        if key is None:
            return
        members = self.placed.setdefault(key, set())
        if sign > 0:
            members.add(pod.key)
        else:
            members.discard(pod.key)
            if not members:
                del self.placed[key]

    def register_queue(self, pods: Iterable[PodSpec]) -> None:
        """Set the complete list of pods that the caller will attempt, and discard the results of the previous list."""
        self.groups, self.domains = {}, {}
        for pod in pods:
            key = gang_key(pod)
            if key is None or pod.gates:
                continue
            group = self.groups.setdefault(key, GangMembers())
            if pod.problems:
                group.unfit.append(pod.key)
            else:
                group.members[pod.key] = pod
                group.untried.add(pod.key)

    def mark_tried(self, pod: PodSpec) -> None:
        """Record that the scheduler has attempted to place a registered member."""
        if pod.gang is not None:
            group = self.group_of(pod)
            if group is not None:
                group.untried.discard(pod.key)

    def group_of(self, pod: PodSpec) -> GangMembers | None:
        """Return the members of the pod's gang in the registered queue, or None if the pod is not in the queue."""
        group = self.groups.get(gang_key(pod) or "")
        return group if group is not None and pod.key in group.members else None

    def placed_members(self, key: str) -> int:
        return len(self.placed.get(key, ()))

    def end_backoffs(self, now_seconds: float) -> None:
        """End expired back-offs."""
        for key in [key for key, until in self.backoff_until.items() if until <= now_seconds]:
            del self.backoff_until[key]

    def copy(self) -> Gangs:
        other = Gangs()
        other.placed = {key: set(members) for key, members in self.placed.items()}
        other.backoff_until = dict(self.backoff_until)
        return other
