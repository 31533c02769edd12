"""The compiled loop's data of a policy and of every shape, laid out as arrays.

A shape is covered if no score is normalised and each plugin of the policy is of one of these kinds:
    STATIC       its results are cached by its static key, and become part of the shape's base totals
    compiled     it declares a `compiled_term` or `compiled_filter` that covers its parameters and the shape
    selective    it declares which shapes or pods it handles (`handles`, `handled_pods`, `concerns`); the cycle
                 schedules these shapes and pods
    skipping     it skips the shape (SKIP)
Every other shape is left to the cycle. A shape with inter-pod rules, claims, devices or zones is also left to the
cycle, because placing it changes more than the loop's columns. Shapes share equal parts: a *kind* is a set of
resources, a *base* the results of STATIC plugins, a *variant* the formulas that run and their numbers.
Invariants: a position denotes the same shape until the epoch changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetsched.contracts.objects.workload import GpuDemand
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.columns import UNKNOWN, USAGE_RESOURCES, Floats, Ints
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import MOST_NUMBERS, BuiltinFilter, CompiledTerm, Formula
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.policy import ActivePlugin, Policy
from hetsched.engine.framework.request import CompiledShape, Request
from hetsched.engine.framework.scoring import Evaluator
from hetsched.engine.framework.status import SKIP

from .loop_arrays import BLOCK, SPARSE, NodeValues, RequestKinds, Shapes, ShapeTotals, Terms, chunks, new_scratch
from .static_parts import StaticPart, StaticParts
from .terms import NOWHERE, FieldRows, GpuDemands

_MOST_KEPT = 1024
_MOST_CARDS = 62
_MOST_BASES_BYTES = 2**28


class ScoreSource(NamedTuple):
    """Origin of a plugin's score of a shape: the scores of all nodes, (N,), or the position of a term in the loop."""

    plugin: str
    weight: float
    of_nodes: Floats | None
    term: int


class _Term(NamedTuple):
    """The formulas of a plugin, with the plugin's weight in the policy; a filter has weight 0."""

    plugin: ActivePlugin
    declared: CompiledTerm
    weight: float


