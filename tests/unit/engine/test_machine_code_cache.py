"""Without a writable cache, machine code is compiled only for this process, and only for very many pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.engine.compiled import batch, kernel, machine_code
from hetsched.engine.framework.compiled_terms import loop_function


def no_place(**options: Any) -> Callable[[Any], Any]:
    """Refuse to store machine code, as numba does without a writable directory."""
    if options.get("cache"):
        raise RuntimeError("cannot cache function: no locator available")
    return lambda function: function


def twice(number: int) -> int:
    return 2 * number


def test_uncacheable_code_is_compiled_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "njit", no_place)
    made, kept = machine_code.compile_cached(twice)
    assert (made(21), kept) == (42, False)


def test_uncached_code_is_compiled_for_many_pods_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "KEPT", False)
    assert [batch._is_worthwhile(pods) for pods in (50_000, 500_000)] == [False, True]
    monkeypatch.setattr(kernel, "KEPT", True)
    assert batch._is_worthwhile(50_000)


@loop_function
def add_one(total, weight, nodes, at, delta, extra, given, cards):  # type: ignore[no-untyped-def]
    total += weight


@loop_function
def four_times(number: int) -> int:
    return twice(twice(number))


def test_functions_with_other_code_or_callees_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of functions are the symbols by which cached machine code finds its callees."""
    names = set()
    for callee in (loop_function(lambda number: 2 * number), loop_function(lambda number: 3 * number)):
        monkeypatch.setitem(globals(), "twice", callee)
        linker = machine_code.Linker()
        compiled: Any = linker.link(four_times)
        assert compiled(1) == callee(callee(1))
        names.add(compiled.py_func.__qualname__)
    assert len(names) == 2


FACTOR = 3


@loop_function
def times_the_factor(number: int) -> int:
    return FACTOR * number


def test_functions_with_other_constants_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba compiles the value of a module constant into the code."""
    names = set()
    for factor in (3, 4):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        compiled: Any = machine_code.Linker().link(times_the_factor)
        assert compiled(1) == factor
        names.add(compiled.py_func.__qualname__)
    assert len(names) == 2


def test_replacement_is_named_after_the_functions_that_it_calls() -> None:
    names = set()
    for callee in (loop_function(lambda number: 2 * number), loop_function(lambda number: 3 * number)):
        linker = machine_code.Linker()
        scope: dict[str, Any] = {"callee": linker.link(callee)}
        exec("def calling(number): return callee(number)", scope)
        linker.replace(twice, scope["calling"], [callee])
        names.add(linker.link(twice).py_func.__qualname__)  # type: ignore[attr-defined]
    assert len(names) == 2


def test_cache_files_of_a_loop_are_named_after_its_code() -> None:
    """numba names the files after the module and the qualified name of the function."""
    place = kernel.loop_of(()).place
    assert place.py_func.__qualname__ != kernel.loop_of((add_one,)).place.py_func.__qualname__
