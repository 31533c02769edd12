"""Two contents of a policy are compared plugin by plugin, and told in the fewest changes."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.adapters.files import parse_cluster
from hetsched.contracts.policy import PluginUse, PolicySpec, Ties
from hetsched.engine.policies import BUILTIN
from hetsched.engine.registry import load_registry
from hetsched.policies.changes import Change, changes
from hetsched.policies.manifest import manifest_of

REGISTRY = load_registry()


def policy(*uses: PluginUse | str, **more: object) -> PolicySpec:
    plugins = tuple(PluginUse(use) if isinstance(use, str) else use for use in uses)
    return PolicySpec("p", plugins, **more)  # type: ignore[arg-type]


def told(before: PolicySpec, after: PolicySpec) -> list[Change]:
    return changes(before, after, REGISTRY)


def test_the_same_has_no_change_and_versions_do_not_count() -> None:
    for spec in BUILTIN.values():
        assert told(spec, msgspec.structs.replace(spec, version=7)) == []


def test_on_off_and_weight() -> None:
    before = policy("quota", PluginUse("binpack", 2))
    after = policy(PluginUse("binpack", 3), "zone-count")
    assert told(before, after) == [
        Change("off", "quota", before=1.0),
        Change("weight", "binpack", before=2, after=3),
        Change("on", "zone-count", after=1.0),
    ]


def test_a_parameter_at_its_default_is_no_change() -> None:
    stated = PluginUse("least-allocated", params={"cpu": 1})  # 1 is the default
    assert told(policy("least-allocated"), policy(stated)) == []
    other = PluginUse("least-allocated", params={"cpu": 5})
    assert told(policy(stated), policy(other)) == [Change("param", "least-allocated", "cpu", 1, 5)]


def test_what_a_new_plugin_is_set_to_is_told_too() -> None:
    found = told(policy("quota"), policy("quota", PluginUse("class-split", params={"strict": False})))
    assert found == [Change("on", "class-split", after=1.0), Change("param", "class-split", "strict", True, False)]


def test_putting_one_in_front_is_one_change() -> None:
    # a b c d -> d a b c: a, b and c keep their order, d went from place 4 to 1.
    before = policy("quota", "taints", "volumes", "devices")
    after = policy("devices", "quota", "taints", "volumes")
    assert told(before, after) == [Change("order", "devices", before=4, after=1)]


def test_ties_and_description() -> None:
    before, after = policy("quota"), policy("quota", ties=Ties("random", 3), description="even")
    assert told(before, after) == [
        Change("ties", before="name", after="random, seed 3"),
        Change("description", before="", after="even"),
    ]


def test_a_plugin_that_nobody_knows_is_compared_too() -> None:
    gone = PluginUse("of-a-package-that-left", params={"x": 1})
    assert told(policy(gone), policy("quota"))[0] == Change("off", "of-a-package-that-left", before=1.0)


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_the_text_of_a_policy_gives_the_same_policy(name: str) -> None:
    spec = BUILTIN[name]
    (read,) = parse_cluster([("text", manifest_of(spec).encode())]).policies
    assert msgspec.structs.replace(read, version=spec.version) == spec
