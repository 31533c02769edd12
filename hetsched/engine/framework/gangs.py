"""Gangs: pods that start together or not at all.

Two gangs that each hold half of their needs would deadlock. A rejected gang holds nothing, and its other members are
not tried one by one to find that out again. The state tracks which members are booked, by any scheduler. A driver that
has a complete queue *announces* it, so the members that can still arrive are known. A gang is rejected as soon as the
booked members and the untried members together are too few, and stays rejected until the next announcement; the first
member that found no node is kept with its reasons. Without an announcement members are taken as they arrive.
Source: Kubernetes scheduler-plugins, KEP-2 and KEP-42 (coscheduling).
Invariants: `booked` equals a full scan of the bookings; a copy has the bookings and no announcement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hetsched.contracts.decision import Verdict
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.contracts.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Ints

from .status import Refusal

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.explain.diagnosis import Diagnosis


def gang_key(pod: PodSpec) -> str | None:
    """Return `namespace/name` of the gang a pod belongs to."""
    return None if pod.gang is None else f"{pod.namespace}/{pod.gang.name}"


def together(pods: Sequence[PodSpec]) -> Sequence[PodSpec]:
    """Move the members of each gang directly behind its first one; all other pods keep their order."""
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


class Roll:
    """Members of one gang in an announced queue, and their results so far.

    `refusal` is why the gang was rejected. `breaker` is the first member that found no node, with its diagnosis;
    `never` holds the members that fit no node even when it is empty.
    """

    __slots__ = ("_known", "breaker", "checked", "members", "never", "refusal", "unfit", "untried")

    def __init__(self) -> None:
        self.members: dict[str, PodSpec] = {}
        self.untried: set[str] = set()
        self.unfit: list[str] = []  # members whose own request is invalid
        self.checked = False
        self.refusal: Refusal | None = None
        self.breaker: tuple[str, Diagnosis] | None = None
        self.never: set[str] = set()
        self._known: dict[Shape, Verdict] = {}

    def knows(self, shape: Shape) -> bool:
        """Return whether a member of this shape already found no node."""
        return shape in self._known

    def missed(self, pod: PodSpec, diagnosis: Diagnosis | None) -> None:
        """Record that a member found no node; without a diagnosis the last one of its shape applies."""
        if diagnosis is not None:
            self._known[pod.shape] = diagnosis.verdict
            self.breaker = self.breaker or (pod.key, diagnosis)
        if self._known[pod.shape] is Verdict.NEVER_FITS:
            self.never.add(pod.key)


class Gangs:
    """PodGroup registry: booked members by gang, and the members of an announced queue."""

    def __init__(self) -> None:
        self.booked: dict[str, set[str]] = {}
        self.rolls: dict[str, Roll] = {}
        self.resting: dict[str, float] = {}  # gang -> end of its back-off on the driver's clock, seconds

    def charge(self, pod: PodSpec, sign: int) -> None:
        """Count a member that is booked (`sign` 1) or removed (-1); pods without a gang are ignored."""
        key = gang_key(pod)
        if key is None:
            return
        members = self.booked.setdefault(key, set())
        if sign > 0:
            members.add(pod.key)
        else:
            members.discard(pod.key)
            if not members:
                del self.booked[key]

    def announce(self, pods: Iterable[PodSpec]) -> None:
        """Set the complete list of pods that a driver is about to try, and discard the results of the previous one."""
        self.rolls = {}
        for pod in pods:
            key = gang_key(pod)
            if key is None or pod.gates:
                continue
            roll = self.rolls.setdefault(key, Roll())
            if pod.problems:
                roll.unfit.append(pod.key)
            else:
                roll.members[pod.key] = pod
                roll.untried.add(pod.key)

    def try_now(self, pod: PodSpec) -> None:
        """Mark an announced member as tried."""
        if pod.gang is not None:
            roll = self.roll_of(pod)
            if roll is not None:
                roll.untried.discard(pod.key)

    def roll_of(self, pod: PodSpec) -> Roll | None:
        """Return the registry entry of an announced member, or None."""
        roll = self.rolls.get(gang_key(pod) or "")
        return roll if roll is not None and pod.key in roll.members else None

    def members_booked(self, key: str) -> int:
        return len(self.booked.get(key, ()))

    def wake(self, now_seconds: float) -> None:
        """End expired back-offs."""
        for key in [key for key, until in self.resting.items() if until <= now_seconds]:
            del self.resting[key]

    def copy(self) -> Gangs:
        other = Gangs()
        other.booked = {key: set(members) for key, members in self.booked.items()}
        other.resting = dict(self.resting)
        return other


def room_for(roll: Roll, state: ClusterState, *, empty: bool = False) -> int:
    """Return an upper bound of the members that could be booked, by free (or, if `empty`, all) amounts alone.

    Members of one shape are counted by whole pods per node, different shapes as if they did not compete: the result is
    never too low, and exact for one shape if only amounts decide.
    """
    shapes = {id(pod.shape): pod.shape for pod in roll.members.values()}
    by_identity = Counter(id(pod.shape) for pod in roll.members.values())  # most members share one object
    counts: Counter[Shape] = Counter()
    for key, count in by_identity.items():
        counts[shapes[key]] += count
    return sum(min(count, _slots(shape, state, empty=empty)) for shape, count in counts.items())


def _slots(shape: Shape, state: ClusterState, *, empty: bool) -> int:
    """Return how many pods of one shape fit the free (or all) amounts of all nodes, without other pods."""
    nodes = state.all_rows
    slots: Ints = np.full(nodes.n, np.iinfo(np.int64).max // max(nodes.n, 1), np.int64)
    for name, need in shape.requests:
        if not need or (shape.gpu is not None and name in GPU_RESOURCES):
            continue
        row = state.resources.index.get(name)
        if row is None:
            return 0
        free = nodes.static("allocatable")[row]
        if not empty:
            free = free - nodes.load("requested")[row]
        np.minimum(slots, np.maximum(free, 0) // need, out=slots)
    if shape.gpu is not None:
        there = nodes.static("card_milli") + nodes.static("card_resting")
        cards = there if empty else nodes.load("card_milli_free")
        if shape.gpu.milli < WHOLE_CARD_MILLI:
            fit = (np.maximum(cards, 0) // shape.gpu.milli).sum(axis=0)
        else:
            fit = (cards >= WHOLE_CARD_MILLI).sum(axis=0) // shape.gpu.count
        np.minimum(slots, fit, out=slots)
    return int(slots.sum())


def short_of(least: Sequence[tuple[str, int]], state: ClusterState, *, empty: bool = False) -> tuple[str, ...]:
    """Return the resources of which the whole cluster has less free (less in total if `empty`) than `least`."""
    nodes = state.all_rows
    short = []
    for name, amount in least:
        row = state.resources.index.get(name)
        if name in GPU_RESOURCES:  # GPUs may be known from a NodeGpu alone, without an allocatable
            cards = nodes.static("card_milli") + nodes.static("card_resting")
            there = cards if empty else nodes.load("card_milli_free")
            has = int((there >= WHOLE_CARD_MILLI).sum())
        elif row is None:
            has = 0
        else:
            there = nodes.static("allocatable")[row]
            if not empty:
                there = np.maximum(there - nodes.load("requested")[row], 0)
            has = sum(there.tolist())  # Python's integers: nodes without a maximum number of pods overflow 64 bits
        if has < amount:
            short.append(name)
    return tuple(short)
