"""Schedule many pods: through the compiled loop where it knows every formula, else through the cycle.

Problem: one policy, one order, two paths; nobody may be able to tell from the result which path ran.
Rule: pods are taken in the order given. A run of neighbouring pods whose shapes the kernel knows is placed by one call;
any other pod ends the run and goes through `Scheduler.schedule`. The kernel knows a shape when its LOAD plugins are
those of `kernel.py`, its cluster-scoped plugins sit it out, nothing is normalised, and the policy has no Permit or
PostFilter step. Static answers come from the same `Evaluator`.
Invariants: outcomes, bookings and the ledger equal those of scheduling the pods one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from hetsched.contracts.allocation import EMPTY, Allocation, CardGrant
from hetsched.contracts.workload import PodSpec

from . import kernel
from .columns import UNKNOWN, Floats, Ints
from .cycle import Outcome, Scheduler
from .policy import ActivePlugin
from .request import CompiledShape, Request
from .scoring import INFEASIBLE, Evaluation
from .state import Booking, grant_card
from .status import SKIP, Refusal

_LOAD_FILTERS = {"resource-fit", "gpu-fit"}
_TERMS = {
    "least-allocated": kernel.LEAST_ALLOCATED,
    "balanced-allocation": kernel.BALANCED_ALLOCATION,
    "tightest-fit": kernel.TIGHTEST_FIT,
}
# The kernel has the formulas with these values of their parameters alone.
_FORMS: dict[str, dict[str, str]] = {
    "least-allocated": {"use": "requested"},
    "balanced-allocation": {"use": "requested", "form": "std"},
    "tightest-fit": {},
}
# These sit out while neither the shape nor any booked pod states a rule between pods.
_NEIGHBOURLY = {"pod-affinity", "topology-spread", "host-ports"}
# numa-fit chooses nothing for a shape that it lets sit out, and a shape that it filters is left to the cycle.
_RESERVES = {"gpu-fit", "isa-match", "numa-fit"}
_MOST_TREES = 1024
_MOST_SHAPES = 100_000
_MOST_CARDS = 62
_LOG_ROOM = 1_000_000
_UNSET = -1

K = TypeVar("K", np.bool_, np.float64)


class BatchScheduler:
    """Runs batches on one scheduler's state and policy; keeps what it learnt about shapes between batches."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        policy = scheduler.policy
        self._possible = (
            not policy.permits and not policy.post_filters and {plugin.name for plugin in policy.reserves} <= _RESERVES
        )
        self._epoch = _UNSET

    def schedule(self, pods: Sequence[PodSpec]) -> list[Outcome]:
        """Decide and book `pods` in the order given."""
        if not self._possible:
            return [self.scheduler.schedule(pod) for pod in pods]
        outcomes: list[Outcome] = []
        run: list[Request] = []
        repeated = Counter(id(pod.shape) for pod in pods)
        requests = self._compiled(pods)
        self._follow_epoch()
        for pod, request in zip(pods, requests, strict=True):
            if request is not None and self._known(request, repeated[id(pod.shape)] > 1):
                run.append(request)
                continue
            outcomes += self._place(run)
            run = []
            outcomes.append(self.scheduler.schedule(pod))
            if self._epoch != self.scheduler.state.epoch:
                self._follow_epoch()
        return outcomes + self._place(run)

    def _compiled(self, pods: Sequence[PodSpec]) -> list[Request | None]:
        state = self.scheduler.state
        epoch = state.epoch
        requests = [None if pod.problems else state.compile(pod) for pod in pods]
        if state.epoch == epoch:
            return requests
        # A pod asked for a new resource and widened the columns: what was compiled before it no longer fits them.
        return [None if pod.problems else state.compile(pod) for pod in pods]

    # -- what is known about shapes ------------------------------------------------------------------------------

    def _follow_epoch(self) -> None:
        """Start anew when the inventory or the layout changed, or too many shapes were kept."""
        state = self.scheduler.state
        if self._epoch == state.epoch and len(self._plans) < _MOST_SHAPES:
            return
        self._epoch = state.epoch
        count = len(state.reports)
        self._leaves = 1 << max(count - 1, 0).bit_length()
        self._index: dict[int, int] = {}
        self._plans: list[_Plan | None] = []
        self._kept: list[CompiledShape] = []
        self._masks: _Distinct[np.bool_] = _Distinct(count, np.bool_)
        self._bases: _Distinct[np.float64] = _Distinct(count, np.float64)
        self._trees: Floats = np.full((0, 2 * self._leaves), INFEASIBLE)
        self._tree_of: list[int] = []
        self._trees_used = 0
        self._seen: Ints = np.full(0, _UNSET, np.int64)
        self._log: Ints = np.zeros(0, np.int64)
        self._logged = 0
        self._synced = len(state.log)
        self._arrays: kernel.Shapes | None = None
        self._isa_parts: dict[tuple[int, int], Allocation | None] = {}
        self._grants: dict[tuple[int, int, int, int], CardGrant] = {}
        self._at = _at(self.scheduler)
        self._terms = _terms(self.scheduler)

    def _known(self, request: Request, again: bool) -> bool:
        """Say whether the kernel can place this request, learning its shape when it is new."""
        key = id(request.compiled)
        position = self._index.get(key)
        if position is None:
            position = self._index[key] = len(self._plans)
            self._plans.append(self._learn(request))
            self._kept.append(request.compiled)
            self._tree_of.append(_UNSET)
            self._arrays = None
        plan = self._plans[position]
        if plan is not None and again and self._tree_of[position] < 0 and self._trees_used < _MOST_TREES:
            self._tree_of[position] = self._trees_used
            self._trees_used += 1
            self._arrays = None
        rules = self.scheduler.state.neighbours
        return plan is not None and not (rules.repelling or rules.attracting or rules.preferring)

    def _learn(self, request: Request) -> _Plan | None:
        """Return what the kernel needs to know of a shape, None if it does not know all its formulas."""
        compiled, shape, state = request.compiled, request.shape, self.scheduler.state
        if compiled.has_rules or shape.spread or shape.numa is not None or self._at.cards > _MOST_CARDS:
            return None
        if compiled.kubelet_pins and any(setup.pins for setup in state.setups.values):
            return None  # booking it also books what the kubelet will take
        evaluation = self.scheduler.evaluator.prepare(request)
        if evaluation.normalized or evaluation.row_refusal is not None:
            return None
        if not {plugin.name for plugin in evaluation.load_filters} <= _LOAD_FILTERS:
            return None
        if not all(map(_has_formula, evaluation.load_scores)):
            return None
        for plugin in (*evaluation.cluster_filters, *evaluation.cluster_scores):
            if plugin.name not in _NEIGHBOURLY:
                return None
            for point, method in (("pre-filter", "pre_filter"), ("pre-score", "pre_score")):
                if plugin.serves(point) and getattr(plugin.instance, method)(request, state) is not SKIP:
                    return None
        return _Plan(request, evaluation, self._masks, self._bases)

    # -- placing a run -------------------------------------------------------------------------------------------

    def _place(self, run: list[Request]) -> list[Outcome]:
        if not run:
            return []
        state, policy = self.scheduler.state, self.scheduler.policy
        shapes = self._shapes()
        self._sync_log(len(run))
        pods: Ints = np.array([self._index[id(request.compiled)] for request in run], np.int64)
        ties = policy.spec.ties
        draws = _draws(ties.seed, run) if ties.by == "random" else np.zeros(0, np.uint64)
        picked, cards = np.empty(len(run), np.int64), np.zeros(len(run), np.int64)
        totals = np.zeros(len(run))
        self._logged = kernel.place(
            pods, draws, state.columns.static, state.columns.load, self._at, self._terms, shapes, self._trees,
            np.array(self._tree_of, np.int64), self._seen, self._log, self._logged, picked, totals, cards,
        )  # fmt: skip
        outcomes: list[Outcome] = []
        booked: list[Booking] = []
        for request, position, row, total, bits in zip(
            run, pods.tolist(), picked.tolist(), totals.tolist(), cards.tolist(), strict=True
        ):
            outcome = Outcome(request.pod)
            outcome.request = request
            outcomes.append(outcome)
            if row < 0:
                continue
            plan = self._plans[position]
            assert plan is not None
            request.memo = plan.evaluation.memo
            outcome.row, outcome.node = row, state.columns.names[row]
            outcome.allocation = self._allocation(request, position, row, bits)
            outcome.score = total / plan.evaluation.weight_sum if plan.evaluation.weight_sum else 0.0
            booked.append(Booking(request.pod, request.compiled, row, outcome.allocation))
        state.adopt(booked)
        self._synced = len(state.log)
        return outcomes

    def _sync_log(self, room: int) -> None:
        """Bring the kernel's log up to date with what others changed, and make room for one row per pod."""
        missed = self.scheduler.state.log[self._synced :]
        if self._logged + len(missed) > _LOG_ROOM:
            self._logged = 0
            self._seen[:] = _UNSET
            missed = []
        needed = self._logged + len(missed) + room
        if len(self._log) < needed:
            self._log = np.concatenate([self._log, np.zeros(needed, np.int64)])
        self._log[self._logged : self._logged + len(missed)] = missed
        self._logged += len(missed)

    def _shapes(self) -> kernel.Shapes:
        if self._arrays is None:
            fresh = len(self._plans) - len(self._seen)
            self._seen = np.concatenate([self._seen, np.full(fresh, _UNSET, np.int64)])
            missing = self._trees_used - len(self._trees)
            if missing:
                more = np.full((missing, 2 * self._leaves), INFEASIBLE)
                self._trees = np.concatenate([self._trees, more])
            self._arrays = _arrays(self._plans, len(self.scheduler.state.models), self._terms, self._masks, self._bases)
        return self._arrays

    def _allocation(self, request: Request, position: int, row: int, bits: int) -> Allocation:
        state = self.scheduler.state
        offer = int(state.all_rows.static("isa_offer")[row])
        if (position, offer) not in self._isa_parts:
            part: Allocation | None = None
            for plugin in self.scheduler.policy.reserves:
                if plugin.name == "isa-match":
                    reserved = plugin.instance.reserve(request, row, state)
                    part = None if isinstance(reserved, Refusal) else reserved
            self._isa_parts[position, offer] = part
        part = self._isa_parts[position, offer]
        if not bits:
            return part or EMPTY
        plan = self._plans[position]
        assert plan is not None
        grants = tuple(self._grant(row, card, plan) for card in range(self._at.cards) if bits >> card & 1)
        return msgspec.structs.replace(part, gpus=grants) if part else Allocation(gpus=grants)

    def _grant(self, row: int, index: int, plan: _Plan) -> CardGrant:
        key = (row, index, plan.card_milli, plan.card_memory)
        grant = self._grants.get(key)
        if grant is None:
            card = next(card for card in self.scheduler.state.cards[row] if card.index == index)
            grant = self._grants[key] = grant_card(card, plan.card_milli, plan.card_memory)
        return grant


