"""Lower priority for long-running work in a thread, so that the other threads of the process run first.

The interpreter's switch interval applies to the whole process, and several threads may have low priority at the same
time.
The first thread that enters shortens the interval, and the last thread that leaves restores it.
"""

from __future__ import annotations

import sys
import threading

# interpreter switch interval: the longest time that a runnable thread waits for the interpreter
SWITCH_INTERVAL_SECONDS = 0.0002


class LowPriority:
    """Context manager: while a thread is inside, the interpreter switches threads every `SWITCH_INTERVAL_SECONDS`."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._before)


low_priority = LowPriority()
