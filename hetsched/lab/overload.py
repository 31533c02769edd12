"""Fill a cluster of GPUs beyond its capacity, with measurements on the way.

Packing quality shows when demand exceeds capacity, and in the course of the filling. The pods of a stream arrive one by
one, each tried once, none leaves; at every requested load (arrived GPU demand / GPU capacity) the granted GPUs and F,
the milli out of the mix's reach, are recorded as shares of all GPUs. The last pod that was still below a load counts to
it. Ties between equal nodes are broken by the lowest name as given, by the lowest name after the names are shuffled for
every seed, or at random.
Source: the protocol of Weng et al. (USENIX ATC 2023). Its simulator puts each node's place in a random permutation in
front of its name (`syncClusterResourceList`), so its ties by name are ties by a fixed, random order of each run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PolicySpec, Ties
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy
from hetsched.engine.gpu.fragmentation import published_mix, row_fragments
from hetsched.engine.gpu.workload_mix import Mix

from .arrival import gpu_demand_milli

TieRule = Literal["name", "shuffled", "random"]


class OverloadSample(msgspec.Struct, frozen=True):
    """Cluster after arrivals of `arrived` times its GPU capacity; the other fields are percent of all GPUs."""

    arrived: float
    allocated: float
    fragmented: float


def shuffled(nodes: Sequence[NodeReport], seed: int) -> list[NodeReport]:
    """Return the nodes with a name order that depends on the seed."""
    places = list(range(len(nodes)))
    random.Random(f"names/{seed}").shuffle(places)
    return [
        msgspec.structs.replace(node, name=f"{place:06d}-{node.name}")
        for place, node in zip(places, nodes, strict=True)
    ]


def tied(spec: PolicySpec, rule: TieRule, seed: int) -> PolicySpec:
    """Return the policy under a tie rule; a policy with random ties keeps them, with this seed."""
    by: Literal["name", "random"] = "random" if rule == "random" or spec.ties.by == "random" else "name"
    return msgspec.structs.replace(spec, ties=Ties(by=by, seed=seed))


def fill(
    state: ClusterState, stream: Sequence[PodSpec], policy: Policy, mix: Mix, points: Sequence[float]
) -> list[OverloadSample]:
    """Run a stream through a copy of `state` and return the measurements at each of the rising `points`."""
    scheduler = Scheduler(state.fork(), policy)
    scheduler.state.use_mix(mix)
    capacity = int(state.all_rows.static("card_milli").sum())
    loads: list[OverloadSample] = []
    waiting = list(points)
    arrived = 0
    for pod in stream:
        arrived += gpu_demand_milli(pod.shape)
        while waiting and arrived > waiting[0] * capacity:
            loads.append(_measured(scheduler.state, waiting.pop(0), capacity))
        scheduler.schedule(pod)
    return loads + [_measured(scheduler.state, point, capacity) for point in waiting]


def _measured(state: ClusterState, arrived: float, capacity: int) -> OverloadSample:
    nodes = state.all_rows
    free = int(nodes.load("card_milli_free").clip(min=0).sum())
    lost = float(row_fragments(published_mix(state), nodes).sum())
    return OverloadSample(arrived, 100.0 * (capacity - free) / capacity, 100.0 * lost / capacity)
