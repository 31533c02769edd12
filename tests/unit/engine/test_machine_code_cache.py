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
def four_times(number: int) -> int:
    return twice(twice(number))


def test_other_code_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = set()
    for callee in (loop_function(lambda number: 2 * number), loop_function(lambda number: 3 * number)):
        monkeypatch.setitem(globals(), "twice", callee)
        linker = machine_code.Linker()
        assert linker.link(four_times)(1) == callee(callee(1))
        versions.add(linker.version())
    assert len(versions) == 2


def test_each_version_of_the_loop_has_its_own_cache_files() -> None:
    """numba names the files after the module and the qualified name of the function."""
    files = {kernel._cached(version).__qualname__ for version in ("1f", "2e")}
    assert len(files) == 2
    place = kernel.loop_of(()).place
    assert place.py_func.__qualname__ == kernel._cached(place.py_func.__closure__[0].cell_contents).__qualname__
