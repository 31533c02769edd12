"""What the compiled loop knows of a policy and of every shape, laid out as arrays.

Rule: a shape is known when each plugin of the policy is one of
    STATIC              its answers are kept by its static key, and become part of the shape's base totals
    a term of the loop  `formulas.TERMS`, with parameters that the formula there covers
    resource-fit, gpu-fit
    between pods        pod-affinity, topology-spread, host-ports, for shapes without such rules
    quota               for pods whose namespace has none
    anything else       that sits the shape out (SKIP), or says which pods concern it (those are left to the cycle)
and nothing is normalised. Every other shape is left to the cycle.
Invariants: arrays only grow; a position once given means the same shape until the epoch changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetsched.contracts.units import GPU_RESOURCES

from .cards import CardDemand
from .columns import UNKNOWN, Bools, Floats, Ints
from .formulas import TERMS, card_worth
from .kernel import BLOCK, Kept, Kinds, Shapes, Terms
from .points import Scope
from .policy import ActivePlugin, Policy
from .request import CompiledShape, Request
from .state import ClusterState
from .status import ALONE, SKIP, Alone, Refusal, Skip
from .terms import GIVEN, NOWHERE, At, Cards

# They have no say about a shape without rules between pods, or a pod whose namespace has no quota.
BETWEEN_PODS = {"pod-affinity", "topology-spread", "host-ports"}
_BY_POD = BETWEEN_PODS | {"quota"}
_MOST_KEPT = 1024
_MOST_CARDS = 62
_MOST_BASES_BYTES = 2**28


class Plan(NamedTuple):
    """What the caller needs of a known shape: its weights' sum and an id of its ISA demand."""

    compiled: CompiledShape
    request: Request
    weight_sum: float


class _StaticPart(NamedTuple):
    """What the STATIC plugins say about all shapes with the same static keys; None: the loop cannot use it."""

    mask: Bools
    scores: dict[str, Floats]
    skipped: frozenset[str]
    alone: str
    number: int


