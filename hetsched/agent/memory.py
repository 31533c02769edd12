"""Give memory back to the machine.

Problem: loading gRPC and NVML leaves a fifth of the agent's memory free and yet its own, for as long as it runs.
Rule: after each reading of the machine the C library returns what it can. Where it has no such call, nothing happens.
Source: malloc_trim(3).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any


def give_back() -> None:
    """Return unused memory to the kernel."""
    if (trim := _trim()) is not None:
        trim(0)


@lru_cache(maxsize=1)
def _trim() -> Any:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None
