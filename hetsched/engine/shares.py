"""Dominant shares: what a team or namespace uses, as the largest of its shares of the cluster's resources.

Rule: share(group) = max over resources of used / capacity, capacity summed over all nodes; GPU cards are one resource,
counted by the milli of a card. Groups stand in two levels, teams and the namespaces in each, each with its weight.
Progressive filling: of the pods with the highest priority, the next is the first one of the namespace with the lowest
share / weight, in the team with the lowest share / weight; equal ones go by who waited first. A gang is one step.
What was placed counts at once, what was refused does not.
Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011 (algorithm 1, weighted form); two levels as in
Bhattacharya et al., Hierarchical Scheduling for Diverse Datacenter Workloads, SoCC 2013, without its rescaling.
Invariants: every pod is yielded once; inside a namespace of a team the order of submission stands.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np

from hetsched.contracts.units import GPU_RESOURCES
from hetsched.contracts.workload import PodSpec, Shape

from .columns import Floats
from .gangs import gang_key, together
from .state import ClusterState

Team = Callable[[PodSpec], str]


class Shares:
    """What each team, and each namespace of a team, uses of the cluster, as fractions of every resource."""

    def __init__(self, state: ClusterState, team_of: Team, weights: dict[str, float], teams: dict[str, float]) -> None:
        self._team_of = team_of
        self._weights, self._team_weights = weights, teams
        nodes = state.all_rows
        self._rows = {name: row for name, row in state.resources.index.items() if name not in GPU_RESOURCES}
        capacity = nodes.static("allocatable").astype(np.float64).sum(axis=1)
        self._capacity = np.append(capacity, float(nodes.static("card_milli").sum()))
        self._fractions: dict[int, tuple[Shape, Floats]] = {}
        self._used: dict[tuple[str, str], Floats] = {}
        self._team_used: dict[str, Floats] = {}
        for booking in state.bookings.values():
            self.charge(booking.pod)

    def groups(self, pod: PodSpec) -> tuple[str, str]:
        """Return the team and the namespace that a pod counts for."""
        return self._team_of(pod), pod.namespace

    def charge(self, pod: PodSpec) -> None:
        """Count a pod as placed."""
        team, namespace = self.groups(pod)
        fractions = self._fractions_of(pod.shape)
        self._used[team, namespace] = self._used.get((team, namespace), 0.0) + fractions
        self._team_used[team] = self._team_used.get(team, 0.0) + fractions

    def of_team(self, team: str) -> float:
        """Return the weighted dominant share of a team."""
        used = self._team_used.get(team)
        return 0.0 if used is None else float(used.max()) / self._team_weights.get(team, 1.0)

    def of_namespace(self, team: str, namespace: str) -> float:
        """Return the weighted dominant share of the pods that a namespace has in a team."""
        used = self._used.get((team, namespace))
        return 0.0 if used is None else float(used.max()) / self._weights.get(namespace, 1.0)

    def _fractions_of(self, shape: Shape) -> Floats:
        known = self._fractions.get(id(shape))
        if known is None:
            amounts = np.zeros(len(self._capacity))
            for name, amount in shape.requests:
                if name in self._rows:
                    amounts[self._rows[name]] = amount
            if shape.gpu is not None:
                amounts[-1] = shape.gpu.count * shape.gpu.milli
            fractions = np.divide(amounts, self._capacity, out=np.zeros_like(amounts), where=self._capacity > 0)
            known = self._fractions[id(shape)] = (shape, fractions)
        return known[1]


def filled(pods: Sequence[PodSpec], shares: Shares, placed: Callable[[PodSpec], bool]) -> Iterator[PodSpec]:
    """Yield pods by progressive filling; `placed` tells of a pod that was yielded whether it was placed."""
    for _, equals in groupby(sorted(pods, key=lambda pod: -pod.priority), key=lambda pod: pod.priority):
        yield from _filled(list(equals), shares, placed)


def _step(pod: PodSpec) -> tuple[bool, str]:
    return pod.gang is not None, gang_key(pod) or pod.key


def _filled(pods: list[PodSpec], shares: Shares, placed: Callable[[PodSpec], bool]) -> Iterator[PodSpec]:
    """Yield pods of one priority.

    Only the groups whose pods were yielded change their share, so two levels of heaps keep all others in order.
    """
    waiting: dict[tuple[str, str], deque[tuple[int, list[PodSpec]]]] = {}
    inside: dict[str, list[tuple[float, int, str]]] = {}
    for position, (_, step) in enumerate(groupby(together(pods), key=_step)):
        members = list(step)
        team, namespace = shares.groups(members[0])
        if (team, namespace) not in waiting:
            waiting[team, namespace] = deque()
            entry = (shares.of_namespace(team, namespace), position, namespace)
            heapq.heappush(inside.setdefault(team, []), entry)
        waiting[team, namespace].append((position, members))
    teams = [(shares.of_team(team), namespaces[0][1], team) for team, namespaces in inside.items()]
    heapq.heapify(teams)
    while teams:
        _, _, team = heapq.heappop(teams)
        _, _, namespace = heapq.heappop(inside[team])
        steps = waiting[team, namespace]
        _, members = steps.popleft()
        yield from members
        for pod in filter(placed, members):
            shares.charge(pod)
        if steps:
            entry = (shares.of_namespace(team, namespace), steps[0][0], namespace)
            heapq.heappush(inside[team], entry)
        if inside[team]:
            heapq.heappush(teams, (shares.of_team(team), inside[team][0][1], team))
