"""Policies of a what-if request: drafts, and the policies of an inline cluster."""

from __future__ import annotations

from typing import Any

import msgspec

from hetsched.adapters.files import parse_cluster
from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.policy import Policy as Compiled
from hetsched.engine.framework.policy import compile_policy, policy_from_plain
from hetsched.policies.actions import known_policies_hint
from hetsched.policies.models import Policy

from .. import bodies
from ..policies.plugins import registry


class InlineChooser:
    """Policy chooser for a cluster in the request. As in the CLI, the order is: the policy that the pod names, the
    default of its namespace, the default policy.
    """

    def __init__(self, own: dict[str, PolicySpec], inline: ClusterContent, content: ClusterContent) -> None:
        self.known = own.keys() | BUILTIN.keys() | set(Policy.objects.values_list("name", flat=True))
        self.defaults = inline.namespace_policies | content.namespace_policies

    def choose(self, pod: PodSpec, requested: str = "") -> tuple[Any, Problem | None]:
        name = requested or pod.policy or self.defaults.get(pod.namespace, "") or DEFAULT
        if name in self.known:
            return _PolicyReference(name), None
        message = Message("unknown policy {name}", name=repr(name[:80]))
        if requested:
            raise InputError("PolicyUnknown", message, place="policy", hint=known_policies_hint())
        return _PolicyReference(DEFAULT), Problem("PolicyUnknown", pod.policy_field, message)


class _PolicyReference(msgspec.Struct, frozen=True):
    name: str


def draft_policy(plain: dict[str, Any]) -> PolicySpec:
    if "apiVersion" in plain:
        found = parse_cluster([("policyDraft", bodies.source(plain))]).policies
        if len(found) != 1:
            raise InputError(
                "PolicyAmbiguous", "the value must contain exactly one SchedulingPolicy", place="policyDraft"
            )
        return msgspec.structs.replace(found[0], version=0)
    name = plain.get("name") or "draft"
    try:
        return policy_from_plain({**plain, "version": 0}, name=str(name))
    except InputError as error:
        place = f"policyDraft{error.place.removeprefix('spec')}"
        raise InputError(error.code, error.message, place=place, hint=error.hint) from None


def compile_draft(spec: PolicySpec, *, preemption: bool, implied: bool = False) -> Compiled:
    plugins = registry()
    if not preemption:
        kept = tuple(u for u in spec.plugins if u.name not in plugins or "post-filter" not in plugins[u.name].points)
        spec = msgspec.structs.replace(spec, plugins=kept)
    return compile_policy(spec, plugins, implied=implied)