class _Distinct(Generic[K]):
    """Arrays (N,) over all nodes, each kept once."""

    def __init__(self, count: int, dtype: type[K]) -> None:
        self._ids: dict[bytes, int] = {}
        self._rows: list[NDArray[K]] = []
        self._count = count
        self._dtype: type[K] = dtype

    def id(self, row: NDArray[K]) -> int:
        key = row.tobytes()
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._rows)
            self._rows.append(row.copy())
        return found

    def block(self) -> NDArray[K]:
        """Return (B, N) all distinct arrays."""
        return np.array(self._rows, self._dtype).reshape(len(self._rows), self._count)


class _Plan:
    """One shape in the kernel's words."""

    __slots__ = (
        "asked", "base", "card_cores", "card_count", "card_memory", "card_milli", "card_models", "card_vendor",
        "compiled", "evaluation", "mask", "needs", "tight_asked", "tight_scale", "uses",
    )  # fmt: skip

    def __init__(
        self, request: Request, evaluation: Evaluation, masks: _Distinct[np.bool_], bases: _Distinct[np.float64]
    ) -> None:
        self.evaluation = evaluation
        self.compiled = request.compiled
        self.mask = masks.id(evaluation.static_mask)
        self.base = bases.id(evaluation.static_total)
        filters = {plugin.name for plugin in evaluation.load_filters}
        self.uses = {plugin.name for plugin in evaluation.load_scores}
        memo, shape = evaluation.memo, request.shape
        self.needs: list[tuple[int, int]] = []
        if "resource-fit" in filters:
            _, rows, needs = memo["resource-fit"]
            self.needs = list(zip(rows.tolist(), needs[:, 0].tolist(), strict=True))
        self.asked = (shape.request("cpu"), shape.request("memory"))
        wanted = memo["gpu-fit"] if "gpu-fit" in filters else None
        demand = wanted.demand if wanted is not None else None
        self.card_count = demand.count if demand else 0
        self.card_milli = demand.milli if demand else 0
        self.card_memory = demand.memory_mib if demand else 0
        self.card_cores = demand.cores if demand else 0
        self.card_vendor = wanted.vendor if wanted is not None else UNKNOWN
        self.card_models = wanted.models if wanted is not None else None
        self.tight_asked: Floats | None = None
        self.tight_scale: Floats | None = None
        if "tightest-fit" in self.uses:
            self.tight_asked, self.tight_scale, _ = memo["tightest-fit"]


