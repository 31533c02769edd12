"""How much of a node's free GPU the workload cannot use, and how a placement changes that.

Problem: a card that is half free, or free on a node without CPU, counts as capacity and serves nobody.
Rule: F of a node = sum over the mix's shapes of popularity * milli out of their reach:
    all free milli of the node    where the shape does not fit there, or asks for no GPU
    else                          the milli of cards with less free than it asks of one card, or of another model
A placement's gain is F before - F after, over the cards it may take: a shared pod tries each, whole cards are the
lowest ones. `DemandMix` is a mix against one state: the typical shapes, their shares made to add up to 1.
Source: FGD (Weng et al., USENIX ATC 2023, section 4) and its simulator, whose F looks at CPU and cards alone.
Invariants: a row's figures depend on that row alone; the sum of F over the rows is `gpu_fragments` of `balance`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hetsched.contracts.cards import model_accepted
from hetsched.contracts.units import CPU, GPU_RESOURCES
from hetsched.contracts.workload import GpuDemand, Shape
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Bools, Floats, Ints, Rows, Window
from hetsched.engine.framework.request import Request

from .eligibility import CardDemand
from .workload_mix import TYPICAL_SHARE, Mix

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

POINTS_PER_GPU = 5.0
"""What one GPU, lost or saved, is worth in scores that count in GPUs: 50 +- 10 GPUs span 0-100."""

NO_FILL: Floats = np.zeros(WHOLE_CARD_MILLI + 1)


class DemandMix:
    """What the shapes of a mix ask for.

    Shapes: T typical shapes, K resources, M card models: `needs` (T, K), `rows` (K,) of the resources, `count`,
    `milli`, `share` (T,), `accepted` (T, M).
    """

    __slots__ = ("accepted", "count", "milli", "needs", "rows", "share")

    def __init__(self, typical: Sequence[tuple[Shape, float]], state: ClusterState, resources: Sequence[str]) -> None:
        self.rows: Rows = np.array([state.resources.index[name] for name in resources], np.intp)
        needs = [[shape.request(name) for name in resources] for shape, _ in typical]
        self.needs: Ints = np.array(needs, np.int64).reshape(len(typical), len(resources))
        demands = [shape.gpu if shape.gpu is not None and shape.gpu.count else None for shape, _ in typical]
        self.count: Ints = np.array([demand.count if demand else 0 for demand in demands], np.int64)
        self.milli: Ints = np.array([demand.milli if demand else 0 for demand in demands], np.int64)
        self.share: Floats = np.array([share for _, share in typical], np.float64)
        models = state.models.values
        accepted = [[demand is None or model_accepted(demand, model) for model in models] for demand in demands]
        self.accepted: Bools = np.array(accepted, np.bool_).reshape(len(typical), len(models))

    def asked(self, shape: Shape, state: ClusterState) -> Ints:
        """Return (K,) what a shape asks of the mix's resources."""
        names = state.resources.values
        return np.array([shape.request(names[row]) for row in self.rows.tolist()], np.int64)


def published_mix(state: ClusterState) -> DemandMix:
    """Return the state's mix as FGD's simulator sees it: pods alike in CPU and cards are one shape."""

    def make() -> DemandMix:
        alike: dict[tuple[int, GpuDemand | None], tuple[Shape, int]] = {}
        for shape, count in state.mix.counts:
            cpu = shape.request(CPU)
            known = alike.get((cpu, shape.gpu), (Shape(requests=((CPU, cpu),), gpu=shape.gpu), 0))
            alike[cpu, shape.gpu] = (known[0], known[1] + count)
        counts = sorted(alike.values(), key=lambda item: -item[1])
        return DemandMix(normalized(Mix(tuple(counts))), state, (CPU,))

    return state.once("published-mix", make)


def whole_mix(state: ClusterState) -> DemandMix:
    """Return the state's mix by everything that its shapes request."""
    return state.once("whole-mix", lambda: demand_mix(normalized(state.mix), state))


def demand_mix(typical: Sequence[tuple[Shape, float]], state: ClusterState) -> DemandMix:
    """Compile shapes by everything that they request and some node of the state counts."""
    asked = {name for shape, _ in typical for name, _ in shape.requests}
    return DemandMix(typical, state, sorted(asked & state.resources.index.keys() - set(GPU_RESOURCES)))


def normalized(mix: Mix) -> list[tuple[Shape, float]]:
    """Return the typical shapes with shares that add up to 1."""
    typical = mix.typical()
    total = sum(share for _, share in typical)
    return [(shape, share / total) for shape, share in typical]


