"""Long work beside a thread that must not wait: who does it gives the interpreter up as soon as another asks.

Problem: how often the interpreter is given up is a setting of the whole process, and several clusters may be folded at
once.
Rule: whoever comes first sets it, whoever leaves last sets it back.
"""

from __future__ import annotations

import sys
import threading

GIVE_WAY_SECONDS = 0.0002  # every statement gives the interpreter up, and waits for it as long as this


class GivingWay:
    """While anybody is inside, the interpreter is given up as soon as another thread asks for it."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(GIVE_WAY_SECONDS)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._before)


giving_way = GivingWay()
