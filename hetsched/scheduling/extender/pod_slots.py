"""Serialize the pods of one kube-scheduler.

kube-scheduler sends the filter call of the next pod while the bind call of the previous pod is still in flight. Without
serialization, the response to the next pod would not consider the previous pod's allocation.
A pod whose filter call found feasible nodes holds the slot until it is bound, at most for `patience_seconds`. The
filter call of another pod waits for the slot, and waits again if a third pod acquired it first. After `MOST_MISSED`
consecutive timeouts, as with a scheduler that binds pods itself, filter calls stop waiting for the slot until a pod is
bound through the extender again.
"""

from __future__ import annotations

import threading
import time

MOST_MISSED = 3


class PodSlots:
    """The slot of one kube-scheduler, with the uid of the pod that holds it. Thread-safe."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._changed = threading.Condition()
        self._pod = ""
        self._since = 0.0
        self._missed = 0

    def begin(self, uid: str, until: float) -> None:
        """Acquire the slot for a pod.

        Wait until the slot is free, its holder has held it for `patience_seconds`, or `until` (time.monotonic()) has
        passed.
        """
        with self._changed:
            while self._pod not in ("", uid) and self._missed < MOST_MISSED:
                remaining = min(self._since + self._patience_seconds, until) - time.monotonic()
                if remaining <= 0:
                    self._missed += 1
                    break
                self._changed.wait(remaining)
            self._pod, self._since = uid, time.monotonic()

    def end(self, uid: str, *, bound: bool = False) -> None:
        """Release the slot if this pod still holds it."""
        with self._changed:
            if bound:
                self._missed = 0
            if self._pod == uid:
                self._pod = ""
                self._changed.notify_all()