def row_fragments(mix: DemandMix, nodes: Window) -> Floats:
    """Return (n,) F of the rows, in milli."""
    from .fragmentation_kernel import fragments

    out: Floats = np.zeros(nodes.n)
    free = nodes.load("card_milli_free")
    if free.shape[0]:
        fragments(*_columns(mix, nodes), mix.needs, mix.count, mix.milli, mix.accepted, mix.share, out)
    return out


def _columns(mix: DemandMix, nodes: Window) -> tuple[Ints, Ints, Ints]:
    """Return free milli and models of the cards (G, n), and what is left of the mix's resources (K, n)."""
    left = nodes.static("allocatable")[mix.rows] - nodes.load("requested")[mix.rows]
    return np.maximum(nodes.load("card_milli_free"), 0), nodes.static("card_model"), left


class Trial:
    """One pod's demand against a mix: what each row, and each card of it, would lose by taking it."""

    __slots__ = ("asked", "cards", "count", "fill", "milli", "mix", "published")

    def __init__(
        self, request: Request, state: ClusterState, mix: DemandMix, fill: Floats = NO_FILL, *, published: bool = False
    ) -> None:
        demand = request.shape.gpu if request.shape.gpu is not None and request.shape.gpu.count else None
        self.mix = mix
        self.asked = mix.asked(request.shape, state)
        self.cards = None if demand is None else CardDemand(demand, state)
        self.count = 0 if demand is None else demand.count
        self.milli = 0 if demand is None else demand.milli
        self.fill = fill
        self.published = published

    def gains(self, nodes: Window, usable: Bools | None = None) -> tuple[Floats, Ints]:
        """Return (n,) what the best cards gain, and (n,) the shared card to take, -1 where there is no choice.

        The gain is in milli, by F and by what `fill` says of a card's rest; as published it is the score 0-100.
        `usable` (G, n) narrows the cards.
        """
        from .fragmentation_kernel import gains

        free, models, left = _columns(self.mix, nodes)
        if usable is None:
            usable = np.zeros(free.shape, np.bool_) if self.cards is None else self.cards.usable(nodes)
        gain: Floats = np.zeros(nodes.n)
        card: Ints = np.full(nodes.n, -1, np.int64)
        mix = self.mix
        gains(
            free, models, left, usable, self.asked, self.count, self.milli, mix.needs, mix.count, mix.milli,
            mix.accepted, mix.share, self.fill, self.published, gain, card,
        )  # fmt: skip
        return gain, card

    def prefer(self, request: Request, row: int, state: ClusterState) -> None:
        """Name the shared card of a row that gains most, among those that an earlier step prefers."""
        if self.cards is None or self.cards.whole:
            return
        node = Window(state.columns, np.array([row], np.intp))
        usable = self.cards.usable(node)
        if request.near_cards is not None:
            near = np.zeros(usable.shape, np.bool_)
            near[sorted(request.near_cards)] = True
            usable = usable & near if (usable & near).any() else usable
        card = int(self.gains(node, usable)[1][0])
        if card >= 0:
            request.near_cards = frozenset((card,))


def fragmented(state: ClusterState) -> bool:
    """Tell whether there are cards to be cut up, and a mix to measure against."""
    return bool(state.mix.counts) and bool(state.all_rows.static("card_milli").any())


def expected_rests(mix: Mix) -> Floats:
    """Return (1001,) W: the milli that stay unused of a card with that much free, once pods of the mix came by.

    Pods come at random, each that fits is taken, until none fits: W(f) = f where no size fits, else the mean of
    W(f - size) over the sizes that fit, by how many cards of each are asked for. Only the most frequent sizes that
    cover 95 % of these cards count: a card is not kept for a rare one.
    """
    cards: Counter[int] = Counter()
    for shape, count in mix.counts:
        if shape.gpu is not None and shape.gpu.count:
            cards[shape.gpu.milli] += count * shape.gpu.count
    sizes: list[tuple[int, int]] = []
    covered = 0
    for milli, often in sorted(cards.items(), key=lambda item: (-item[1], item[0])):
        if covered >= TYPICAL_SHARE * cards.total():
            break
        covered += often
        sizes.append((milli, often))
    rests = np.arange(WHOLE_CARD_MILLI + 1, dtype=np.float64)
    for free in range(1, WHOLE_CARD_MILLI + 1):
        fitting = [(milli, often) for milli, often in sizes if milli <= free]
        if fitting:
            total = sum(often for _, often in fitting)
            rests[free] = sum(often * rests[free - milli] for milli, often in fitting) / total
    return rests
