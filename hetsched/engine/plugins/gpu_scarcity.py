"""Leave card models to the pods that can use no other.

Problem: a pod that any card would serve may take the last one of the only model that another pod accepts.
Rule: the mix's shapes that not every card serves (model, memory, cores, vendor) share their demand among the models
they accept, by capacity. load(m) = that demand's part of all GPU demand / the model's part of all cards: at 1 these
pods alone fill the model when the cluster is full. If their pods come at random, one of them wants a given card with
    price(m) = 1 - exp(-load(m));   score = 100 - 5 * price * GPUs asked, over the node's cards that would do
so a GPU costs what another pod is expected to lose. Pods that accept one model only pay the same everywhere.
Source: opportunity cost, priced as the chance of a Poisson arrival; this project's own.
Worked: 100 cards of A and 300 of B; a tenth of the demand accepts A alone: load(A) = 0.1 / 0.25 = 0.4,
price(A) = 1 - exp(-0.4) = 0.3297, price(B) = 0: a pod of 2 GPUs scores 100 - 5 * 0.3297 * 2 = 96.70 on A, 100 on B.
"""

from __future__ import annotations

import numpy as np

from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Bools, Floats, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.eligibility import CardDemand
from hetsched.engine.gpu.fragmentation import POINTS_PER_GPU, normalized


def prices_of(state: ClusterState) -> Floats | None:
    """Return (M,) the price of every card model, None where no demand is tied to any."""
    nodes = state.all_rows
    healthy: Bools = nodes.static("card_milli") > 0
    models = nodes.static("card_model")
    capacity = np.bincount(models[healthy], minlength=len(state.models)).astype(np.float64)
    tied, total = np.zeros(len(capacity)), 0.0
    for shape, share in normalized(state.mix):
        if shape.gpu is None or not shape.gpu.count:
            continue
        demand = share * shape.gpu.count * shape.gpu.milli
        total += demand
        facts = CardDemand(shape.gpu, state).facts(nodes, unknown=False)
        serves = capacity if facts is None else np.bincount(models[healthy & facts], minlength=len(capacity))
        if 0 < serves.sum() < capacity.sum():
            tied += demand * serves / serves.sum()
    if not tied.any():
        return None
    load = np.divide(tied / total, capacity / capacity.sum(), out=np.zeros(len(capacity)), where=capacity > 0)
    prices: Floats = 1.0 - np.exp(-load)
    return prices


@plugin("gpu-scarcity", summary="Leave card models to the pods that can use no other.", reads=Reads.STATIC)
class GpuScarcity:
    wants_mix = True

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        gpu = request.shape.gpu
        prices = state.once("gpu-scarcity", lambda: prices_of(state)) if gpu is not None and gpu.count else None
        if gpu is None or prices is None:
            return SKIP
        gpus = gpu.count * gpu.milli / WHOLE_CARD_MILLI
        request.memo["gpu-scarcity"] = (CardDemand(gpu, state), POINTS_PER_GPU * gpus * prices)
        return None

    def static_key(self, request: Request) -> object:
        return request.shape.gpu

    def score(self, request: Request, nodes: Window) -> Floats:
        wanted, prices = request.memo["gpu-scarcity"]
        serves: Bools = nodes.static("card_milli") > 0
        facts = wanted.facts(nodes, unknown=False)
        if facts is not None:
            serves = serves & facts
        paid = np.where(serves, prices[nodes.static("card_model")], 0.0).sum(axis=0)
        score: Floats = np.maximum(100.0 - paid / np.maximum(serves.sum(axis=0), 1), 0.0)
        return score