class Plans:
    """Compiled shapes for one policy and one epoch of a state; `codes` maps each formula to its number in the loop."""

    def __init__(self, state: ClusterState, policy: Policy, evaluator: Evaluator, codes: Mapping[Formula, int]) -> None:
        self.state = state
        self._codes = codes
        self.epoch = state.epoch
        self.at = FieldRows(
            **{name: state.columns.layout.start(name) for name in FieldRows._fields if name != "cards"},
            cards=state.columns.layout.cards,
        )
        self.requests: list[Request] = []
        self.weight_sums: list[float] = []
        """Sums of the score weights, by variant."""
        self._nodes = len(state.reports)
        self._handles = [plugin.handles for plugin in policy.plugins if plugin.handles is not None]
        taking_part = [plugin for plugin in policy.plugins if not plugin.selective]
        gates = [plugin for plugin in policy.gates if plugin in taking_part]
        self._scores = [plugin for plugin in policy.scores if plugin in taking_part]
        self._static_parts = StaticParts(state, evaluator, gates, self._scores)
        self._fits = any(plugin.info.compiled_filter is BuiltinFilter.RESOURCES for plugin in gates)
        self._card_filter = policy.card_filter
        self._terms = [
            *(_Term(p, p.info.compiled_filter, 0.0) for p in gates if isinstance(p.info.compiled_filter, CompiledTerm)),
            *(_Term(p, p.info.compiled_term, p.weight) for p in self._scores if p.info.compiled_term is not None),
        ]
        self._term_keys = [term.declared.key for term in self._terms]
        worth = [term for term in self._terms if term.declared.card_worth is not None]
        # Filters and scores that read the load but have no formula; their PreFilter or PreScore must skip the shape.
        load_gates = [p for p in gates if not p.static and p.info.compiled_filter is None]
        load_scores = [p for p in self._scores if not p.static and p.info.compiled_term is None]
        self._possible = len(worth) <= 1 and all(
            plugin.info.scope is not Scope.CLUSTER and plugin.serves(point)
            for plugins, point in ((load_gates, "pre-filter"), (load_scores, "pre-score"))
            for plugin in plugins
        )
        self._uncompiled: list[Callable[[Request, ClusterState], Any]] = []
        if self._possible:
            self._uncompiled += [plugin.instance.pre_filter for plugin in load_gates]
            self._uncompiled += [plugin.instance.pre_score for plugin in load_scores]
        self._base_ids: dict[tuple[int, int, str], int] = {}
        self._base_parts: list[StaticPart] = []
        self._sources: dict[tuple[int, int], list[ScoreSource]] = {}
        self._kind_ids: dict[bytes, int] = {}
        self._kinds: list[tuple[Ints, Ints]] = []
        self._variant_ids: dict[tuple[Hashable, ...], int] = {}
        self._card_ids: dict[GpuDemand | None, int] = {}
        self.terms = self._laid_out()
        self.kinds = RequestKinds(*(np.zeros(1, np.int64) for _ in range(4)))
        self.shapes = self._no_shapes()
        self._card_id(None)
        width = -(-self._nodes // BLOCK)
        seen = np.full(_MOST_KEPT, UNKNOWN, np.int64)
        self.kept = ShapeTotals(np.empty((_MOST_KEPT, width * BLOCK)), np.empty((_MOST_KEPT, width)), seen)
        self.values = NodeValues(
            np.zeros(self._nodes, np.int64),
            np.full((len(state.resources), chunks(self._nodes) + 1), np.iinfo(np.int64).max),
            np.full(1, UNKNOWN, np.int64),
        )
        self.scratch = new_scratch(len(state.columns.static), len(state.columns.load), self._nodes, len(self._terms))
        self._kept = self._bases = 0

    @property
    def full(self) -> bool:
        """Return whether the maximum number of bases is cached."""
        return self._bases == len(self.shapes.bases)

    def _laid_out(self) -> Terms:
        layout = self.state.columns.layout
        static, load = [0, 1], [self.at.requested, self.at.requested + 1]
        fields = {field for term in self._terms for field in term.declared.fields}
        for field in fields - {"card_milli_free", "cards_milli_free"}:
            if field == "allocatable":
                index = self.state.resources.index
                static += [self.at.allocatable + index[name] for name in USAGE_RESOURCES if name in index]
            else:
                rows, cuts = (static, layout.static) if field in layout.static else (load, layout.load)
                cut = cuts[field]
                rows.extend(range(cut.start, cut.stop) if isinstance(cut, slice) else (cut,))
        return Terms(
            np.array([term.weight for term in self._terms], np.float64),
            np.unique(np.array(static, np.int64)),
            np.unique(np.array(load, np.int64)),
            "cards_milli_free" in fields,
            "card_milli_free" in fields,
            self._card_worth(),
        )

    def _card_worth(self) -> Floats:
        """Return the value of each GPU to the plugin that scores single GPUs, (G, N), or (0, 0) if there is none."""
        for plugin, declared, _ in self._terms:
            if declared.card_worth is not None:
                worth: Floats = np.ascontiguousarray(declared.card_worth(plugin.instance, self.state))
                return worth
        return np.zeros((0, 0))

    # -- compiling shapes ----------------------------------------------------------------------------------------

    def learn(self, fresh: Sequence[Request]) -> None:
        """Assign positions to new shapes, in order; shapes that the loop cannot place get kind -1."""
        first, last = len(self.requests), len(self.requests) + len(fresh)
        self.requests += fresh
        self._grow(last)
        shapes = self.shapes
        shapes.delta[first:last] = [request.compiled.delta for request in fresh]
        touched = np.packbits(shapes.delta[first:last] != 0, axis=1).tobytes()
        width = len(touched) // len(fresh)
        described: list[tuple[int, int, int, int]] = []
        for number, request in enumerate(fresh):
            kind = touched[number * width : (number + 1) * width]
            described.append(self._describe(request, kind))
            if request.compiled.expected_extra is not None:
                shapes.extra[first + number] = request.compiled.expected_extra
        ids = shapes.kind, shapes.base, shapes.variant, shapes.card
        for array, column in zip(ids, zip(*described, strict=True), strict=True):
            array[first:last] = column
        self._lay_kinds()

    def _describe(self, request: Request, touched: bytes) -> tuple[int, int, int, int]:
        """Return the ids of a shape's kind, base, variant and GPU demand; kind -1 if the loop cannot place it."""
        shape, state, compiled = request.shape, self.state, request.compiled
        needs_full_cycle = (UNKNOWN, 0, 0, 0)
        if (
            compiled.has_rules
            or shape.spread
            or shape.claims
            or state.devices.needed(request.pod)
            or shape.numa is not None
            or not self._possible
            or self.full
        ):
            return needs_full_cycle
        for handles in self._handles:  # a loop takes half the time of `any` with a generator
            if handles(shape):
                return needs_full_cycle
        if compiled.kubelet_assigns and any(
            (compiled.kubelet_pins and setup.pins)
            or (compiled.zoned_devices and setup.policy != "none")
            or (compiled.static_memory and setup.memory)
            for setup in state.setups.values
        ):
            return needs_full_cycle  # the allocation would include the predicted assignment of the kubelet
        if shape.gpu is not None and self._needs_choice(shape.gpu):
            return needs_full_cycle
        part = self._static_parts.of(request)
        if part is None:
            return needs_full_cycle
        for prepare in self._uncompiled:
            if prepare(request, state) is not SKIP:
                return needs_full_cycle
        variant = self._variant(request, part)
        if variant == UNKNOWN:
            return needs_full_cycle
        card = 0
        if shape.gpu is not None and self._card_filter is not None and shape.gpu.count > 0:
            card = self._card_id(shape.gpu)
        return self._kind(touched, compiled), self._base(part, card), variant, card

    def _needs_choice(self, gpu: GpuDemand) -> bool:
        """Return whether the choice of GPUs depends on the links between them."""
        return self.at.cards > _MOST_CARDS or (bool(self.state.links) and gpu.count > 1)

    def _base(self, part: StaticPart, card: int) -> int:
        """Return the id of the static totals of `part`; nodes with too few healthy GPUs for `card` have -inf."""
        cards = int(self.shapes.cards.number[card]) if card else 0
        key = (part.number, cards, part.alone)
        found = self._base_ids.get(key)
        if found is None:
            mask = part.mask
            if cards:
                mask = mask & (self.state.all_rows.static("cards_healthy") >= cards)
            rows = np.flatnonzero(mask)
            total: Floats = np.zeros(len(rows))
            for plugin in self._scores:
                if plugin.name in part.scores:
                    total += plugin.weight * part.scores[plugin.name][rows]
            found = self._base_ids[key] = self._bases
            self._base_parts.append(part)
            self._bases += 1
            self.shapes.candidates[found] = len(rows)
            if len(rows) * SPARSE < self._nodes:
                self.shapes.candidate_rows[found, : len(rows)] = rows
            self.shapes.bases[found] = NOWHERE
            self.shapes.bases[found, rows] = total
        return found

    def _variant(self, request: Request, part: StaticPart) -> int:
        """Return the id of a shape's variant (formulas and numbers), or -1 if a formula does not cover the shape."""
        shape = request.shape
        key: tuple[Hashable, ...] = (part.alone, *part.scores, *[term_key(shape) for term_key in self._term_keys])
        found = self._variant_ids.get(key)
        if found is None:
            found = self._variant_ids[key] = self._new_variant(request, part)
        return found

    def _new_variant(self, request: Request, part: StaticPart) -> int:
        codes = np.full(len(self._terms), UNKNOWN, np.int64)
        numbers = np.zeros((len(self._terms), MOST_NUMBERS))
        scoring = set(part.scores)
        for position, (plugin, declared, weight) in enumerate(self._terms):
            if part.alone and plugin.name != part.alone and weight:
                continue
            given = declared.inputs(plugin.instance, request, self.state, self._card_filter)
            if given is None:
                return UNKNOWN
            if given is not SKIP:
                codes[position], numbers[position, : len(given.numbers)] = self._codes[given.formula], given.numbers
                scoring |= {plugin.name} if weight else set()
        weight_sum = 0.0
        for plugin in self._scores:
            if plugin.name in scoring:
                weight_sum += plugin.weight
        found = len(self.weight_sums)
        self.weight_sums.append(weight_sum)
        code, given_numbers = _grown(self.shapes.code, found + 1), _grown(self.shapes.given, found + 1)
        code[found], given_numbers[found] = codes, numbers
        self.shapes = self.shapes._replace(code=code, given=given_numbers)
        return found

    def score_sources(self, position: int) -> list[ScoreSource]:
        """Return the origins of all scores of a shape, in the order of the policy."""
        key = int(self.shapes.base[position]), int(self.shapes.variant[position])
        found = self._sources.get(key)
        if found is None:
            scores, codes = self._base_parts[key[0]].scores, self.shapes.code[key[1]]
            terms = {
                term.plugin.name: number
                for number, term in enumerate(self._terms)
                if term.weight and codes[number] != UNKNOWN
            }
            found = self._sources[key] = [
                ScoreSource(plugin.name, plugin.weight, scores.get(plugin.name), terms.get(plugin.name, UNKNOWN))
                for plugin in self._scores
                if plugin.name in scores or plugin.name in terms
            ]
        return found

    def _card_id(self, gpu: GpuDemand | None) -> int:
        """Return the id of a GPU demand, 0 for none."""
        found = self._card_ids.get(gpu)
        if found is None:
            found = self._card_ids[gpu] = len(self._card_ids)
            cards = GpuDemands(*(_grown(array, found + 1) for array in self.shapes.cards))
            self.shapes = self.shapes._replace(cards=cards)
            if gpu is not None and self._card_filter is not None:
                wanted = self._card_filter.card_demand(gpu, self.state)
                demand = wanted.demand
                cards.number[found], cards.milli[found] = demand.count, demand.milli
                cards.memory[found], cards.cores[found] = demand.memory_mib, demand.cores
                cards.vendor[found], cards.choosy[found] = wanted.vendor, wanted.models is not None
                cards.models[found] = True if wanted.models is None else wanted.models
        return found

    def _kind(self, touched: bytes, compiled: CompiledShape) -> int:
        found = self._kind_ids.get(touched)
        if found is None:
            found = self._kind_ids[touched] = len(self._kinds)
            names = GPU_RESOURCES if self._card_filter is not None else ()
            skipped = {self.state.resources.index[name] for name in names}
            needs = [row for row in compiled.needs_rows.tolist() if self._fits and row not in skipped]
            self._kinds.append((np.array(needs, np.int64), np.flatnonzero(compiled.delta)))
        return found

    def _lay_kinds(self) -> None:
        if len(self.kinds.needs_start) == len(self._kinds) + 1:
            return
        columns: list[Ints] = []
        for part in (0, 1):
            rows = [kind[part] for kind in self._kinds]
            columns += [np.cumsum([0, *map(len, rows)]), np.concatenate(rows)]
        self.kinds = RequestKinds(*(column.astype(np.int64) for column in columns))

    # -- kept totals ---------------------------------------------------------------------------------------------

    def keep(self, position: int) -> None:
        """Cache the totals of a recurring shape if a slot is free."""
        if self.shapes.slot[position] != UNKNOWN or self._kept == _MOST_KEPT:
            return
        self.shapes.slot[position] = self._kept
        self._kept += 1

    # -- capacity ------------------------------------------------------------------------------------------------

    def _no_shapes(self) -> Shapes:
        none, terms = np.zeros(0, np.int64), len(self._terms)
        most_bases = max(64, _MOST_BASES_BYTES // (8 * max(self._nodes, 1)))
        accepted = np.zeros((0, len(self.state.models)), np.bool_)
        return Shapes(
            kind=none,
            base=none,
            variant=none,
            card=none,
            slot=none,
            delta=np.zeros((0, self.state.columns.layout.load_rows), np.int64),
            extra=np.zeros((0, 4), np.int64),
            # Allocate all rows at once: rows that are never written use only address space. So do cached totals.
            bases=np.empty((most_bases, self._nodes)),
            candidates=np.zeros(most_bases, np.int64),
            candidate_rows=np.empty((most_bases, self._nodes), np.int64),
            code=np.zeros((0, terms), np.int64),
            given=np.zeros((0, terms, MOST_NUMBERS)),
            cards=GpuDemands(none, none, none, none, none, np.zeros(0, np.bool_), accepted),
        )

    def _grow(self, count: int) -> None:
        """Grow the arrays to `count` shapes."""
        before = len(self.shapes.kind)
        if count > before:
            names = ("kind", "base", "variant", "card", "slot", "delta", "extra")
            wider: dict[str, Any] = {name: _grown(getattr(self.shapes, name), count) for name in names}
            self.shapes = self.shapes._replace(**wider)
            self.shapes.kind[before:] = self.shapes.slot[before:] = UNKNOWN


def _grown(array: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the array with at least `count` rows; it grows by at least half its length, so that growing is rare."""
    if count <= len(array):
        return array
    wider = np.zeros((max(count, len(array) * 3 // 2, 16), *array.shape[1:]), array.dtype)
    wider[: len(array)] = array
    return wider
