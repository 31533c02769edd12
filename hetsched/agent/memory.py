"""Return unused memory to the operating system.

Loading gRPC and NVML leaves a fifth of the agent's memory free but allocated to the process for as long as it runs.
After each reading of the machine the C library returns free memory. A C library without that call is left alone.
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