class Plans:
    """Shapes learnt under one policy on one epoch of a state."""

    def __init__(self, state: ClusterState, policy: Policy) -> None:
        self.state = state
        self.policy = policy
        self.epoch = state.epoch
        self.at = at_of(state)
        self.plans: list[Plan | None] = []
        self._nodes = len(state.reports)
        taking_part = [plugin for plugin in policy.plugins if not hasattr(plugin.instance, "concerns")]
        self._static = [plugin for plugin in taking_part if plugin.static and _decides(plugin)]
        self._static_gates = [plugin for plugin in policy.gates if plugin in self._static]
        self._keys = [getattr(plugin.instance, "static_key", _shape_of) for plugin in self._static]
        self._load_gates = [
            plugin
            for plugin in policy.gates
            if plugin in taking_part and not plugin.static and plugin.name not in _BY_POD | {"resource-fit", "gpu-fit"}
        ]
        names = {plugin.name: plugin for plugin in policy.gates}
        self._fits = "resource-fit" in names
        self._gpu_fit = names.get("gpu-fit")
        self._parts: dict[tuple[Any, ...], _StaticPart | None] = {}
        self._base_ids: dict[tuple[Any, ...], int] = {}
        self._kind_ids: dict[bytes, int] = {}
        self._kinds: list[tuple[Ints, Ints]] = []
        self._scores = [plugin for plugin in policy.scores if plugin in taking_part and plugin.name not in BETWEEN_PODS]
        self._terms = [plugin for plugin in self._scores if plugin.name in TERMS]
        self.terms = self._laid_out()
        self.kinds = Kinds(*(np.zeros(1, np.int64) for _ in range(4)))
        self.shapes = self._no_shapes()
        width = -(-self._nodes // BLOCK)
        self.kept = Kept(np.full((0, width * BLOCK), NOWHERE), np.full((0, width), NOWHERE), np.zeros(0, np.int64))
        self._kept = self._bases = 0
        self._most_bases = max(64, _MOST_BASES_BYTES // (8 * max(self._nodes, 1)))

    @property
    def full(self) -> bool:
        """Tell whether too many different bases are kept to learn more."""
        return self._bases >= self._most_bases

    def _laid_out(self) -> Terms:
        layout = self.state.columns.layout
        static, load = [0, 1], [self.at.requested, self.at.requested + 1]
        for plugin in self._terms:
            for field in TERMS[plugin.name].fields:
                rows, cuts = (static, layout.static) if field in layout.static else (load, layout.load)
                cut = cuts[field]
                rows.extend(range(cut.start, cut.stop) if isinstance(cut, slice) else (cut,))
        return Terms(
            np.array([plugin.weight for plugin in self._terms], np.float64),
            np.unique(np.array(static, np.int64)),
            np.unique(np.array(load, np.int64)),
            card_worth(self._terms, self.state),
        )

    # -- learning ------------------------------------------------------------------------------------------------

    def learn(self, fresh: Sequence[Request]) -> None:
        """Give new shapes their positions, in order; those that the loop cannot place have no plan."""
        first = len(self.plans)
        self._grow(first + len(fresh))
        shapes = self.shapes
        shapes.delta[first : first + len(fresh)] = [request.compiled.delta for request in fresh]
        touched = np.packbits(shapes.delta[first : first + len(fresh)] != 0, axis=1)
        for position, request in enumerate(fresh, start=first):
            compiled = request.compiled
            if self.full or not self._describe(position, request):
                self.plans.append(None)
                continue
            shapes.kind[position] = self._kind(touched[position - first].tobytes(), compiled)
            if compiled.expected_extra is not None:
                shapes.extra[position] = compiled.expected_extra
        self._lay_kinds()

    def _describe(self, position: int, request: Request) -> bool:
        shape, state, shapes = request.shape, self.state, self.shapes
        if request.compiled.has_rules or shape.spread or shape.numa is not None or self.at.cards > _MOST_CARDS:
            return False
        if request.compiled.kubelet_pins and any(setup.pins for setup in state.setups.values):
            return False  # booking it also books what the kubelet will take
        if state.links and shape.gpu is not None and shape.gpu.count > 1:
            return False  # which cards it gets depends on how they are linked
        part = self._part(request)
        if part is None:
            return False
        for plugin in self._load_gates:
            # A filter that looks at the load in a way of its own must have nothing to say about the shape.
            if not plugin.serves("pre-filter") or plugin.info.scope is Scope.CLUSTER:
                return False
            if plugin.instance.pre_filter(request, state) is not SKIP:
                return False
        cards = 0
        if (
            self._gpu_fit is not None
            and shape.gpu is not None
            and self._gpu_fit.instance.pre_filter(request, state) is not SKIP
        ):
            wanted: CardDemand = request.memo["gpu-fit"]
            cards = self._describe_cards(position, wanted)
        chosen: list[str] = []
        weight_sum, term = 0.0, -1
        for plugin in self._scores:
            name = plugin.name
            known = TERMS.get(name)
            term += known is not None
            if name in part.skipped:
                continue
            if plugin.static:
                chosen.append(name)
                if name == part.alone:
                    chosen, weight_sum = [name], 0.0
                    shapes.code[position] = UNKNOWN
            elif known is not None:
                given = known.given(plugin.instance, request, state, self._gpu_fit)
                if given is None:
                    return False
                if given is SKIP:
                    continue
                shapes.code[position, term], numbers = given
                shapes.given[position, term, : len(numbers)] = numbers
            elif not plugin.serves("pre-score") or plugin.info.scope is Scope.CLUSTER:
                return False
            elif plugin.instance.pre_score(request, state) is SKIP:
                continue
            else:
                return False
            weight_sum += plugin.weight
            if name == part.alone:
                break
        shapes.base[position] = self._base(part, tuple(chosen), cards)
        self.plans.append(Plan(request.compiled, request, weight_sum))
        return True

    def _describe_cards(self, position: int, wanted: CardDemand) -> int:
        cards, demand = self.shapes.cards, wanted.demand
        cards.number[position], cards.milli[position] = demand.count, demand.milli
        cards.memory[position], cards.cores[position] = demand.memory_mib, demand.cores
        cards.vendor[position] = wanted.vendor
        if wanted.models is not None:
            cards.choosy[position] = True
            cards.models[position] = wanted.models
        return demand.count

    def _part(self, request: Request) -> _StaticPart | None:
        key = tuple([static_key(request) for static_key in self._keys])
        try:
            return self._parts[key]
        except KeyError:
            part = self._parts[key] = self._ask_static(request)
            return part

    def _ask_static(self, request: Request) -> _StaticPart | None:
        """Ask the STATIC plugins once for all shapes with these keys."""
        state = self.state
        nodes = state.all_rows
        mask: Bools = np.ones(self._nodes, np.bool_)
        scores: dict[str, Floats] = {}
        skipped: list[str] = []
        for plugin in self._static_gates:
            answer = plugin.instance.pre_filter(request, state) if plugin.serves("pre-filter") else None
            if isinstance(answer, Refusal):
                return None
            if answer is SKIP:
                continue
            if answer is not None:
                narrowed: Bools = np.zeros(self._nodes, np.bool_)
                narrowed[answer] = True
                mask &= narrowed
            if plugin.serves("filter"):
                mask &= plugin.instance.filter(request, nodes)
        for plugin in self._scores:
            if not plugin.static:
                continue
            verdict: None | Skip | Alone = None
            if plugin.serves("pre-score"):
                verdict = plugin.instance.pre_score(request, state)
            if verdict is SKIP:
                skipped.append(plugin.name)
                continue
            if plugin.serves("normalize-score"):
                return None
            scores[plugin.name] = plugin.instance.score(request, nodes)
            if verdict is ALONE:
                return _StaticPart(mask, scores, frozenset(skipped), plugin.name, len(self._parts))
        return _StaticPart(mask, scores, frozenset(skipped), "", len(self._parts))

    def _base(self, part: _StaticPart, chosen: tuple[str, ...], cards: int) -> int:
        """Return the id of the static totals; nodes that have too few cards at all are out beforehand."""
        key = (part.number, chosen, cards)
        found = self._base_ids.get(key)
        if found is None:
            total: Floats = np.zeros(self._nodes)
            for plugin in self._scores:
                if plugin.name in chosen:
                    total += plugin.weight * part.scores[plugin.name]
            mask = part.mask
            if cards:
                mask = mask & (self.state.all_rows.static("cards_healthy") >= cards)
            found = self._base_ids[key] = self._bases
            self._bases += 1
            if found >= len(self.shapes.bases):
                bases, candidates = _grown(self.shapes.bases, found + 1), _grown(self.shapes.candidates, found + 1)
                self.shapes = self.shapes._replace(bases=bases, candidates=candidates)
            self.shapes.candidates[found] = np.count_nonzero(mask)
            self.shapes.bases[found] = np.where(mask, total, NOWHERE)
        return found

    def _kind(self, touched: bytes, compiled: CompiledShape) -> int:
        found = self._kind_ids.get(touched)
        if found is None:
            found = self._kind_ids[touched] = len(self._kinds)
            needs = compiled.needs_rows
            if not self._fits:
                needs = needs[:0]
            elif self._gpu_fit is not None:
                left = {self.state.resources.index[name] for name in GPU_RESOURCES}
                needs = np.array([row for row in needs.tolist() if row not in left], np.intp)
            self._kinds.append((needs.astype(np.int64), np.flatnonzero(compiled.delta)))
        return found

    def _lay_kinds(self) -> None:
        if len(self.kinds.needs_start) == len(self._kinds) + 1:
            return
        columns: list[Ints] = []
        for part in (0, 1):
            rows = [kind[part] for kind in self._kinds]
            columns += [np.cumsum([0, *map(len, rows)]), np.concatenate(rows)]
        self.kinds = Kinds(*(column.astype(np.int64) for column in columns))

    # -- kept totals ---------------------------------------------------------------------------------------------

    def keep(self, position: int) -> None:
        """Keep the totals of a shape that comes again, while there is room."""
        if self.shapes.slot[position] != UNKNOWN or self._kept == _MOST_KEPT:
            return
        if self._kept == len(self.kept.seen):
            wider = Kept(*(_grown(array, self._kept + 1) for array in self.kept))
            wider.totals[self._kept :], wider.greatest[self._kept :], wider.seen[self._kept :] = (
                NOWHERE,
                NOWHERE,
                UNKNOWN,
            )
            self.kept = wider
        self.shapes.slot[position] = self._kept
        self._kept += 1

    # -- room ----------------------------------------------------------------------------------------------------

    def _no_shapes(self) -> Shapes:
        load_rows, terms = self.state.columns.layout.load_rows, len(self._terms)
        number, models = np.zeros(0, np.int64), np.zeros((0, len(self.state.models)), np.bool_)
        return Shapes(
            kind=np.zeros(0, np.int64),
            delta=np.zeros((0, load_rows), np.int64),
            extra=np.zeros((0, 4), np.int64),
            base=np.zeros(0, np.int64),
            bases=np.zeros((0, self._nodes)),
            candidates=np.zeros(0, np.int64),
            code=np.zeros((0, terms), np.int64),
            given=np.zeros((0, terms, GIVEN)),
            slot=np.zeros(0, np.int64),
            cards=Cards(number, number, number, number, number, models[:, 0], models),
        )

    def _grow(self, count: int) -> None:
        """Make room for `count` shapes."""
        old = self.shapes
        if count <= len(old.kind):
            return
        fields: dict[str, Any] = {
            name: _grown(getattr(old, name), count) for name in ("kind", "delta", "extra", "base")
        }
        fields |= {name: _grown(getattr(old, name), count) for name in ("code", "given", "slot")}
        for name in ("kind", "slot", "code"):
            fields[name][len(old.kind) :] = UNKNOWN
        cards = Cards(*(_grown(array, count) for array in old.cards))
        cards.models[len(old.kind) :] = True
        self.shapes = Shapes(**fields, bases=old.bases, candidates=old.candidates, cards=cards)


def at_of(state: ClusterState) -> At:
    """Return where the fields lie in the state's blocks."""
    layout = state.columns.layout

    def first(name: str) -> int:
        cut = layout.static[name] if name in layout.static else layout.load[name]
        return int(cut.start) if isinstance(cut, slice) else cut

    return At(**{name: first(name) for name in At._fields if name != "cards"}, cards=layout.cards)


def _decides(plugin: ActivePlugin) -> bool:
    return plugin.serves("filter") or plugin.serves("pre-filter") or (plugin.serves("score") and plugin.weight > 0)


def _shape_of(request: Request) -> Any:
    return request.shape


def _grown(array: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the array with room for at least `count` rows; half as many again are added, so that growing is rare."""
    if count <= len(array):
        return array
    wider = np.zeros((max(count, len(array) * 3 // 2, 16), *array.shape[1:]), array.dtype)
    wider[: len(array)] = array
    return wider
