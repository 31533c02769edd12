"""Policies of the experiments: the built-in ones, with the scores of kube-scheduler when the systems were published.

kube-scheduler rates the balance of CPU and memory in another way since 1.36; `default-kube` follows that version.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.framework.builtin_policies import BUILTIN


def earlier_kube(form: str, name: str = "default-kube") -> PolicySpec:
    """Return the policy `default-kube` with another form of balanced-allocation."""
    kube = BUILTIN["default-kube"]
    plugins = tuple(
        PluginUse(use.name, use.weight, {"form": form}) if use.name == "balanced-allocation" else use
        for use in kube.plugins
    )
    return msgspec.structs.replace(kube, name=name, plugins=plugins)


POLICIES = {**BUILTIN, "default-kube": earlier_kube("std")}
