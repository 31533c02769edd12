"""Buffer in memory for arriving pods without a row; a pod leaves it when it is placed or joins the queue.

The rows of a pod must be written in the order of its events. The buffer therefore keeps only the latest state of each
pod, and a pod leaves the buffer before its state is written to a row.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from itertools import chain, islice, takewhile

from hetsched.contracts.objects.observed import ObservedPod
from hetsched.contracts.objects.workload import is_ours

# Maximum time in the buffer; the pod then joins the queue, where the console shows it. A pod of the queue needs more
# statements than an arriving pod, so a scheduler that is behind must not move its pods there too early.
WAIT_SECONDS = 10.0
# Pods that join the queue in one transaction, for which other writers and the renewal of the lease wait.
MOST_JOINING = 500


class ArrivalBuffer:
    """The arriving pods of one cluster, in the order of their arrival.

    `arrived` counts the pods that were added or changed.
    """

    def __init__(self) -> None:
        self.arrived = 0
        self._new: set[str] = set()  # keys of pods that were first seen since the last call of `take`
        self._deleted: set[str] = set()
        self._pods: dict[str, ObservedPod] = {}
        self._since: dict[str, float] = {}  # time.monotonic() of the arrival

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def pods(self) -> dict[str, ObservedPod]:
        """The arriving pods by key, in the order of their arrival; the caller must not change it."""
        return self._pods

    def note_new(self, key: str) -> None:
        """Record that a pod was seen for the first time."""
        self._new.add(key)

    def note_deleted(self, key: str) -> None:
        """Record that a pod was deleted; a new pod of this name before the next `take` is not treated as arriving."""
        self._deleted.add(key)

    def exclude(self, keys: Iterable[str]) -> None:
        """Do not treat these pods as arriving: they have rows already."""
        self._new.difference_update(keys)

    def take(self, pods: Iterable[ObservedPod], *, accepts: bool) -> list[ObservedPod]:
        """Remove deleted pods, keep the arriving ones of these pods if `accepts` is True, and return the others."""
        new, self._new = self._new - self._deleted, set()
        for key in self._deleted:
            self._drop(key)
        self._deleted.clear()
        others = []
        for pod in pods:
            if accepts and _is_arriving(pod) and (pod.key in new or pod.key in self._pods):
                self._pods[pod.key] = pod
                self.arrived += 1
                self._since.setdefault(pod.key, time.monotonic())
            else:
                self._drop(pod.key)
                others.append(pod)
        return others

    def settle(self, *, placed: Collection[str], tried: Collection[str], others_wait: bool) -> list[ObservedPod]:
        """Remove the placed pods and the pods that join the queue, and return the latter, at most `MOST_JOINING`.

        Placed pods have rows. The other pods of `tried` join the queue. Pods that were not tried do so too, unless
        `others_wait` is True: then they stay for the next attempt, up to `WAIT_SECONDS` after their arrival. Pods above
        the limit stay until the next call.
        """
        for key in placed:
            self._drop(key)
        oldest = time.monotonic() - WAIT_SECONDS
        expired = takewhile(lambda key: self._since[key] < oldest, self._since)  # `_since` is in the order of arrival
        leaving = dict.fromkeys(chain(tried, expired)) if others_wait else self._pods
        joining = [self._pods[key] for key in islice((key for key in leaving if key in self._pods), MOST_JOINING)]
        for pod in joining:
            self._drop(pod.key)
        return joining

    def _drop(self, key: str) -> None:
        self._pods.pop(key, None)
        self._since.pop(key, None)


def _is_arriving(pod: ObservedPod) -> bool:
    """Return whether a pod waits for this scheduler."""
    return pod.spec is not None and not pod.node_name and not pod.deleting and is_ours(pod.scheduler_name)
