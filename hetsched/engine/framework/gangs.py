"""Gangs: pods that start together or not at all.

Problem: two gangs that each hold half of what they need wait for each other for ever; a gang that was given up must
not hold anything, and its other members must not be tried one by one to find that out again.
Rule: the ledger knows which members are booked, whoever booked them. A driver that has a whole queue before it
*announces* it: then it is known who else can still come. A gang is given up as soon as those who are booked and those
who were not tried yet are too few, and stays given up until the next announcement; its first member that found no
node is remembered with its reasons. Drivers that announce nothing take members as they come.
Source: Kubernetes scheduler-plugins, KEP-2 and KEP-42 (coscheduling).
Invariants: `booked` equals a fresh scan of the bookings; a copy has the bookings and no announcement.
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
    """Put the members of each gang right behind its first one; everything else stays in the order given."""
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
    """The members of one gang that an announced queue holds, and what became of them so far.

    `refusal` is why the gang was given up. `breaker` is the first member that found no node, with its diagnosis;
    `never` holds the members that no node could take even empty.
    """

    __slots__ = ("_known", "breaker", "checked", "members", "never", "refusal", "unfit", "untried")

    def __init__(self) -> None:
        self.members: dict[str, PodSpec] = {}
        self.untried: set[str] = set()
        self.unfit: list[str] = []  # members whose own request is wrong
        self.checked = False
        self.refusal: Refusal | None = None
        self.breaker: tuple[str, Diagnosis] | None = None
        self.never: set[str] = set()
        self._known: dict[Shape, Verdict] = {}

    def knows(self, shape: Shape) -> bool:
        """Tell whether a member of this shape found no node before."""
        return shape in self._known

    def missed(self, pod: PodSpec, diagnosis: Diagnosis | None) -> None:
        """Note that a member found no node; without a diagnosis it is that of the last one of its shape."""
        if diagnosis is not None:
            self._known[pod.shape] = diagnosis.verdict
            self.breaker = self.breaker or (pod.key, diagnosis)
        if self._known[pod.shape] is Verdict.NEVER_FITS:
            self.never.add(pod.key)


class Gangs:
    """Who belongs together: booked members by gang, and the members that an announced queue holds."""

    def __init__(self) -> None:
        self.booked: dict[str, set[str]] = {}
        self.rolls: dict[str, Roll] = {}
        self.resting: dict[str, float] = {}  # gangs in back-off, and until when on the driver's clock, seconds

    def charge(self, pod: PodSpec, sign: int) -> None:
        """Count a member that is booked (`sign` 1) or goes (-1); other pods are left alone."""
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
        """Say which pods a driver is about to try, and no others; what an earlier announcement led to is forgotten."""
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
        """Note that an announced member has its turn."""
        if pod.gang is not None:
            roll = self.roll_of(pod)
            if roll is not None:
                roll.untried.discard(pod.key)

    def roll_of(self, pod: PodSpec) -> Roll | None:
        """Return the roll that an announced member is on."""
        roll = self.rolls.get(gang_key(pod) or "")
        return roll if roll is not None and pod.key in roll.members else None

    def members_booked(self, key: str) -> int:
        return len(self.booked.get(key, ()))

    def wake(self, now_seconds: float) -> None:
        """End the back-offs that are over."""
        for key in [key for key, until in self.resting.items() if until <= now_seconds]:
            del self.resting[key]

    def copy(self) -> Gangs:
        other = Gangs()
        other.booked = {key: set(members) for key, members in self.booked.items()}
        other.resting = dict(self.resting)
        return other


def room_for(roll: Roll, state: ClusterState, *, empty: bool = False) -> int:
    """Return how many of a roll's members could be booked at most, by free amounts (or by all amounts) alone.

    Members of one shape are counted by whole pods per node, different shapes as if they did not compete: the answer
    is never too low, and exact for one shape where nothing but amounts decides.
    """
    shapes = {id(pod.shape): pod.shape for pod in roll.members.values()}
    by_identity = Counter(id(pod.shape) for pod in roll.members.values())  # most members share one object
    counts: Counter[Shape] = Counter()
    for key, count in by_identity.items():
        counts[shapes[key]] += count
    return sum(min(count, _slots(shape, state, empty=empty)) for shape, count in counts.items())


def _slots(shape: Shape, state: ClusterState, *, empty: bool) -> int:
    """Return how many pods of one shape the free (or all) amounts of all nodes would take, were they alone."""
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


def short_of(least: Sequence[tuple[str, int]], state: ClusterState) -> tuple[str, ...]:
    """Return the resources of which the whole cluster has less free than `least`."""
    short = []
    for name, amount in least:
        row = state.resources.index.get(name)
        if row is None:
            short.append(name)
            continue
        free = state.all_rows.static("allocatable")[row] - state.all_rows.load("requested")[row]
        if int(np.maximum(free, 0).sum()) < amount:
            short.append(name)
    return tuple(short)
