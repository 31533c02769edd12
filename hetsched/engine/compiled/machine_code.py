"""Compile functions with numba and cache the machine code under a key that covers all of them.

numba's cache is keyed by the file of the called function, so a change in a callee is not noticed. A `Linker` compiles a
function together with all functions that it calls, and adds a digest of their code and constants to its name. The cache
files are named after the function. Processes that compile different versions at the same time therefore write different
files, which is necessary because numba rewrites the index of a file without a lock. Functions marked with
`loop_function` remain plain functions in their modules, so plugins do not import numba.
Invariant: two functions of the same name have the same machine code. This is necessary because, if a process loads two
cached loops, a symbol of the second loop refers to the function of the same name in the first.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from hashlib import blake2b
from types import FunctionType
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
# Version of the marshal format in which the bytes do not depend on the number of references to a constant.
_WITHOUT_REFERENCES = 2
_CONSTANTS = (bool, int, float, str, tuple)


class Linker:
    """Compiled versions of functions; each calls the compiled versions of the marked functions that it uses."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}
        self._digests: dict[Any, str] = {}

    def link(self, function: F, *, inline: bool = False) -> F:
        """Return the compiled version of a function, linked to the functions that it calls.

        With `inline`, callers contain a copy of the function instead of a call.
        """
        if function not in self._compiled:
            self._compiled[function] = compiled(self.linked(function), inline=inline)
        return cast("F", self._compiled[function])

    def replace(self, function: F, other: F, calls: Sequence[Any]) -> None:
        """Make callers of `function` contain `other` instead; `other` calls the linked versions of `calls`."""
        self._digests[function] = _add_digest(other, [self._digests[callee] for callee in calls])
        self._compiled[function] = compiled(other, inline=True)

    def linked(self, function: F) -> F:
        """Return an uncompiled copy of a function that calls the compiled versions of the marked functions it uses."""
        plain = cast("FunctionType", function)
        code, names = plain.__code__, plain.__globals__
        marked = [name for name in code.co_names if _is_marked(names.get(name))]
        called = {name: self.link(names[name]) for name in marked}
        made = FunctionType(code, {**names, **called}, plain.__name__, plain.__defaults__, plain.__closure__)
        made.__qualname__ = plain.__qualname__
        self._digests[function] = _add_digest(made, [self._digests[names[name]] for name in marked])
        return cast("F", made)


def _add_digest(function: Any, callees: Sequence[str]) -> str:
    """Add a digest of the function's code, constants and callees to its name; return the digest."""
    code, names = function.__code__, function.__globals__
    digest = blake2b(marshal.dumps(code.replace(co_filename=""), _WITHOUT_REFERENCES), digest_size=8)
    # numba compiles the current values of module constants and closures into the code.
    used = {name: names[name] for name in code.co_names if isinstance(names.get(name), _CONSTANTS)}
    frozen = [cell.cell_contents for cell in function.__closure__ or ()]
    digest.update(repr((sorted(used.items()), frozen, function.__defaults__, callees)).encode())
    function.__qualname__ = f"{function.__qualname__}_{digest.hexdigest()}"
    return digest.hexdigest()


def compiled(function: F, *, inline: bool = False) -> F:
    """Compile a function for use in other compiled functions: they call it or, with `inline`, contain its code."""
    return cast("F", njit(error_model="numpy", inline="always" if inline else "never")(function))


def compile_cached(function: F) -> tuple[F, bool]:
    """Compile a function at its first call and cache its machine code on disk.

    Returns the compiled function, and whether the cache is writable.

    The function is one that a `Linker` has linked, so its name changes with the code of its callees.
    """
    try:
        return cast("F", njit(cache=True, error_model="numpy")(function)), True
    except RuntimeError:
        return compiled(function), False


def _borrowed(_: Any, value: Any) -> Any:
    """Return an array, or a tuple of arrays and numbers, without references that numba counts.

    numba counts the references of every array that is sliced or read from a tuple, by atomic instructions. The caller
    must hold the arrays until the compiled function returns: only arguments of the outermost function may be borrowed.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _without_owner(context, builder, signature.args[0], arguments[0])

    return value(value), generate


borrowed: Any = intrinsic(_borrowed)


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Generate code that removes the owner of each array in a value of the numba type `kind`."""
    if isinstance(kind, types.BaseTuple):
        kinds: Any = kind
        for position in range(len(kinds)):
            item = _without_owner(context, builder, kinds[position], builder.extract_value(value, position))
            value = builder.insert_value(value, item, position)
        return value
    if not isinstance(kind, types.Array):
        return value
    array = context.make_array(kind)(context, builder, value)
    array.meminfo = array.meminfo.type(None)
    array.parent = array.parent.type(None)
    return array._getvalue()


def _is_marked(value: Any) -> bool:
    return isinstance(value, FunctionType) and "loop_function" in vars(value)
