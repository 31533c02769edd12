"""Decide consecutive pods of a batch in the compiled loop.

The loop and the scheduling cycle give the same results, including the best nodes of each pod, so a batch may use both.
The loop decides consecutive pods of one policy that it covers. The cycle decides all other pods: pods that fit nowhere,
gangs, nominated pods, pods that claimed a hold, and all pods until the machine code of the loop is loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile

from hetsched.contracts.api.decision import NodeOutcome
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.compiled.batch import covers
from hetsched.engine.framework.outcome import Outcome
from hetsched.placement.scheduler_cache import SchedulerCache
from hetsched.placement.scheduling_queue.active_queue import PendingPod

from .machine_code import machine_code


class UpcomingPods:
    """The undecided pods of a batch in queue order.

    If the order follows placements (`is_fixed` False), the next pod is drawn after the pod before it was decided, and
    the pods after it are unknown.
    """

    def __init__(self, order: Iterable[PodSpec], pods: Mapping[str, PendingPod], *, is_fixed: bool) -> None:
        self._undrawn = (pods[spec.key] for spec in order)
        self._drawn: deque[PendingPod] = deque()
        self._most_drawn = None if is_fixed else 1

    def __bool__(self) -> bool:
        if not self._drawn:
            self._drawn.extend(islice(self._undrawn, self._most_drawn))
        return bool(self._drawn)

    def first(self, most: int) -> list[PendingPod]:
        """Return the next pods, at most `most`, as far as they are known."""
        return list(islice(self._drawn, most))

    def drop(self, count: int) -> None:
        """Remove the first `count` pods, which are decided."""
        for _ in range(count):
            self._drawn.popleft()


class CompiledRuns:
    """The compiled loop for the batches of one cluster; `specs` are the policies of a batch's pods by name."""

    def __init__(self, cache: SchedulerCache, specs: Mapping[str, PolicySpec], top_nodes: int) -> None:
        self._cache = cache
        self._specs = specs
        self._top_nodes = top_nodes

    def place(self, upcoming: UpcomingPods, most: int) -> list[tuple[Outcome, tuple[NodeOutcome, ...]]]:
        """Decide and assume the first upcoming pods, at most `most`; return their placements and best nodes.

        The result is empty if the cycle must decide the first pod.
        """
        if not machine_code.is_loaded:
            return []
        first = upcoming.first(1)[0]
        spec = self._specs.get(first.policy)
        if spec is None:
            return []
        loop = self._cache.batch_scheduler(spec)
        pods = upcoming.first(min(loop.ahead, most))
        run = takewhile(lambda pod: pod.policy == first.policy and pod.hold_id is None, pods)
        return loop.place_first([pod.spec for pod in run], self._top_nodes)

    def count(self, pods: Sequence[PendingPod]) -> None:
        """Count the pods of a decided batch for the decision to load the machine code."""
        spec = self._specs.get(pods[0].policy) if len(pods) > 1 else None
        if spec is not None and not machine_code.is_loaded:
            policy = self._cache.policy(spec)
            if covers(policy):
                machine_code.count(len(pods), policy)
