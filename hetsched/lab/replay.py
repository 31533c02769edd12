"""Replay a workload against a cluster: every pod is tried once, in queue order, and pods leave only by eviction.

Pods are tried one by one in the policy's queue order, in which equal pods keep the order of submission. Three kinds of
pods are counted as pending and not tried again: pods that do not fit on any node, pods that a Permit plugin still
delays at the end of the queue, and pods that were placed and then displaced. Displaced pods that ran before the replay
are counted as evicted and are not placed again.
Invariants: the same cluster, pods and policy yield the same placements; only `decisions_per_second` differs between
runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.balance import ClusterMetrics, cluster_metrics, gpu_fragments, workload_mix
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy
from hetsched.engine.gpu.workload_mix import mix_of
from hetsched.engine.simulation.evictions import evictions

from .arrival import gpu_demand_milli

_STEP = 256


class PodPlacement(msgspec.Struct, frozen=True):
    """Placement of one pod; `node` is null if the pod stays pending."""

    pod: str
    node: str | None


class ReplaySample(msgspec.Struct, frozen=True, rename="camel"):
    """Measurement after `arrived` pods; `arrived_gpu_ratio` is their GPU demand divided by the cluster's capacity."""

    arrived: int
    pending: int
    arrived_gpu_ratio: float | None
    metrics: ClusterMetrics


class Replay(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Result of one policy; `evicted` counts displaced pods that were running before the replay."""

    policy: str
    placed: int
    pending: int
    placements: tuple[PodPlacement, ...]
    metrics: ClusterMetrics
    decisions_per_second: float
    evicted: int = 0


def _no_progress(_done: int) -> None:
    pass


def replay(
    state: ClusterState,
    pods: Sequence[PodSpec],
    policy: Policy,
    *,
    workload: Sequence[PodSpec] | None = None,
    samples: int = 0,
    progress: Callable[[int], None] = _no_progress,
) -> tuple[Replay, list[ReplaySample]]:
    """Replay `pods` on a copy of `state`.

    `workload` is the pod list whose mix of shapes is used for placement and measurement, by default `pods`. `samples`
    is the number of intermediate measurements; their time is excluded from the speed.
    """
    scheduler = Scheduler(state.fork(), policy, evicts=True)
    mix = pods if workload is None else workload
    scheduler.state.use_mix(mix_of(mix))
    watch = _ReplayMeasurements(scheduler.state, mix) if samples else None
    every = max(1, len(pods) // samples) if samples else len(pods) + 1
    outcomes: dict[str, Outcome] = {}
    running = set(state.placed_pods)
    taken: list[ReplaySample] = []
    spent_seconds = 0.0
    began = time.perf_counter()
    batches = BatchScheduler(scheduler, expected=len(pods))
    queue = policy.queue(pods, scheduler.state)
    done = 0
    for most in _steps(len(pods), 1 if policy.follows_placements else _STEP, every):
        for outcome in batches.schedule(list(islice(queue, most))):
            for _ in evictions(outcome, outcomes, scheduler.state):
                pass
            outcomes[outcome.pod.key] = outcome
        done += most
        if done == len(pods):
            scheduler.settle()
        if done % _STEP == 0 or done % every == 0 or done == len(pods):
            spent_seconds += time.perf_counter() - began
            progress(done)
            if watch is not None and (done % every == 0 or done == len(pods)):
                taken.append(watch.sample(list(outcomes.values())))
            began = time.perf_counter()
    metrics = cluster_metrics(scheduler.state, mix)
    speed = len(pods) / spent_seconds if spent_seconds else 0.0
    pending = _pending(outcomes.values())
    evicted = len(running - scheduler.state.placed_pods.keys())  # without evictions that were undone with their gang
    placements = tuple(PodPlacement(outcome.pod.key, outcome.node) for outcome in outcomes.values())
    result = Replay(policy.spec.name, len(pods) - pending, pending, placements, metrics, round(speed, 1), evicted)
    return result, taken


def _steps(count: int, step: int, every: int) -> Iterator[int]:
    """Yield the number of pods to schedule in each call: `step`, or fewer if the end or a sample comes first."""
    done = 0
    while done < count:
        most = min(step, count - done, every - done % every)
        yield most
        done += most


def _pending(outcomes: Iterable[Outcome]) -> int:
    return sum(outcome.node is None for outcome in outcomes)


class _ReplayMeasurements:
    """Measurements during a replay; the mix of the workload is computed only once."""

    def __init__(self, state: ClusterState, workload: Sequence[PodSpec]) -> None:
        self.state = state
        self.mix: list[tuple[Shape, float]] = workload_mix(workload)
        self.cards_milli = int(state.all_rows.static("card_milli").sum())
        self._counted = 0
        self._demand_milli = 0

    def sample(self, outcomes: Sequence[Outcome]) -> ReplaySample:
        self._demand_milli += sum(gpu_demand_milli(outcome.pod.shape) for outcome in outcomes[self._counted :])
        self._counted = len(outcomes)
        metrics = cluster_metrics(self.state)
        ratio = None
        if self.cards_milli:
            fragments = gpu_fragments(self.state, self.mix)
            metrics = msgspec.structs.replace(metrics, gpu_fragmentation=fragments / self.cards_milli)
            ratio = self._demand_milli / self.cards_milli
        return ReplaySample(len(outcomes), _pending(outcomes), ratio, metrics)
