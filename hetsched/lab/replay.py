"""Replay a workload against a cluster: every pod once, in queue order, nothing leaves.

Rule: pods are sorted by the policy's queue order (submission order among equals) and tried one by one, each seeing
all earlier ones; a pod that fits nowhere is counted as pending and not tried again.
Invariants: same cluster, pods and policy give the same placements; only `decisions_per_second` differs between runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from hetsched.contracts.workload import PodSpec, Shape
from hetsched.engine.balance import ClusterMetrics, cluster_metrics, gpu_fragments, workload_mix
from hetsched.engine.cycle import Scheduler
from hetsched.engine.policy import Policy
from hetsched.engine.state import ClusterState

from .arrival import gpu_demand_milli

_STEP = 64


class PodPlacement(msgspec.Struct, frozen=True):
    """Where one pod went; `node` null: it stays pending."""

    pod: str
    node: str | None


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """The cluster after `arrived` pods; `arrived_gpu_ratio` is their GPU demand over the cluster's capacity."""

    arrived: int
    pending: int
    arrived_gpu_ratio: float | None
    metrics: ClusterMetrics


class Replay(msgspec.Struct, frozen=True, rename="camel"):
    """What one policy made of the workload."""

    policy: str
    placed: int
    pending: int
    placements: tuple[PodPlacement, ...]
    metrics: ClusterMetrics
    decisions_per_second: float


def _unwatched(_done: int) -> None:
    pass


def replay(
    state: ClusterState,
    pods: Sequence[PodSpec],
    policy: Policy,
    *,
    workload: Sequence[PodSpec] | None = None,
    samples: int = 0,
    progress: Callable[[int], None] = _unwatched,
) -> tuple[Replay, list[Sample]]:
    """Run `pods` through a copy of `state`.

    `workload` is the list whose mix fragmentation is measured against, by default the pods themselves. `samples` is
    how many moments in between to measure; measuring is left out of the speed.
    """
    scheduler = Scheduler(state.fork(), policy)
    queue = sorted(pods, key=policy.sort_key)
    watch = _Watch(scheduler.state, queue if workload is None else workload) if samples else None
    every = max(1, len(queue) // samples) if samples else len(queue) + 1
    placements: list[PodPlacement] = []
    taken: list[Sample] = []
    pending = 0
    spent_seconds = 0.0
    began = time.perf_counter()
    for done, pod in enumerate(queue, start=1):
        node = scheduler.schedule(pod).node
        pending += node is None
        placements.append(PodPlacement(pod.key, node))
        if done % _STEP == 0 or done % every == 0 or done == len(queue):
            spent_seconds += time.perf_counter() - began
            progress(done)
            if watch is not None and (done % every == 0 or done == len(queue)):
                taken.append(watch.sample(queue, done, pending))
            began = time.perf_counter()
    metrics = cluster_metrics(scheduler.state, queue if workload is None else workload)
    speed = len(queue) / spent_seconds if spent_seconds else 0.0
    result = Replay(policy.spec.name, len(queue) - pending, pending, tuple(placements), metrics, round(speed, 1))
    return result, taken


class _Watch:
    """Measures a running replay; the mix is counted once."""

    def __init__(self, state: ClusterState, workload: Sequence[PodSpec]) -> None:
        self.state = state
        self.mix: list[tuple[Shape, float]] = workload_mix(workload)
        self.cards_milli = int(state.all_rows.static("card_milli").sum())
        self._counted = 0
        self._demand_milli = 0

    def sample(self, queue: Sequence[PodSpec], done: int, pending: int) -> Sample:
        self._demand_milli += sum(gpu_demand_milli(pod.shape) for pod in queue[self._counted : done])
        self._counted = done
        metrics = cluster_metrics(self.state)
        ratio = None
        if self.cards_milli:
            fragments = gpu_fragments(self.state, self.mix)
            metrics = msgspec.structs.replace(metrics, gpu_fragmentation=fragments / self.cards_milli)
            ratio = self._demand_milli / self.cards_milli
        return Sample(done, pending, ratio, metrics)