def _has_formula(plugin: ActivePlugin) -> bool:
    """Say whether the kernel has a score's formula as its parameters ask for it."""
    params = plugin.instance.params
    return plugin.name in _TERMS and all(getattr(params, name) == form for name, form in _FORMS[plugin.name].items())


def _at(scheduler: Scheduler) -> kernel.At:
    layout = scheduler.state.columns.layout

    def first(name: str) -> int:
        cut = layout.static[name] if name in layout.static else layout.load[name]
        return int(cut.start) if isinstance(cut, slice) else cut

    starts = {name: first(name) for name in kernel.At._fields if name != "cards"}
    return kernel.At(**starts, cards=layout.cards)


def _terms(scheduler: Scheduler) -> kernel.Terms:
    scores = [plugin for plugin in scheduler.policy.scores if plugin.name in _TERMS]
    shares = next(
        ((p.instance.params.cpu, p.instance.params.memory) for p in scores if p.name == "least-allocated"), (1, 1)
    )
    codes = np.array([_TERMS[plugin.name] for plugin in scores], np.int64)
    return kernel.Terms(codes, np.array([plugin.weight for plugin in scores], np.float64), *shares)


def _draws(seed: int, run: list[Request]) -> np.ndarray:
    digests = (blake2b(f"{seed}/{request.pod.key}".encode(), digest_size=8).digest() for request in run)
    return np.array([int.from_bytes(digest) for digest in digests], np.uint64)


