"""GPU fragmentation: how much of a node's free GPU capacity the workload cannot use, and how a placement changes that.

A GPU that is half free, or is free on a node without free CPU, may be capacity that no pod can use. F of a node = sum
over the mix's shapes of popularity * unusable milli-GPUs. For each shape, these are
    all free milli-GPUs of the node     if the shape does not fit there, or requests no GPU
    the free milli-GPUs of some GPUs    otherwise: GPUs of another model, or with less free than it requests per GPU
The gain of a placement is F before - F after. A pod that shares a GPU is evaluated on each possible GPU; a pod with
whole GPUs is evaluated on those with the lowest indices. `DemandMix` is a mix prepared for one state: the typical
shapes, with shares normalised to a sum of 1.
Source: FGD (Weng et al., USENIX ATC 2023, section 4) and its simulator, whose F uses CPU and GPUs only.
Invariants: a row's result depends on that row alone; the sum of F over the rows is `gpu_fragments` of `balance`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hetsched.contracts.objects.cards import model_accepted
from hetsched.contracts.objects.workload import GpuDemand, Shape
from hetsched.contracts.units import CPU, GPU_RESOURCES
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Bools, Floats, Ints, Rows, Window
from hetsched.engine.framework.request import Request

from .eligibility import CardDemand
from .workload_mix import TYPICAL_SHARE, Mix

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

POINTS_PER_GPU = 5.0
"""Score points per GPU in scores that count GPUs: 50 if no GPU is lost or saved, 0 for 10 lost, 100 for 10 saved."""

NO_FILL: Floats = np.zeros(WHOLE_CARD_MILLI + 1)


class DemandMix:
    """Demands of a mix's typical shapes, as arrays.

    For T typical shapes, K resources and M GPU models: `needs` (T, K) requests, `rows` (K,) rows of the resources;
    `count`, `milli` and `share` (T,) requested GPUs, milli-GPUs per GPU and share of the pods; `accepted` (T, M) bool.
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
        """Return the shape's requests of the mix's resources, shape (K,)."""
        names = state.resources.values
        return np.array([shape.request(names[row]) for row in self.rows.tolist()], np.int64)


def published_mix(state: ClusterState) -> DemandMix:
    """Return the state's mix as in FGD's simulator: pods with equal CPU and GPU requests are one shape."""

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
    """Return the demand mix of the state with all resources that the shapes of its workload mix request."""
    return state.once("whole-mix", lambda: demand_mix(normalized(state.mix), state))


def demand_mix(typical: Sequence[tuple[Shape, float]], state: ClusterState) -> DemandMix:
    """Return the demand mix of the shapes, limited to the requested resources that at least one node offers."""
    asked = {name for shape, _ in typical for name, _ in shape.requests}
    return DemandMix(typical, state, sorted(asked & state.resources.index.keys() - set(GPU_RESOURCES)))


def normalized(mix: Mix) -> list[tuple[Shape, float]]:
    """Return the typical shapes of a mix, with their shares scaled to a sum of 1."""
    typical = mix.typical()
    total = sum(share for _, share in typical)
    return [(shape, share / total) for shape, share in typical]


def row_fragments(mix: DemandMix, nodes: Window) -> Floats:
    """Return the fragmentation F of each row in milli-GPUs, shape (n,)."""
    from .fragmentation_kernel import fragments

    out: Floats = np.zeros(nodes.n)
    free = nodes.load("card_milli_free")
    if free.shape[0]:
        fragments(*_columns(mix, nodes), mix.needs, mix.count, mix.milli, mix.accepted, mix.share, out)
    return out


def _columns(mix: DemandMix, nodes: Window) -> tuple[Ints, Ints, Ints]:
    """Return free milli-GPUs and models of the GPUs, (G, n), and free amounts of the mix's resources, (K, n)."""
    remaining = nodes.static("allocatable")[mix.rows] - nodes.load("requested")[mix.rows]
    return np.maximum(nodes.load("card_milli_free"), 0), nodes.static("card_model"), remaining


class FragmentationTrial:
    """Trial placement of one pod: the change of F on each row, and for each GPU of the row."""

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
        """Return the largest gain of each row, and the index of the shared GPU that achieves it, both (n,).

        The gain, in milli-GPUs, is the decrease of F plus the decrease of the sum of `fill` over the GPUs; `fill` maps
        the free milli-GPUs of one GPU to a value. In the published form the result is a score of 0-100 instead. The
        index is -1 if the pod does not share a GPU or does not fit. `usable` (G, n) limits the GPUs to consider.
        """
        from .fragmentation_kernel import gains

        free, models, remaining = _columns(self.mix, nodes)
        if usable is None:
            usable = np.zeros(free.shape, np.bool_) if self.cards is None else self.cards.usable(nodes)
        gain: Floats = np.zeros(nodes.n)
        card: Ints = np.full(nodes.n, -1, np.int64)
        mix = self.mix
        gains(
            free, models, remaining, usable, self.asked, self.count, self.milli, mix.needs, mix.count, mix.milli,
            mix.accepted, mix.share, self.fill, self.published, gain, card,
        )  # fmt: skip
        return gain, card

    def prefer(self, request: Request, row: int, state: ClusterState) -> None:
        """Make later plugins prefer the GPU with the largest gain for a shared pod (`request.near_cards`).

        If possible, the GPU is one that an earlier plugin prefers.
        """
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
    """Return whether the cluster has shareable GPUs and a workload mix to measure fragmentation against."""
    return bool(state.mix.counts) and bool(state.all_rows.static("card_milli").any())


def expected_unused(mix: Mix) -> Floats:
    """Return W, shape (1001,): the milli-GPUs that the mix is expected to leave unused, by free milli-GPUs of a GPU.

    Pods arrive at random, and each pod that fits is placed, until no pod fits. W(f) = f if no size fits, else the mean
    of W(f - size) over the sizes that fit, weighted by the number of requested GPUs of each size. Only the most
    frequent sizes that cover 95 % of these GPUs are used, so that no GPU is kept free for a rare size.
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
