"""GPUs that no pod can use: stranded on a node without free CPUs or memory, or too few on each node.

A free GPU is stranded if a shape of the cluster's GPU pods would fit the free GPUs of the node, but no such shape fits
its other free resources. Free GPUs are fragmented for a pending pod if the cluster has as many suitable free GPUs as
the pod requests, but no node has them. Fragmentation as a number is FGD's F, see `hetsched.engine.gpu.fragmentation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hetsched.contracts.api.cluster_report import ClusterFinding, GpuSummary
from hetsched.contracts.api.findings import Level
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.workload import GpuDemand, PodSpec, Shape
from hetsched.contracts.units import GPU_RESOURCES, format_amount
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Bools, Ints
from hetsched.engine.gpu.eligibility import CardDemand
from hetsched.engine.gpu.fragmentation import demand_mix, normalized, row_fragments
from hetsched.engine.gpu.workload_mix import Mix

from .checked_cluster import AffectedObject, CheckedCluster, finding

MOST_SHAPES = 200


class StrandedGpus(NamedTuple):
    """Number of stranded GPUs (N,), and for each row that has some the shape that lacks the fewest resources."""

    counts: Ints
    shapes: dict[int, Shape]


def check_stranded(cluster: CheckedCluster, found: StrandedGpus) -> Iterator[ClusterFinding]:
    """Yield the nodes with stranded GPUs."""
    state = cluster.state
    names, resources = state.columns.names, state.resources.values
    remaining: Ints = state.columns.field("allocatable") - state.columns.field("requested")
    for row in np.flatnonzero(found.counts).tolist():
        shape = found.shapes[row]
        short = [
            Message(
                "{name}: {amount} free, at least {need} requested",
                name=name,
                amount=format_amount(name, max(int(remaining[resources.index(name), row]), 0)),
                need=format_amount(name, amount),
            )
            for name, amount in shape.requests
            if name in resources and name not in GPU_RESOURCES and remaining[resources.index(name), row] < amount
        ]
        yield finding(
            "GpuStranded",
            Level.WARNING,
            AffectedObject("Node", names[row]),
            Message(
                "{n} free GPUs cannot be used: no GPU pod of the cluster fits the other free resources of the node",
                n=int(found.counts[row]),
            ),
            Message("Move pods without GPUs to other nodes (hetsched advise), or request less CPU and memory per GPU"),
            evidence=[joined("; ", short)],
        )


def stranded_gpus(cluster: CheckedCluster) -> StrandedGpus:
    """Return the stranded GPUs of a cluster."""
    state = cluster.state
    free: Ints = state.columns.field("card_milli_free")
    count = len(state.reports)
    whole: Ints = np.zeros(count, np.int64)
    shortest: dict[int, Shape] = {}
    if not free.shape[0]:
        return StrandedGpus(whole, shortest)
    usable: Bools = np.array([report.ready and not report.unschedulable for report in state.reports], np.bool_)
    whole = np.where(usable, (free == WHOLE_CARD_MILLI).sum(axis=0), 0)
    open_rows: Bools = np.zeros(count, np.bool_)  # a shape fits the GPUs
    fits: Bools = np.zeros(count, np.bool_)  # a shape fits the GPUs and all other resources
    least: Ints = np.full(count, np.iinfo(np.int64).max)
    remaining: Ints = state.columns.field("allocatable") - state.columns.field("requested")
    for shape in _most_frequent(cluster):
        assert shape.gpu is not None
        cards = CardDemand(shape.gpu, state).usable(state.all_rows).sum(axis=0) >= shape.gpu.count
        lacking: Ints = np.zeros(count, np.int64)
        for name, amount in shape.requests:
            if name not in GPU_RESOURCES:
                lacking += remaining[state.resources.index[name]] < amount if name in state.resources.values else 1
        open_rows |= cards
        fits |= cards & (lacking == 0)
        for row in np.flatnonzero(cards & (lacking < least) & (whole > 0)).tolist():
            least[row], shortest[row] = lacking[row], shape
    stranded: Ints = np.where(open_rows & ~fits, whole, 0)
    return StrandedGpus(stranded, shortest)


def _most_frequent(cluster: CheckedCluster) -> list[Shape]:
    shapes = sorted(cluster.gpu_shapes.items(), key=lambda item: -item[1])
    return [shape for shape, _ in shapes[:MOST_SHAPES]]


def check_fragmented(cluster: CheckedCluster) -> Iterator[ClusterFinding]:
    """Yield pending pods for which the cluster has enough free GPUs, but no single node has enough."""
    state = cluster.state
    if not state.columns.field("card_milli_free").shape[0]:
        return
    groups: dict[tuple[AffectedObject, GpuDemand], list[PodSpec]] = {}
    for pod in cluster.content.pending:
        if pod.ready and pod.shape.gpu is not None and pod.shape.gpu.count > 1:
            groups.setdefault((AffectedObject.of(pod), pod.shape.gpu), []).append(pod)
    installed: Ints = (state.all_rows.static("card_milli") > 0).sum(axis=0)
    ready: Bools = np.array([report.ready and not report.unschedulable for report in state.reports], np.bool_)
    for (group, demand), pods in groups.items():
        free = np.where(ready, CardDemand(demand, state).usable(state.all_rows).sum(axis=0), 0)
        if free.sum() < demand.count or free.max() >= demand.count or installed[ready].max() < demand.count:
            continue
        yield finding(
            "GpuFragmented",
            Level.WARNING,
            group,
            Message(
                "{n} suitable GPUs are free on {m} nodes, but no node has the {k} GPUs that the pod requests",
                n=int(free.sum()),
                m=int(np.count_nonzero(free)),
                k=demand.count,
            ),
            Message("Move GPU pods together (hetsched advise --goal room), or use a policy that packs GPUs"),
            evidence=[
                Message("{node}: {n} free GPUs", node=state.columns.names[row], n=int(free[row]))
                for row in np.argsort(-free, kind="stable")[:3].tolist()
                if free[row]
            ],
            affected=[pod.key for pod in pods],
        )


def summary_of_gpus(cluster: CheckedCluster, stranded: StrandedGpus) -> GpuSummary:
    """Return the totals of the cluster's GPUs."""
    state = cluster.state
    total = int((state.all_rows.static("card_milli") > 0).sum())
    free = np.maximum(state.columns.field("card_milli_free"), 0)
    mix = Mix(tuple(cluster.gpu_shapes.items()))
    fragmentation = None
    if total and mix.counts:
        fragments = row_fragments(demand_mix(normalized(mix), state), state.all_rows).sum()
        fragmentation = round(float(fragments) / (total * WHOLE_CARD_MILLI), 6)
    allocated = round(total - float(free.sum()) / WHOLE_CARD_MILLI, 3) if total else 0.0
    return GpuSummary(total, allocated, int(stranded.counts.sum()), fragmentation)
