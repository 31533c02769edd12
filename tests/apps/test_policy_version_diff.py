"""The difference between two versions in terms of policies: added, removed and moved plugins, weights, parameters."""

from __future__ import annotations

from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.policies.policy_diff import diff


def spec(*plugins: str | PluginUse, **more: object) -> PolicySpec:
    uses = tuple(PluginUse(plugin) if isinstance(plugin, str) else plugin for plugin in plugins)
    return PolicySpec("mine", uses, **more)  # type: ignore[arg-type]


def test_equal_versions_have_no_difference() -> None:
    found = diff(spec("taints", "resource-fit"), spec("taints", "resource-fit", version=2))
    assert (found.same, found.plugins, found.ties, found.description) == (True, (), None, None)


def test_only_plugins_that_have_to_move_are_moved() -> None:
    # Of 1 2 3 4 in the new order 2 3 1 4 the longest increasing subsequence is 2 3 4: only 1 moved.
    found = diff(spec("taints", "volumes", "devices", "quota"), spec("volumes", "devices", "taints", "quota"))
    (change,) = found.plugins
    assert (change.plugin, change.change, change.moved) == ("taints", "changed", True)
    assert (change.place_before, change.place_after) == (1, 3)


def test_added_and_removed_plugins_have_their_position() -> None:
    found = diff(spec("taints", "volumes"), spec("taints", "quota"))
    changes = [(change.plugin, change.change, change.place_before, change.place_after) for change in found.plugins]
    assert changes == [("quota", "added", None, 2), ("volumes", "removed", 2, None)]


def test_omitted_parameter_has_its_default() -> None:
    before = spec(PluginUse("binpack", 1.0))
    after = spec(PluginUse("binpack", 2.0, {"mode": "upstream"}), ties=Ties("random", 7), description="denser")
    found = diff(before, after)
    (change,) = found.plugins
    assert (change.weight_before, change.weight_after) == (1.0, 2.0)
    assert [(one.name, one.before, one.after) for one in change.params] == [("mode", "plain", "upstream")]
    assert found.ties is not None
    assert found.ties.after == {"by": "random", "seed": 7}
    assert found.description is not None


def test_explicit_default_parameter_is_no_change() -> None:
    assert diff(spec(PluginUse("binpack")), spec(PluginUse("binpack", 1.0, {"mode": "plain"}))).same
