"""What differs between two contents of a policy, told plugin by plugin.

Rule: a plugin is named once for each thing that is otherwise: on or off, weight, a parameter, place in the order. A
place counts as moved only if the plugin is not among the longest run of those that kept their order, so that putting
one plugin in front is one change, not one of all the others. A parameter that is not stated has its default.
Invariant: no change is told exactly when the two say the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from hetsched.contracts.policy import PluginUse, PolicySpec
from hetsched.engine.registry import Registry

Kind = Literal["on", "off", "weight", "param", "order", "ties", "description"]


class Change(msgspec.Struct, frozen=True):
    """One difference; `name` is the parameter's of a "param", places of an "order" count from 1."""

    kind: Kind
    plugin: str = ""
    name: str = ""
    before: Any = None
    after: Any = None


def changes(before: PolicySpec | None, after: PolicySpec, registry: Registry) -> list[Change]:
    """Return what is otherwise in `after`; without `before`, that every plugin is on."""
    old = {use.name: use for use in before.plugins} if before else {}
    new = {use.name: use for use in after.plugins}
    found = [Change("off", name, before=use.weight) for name, use in old.items() if name not in new]
    moved = _moved([name for name in old if name in new], [name for name in new if name in old])
    places = {name: place for place, name in enumerate(old, start=1)}
    for place, use in enumerate(after.plugins, start=1):
        was = old.get(use.name)
        if was is None:
            found.append(Change("on", use.name, after=use.weight))
            found += _params(PluginUse(use.name), use, registry)
            continue
        if was.weight != use.weight:
            found.append(Change("weight", use.name, before=was.weight, after=use.weight))
        found += _params(was, use, registry)
        if use.name in moved:
            found.append(Change("order", use.name, before=places[use.name], after=place))
    if before is not None and before.ties != after.ties:
        found.append(Change("ties", before=_ties(before), after=_ties(after)))
    if before is not None and before.description != after.description:
        found.append(Change("description", before=before.description, after=after.description))
    return found


def _params(was: PluginUse, use: PluginUse, registry: Registry) -> Iterator[Change]:
    defaults = _defaults(use.name, registry)
    old, new = {**defaults, **was.params}, {**defaults, **use.params}
    for name in sorted(old.keys() | new.keys()):
        if _plain(old.get(name)) != _plain(new.get(name)):
            yield Change("param", use.name, name, _plain(old.get(name)), _plain(new.get(name)))


def _defaults(name: str, registry: Registry) -> dict[str, Any]:
    info = registry[name].params if name in registry else None
    return dict(msgspec.to_builtins(info())) if info else {}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a pair and a list of two are the same."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _ties(spec: PolicySpec) -> str:
    return spec.ties.by if spec.ties.by == "name" else f"{spec.ties.by}, seed {spec.ties.seed}"


def _moved(old: Sequence[str], new: Sequence[str]) -> set[str]:
    """Return the fewest names whose places must change to turn one order into the other.

    Source: patience sorting gives a longest increasing subsequence (Fredman 1975); the others moved.
    """
    place = {name: at for at, name in enumerate(old)}
    ends: list[int] = []
    last: list[str] = []
    behind: dict[str, str | None] = {}
    for name in new:
        at = bisect_left(ends, place[name])
        behind[name] = last[at - 1] if at else None
        ends[at : at + 1] = [place[name]]
        last[at : at + 1] = [name]
    kept: set[str] = set()
    name_: str | None = last[-1] if last else None
    while name_ is not None:
        kept.add(name_)
        name_ = behind[name_]
    return set(new) - kept