def _arrays(
    plans: list[_Plan | None],
    models: int,
    terms: kernel.Terms,
    masks: _Distinct[np.bool_],
    bases: _Distinct[np.float64],
) -> kernel.Shapes:
    """Lay the plans out as arrays; shapes that the kernel does not know keep a row of zeros."""
    known = [(row, plan) for row, plan in enumerate(plans) if plan is not None]
    count = len(plans)
    names = {code: name for name, code in _TERMS.items()}
    load_rows = len(known[0][1].compiled.delta)
    needs_start = np.zeros(count + 1, np.int64)
    needs = [need for plan in plans if plan is not None for need in plan.needs]
    for row, plan in enumerate(plans):
        needs_start[row + 1] = needs_start[row] + (len(plan.needs) if plan is not None else 0)
    shapes = kernel.Shapes(
        needs_start=needs_start,
        needs_row=np.array([row for row, _ in needs], np.int64),
        needs=np.array([amount for _, amount in needs], np.int64),
        delta=np.zeros((count, load_rows), np.int64),
        extra=np.zeros((count, 4), np.int64),
        nonzero=np.zeros((count, 2), np.int64),
        asked=np.zeros((count, 2), np.int64),
        card_count=np.zeros(count, np.int64),
        card_milli=np.zeros(count, np.int64),
        card_memory=np.zeros(count, np.int64),
        card_cores=np.zeros(count, np.int64),
        card_vendor=np.full(count, UNKNOWN, np.int64),
        models=np.ones((count, models), np.bool_),
        uses=np.zeros((count, len(terms.code)), np.bool_),
        tight_asked=np.zeros((count, 3)),
        tight_scale=np.zeros((count, 3)),
        mask=np.zeros(count, np.int64),
        masks=masks.block(),
        static_total=np.zeros(count, np.int64),
        static_totals=bases.block(),
    )
    for row, plan in known:
        shapes.delta[row] = plan.compiled.delta
        if plan.compiled.expected_extra is not None:
            shapes.extra[row] = plan.compiled.expected_extra
        shapes.nonzero[row], shapes.asked[row] = plan.compiled.nonzero, plan.asked
        shapes.card_count[row], shapes.card_milli[row] = plan.card_count, plan.card_milli
        shapes.card_memory[row], shapes.card_cores[row] = plan.card_memory, plan.card_cores
        shapes.card_vendor[row] = plan.card_vendor
        if plan.card_models is not None:
            shapes.models[row] = plan.card_models
        shapes.uses[row] = [names[code] in plan.uses for code in terms.code.tolist()]
        if plan.tight_scale is not None:
            shapes.tight_asked[row], shapes.tight_scale[row] = plan.tight_asked, plan.tight_scale
        shapes.mask[row], shapes.static_total[row] = plan.mask, plan.base
    return shapes
