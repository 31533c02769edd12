"""The policies: what each active version does, in order, and which versions there were."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpResponse

from hetsched.contracts.policy import PluginUse
from hetsched.engine.registry import Registry, load_registry
from hetsched.policies.documents import TOPIC
from hetsched.policies.models import Policy, PolicyObject

from .shell import Shell, page


@page("policies")
def policies(shell: Shell) -> HttpResponse:
    shell.follow(TOPIC)
    registry = load_registry()
    rows = Policy.objects.select_related("keeper").prefetch_related("revisions")
    default = shell.cluster.policy_name if shell.cluster else ""
    found = [_policy(policy, registry, default) for policy in rows]
    found.sort(key=lambda row: (not row["default"], row["policy"].name))
    names = {policy.name for policy in rows}
    news = [one for one in PolicyObject.objects.select_related("cluster") if one.gone or one.problem]
    for row in found:
        policy = row["policy"]
        row["objects"] = [
            one for one in news if one.name == policy.name and (not one.gone or one.cluster_id == policy.keeper_id)
        ]
    refused = [one for one in news if one.name not in names and not one.gone]
    return shell.render("policies", {"policies": found, "refused": refused})


def _policy(policy: Policy, registry: Registry, default: str) -> dict[str, Any]:
    revisions = list(policy.revisions.all())
    active = next((revision for revision in revisions if revision.version == policy.active_version), None)
    return {
        "policy": policy,
        "default": policy.name == default,
        "uses": [_use(use, registry) for use in active.spec.plugins] if active else [],
        "ties": active.spec.ties if active else None,
        "revisions": revisions,
    }


def _use(use: PluginUse, registry: Registry) -> dict[str, Any]:
    known = use.name in registry
    points = registry[use.name].points if known else ()
    return {
        "name": use.name,
        "summary": registry[use.name].summary if known else "",
        "filters": "filter" in points or "pre-filter" in points,
        "weight": use.weight if "score" in points else None,
        "params": msgspec.json.encode(use.params).decode() if use.params else "",
    }
