"""Compile functions with numba and cache the machine code under a key that covers all of them.

numba's cache is keyed by the file of the called function, so a change in a callee is not noticed. Every function
passed to `compiled` contributes to `version`, which the cached function has in its closure.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])
_codes = blake2b(digest_size=8)


def compiled(function: F) -> F:
    """Compile as part of the caller."""
    _codes.update(marshal.dumps(function.__code__))
    return cast("F", njit(error_model="numpy")(function))


def compiled_for_good(function: F) -> tuple[F, bool]:
    """Compile at the first call and cache the machine code on disk; return whether the cache is writable.

    The cache key is the function's file and closure, not its callees: the closure must contain `version`.
    """
    try:
        return cast("F", njit(cache=True, error_model="numpy")(function)), True
    except RuntimeError:
        return compiled(function), False


def version() -> str:
    """Return a hash of the code of all functions passed to `compiled` so far."""
    return _codes.hexdigest()
