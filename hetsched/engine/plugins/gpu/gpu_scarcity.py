"""Keep GPUs free for the pods that can use only these GPUs.

Problem: a pod that fits any GPU can take the last GPU of a model that another pod requires. It can also occupy a part
of one of the few nodes that are large enough for another pod.
Rule: some shapes of the mix can use only a part of the GPUs: those of the accepted model, memory, cores and vendor, on
nodes with the requested number of such GPUs and the requested CPU and memory. The demand of such a shape is divided
among these GPUs.
load(g) = (this demand / all GPU demand) / (these GPUs / all GPUs). At load 1, pods of these shapes alone fill the GPU
when the cluster is full. With random arrivals, the probability that such a pod needs the GPU is the first term of the
price:
    price(g) = 1 - exp(-load(g)) + rarity * (1 - GPUs of its model / GPUs of the most frequent model)
               + reserve * max(0, 4 * rank - 3), rank = share of the model's nodes that precede its node by name
    score = 100 - 5 * requested GPUs * mean price of the node's GPUs that fit
The price of a GPU is thus the expected loss of another pod. `rarity` prices a rare model regardless of demand. `need`
"capacity" needs no mix and omits the first term. `reserve` raises the price on the last quarter of a model's nodes.
Nodes fill up by rank, so the rank of the next free node shows the used part of the model. Pods that fit any model then
use other models before they use the last empty nodes of this model.
Source: opportunity cost, priced as the probability of a Poisson arrival; specific to hetsched.
Example: 100 GPUs of A and 300 of B; a tenth of the demand accepts A alone: load(A) = 0.1 / 0.25 = 0.4, price(A) = 1 -
exp(-0.4) = 0.3297, price(B) = 0: a pod of 2 GPUs scores 100 - 5 * 0.3297 * 2 = 96.70 on A, 100 on B. With rarity 0.3
price(A) = 0.3297 + 0.3 * (1 - 100 / 300) = 0.5297: 94.70 on A. With reserve 1.5, the last of a model's ten nodes has
rank 0.9, so its price rises by 1.5 * max(0, 4 * 0.9 - 3) = 0.9.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.params import Params
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Bools, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.eligibility import CardDemand
from hetsched.engine.gpu.fragmentation import POINTS_PER_GPU

_PREPARED: StateKey[tuple[CardDemand, float, Floats]] = StateKey("gpu-scarcity")

_STEEPNESS = 4.0
"""`reserve` raises the prices on the last 1 / _STEEPNESS of a model's nodes."""
_MOST_SHAPES = 256
"""Maximum number of evaluated shapes, the most frequent first; bounds the cost of a new mix."""


class GpuScarcityParams(Params, frozen=True):
    """Source of the demand, and the prices that do not depend on it."""

    need: Annotated[
        Literal["mix", "capacity"],
        msgspec.Meta(
            title="Demand",
            description=(
                "mix: prices depend on the demand of the workload mix. "
                "capacity: prices depend only on the cluster's GPUs."
            ),
        ),
    ] = "mix"
    rarity: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=1,
            title="Rarity",
            description="Price added to a GPU of a rare model regardless of demand; 0 for the most frequent model.",
        ),
    ] = 0.0
    reserve: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=10,
            title="Reserve",
            description=(
                "Price added to the GPUs on a model's last nodes (by name); "
                "it rises from 0 to this limit over the last quarter of the model's nodes."
            ),
        ),
    ] = 0.0


def prices_of(state: ClusterState, rarity: float = 0.0, reserve: float = 0.0, *, by_mix: bool = True) -> Floats | None:
    """Return the price of every GPU, shape (G, N), or None if all prices are 0."""
    nodes = state.all_rows
    healthy: Bools = nodes.static("card_milli") > 0
    gpus = np.count_nonzero(healthy)
    demand_per_gpu, total = np.zeros(healthy.shape), 0.0
    asking = [(shape, count) for shape, count in state.mix.counts if shape.gpu is not None and shape.gpu.count]
    for shape, count in asking[:_MOST_SHAPES] if by_mix else ():
        assert shape.gpu is not None
        demand = float(count * shape.gpu.count * shape.gpu.milli)
        total += demand
        serving = _serving(shape, nodes, healthy, state)
        served = np.count_nonzero(serving)
        if 0 < served < gpus:
            demand_per_gpu[serving] += demand / served
    prices: Floats = 1.0 - np.exp(-demand_per_gpu * gpus / max(total, 1.0))
    models = nodes.static("card_model")
    frequency = np.bincount(models[healthy])
    for model in np.flatnonzero(frequency).tolist() if rarity or reserve else ():
        of_model = healthy & (models == model)
        having = of_model.any(axis=0)
        rank = np.cumsum(having) - having  # rank of each node: the number of nodes with the model that precede it
        late = np.maximum(_STEEPNESS * rank / having.sum() - (_STEEPNESS - 1.0), 0.0)
        prior = rarity * (1.0 - frequency[model] / frequency.max()) + reserve * late
        prices += np.where(of_model, prior, 0.0)
    return prices if prices.any() else None


def _serving(shape: Shape, nodes: Window, healthy: Bools, state: ClusterState) -> Bools:
    """Return the (G, N) mask of GPUs that a pod of the shape could use in an empty cluster."""
    assert shape.gpu is not None
    facts = CardDemand(shape.gpu, state).facts(nodes, unknown=False)
    serving = healthy if facts is None else healthy & facts
    large = serving.sum(axis=0) >= shape.gpu.count
    for name in (CPU, MEMORY):
        large &= nodes.static("allocatable")[state.resources.index[name]] >= shape.request(name)
    found: Bools = serving & large
    return found


@plugin(
    "gpu-scarcity",
    summary="Keep GPUs free for pods that can use no other GPUs.",
    params=GpuScarcityParams,
    reads=Reads.STATIC,
)
class GpuScarcity:
    params: GpuScarcityParams

    @property
    def wants_mix(self) -> bool:
        return self.params.need == "mix"

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        gpu = request.shape.gpu
        if gpu is None or not gpu.count:
            return SKIP
        prior, by_mix = (self.params.rarity, self.params.reserve), self.wants_mix
        prices = state.once(("gpu-scarcity", prior, by_mix), lambda: prices_of(state, *prior, by_mix=by_mix))
        if prices is None:
            return SKIP
        gpus = gpu.count * gpu.milli / WHOLE_CARD_MILLI
        request.memo[_PREPARED] = (CardDemand(gpu, state), POINTS_PER_GPU * gpus, prices)
        return None

    def static_key(self, request: Request) -> object:
        return request.shape.gpu

    def score(self, request: Request, nodes: Window) -> Floats:
        wanted, points, prices = request.memo[_PREPARED]
        serves: Bools = nodes.static("card_milli") > 0
        facts = wanted.facts(nodes, unknown=False)
        if facts is not None:
            serves = serves & facts
        if nodes.rows is not None:
            prices = prices[:, nodes.rows]
        paid = np.where(serves, points * prices, 0.0).sum(axis=0)
        score: Floats = np.maximum(100.0 - paid / np.maximum(serves.sum(axis=0), 1), 0.0)
        return score
