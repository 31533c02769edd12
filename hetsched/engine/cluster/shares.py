"""Dominant shares: the use of a team or namespace as the largest of its shares of the cluster's resources.

Share(group) = max over resources of used / capacity, capacity summed over all nodes; GPUs are one resource, counted in
milli-GPU. Groups form two levels, teams and the namespaces in each team, and each group has a weight. Progressive
filling selects, among the pods with the highest priority, the team with the lowest share / weight, in it the namespace
with the lowest share / weight, and in it the first pod. If groups tie, the earliest pod is selected. A gang is selected
as a whole. The use of a placed pod is added to its group immediately. A rejected pod adds no use, but its group is
skipped until a pod of another group was placed, or until all groups are skipped. A flood of pods that fit nowhere thus
gets at most one attempt per round.
Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011 (algorithm 1, weighted form); two levels as in
Bhattacharya et al., Hierarchical Scheduling for Diverse Datacenter Workloads, SoCC 2013, without its rescaling.
Invariants: every pod is yielded once; within a namespace of a team the order of submission is kept; equal placed pods
give equal shares whatever their history, because amounts are added as integers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np

from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.framework.gangs import gang_key, together

from .columns import Floats, Ints
from .state import ClusterState

Team = Callable[[PodSpec], str]


class TeamShares:
    """Use of each team, and of each namespace of a team, relative to the nodes' capacity."""

    def __init__(self, state: ClusterState, team_of: Team, weights: dict[str, float], teams: dict[str, float]) -> None:
        self._team_of = team_of
        self._weights, self._team_weights = weights, teams
        nodes = state.all_rows
        self._rows = {name: row for name, row in state.resources.index.items() if name not in GPU_RESOURCES}
        capacity = nodes.static("allocatable").astype(np.float64).sum(axis=1)
        capacity = np.append(capacity, float(nodes.static("card_milli").sum()))
        self._capacity: Floats = np.where(capacity > 0, capacity, np.inf)  # a resource without capacity has share 0
        self._amounts: dict[int, tuple[Shape, Ints]] = {}
        self._used: dict[tuple[str, str], Ints] = {}
        self._team_used: dict[str, Ints] = {}
        for placed in state.placed_pods.values():
            self.charge(placed.pod)

    def groups(self, pod: PodSpec) -> tuple[str, str]:
        """Return the team and the namespace to which a pod's use is added."""
        return self._team_of(pod), pod.namespace

    def charge(self, pod: PodSpec) -> None:
        """Charge the requests of a placed pod to the pod's team and namespace."""
        team, namespace = self.groups(pod)
        amounts = self._amounts_of(pod.shape)
        self._used[team, namespace] = self._used.get((team, namespace), 0) + amounts
        self._team_used[team] = self._team_used.get(team, 0) + amounts

    def of_team(self, team: str) -> float:
        """Return the weighted dominant share of a team."""
        return self._dominant(self._team_used.get(team)) / self._team_weights.get(team, 1.0)

    def of_namespace(self, team: str, namespace: str) -> float:
        """Return the weighted dominant share of a team's pods in a namespace."""
        return self._dominant(self._used.get((team, namespace))) / self._weights.get(namespace, 1.0)

    def _dominant(self, used: Ints | None) -> float:
        return 0.0 if used is None else float((used / self._capacity).max())

    def _amounts_of(self, shape: Shape) -> Ints:
        known = self._amounts.get(id(shape))
        if known is None:
            amounts: Ints = np.zeros(len(self._capacity), np.int64)
            for name, amount in shape.requests:
                if name in self._rows:
                    amounts[self._rows[name]] = amount
            if shape.gpu is not None:
                amounts[-1] = shape.gpu.count * shape.gpu.milli
            known = self._amounts[id(shape)] = (shape, amounts)
        return known[1]


def filled(pods: Sequence[PodSpec], shares: TeamShares, placed: Callable[[PodSpec], bool]) -> Iterator[PodSpec]:
    """Yield pods by progressive filling; `placed` returns whether a yielded pod was placed."""
    for _, equals in groupby(sorted(pods, key=lambda pod: -pod.priority), key=lambda pod: pod.priority):
        yield from _filled(list(equals), shares, placed)


def _filled(pods: list[PodSpec], shares: TeamShares, placed: Callable[[PodSpec], bool]) -> Iterator[PodSpec]:
    """Yield pods of equal priority by progressive filling, and add the use of each placed pod to its groups."""
    line = _ShareQueue(pods, shares)
    while line:
        group, members = line.draw()
        yield from members
        taken = list(filter(placed, members))
        for pod in taken:
            shares.charge(pod)
        line.put_back(group, was_placed=bool(taken))


def _step(pod: PodSpec) -> tuple[bool, str]:
    return pod.gang is not None, gang_key(pod) or pod.key


Group = tuple[str, str]  # (team, namespace)


class _ShareQueue:
    """Pods of one priority by team and namespace; the group with the lowest share is drawn next.

    Only the drawn group changes its shares, so two levels of heaps keep all others in order. A group whose pods were
    refused is skipped until a pod of another group was placed, or all groups are skipped.
    """

    def __init__(self, pods: list[PodSpec], shares: TeamShares) -> None:
        self._shares = shares
        self._steps: dict[Group, deque[tuple[int, list[PodSpec]]]] = {}
        self._teams: list[tuple[float, int, str]] = []
        self._namespaces: dict[str, list[tuple[float, int, str]]] = {}
        self._aside: list[Group] = []
        for position, (_, step) in enumerate(groupby(together(pods), key=_step)):
            members = list(step)
            self._steps.setdefault(shares.groups(members[0]), deque()).append((position, members))
        self._listed: set[str] = set()  # teams that have an entry in the heap `_teams`
        for group in self._steps:
            self._enter(group)

    def __bool__(self) -> bool:
        return bool(self._teams or self._aside)

    def _enter(self, group: Group) -> None:
        """Queue a group that has pods left and is not in the queue."""
        team, namespace = group
        entry = (self._shares.of_namespace(team, namespace), self._steps[group][0][0], namespace)
        heapq.heappush(self._namespaces.setdefault(team, []), entry)
        self._list(team)

    def _list(self, team: str) -> None:
        if team not in self._listed and self._namespaces[team]:
            self._listed.add(team)
            heapq.heappush(self._teams, (self._shares.of_team(team), self._namespaces[team][0][1], team))

    def draw(self) -> tuple[Group, list[PodSpec]]:
        """Remove the next pod, or all pods of the next gang, and return its group and the list of pods."""
        if not self._teams:
            self._requeue_set_aside()
        _, _, team = heapq.heappop(self._teams)
        self._listed.remove(team)
        _, _, namespace = heapq.heappop(self._namespaces[team])
        _, members = self._steps[team, namespace].popleft()
        return (team, namespace), members

    def put_back(self, group: Group, *, was_placed: bool) -> None:
        """Queue the last drawn group again; if no pod was placed (`was_placed` false), it is skipped for now."""
        if self._steps[group]:
            self._aside.append(group)
        if was_placed:
            self._requeue_set_aside()
        self._list(group[0])

    def _requeue_set_aside(self) -> None:
        aside, self._aside = self._aside, []
        for group in aside:
            self._enter(group)
