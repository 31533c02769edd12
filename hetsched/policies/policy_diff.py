"""Differences between two versions of a policy, by plugins and settings rather than by text.

Plugins are compared by name. Of the plugins in both versions, the longest subsequence whose order is unchanged is not
reported as moved; all others are. A parameter that one version omits is reported with the plugin's default.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Literal

import msgspec

from hetsched.contracts.documents import to_plain
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.params import default_params
from hetsched.engine.framework.registry import Registry, load_registry


class SettingChange(msgspec.Struct, frozen=True):
    """A changed setting with its value in each version, or None if it has neither a value nor a default there."""

    name: str
    before: Any
    after: Any


class PluginChange(msgspec.Struct, frozen=True, rename="camel"):
    """The differences of one plugin. A position is counted from 1, or None in a version without the plugin."""

    plugin: str
    change: Literal["added", "removed", "changed"]
    moved: bool
    place_before: int | None
    place_after: int | None
    weight_before: float | None
    weight_after: float | None
    params: tuple[SettingChange, ...] = ()


class PolicyDiff(msgspec.Struct, frozen=True):
    """All differences, with plugins in the order of the later version and removed plugins last."""

    same: bool
    plugins: tuple[PluginChange, ...]
    ties: SettingChange | None
    description: SettingChange | None


def diff(before: PolicySpec | None, after: PolicySpec) -> PolicyDiff:
    """Compare two versions. If there is no earlier version, everything is reported as added."""
    registry = load_registry()
    old = {use.name: (place, use) for place, use in enumerate(before.plugins if before else (), start=1)}
    new = {use.name: (place, use) for place, use in enumerate(after.plugins, start=1)}
    stay = _unmoved_places([old[name][0] for name in new if name in old])
    changes = [
        _change(registry, old.get(name), new[name], moved=name in old and old[name][0] not in stay) for name in new
    ]
    changes += [_change(registry, old[name], None, moved=False) for name in old if name not in new]
    differing = tuple(change for change in changes if _differs(change))
    ties = _field("ties", before.ties if before else None, after.ties)
    description = _field("description", before.description if before else "", after.description)
    return PolicyDiff(not (differing or ties or description), differing, ties, description)


def _field(name: str, before: Any, after: Any) -> SettingChange | None:
    return None if before == after else SettingChange(name, to_plain(before), to_plain(after))


def _change(
    registry: Registry, old: tuple[int, PluginUse] | None, new: tuple[int, PluginUse] | None, *, moved: bool
) -> PluginChange:
    use = (new or old or (0, PluginUse("")))[1]
    return PluginChange(
        plugin=use.name,
        change="added" if old is None else "removed" if new is None else "changed",
        moved=moved,
        place_before=old[0] if old else None,
        place_after=new[0] if new else None,
        weight_before=old[1].weight if old else None,
        weight_after=new[1].weight if new else None,
        params=_params(registry, use.name, old[1].params if old else {}, new[1].params if new else {}),
    )


def _params(registry: Registry, name: str, old: dict[str, Any], new: dict[str, Any]) -> tuple[SettingChange, ...]:
    defaults = to_plain(default_params(registry[name].params)) if name in registry else {}
    sides = {param: tuple(side.get(param, defaults.get(param)) for side in (old, new)) for param in {**old, **new}}
    return tuple(SettingChange(param, was, now) for param, (was, now) in sorted(sides.items()) if was != now)


def _differs(change: PluginChange) -> bool:
    same = change.change == "changed" and change.weight_before == change.weight_after
    return not same or change.moved or bool(change.params)


def _unmoved_places(places: list[int]) -> set[int]:
    """Return the longest increasing subsequence of distinct positions: the plugins that are not reported as moved."""
    ends: list[int] = []  # the smallest last position among the subsequences of each length
    at: list[int] = []
    for place in places:
        length = bisect_left(ends, place)
        ends[length : length + 1] = [place]
        at.append(length)
    kept: set[int] = set()
    wanted = len(ends) - 1
    for place, length in zip(reversed(places), reversed(at), strict=True):
        if length == wanted and (not kept or place < min(kept)):
            kept.add(place)
            wanted -= 1
    return kept
