"""Trial moves of running pods on a copy of the cluster.

To move a unit, the board removes its pods and places them again through the cycle of their policy, as after an
eviction. Filters, scores and node selection are those of real decisions. For the rest of the plan, pods of the same
owner avoid the node that the unit left. No other pod is preempted for the unit, so it moves only if a target has free
capacity. Every disruption budget must allow the eviction of the unit's pods at the time of the move.
Invariant: a move that is undone leaves the copy unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from hetsched.contracts.api.advice import BudgetLeft, Cost, Move, MovedPod
from hetsched.contracts.api.decision import Balance, ZonePlacement
from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import PODS, format_amount
from hetsched.engine.cluster.avoided_nodes import MOVED_AWAY, AvoidedNodes, NodeRejections
from hetsched.engine.cluster.balance import cluster_balance
from hetsched.engine.cluster.disruption import disruptions_allowed
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy

from .movable_pods import Unit

_DIGITS = 6
_LEFT = NodeRejections(1, MOVED_AWAY, "", backs_off=True)


class AppliedMove(msgspec.Struct, eq=False):
    """One move applied to the copy, with the data to undo the move."""

    unit: Unit
    outcomes: list[Outcome]
    budgets: dict[str, int]
    before: float
    after: float
    avoided: Mapping[str, AvoidedNodes]
    backoff_until: dict[str, float]


class Board:
    """A cluster for trial moves; with `returns`, pods without a controller are recreated.

    `own` maps pods (keys) to the policy that decides for them; `policy` decides for all other pods. `tries` counts the
    moves that were tried. The board owns its state: pass a copy.
    """

    def __init__(
        self,
        state: ClusterState,
        policy: Policy,
        *,
        evaluated_at: str,
        returns: bool,
        own: Mapping[str, Policy] | None = None,
    ) -> None:
        self.state = state
        self.scheduler = Scheduler(state, policy)
        self._own = own or {}
        self._schedulers = {id(policy): self.scheduler}
        self.returns = returns
        self.tries = 0
        self.balance = cluster_balance(self.state)
        self._now = _parse_time(evaluated_at)

    def scheduler_of(self, pod: PodSpec) -> Scheduler:
        """Return the scheduler with the policy that decides for a pod."""
        policy = self._own.get(pod.key)
        if policy is None:
            return self.scheduler
        if id(policy) not in self._schedulers:
            self._schedulers[id(policy)] = Scheduler(self.state, policy)
        return self._schedulers[id(policy)]

    def move(self, unit: Unit) -> AppliedMove | None:
        """Move a unit to the node that the policy selects; return None, without a change, if it cannot be moved."""
        self.tries += 1
        state, avoided = self.state, self.state.avoided
        # Look up the placed pods again, because the unit may have been restored since it was found.
        unit = tuple(state.placed_pods[placed.pod.key] for placed in unit)
        budgets = disruptions_allowed([placed.pod for placed in unit], state)
        if any(remaining < 0 for remaining in budgets.values()):
            return None
        self._avoid_nodes(unit)
        for placed in unit:
            state.forget(placed.pod.key)
        moved = AppliedMove(unit, [], budgets, self.balance, 0.0, avoided, dict(state.gangs.backoff_until))
        for placed in unit:
            moved.outcomes.append(self.scheduler_of(placed.pod).schedule(placed.pod, preempts=False))
            if moved.outcomes[-1].node is None:
                break
        if any(outcome.node is None or outcome.is_waiting for outcome in moved.outcomes):
            self.undo(moved)
            return None
        moved.after = self.balance = cluster_balance(state)
        return moved

    def undo(self, moved: AppliedMove) -> None:
        """Undo a move. To undo several moves, call this in reverse order."""
        for outcome in reversed(moved.outcomes):
            self.scheduler_of(outcome.pod).undo(outcome)
        for placed in moved.unit:
            self.state.restore(placed)
        self.state.avoided, self.balance = moved.avoided, moved.before
        self.state.gangs.backoff_until = moved.backoff_until

    def _avoid_nodes(self, unit: Unit) -> None:
        names = self.state.columns.names
        avoided = dict(self.state.avoided)
        for placed in unit:
            owner = placed.pod.owner
            known = avoided.get(owner, AvoidedNodes({}))
            avoided[owner] = AvoidedNodes({**known.nodes, names[placed.row]: _LEFT}, known.everywhere)
        self.state.avoided = avoided

    # -- report ------------------------------------------------------------------------------------------------------

    def to_move(self, moved: AppliedMove, why: Message, makes_room_for: tuple[str, ...] = ()) -> Move:
        """Convert an applied move to a `Move` of hetsched.contracts."""
        frees: Counter[str] = Counter()
        for placed in moved.unit:
            frees.update({name: amount for name, amount in placed.pod.shape.requests if name != PODS})
        return Move(
            pods=tuple(self._pod(*pair) for pair in zip(moved.unit, moved.outcomes, strict=True)),
            why=why,
            balance=Balance(round(moved.before, _DIGITS), round(moved.after, _DIGITS)),
            frees={name: format_amount(name, amount) for name, amount in sorted(frees.items()) if amount},
            budgets=tuple(BudgetLeft(name, remaining) for name, remaining in sorted(moved.budgets.items())),
            makes_room_for=makes_room_for,
        )

    def _pod(self, placed: PlacedPod, outcome: Outcome) -> MovedPod:
        pod = placed.pod
        return MovedPod(
            pod=pod.key,
            uid=pod.uid,
            from_=self.state.columns.names[placed.row],
            to=outcome.node or "",
            zones=tuple(ZonePlacement.of(zone) for zone in outcome.allocation.zones),
            gpus=outcome.allocation.gpus,
            priority=pod.priority,
            controller=pod.controller,
            comes_back=self.returns or bool(pod.controller),
            exclusive_cpus=_is_pinned(placed),
            started_at=pod.created_at,
            age_seconds=self._age(placed),
        )

    def _age(self, placed: PlacedPod) -> int | None:
        began = _parse_time(placed.pod.created_at)
        if began is None or self._now is None:
            return None
        return max(round((self._now - began).total_seconds()), 0)

    def price(self, moves: Sequence[AppliedMove]) -> tuple[int, int, int, int, float]:
        """Return the sort key of plans with the same number of moves, the cheapest first.

        The key compares, in this order, the number of pods that are not recreated, pods with exclusive CPUs, restarts,
        seconds of lost run time, and the resulting balance.
        """
        pods = [placed for moved in moves for placed in moved.unit]
        alone = sum(not (self.returns or placed.pod.controller) for placed in pods)
        pinned = sum(map(_is_pinned, pods))
        lost = sum(self._age(placed) or 0 for placed in pods)
        return (alone, pinned, len(pods), lost, -(moves[-1].after if moves else self.balance))


def cost_of(moves: Sequence[Move]) -> Cost:
    """Sum up the cost of moves."""
    pods = [pod for move in moves for pod in move.pods]
    return Cost(
        restarts=len(pods),
        not_coming_back=sum(not pod.comes_back for pod in pods),
        exclusive=sum(pod.exclusive_cpus for pod in pods),
        lost_seconds=sum(pod.age_seconds or 0 for pod in pods),
    )


def _is_pinned(placed: PlacedPod) -> bool:
    return any(zone.cpus for zone in placed.allocation.zones) or any(zone.cpus for zone in placed.allocation.predicted)


def _parse_time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
