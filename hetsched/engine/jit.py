"""Compile functions with numba, or leave them plain where numba is not installed.

numba has no wheels for riscv64. Without it the scheduling cycle decides every pod, as it does for small batches, and
loops over GPUs run as Python code: the decisions are equal and take longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    HAS_NUMBA = False
else:
    HAS_NUMBA = True


def njit(**options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function with these options of numba, if numba is installed."""
    if not HAS_NUMBA:
        return lambda function: function
    decorator: Callable[[F], F] = numba.njit(**options)
    return decorator
