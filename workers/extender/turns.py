"""One pod after the other.

Problem: kube-scheduler asks about the next pod while the binding of the last one is still on its way to us, so the next
answer would not know what the last one took.
Rule: a pod that was told of nodes that fit it has its turn until it is bound, or for `patience_seconds`; who asks for
another pod waits so long. A scheduler whose pods come to no binding here `MOST_MISSED` times in a row, because it binds
by itself, is waited for again only after it has bound one.
"""

from __future__ import annotations

import threading
import time

MOST_MISSED = 3


class Turns:
    """Whose turn it is, by uid; used from several threads."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._changed = threading.Condition()
        self._pod = ""
        self._since = 0.0
        self._missed = 0

    def begin(self, uid: str) -> None:
        """Take the turn, at the latest when the patience with the one before is over."""
        with self._changed:
            if self._pod not in ("", uid) and self._missed < MOST_MISSED:
                left = self._since + self._patience_seconds - time.monotonic()
                if not self._changed.wait_for(lambda: self._pod in ("", uid), timeout=max(left, 0)):
                    self._missed += 1
            self._pod, self._since = uid, time.monotonic()

    def end(self, uid: str, *, bound: bool = False) -> None:
        """Give the turn up, if it is still this pod's."""
        with self._changed:
            if bound:
                self._missed = 0
            if self._pod == uid:
                self._pod = ""
                self._changed.notify_all()
