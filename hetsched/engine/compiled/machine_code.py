"""Compile functions, and keep what was compiled under a name that changes with any of them.

Problem: numba looks kept machine code up by the file of the function that is called, so a change in what it calls goes
unnoticed.
Rule: everything that is handed to `compiled` is part of `version`, which the kept function has in its closure.
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
    """Compile as part of what calls it."""
    _codes.update(marshal.dumps(function.__code__))
    return cast("F", njit(error_model="numpy")(function))


def compiled_for_good(function: F) -> tuple[F, bool]:
    """Compile at the first call and keep the machine code on disk; tell whether there is a place that can be written.

    What is kept is looked up by the function's file and closure, not by what it calls: `version` has to be in there.
    """
    try:
        return cast("F", njit(cache=True, error_model="numpy")(function)), True
    except RuntimeError:
        return compiled(function), False


def version() -> str:
    """Return a name for the code of everything that was handed to `compiled` so far."""
    return _codes.hexdigest()
