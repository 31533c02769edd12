"""Shrink a case to a minimal one with the same property.

The shrinker removes pods, objects, list items and fields one by one as long as the case keeps the property, until no
single removal is possible.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from .clusters import Case

# Fields that every object has, or that the kubelet or the API server sets.
_KEPT = {
    "apiVersion", "kind", "metadata", "name", "namespace", "uid", "spec", "status", "phase", "startTime",
    "creationTimestamp", "conditions", "allocatable", "capacity", "cpu", "memory", "pods", "priority", "selector",
    "matchLabels", "app", "disruptionsAllowed", "maxUnavailable", "numa", "kubelet",
}  # fmt: skip


def shrink(case: Case, keeps: Callable[[Case], bool]) -> Case:
    """Return a smallest case for which `keeps` returns True; it must return True for `case` itself."""
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(case):
            if keeps(smaller):
                case, shrunk = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    for name in ("pods", "objects"):
        items = getattr(case, name)
        for place in range(len(items)):
            if name == "objects" or len(items) > 1:
                yield msgspec.structs.replace(case, **{name: items[:place] + items[place + 1 :]})
    for name in ("pods", "objects"):
        items = getattr(case, name)
        for place, item in enumerate(items):
            for path in _paths(item):
                reduced = copy.deepcopy(item)
                _remove(reduced, path)
                yield msgspec.structs.replace(case, **{name: [*items[:place], reduced, *items[place + 1 :]]})


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all removable parts, larger parts first."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    for key in keys:
        if key not in _KEPT:
            yield (*before, key)
    for key in keys:
        yield from _paths(value[key], (*before, key))


def _remove(value: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        value = value[key]
    del value[path[-1]]
