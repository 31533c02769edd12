"""Scheduling policy: an ordered list of plugins with weights and parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Weight = Annotated[float, msgspec.Meta(ge=0, le=1000)]


class PluginUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One enabled plugin; `params` are validated against the plugin's declaration."""

    name: str
    weight: Weight = 1.0
    params: dict[str, Any] = {}


class Ties(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tie-breaking for equal scores: the lowest node name, or a random choice that the seed makes repeatable."""

    by: Literal["name", "random"] = "name"
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


class PolicySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ordered list of plugins; a plugin that is not listed is disabled."""

    name: str
    plugins: tuple[PluginUse, ...]
    ties: Ties = Ties()
    description: str = ""
    version: int = 1
