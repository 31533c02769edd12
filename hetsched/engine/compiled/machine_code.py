"""Compile functions with numba and cache the machine code under a key that covers all of them.

numba's cache is keyed by the file of the called function, so a change in a callee is not noticed. A `Linker` compiles a
function together with all functions that it calls; each contributes to `version`, which the cached function has in its
closure. Functions marked with `loop_function` remain plain functions in their modules, so plugins do not import numba.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from hashlib import blake2b
from types import FunctionType
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])
# A format of marshal whose bytes do not depend on the number of references to a constant.
_WITHOUT_REFERENCES = 2


class Linker:
    """Compiled versions of functions, each linked to those of the marked functions that it calls."""

    def __init__(self) -> None:
        self._codes = blake2b(digest_size=8)
        self._compiled: dict[Any, Any] = {}

    def link(self, function: F, *, inline: bool = False) -> F:
        """Return the compiled version of a function, linked to the functions that it calls.

        With `inline`, callers contain a copy of the function instead of a call.
        """
        if function not in self._compiled:
            self._compiled[function] = compiled(self.linked(function), inline=inline)
        return cast("F", self._compiled[function])

    def replace(self, function: F, other: F) -> None:
        """Use another compiled function wherever this one is called."""
        self._compiled[function] = other

    def linked(self, function: F) -> F:
        """Return an uncompiled copy of a function that calls the compiled versions of the marked functions it uses."""
        plain = cast("FunctionType", function)
        code, names = plain.__code__, plain.__globals__
        self._codes.update(marshal.dumps(code.replace(co_filename=""), _WITHOUT_REFERENCES))
        called = {name: self.link(names[name]) for name in code.co_names if _is_marked(names.get(name))}
        made = FunctionType(code, {**names, **called}, plain.__name__, plain.__defaults__, plain.__closure__)
        made.__qualname__ = plain.__qualname__
        return cast("F", made)

    def version(self) -> str:
        """Return a hash of the code of all functions linked so far."""
        return self._codes.hexdigest()


def compiled(function: F, *, inline: bool = False) -> F:
    """Compile a function that other compiled functions call, or contain with `inline`."""
    return cast("F", njit(error_model="numpy", inline="always" if inline else "never")(function))


def compile_cached(function: F) -> tuple[F, bool]:
    """Compile at the first call and cache the machine code on disk; return whether the cache is writable.

    The cache key is the function's file and closure, not its callees: the closure must contain their version.
    """
    try:
        return cast("F", njit(cache=True, error_model="numpy")(function)), True
    except RuntimeError:
        return compiled(function), False


def _is_marked(value: Any) -> bool:
    return isinstance(value, FunctionType) and "loop_function" in vars(value)
