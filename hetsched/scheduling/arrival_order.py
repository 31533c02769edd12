"""The queue order of arriving pods, used for several batches.

To take 200 pods of a backlog of thousands in queue order, all of them are sorted. The order is therefore kept until it
has fewer pods than a batch. While pods arrive, it is used for `ORDER_USES` times as long as it took to compute, so that
sorting takes at most a tenth of the time, but at most for `LONGEST_SECONDS`, because an arriving pod waits for the next
order. It also ends if another policy orders the queue, or if a namespace exceeds its share of decision time. The order
is only read. Keys of pods that have left the buffer are skipped, so a batch that is not committed is tried again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from hetsched.contracts.objects.observed import ObservedPod
from hetsched.contracts.objects.submitted import WORKLOAD_LABEL
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.policy import Policy
from hetsched.placement.scheduling_queue.active_queue import alternate_namespaces

from .arrival_buffer import MOST_JOINING, ArrivalBuffer

ORDER_USES, LONGEST_SECONDS = 10.0, 1.0


class ArrivalOrder:
    """The order of the arriving pods of one cluster: pods that are placed directly, and pods that join the queue."""

    def __init__(self) -> None:
        self._direct: deque[str] = deque()
        self._joining: deque[str] = deque()
        self._policy: Policy | None = None
        self._behind: set[str] = set()  # namespaces above their share of decision time
        self._arrived = 0
        self._until = 0.0  # by time.monotonic()

    def first(
        self,
        buffer: ArrivalBuffer,
        most: int,
        policy: Policy,
        state: ClusterState,
        used_seconds: Mapping[str, float],
    ) -> tuple[list[PodSpec], list[str]]:
        """Return the pods to place next, at most `most`, and keys of pods that join the queue, at most `MOST_JOINING`.

        If the buffer has at most `most` pods, all of them are returned, in any order. `used_seconds` contains the
        namespaces that used more than their share of decision time.
        """
        pods = buffer.pods
        if len(pods) <= most:
            specs = {key: _direct_spec(pod) for key, pod in pods.items()}
            return [spec for spec in specs.values() if spec], [key for key, spec in specs.items() if spec is None]
        for keys in (self._direct, self._joining):
            while keys and keys[0] not in pods:
                keys.popleft()
        now = time.monotonic()
        is_outdated = buffer.arrived != self._arrived and now > self._until
        is_changed = self._policy is not policy or self._behind != used_seconds.keys()
        if is_changed or is_outdated or len(self._direct) + len(self._joining) < most:
            self._sort(pods, policy, state, used_seconds)
            self._policy, self._behind, self._arrived = policy, set(used_seconds), buffer.arrived
            until = time.monotonic()
            self._until = until + min(ORDER_USES * (until - now), LONGEST_SECONDS)
        chosen = [_direct_spec(pods[key]) for key in _first(self._direct, pods, most)]
        return [spec for spec in chosen if spec], _first(self._joining, pods, MOST_JOINING)

    def _sort(
        self,
        pods: Mapping[str, ObservedPod],
        policy: Policy,
        state: ClusterState,
        used_seconds: Mapping[str, float],
    ) -> None:
        specs = {key: _direct_spec(pod) for key, pod in pods.items()}
        direct = policy.forecast([spec for spec in specs.values() if spec], state, used_seconds)
        if not policy.follows_placements:  # such an order divides the resources among the namespaces itself
            direct = _alternating(direct, used_seconds)
        self._direct = deque(spec.key for spec in direct)
        self._joining = deque(key for key, spec in specs.items() if spec is None)


def _first(keys: Iterable[str], pods: Mapping[str, ObservedPod], most: int) -> list[str]:
    return list(islice((key for key in keys if key in pods), most))


def _direct_spec(pod: ObservedPod) -> PodSpec | None:
    """Return the spec of a pod that can be placed without regard to gangs, submissions and scheduling gates."""
    spec = pod.spec
    is_direct = spec is not None and spec.ready and spec.gang is None and WORKLOAD_LABEL not in spec.labels
    return spec if is_direct else None


def _alternating(pods: Sequence[PodSpec], used_seconds: Mapping[str, float]) -> list[PodSpec]:
    """Return the pods with alternating namespaces at equal priority, each namespace in the given order.

    Namespaces in `used_seconds`, which used more than their share of decision time, come last.
    """
    rows = [(place, pod.priority, pod.namespace) for place, pod in enumerate(pods)]
    keys = {
        (place, priority): ((-priority, used_seconds.get(namespace, 0.0)), place) for place, priority, namespace in rows
    }
    return [pods[place] for place in alternate_namespaces(rows, keys, len(rows))]
