"""The previous version compiles the built-in policies of this one, because both run during an upgrade."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.framework.builtin_policies import BUILTIN
from tests.released_plugins import current, released, unknown_uses


def test_builtin_policies_compile_in_the_last_release() -> None:
    assert list(unknown_uses(BUILTIN.values(), released())) == []


def test_last_release_has_plugins_with_parameters() -> None:
    assert released().keys() & current().keys() >= {use.name for use in BUILTIN["hetsched"].plugins}
    assert "check" in released()["gpu-fit"]["properties"]


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (PluginUse("new-plugin"), "the plugin new-plugin"),
        (PluginUse("gpu-fit", params={"colour": "red"}), "'colour' was unexpected"),
        (PluginUse("gpu-fit", params={"check": "memory"}), "'memory' is not one of"),
        (PluginUse("binpack", params={"resources": {"cpu": 1000}}), "greater than the maximum"),
    ],
)
def test_new_plugins_parameters_and_values_are_found(use: PluginUse, found: str) -> None:
    (problem,) = unknown_uses([PolicySpec("planted", (PluginUse("taints"), use))], released())
    assert problem.startswith("planted: ")
    assert found in problem
