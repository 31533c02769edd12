"""Select the policy of a pod.

The first match wins: the request's own choice, the pod's annotation or scheduler name, the namespace's default, the
cluster's default. The decision records which rule matched. If a name is unknown or not allowed in the namespace, a pod
that names it is misconfigured, and a request that names it is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from datetime import datetime
from functools import lru_cache

import msgspec

from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster
from hetsched.storage.hot_statements import ACTIVE_POLICIES, NAMESPACE_RULES
from hetsched.storage.statements import fetch

from .actions import known_policies_hint, policy_unknown_message
from .models import Policy, PolicyRevision


class EffectivePolicy(msgspec.Struct, frozen=True):
    """A policy's name and the rule that selected it: request, annotation, scheduler-name, namespace or cluster."""

    name: str
    rule: str


class ActivePolicies:
    """The policies that have an active version, read with one query."""

    def __init__(self) -> None:
        self._rows = {name: (version, pk, written) for name, version, pk, written in ACTIVE_POLICIES()}

    @property
    def names(self) -> KeysView[str]:
        return self._rows.keys()

    def specs(self, names: Iterable[str]) -> dict[str, PolicySpec]:
        """Return the content of the active version of these policies, by name; inactive policies are omitted."""
        return {name: _content(*self._rows[name][1:]) for name in names if name in self._rows}


def active_versions() -> dict[str, int]:
    """Read the active version number of each policy, by policy name, from the database."""
    table = Policy._meta.db_table  # without the ORM, because each transaction with decisions runs this statement
    sql = f"SELECT name, active_version FROM {table} WHERE active_version > 0"  # noqa: S608
    return dict(fetch(sql, [], keep_plan=True))  # no index fits, so the whole table is read in any case


class Chooser:
    """Chooses policies for the pods of one submission, with at most two database queries in total."""

    def __init__(self, cluster: Cluster, active: ActivePolicies | None = None) -> None:
        self.cluster = cluster
        self.known = (active or ActivePolicies()).names
        # `CLUSTER_BY_NAME` adds `has_rules` to the cluster of a request.
        rules = NAMESPACE_RULES(cluster=cluster.pk) if getattr(cluster, "has_rules", True) else []
        self.rules = {rule.namespace: rule for rule in rules}

    def choose(self, pod: PodSpec, requested: str = "") -> tuple[EffectivePolicy, Problem | None]:
        """Return the policy of `pod`, and the problem with the pod's own choice, if any.

        Raises: InputError `PolicyUnknown` or `PolicyNotAllowed` if the requested policy is not usable.
        """
        rule = self.rules.get(pod.namespace)
        allowed = set(rule.allowed_policies) if rule else set()
        stated = self.cluster.definitions.namespace_policies.get(pod.namespace, "")
        preset = (rule.default_policy if rule else "") or stated
        default = (
            EffectivePolicy(preset, "namespace") if preset else EffectivePolicy(self.cluster.policy_name, "cluster")
        )
        name = requested or pod.policy
        if not name:
            known = default.name in self.known
            field = f"{default.rule} default policy"
            return default, None if known else Problem("PolicyUnknown", field, policy_unknown_message(default.name))
        if name not in self.known:
            code, message = "PolicyUnknown", policy_unknown_message(name)
        elif allowed and name not in allowed:
            code, message = (
                "PolicyNotAllowed",
                Message("namespace {namespace} may not use policy {name}", namespace=pod.namespace, name=repr(name)),
            )
        else:
            return EffectivePolicy(name, "request" if requested else pod.policy_rule), None
        if requested:
            raise InputError(code, message, place="policy", hint=known_policies_hint())
        return default, Problem(code, pod.policy_field, message)


def active_specs(names: set[str]) -> dict[str, PolicySpec]:
    """Read the content of the active version of these policies, by name; inactive policies are omitted."""
    return ActivePolicies().specs(names)


@lru_cache(maxsize=256)
def _content(revision_id: int, written: str | datetime) -> PolicySpec:
    """Read the content of a revision; it is cached, because it never changes.

    `written`, the time of its creation, distinguishes it from a revision with the same ID in another database.
    """
    return PolicyRevision.objects.get(pk=revision_id).spec
