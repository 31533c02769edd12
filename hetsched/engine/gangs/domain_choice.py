"""Choice of the topology domain in which a gang runs.

Levels are tried in their order. At each level, the domains are tried in the order of their free capacity in members of
the gang, the least first, so that empty domains remain for larger gangs; the domain with the first node by name wins
ties. A domain is skipped if an upper bound of its capacity is too low: free amounts and GPUs of the nodes that the
filters accept. In all other domains the filters, scores and reservations of the policy place the members in queue
order, and these placements are undone. If no level has a domain for all pending members, the domain of the required
level that holds most of them is used, provided that it holds the minimum; without a required level, the members run
anywhere. Members that are placed already determine the domain.

For members with equal requests and no rules between pods, a required domain is found if and only if one exists, unless
`_MOST_ATTEMPTS` trial placements were not sufficient. For members with different requests, the domain that is found is
always correct, but a domain in which only another order or choice of nodes succeeds is not found.
Without a registered queue the other members are unknown. The missing members are then assumed to equal the pod, and the
upper bounds decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.workload import GangTopology, PodSpec, Shape
from hetsched.engine.cluster.columns import UNKNOWN, Ints
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import first_rejections, possible_rows
from hetsched.engine.framework.gangs import GangDomain
from hetsched.engine.framework.handle import Handle
from hetsched.engine.framework.status import Refusal

from .capacity import members_by_shape, node_slots
from .domains import Domains, Levels, domains_of

_MOST_ATTEMPTS = 4096
_MOST_DIAGNOSED = 8  # shapes
_UNLIMITED = 2**40
_TOP_REASONS = 3

_NEAREST = (
    "gang {key} needs capacity for {n} members in one domain of {label}, but the nearest domain {domain} has capacity "
    "for {m}"
)
_NEAREST_EMPTY = (
    "gang {key} needs capacity for {n} members in one domain of {label}, but even on the empty cluster no domain has "
    "it; the nearest domain {domain} now has capacity for {m}"
)
_FIXED = (
    "gang {key} needs capacity for {n} more members in the domain {domain} of {label}, in which its other members run, "
    "but the domain has capacity for {m}"
)


class _Level:
    """Domains of one level, with the capacity of each for the pending members.

    `room` (D,) counts members without an upper limit and `bounds` (D,) with the number of pending members; both are
    upper bounds. `placed` maps tried domains to the number of members that were placed.
    """

    def __init__(self, domains: Domains, slots: Sequence[tuple[int, Ints]]) -> None:
        self.domains = domains
        # Pods without requests have no limit on a node; the sums of several shapes must not overflow.
        sums = [(count, np.minimum(domains.sums(each), _UNLIMITED)) for count, each in slots]
        self.room: Ints = np.sum([found for _, found in sums], axis=0)
        self.bounds: Ints = np.sum([np.minimum(found, count) for count, found in sums], axis=0)
        self.placed: dict[int, int] = {}
        self.fixed: int | None = None

    def tightest_first(self, least: int) -> list[int]:
        """Return the domains whose upper bound is at least `least`, in the order of their free capacity."""
        found = np.flatnonzero(self.bounds >= least)
        if self.fixed is not None:
            found = found[found == self.fixed]
        return [int(each) for each in found[np.lexsort((self.domains.first_rows[found], self.room[found]))]]

    def nearest(self) -> int:
        """Return the domain with capacity for most members, the first tried one among equal domains."""
        if self.fixed is not None:
            return self.fixed
        capacity = self.bounds.copy()
        for position, count in self.placed.items():
            capacity[position] = count
        return int(np.lexsort((self.domains.first_rows, self.room, -capacity))[0])


class DomainSearch:
    """Search for the domain of one gang, for its pending `members`; empty if only `pod` is known."""

    def __init__(self, scheduler: Handle, key: str, pod: PodSpec, members: Sequence[PodSpec]) -> None:
        gang, state = pod.gang, scheduler.state
        assert gang is not None
        assert gang.topology is not None
        self._scheduler, self._state, self._key = scheduler, state, key
        self._topology: GangTopology = gang.topology
        placed = state.gangs.placed.get(key, set())
        self._rows = sorted(state.placed_pods[name].row for name in placed)
        self._lacking = gang.min_available - len(placed)
        waiting = (member for member in members if member.key not in placed)
        self._members = sorted(waiting, key=scheduler.policy.sort_key)  # the order in which they will be scheduled
        by_identity = {id(member.shape): member for member in self._members or [pod]}
        self._examples = {member.shape: member for member in by_identity.values()}
        counts = members_by_shape(self._members) if self._members else Counter({pod.shape: max(self._lacking, 1)})
        self._slots = [(count, self._node_slots(shape)) for shape, count in counts.items()]
        self._counts = counts
        self._all = counts.total()
        self._least = min(max(self._lacking, 1), self._all)
        self._attempts_left = max(_MOST_ATTEMPTS, len(self._members))

    def choose(self) -> GangDomain | Refusal | None:
        """Return the domain, a refusal if a required domain is missing, or None if the members may run anywhere."""
        levels = [self._level(choice) for choice in self._topology.choices]
        required = levels[-1] if self._topology.required else None
        if required is not None and self._rows:
            positions = required.domains.positions_of(self._rows)
            if len(positions) > 1 or UNKNOWN in positions:
                return self._split(required.domains, positions)
        for level in levels:
            if self._fix(level):
                for position in level.tightest_first(self._all):
                    if self._capacity(level, position) >= self._all:
                        return level.domains.domain(position)
        if required is None:
            return None
        largest = self._largest(required)
        if largest is not None:
            return required.domains.domain(largest)
        if required.fixed is not None and self._lacking <= 0:
            return required.domains.domain(required.fixed)  # each member is then accepted or rejected alone
        return self._refusal(required)

    def _largest(self, level: _Level) -> int | None:
        """Return the domain that holds most members and at least the minimum; the tightest of equal domains."""
        best: int | None = None
        for position in sorted(level.tightest_first(self._least), key=lambda each: -level.bounds[each]):
            most = self._least - 1 if best is None else self._capacity(level, best)
            if level.bounds[position] <= most:
                break
            if self._capacity(level, position) > most:
                best = position
        return best

    def _node_slots(self, shape: Shape) -> Ints:
        """Return (N,) an upper bound on the members of one shape on each node that the row filters accept."""
        evaluation, _ = self._scheduler.evaluator.evaluate(self._state.compile(self._examples[shape]))
        return np.where(evaluation.feasible, node_slots(shape, self._state), 0)

    def _level(self, levels: Levels) -> _Level:
        return _Level(domains_of(self._state, levels), self._slots)

    def _fix(self, level: _Level) -> bool:
        """Restrict a level to the domain of the placed members; return False if they are not in one domain."""
        positions = level.domains.positions_of(self._rows)
        if not positions:
            return bool(level.domains.names)
        if len(positions) > 1 or UNKNOWN in positions:
            return False
        (level.fixed,) = positions
        return True

    def _capacity(self, level: _Level, position: int) -> int:
        """Return the number of members that fit a domain now: by a trial, or by the bound if only one pod is known."""
        if not self._members:
            return int(level.bounds[position])
        if position not in level.placed and self._attempts_left > 0:
            gangs = self._state.gangs
            gangs.domains[self._key] = level.domains.domain(position)
            with self._scheduler.trial(self._members, self._least) as trial:
                level.placed[position] = trial.placed
                self._attempts_left -= trial.attempts
            del gangs.domains[self._key]
        return level.placed.get(position, 0)

    # -- reasons -----------------------------------------------------------------------------------------------------

    def _split(self, domains: Domains, positions: set[int]) -> Refusal:
        names = [domains.names[position] for position in sorted(positions) if position != UNKNOWN]
        template = (
            "gang {key}: its placed members do not run in one domain of {label} ({names}): delete the members outside "
            "one domain"
        )
        if UNKNOWN in positions:
            template = (
                "gang {key}: the node of a placed member has no label {label}: set the label or delete the member"
            )
        message = Message(template, key=self._key, label=domains.label, names=joined(", ", names))
        return Refusal("GangDomainSplit", message, missing=(domains.label,), verdict=Verdict.NOT_NOW)

    def _refusal(self, level: _Level) -> Refusal:
        label = level.domains.label
        if not level.domains.names:
            labels = joined(", ", self._topology.required)
            message = Message("gang {key}: no node has the label {label}", key=self._key, label=labels)
            return Refusal("GangNoDomain", message, missing=(label,), verdict=Verdict.NEVER_FITS)
        position = level.nearest()
        name, never = level.domains.names[position], False
        because: tuple[Reason, ...] = ()
        capacity = level.placed.get(position, int(level.bounds[position]))
        if self._members:
            capacity, because, never = self._examine(level, position)
        template = _FIXED if level.fixed is not None else _NEAREST_EMPTY if never else _NEAREST
        message = Message(template, key=self._key, n=self._least, label=label, domain=name, m=capacity)
        parts = [
            message,
            *(Message("{count}: {detail}", count=reason.nodes, detail=reason.message) for reason in because),
        ]
        if self._attempts_left <= 0:
            parts.append(Message("not all domains were tried because of the limit of {n} trials", n=_MOST_ATTEMPTS))
        verdict = Verdict.NEVER_FITS if never else Verdict.NOT_NOW
        return Refusal("GangNoDomain", joined("; ", parts), missing=(label,), verdict=verdict, because=because)

    def _examine(self, level: _Level, position: int) -> tuple[int, tuple[Reason, ...], bool]:
        """Place members in a domain until one fits no node.

        Return the number of placed members, the reasons of the domain's nodes for the next member, and whether not even
        the empty cluster has a domain with sufficient capacity.
        """
        gangs, domain = self._state.gangs, level.domains.domain(position)
        gangs.domains[self._key] = domain
        with self._scheduler.trial(self._members, len(self._members)) as trial:
            reasons = [] if trial.failed is None else first_rejections(self._scheduler, trial.failed)
        del gangs.domains[self._key]
        inside = [
            Reason(reason.code, reason.plugin, count, reason.message, reason.missing, reason.field)
            for reason, rows in reasons
            if (count := int((rows & domain.rows).sum()))
        ]
        inside.sort(key=lambda reason: -reason.nodes)
        return trial.placed, tuple(inside[:_TOP_REASONS]), self._never_fits(level)

    def _never_fits(self, level: _Level) -> bool:
        """Return whether no domain has sufficient capacity even on the empty cluster.

        A gang with placed members may move to another domain after they end, so its domain is not decisive.
        """
        if level.fixed is not None:
            return False
        slots = []
        for number, (shape, count) in enumerate(self._counts.items()):
            found = node_slots(shape, self._state, empty=True)
            if number < _MOST_DIAGNOSED:
                found[~possible_rows(self._scheduler, self._state.compile(self._examples[shape]))] = 0
            slots.append((count, found))
        return bool((_Level(level.domains, slots).bounds < self._least).all())


def domain_of_placed(state: ClusterState, key: str, topology: GangTopology) -> GangDomain | None:
    """Return the required domain of a gang's placed members, or None if there is no such domain yet."""
    rows = [state.placed_pods[name].row for name in state.gangs.placed.get(key, ())]
    if not rows or not topology.required:
        return None
    domains = domains_of(state, topology.required)
    position = int(domains.of_row[min(rows)])
    return None if position == UNKNOWN else domains.domain(position)


def select_domain_of(scheduler: Handle, pod: PodSpec, row: int) -> None:
    """Select the domain for a member that was placed on `row` in an earlier decision with the same registered queue.

    If the search does not find a domain with this row, for example because members were deleted since, the domain of
    the required level is used. The gang is not checked again.
    """
    gang, gangs = pod.gang, scheduler.state.gangs
    if gang is None or gang.topology is None:
        return
    key, group = f"{pod.namespace}/{gang.name}", gangs.group_of(pod)
    scheduler.prepare(pod)
    found = gangs.domains.get(key)
    if not isinstance(found, GangDomain) or not found.rows[row]:
        domains = domains_of(scheduler.state, gang.topology.required) if gang.topology.required else None
        position = UNKNOWN if domains is None else int(domains.of_row[row])
        gangs.domains[key] = None if domains is None or position == UNKNOWN else domains.domain(position)
    if group is not None:
        group.checked, group.refusal = True, None
