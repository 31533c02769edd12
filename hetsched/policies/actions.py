"""The only writers of policies; each action is one transaction with its audit entry and live event.

`save_draft` adds a revision without activating it. `activate` activates a revision; it requires a reason, and the
revision must satisfy every golden placement. `rollback` activates the previously active revision. All callers use these
actions: pages, admin, REST, plans, imports, the setup of built-in policies and the informers of cluster objects.
Workers read the active version before each batch, so a change does not require a restart. A policy owned by a cluster
is changed only through the SchedulingPolicy object in that cluster (parameter `kept_by`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec
from django.utils import timezone

from hetsched.contracts.api.golden import GoldenCheck, GoldenPlacementBroken
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined, shortened
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.policy import MAX_WEIGHT, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.actions import require_reason
from hetsched.inventory.models import DNS_LABEL, Cluster
from hetsched.journal.audit import Actor, Program, record
from hetsched.journal.publish import publish_many
from hetsched.storage.write_lock import write_transaction

from .documents import TOPIC, policy_document
from .golden_checks import load_states, require_goldens
from .models import GoldenPlacement, NamespaceRule, Policy, PolicyRevision, RevisionState
from .signals import policy_activated

BUILT_IN = Program("built-in")


def check_policy(spec: PolicySpec) -> PolicySpec:
    """Return the policy if it is valid and can be compiled.

    Raises: InputError `PolicyNameInvalid`, or the errors of `compile_policy`.
    """
    if not re.fullmatch(DNS_LABEL.regex, spec.name):
        message = Message("{text} is not a valid policy name", text=repr(spec.name[:80]))
        raise InputError("PolicyNameInvalid", message, place="name", hint=str(DNS_LABEL.message))
    for use in spec.plugins:
        if not math.isfinite(use.weight) or not 0 <= use.weight <= MAX_WEIGHT:
            message = Message(
                "{name}: weight {value} is not between 0 and {most}",
                name=use.name, value=use.weight, most=f"{MAX_WEIGHT:g}",
            )  # fmt: skip
            raise InputError("PolicyWeightInvalid", message, place=f"plugins.{use.name}.weight")
    compile_policy(spec, load_registry())
    return spec


def save_draft(spec: PolicySpec, *, actor: Actor, reason: str = "", kept_by: Cluster | None = None) -> PolicyRevision:
    """Save a new revision of the policy `spec.name` without activating it; create the policy if it does not exist.

    `kept_by` is the cluster whose SchedulingPolicy object contains the policy, or None for any other caller. If it is
    set, repeated calls with the same content create only one draft.
    Raises: InputError `PolicyKeptInCluster`, or the errors of `check_policy`.
    """
    check_policy(spec)
    with write_transaction():
        Policy.objects.get_or_create(name=spec.name, defaults={"keeper": kept_by})
        policy = lock_policy(spec.name, kept=kept_by is not None)
        latest = policy.revisions.order_by("-version").first()
        may_repeat = kept_by is not None and latest is not None and latest.state == RevisionState.DRAFT
        if may_repeat and latest is not None and has_same_content(latest.spec, spec):
            return latest
        return _add_revision(policy, latest.version if latest else 0, spec, actor, reason)


def _add_revision(policy: Policy, latest: int, spec: PolicySpec, actor: Actor, reason: str) -> PolicyRevision:
    """Create the next revision of a locked policy."""
    numbered = msgspec.structs.replace(spec, version=latest + 1)
    revision = PolicyRevision.objects.create(
        policy=policy, version=latest + 1, spec=numbered, author=actor.name, reason=reason
    )
    if not policy.active_version:
        policy.description = spec.description[:400]
        policy.save(update_fields=["description"])
    record(
        actor=actor.name,
        role=actor.role,
        action="policy.draft",
        obj=policy,
        reason=reason,
        details={"version": revision.version},
    )
    publish_many({TOPIC: lambda: {policy.name: policy_document(policy)}})
    return revision


def activate(
    name: str,
    version: int,
    *,
    actor: Actor,
    reason: str,
    expected_active: int | None = None,
    kept_by: Cluster | None = None,
) -> PolicyRevision:
    """Activate a revision if it satisfies every golden placement. Workers use it from their next batch on.

    `expected_active` is the active version that the caller saw; the call is rejected if another version is active now.
    Raises: InputError `ReasonMissing`, `PolicyUnknown`, `PolicyKeptInCluster`, `PolicyVersionUnknown`,
    `PolicyChanged`, GoldenPlacementBroken, or the errors of `check_policy` if the revision is no longer valid.
    """
    reason = require_reason(reason)
    load_states(name)
    with write_transaction():
        policy = lock_policy(name, kept=kept_by is not None)
        if expected_active is not None and policy.active_version != expected_active:
            message = Message(
                "version {version} of policy {name} is active, not {other}",
                version=policy.active_version, name=name, other=expected_active,
            )  # fmt: skip
            raise InputError("PolicyChanged", message, hint="Check the active version, then try again")
        revision = policy.revisions.filter(version=version).first()
        if revision is None:
            raise version_unknown_error(name, version, place="version")
        check_policy(revision.spec)
        goldens = require_goldens(revision.spec)
        _set_active(policy, revision, goldens, actor, reason)
    return revision


def try_activate(name: str, version: int, *, actor: Actor, reason: str) -> PolicyRevision | None:
    """Activate a revision, or return None and record the rejection in the audit trail if it breaks a golden placement.

    Raises: the errors of `activate` except GoldenPlacementBroken.
    """
    try:
        return activate(name, version, actor=actor, reason=reason)
    except GoldenPlacementBroken as broken:
        record_refused_activation(name, version, broken, actor=actor, reason=reason)
        return None


def record_refused_activation(name: str, version: int, refusal: InputError, *, actor: Actor, reason: str) -> None:
    """Record a rejected activation in the audit trail, for callers that cannot receive the error."""
    details = {"version": version, "code": refusal.code, "refusal": shortened(refusal.message, 2000)}
    record(
        actor=actor.name, role=actor.role, action="policy.refused", obj=("policy", name), reason=reason, details=details
    )


def _set_active(policy: Policy, revision: PolicyRevision, goldens: GoldenCheck, actor: Actor, reason: str) -> None:
    """Make a revision of a locked policy the active one."""
    before = policy.active_version
    policy.revisions.filter(state=RevisionState.ACTIVE).update(state=RevisionState.RETIRED)
    revision.state, revision.reason, revision.activated_at = RevisionState.ACTIVE, reason, timezone.now()
    revision.save(update_fields=["state", "reason", "activated_at"])
    policy.active_version, policy.description = revision.version, revision.spec.description[:400]
    policy.save(update_fields=["active_version", "description"])
    details: dict[str, object] = {"before": before, "after": revision.version}
    if goldens.results:
        details["goldens"] = {verdict.golden: verdict.state.value for verdict in goldens.results}
    for verdict in goldens.results:
        own = GoldenPlacement.objects.filter(name=verdict.golden, policy_name=policy.name)
        own.update(state=verdict.state.value, got=verdict.got, checked_at=timezone.now(), broken_since=None)
    record(actor=actor.name, role=actor.role, action="policy.activate", obj=policy, reason=reason, details=details)
    policy_activated.send(sender=Policy, name=policy.name)
    publish_many({TOPIC: lambda: {policy.name: policy_document(policy)}})


def rollback(name: str, *, actor: Actor, reason: str, expected_active: int | None = None) -> PolicyRevision:
    """Activate the revision that was active before the current one.

    Raises: InputError `PolicyNothingToRollBack`, or the errors of `activate`.
    """
    require_reason(reason)
    policy = Policy.objects.filter(name=name).first()
    previous = policy.previous if policy else None
    if previous is None:
        message = Message("policy {name} has no earlier version that was active", name=name)
        raise InputError("PolicyNothingToRollBack", message)
    return activate(name, previous.version, actor=actor, reason=reason, expected_active=expected_active)


def set_namespace_rule(
    cluster: Cluster, namespace: str, default_policy: str, allowed_policies: Sequence[str], *, actor: Actor
) -> NamespaceRule:
    """Set the default policy and the allowed policies of a namespace. Pending pods keep their policy.

    Raises: InputError `PolicyUnknown` or `PolicyNotAllowed`.
    """
    named = [name for name in (default_policy, *allowed_policies) if name]
    unknown = set(named) - set(Policy.objects.filter(name__in=named).values_list("name", flat=True))
    if unknown:
        raise policy_unknown_error(min(unknown))
    if default_policy and allowed_policies and default_policy not in allowed_policies:
        message = Message("the default policy {name} is not one of the allowed policies", name=default_policy)
        raise InputError("PolicyNotAllowed", message, place="policy")
    with write_transaction():
        rule, _ = NamespaceRule.objects.update_or_create(
            cluster=cluster,
            namespace=namespace,
            defaults={"default_policy": default_policy, "allowed_policies": list(allowed_policies)},
        )
        record(
            actor=actor.name,
            role=actor.role,
            action="namespace.policy",
            obj=("namespace", f"{cluster.name}/{namespace}"),
            details={"default": default_policy, "allowed": list(allowed_policies)},
        )
    return rule


def remove_namespace_rule(rule: NamespaceRule, *, actor: Actor) -> None:
    """Remove a namespace's rule. The cluster's default policy then applies, and pods may name any policy."""
    with write_transaction():
        place = f"{rule.cluster.name}/{rule.namespace}"
        record(
            actor=actor.name,
            role=actor.role,
            action="namespace.policy",
            obj=("namespace", place),
            reason=Message("removed"),
        )
        rule.delete()


def ensure_builtins() -> list[str]:
    """Create built-in policies, and new revisions of those that a release changed; return the changed names.

    If a user changed a built-in policy, the user's revision stays active and the new one stays a draft. A new revision
    that breaks a golden placement also stays a draft.
    """
    touched: list[str] = []
    for spec in BUILTIN.values():
        own = PolicyRevision.objects.filter(policy__name=spec.name, author=BUILT_IN.name).order_by("-version").first()
        if own is not None and has_same_content(own.spec, spec):
            continue
        if is_cluster_owned(spec.name):
            continue
        revision = save_draft(spec, actor=BUILT_IN, reason=Message("built-in policy"))
        active = PolicyRevision.objects.filter(policy__name=spec.name, state=RevisionState.ACTIVE).first()
        if active is None or active.author == BUILT_IN.name:
            try_activate(spec.name, revision.version, actor=BUILT_IN, reason=Message("built-in policy"))
        touched.append(spec.name)
    return touched


def is_cluster_owned(name: str) -> bool:
    """Return whether a cluster owns this policy."""
    return Policy.objects.filter(name=name, keeper__isnull=False).exists()


def has_same_content(one: PolicySpec, other: PolicySpec) -> bool:
    """Return whether two policies are equal apart from their version numbers."""
    return msgspec.structs.replace(one, version=0) == msgspec.structs.replace(other, version=0)


def lock_policy(name: str, *, kept: bool = False) -> Policy:
    """Lock the row of a policy and return it; `kept` permits policies that a cluster owns.

    Raises: InputError `PolicyUnknown`, or `PolicyKeptInCluster` for a cluster-owned policy if `kept` is false.
    """
    policy = Policy.objects.select_for_update().filter(name=name).first()
    if policy is None:
        raise policy_unknown_error(name)
    if policy.keeper is not None and not kept:
        raise InputError(
            "PolicyKeptInCluster",
            Message(
                "policy {name} is managed by the SchedulingPolicy of this name in cluster {cluster}",
                name=name,
                cluster=policy.keeper.name,
            ),
            hint="Change the object in the cluster, or take over the policy first: POST /api/v1/policies/NAME/owner/",
        )
    return policy


def policy_unknown_error(name: str) -> InputError:
    """Return the error about a policy that does not exist."""
    return InputError("PolicyUnknown", policy_unknown_message(name), place="policy", hint=known_policies_hint())


def policy_unknown_message(name: str) -> Message:
    """Return the message about a policy that does not exist."""
    return Message("unknown policy {name}", name=repr(name[:80]))


def version_unknown_error(name: str, version: int, *, place: str) -> InputError:
    """Return the error about a version that a policy does not have."""
    message = Message("policy {name} has no version {version}", name=name, version=version)
    hint = Message("GET {path} lists the existing objects", path=f"policies/{name}/versions/")
    return InputError("PolicyVersionUnknown", message, place=place, hint=hint)


def known_policies_hint() -> Message:
    """Return a hint that lists the policies."""
    names = list(Policy.objects.values_list("name", flat=True))
    return Message("Known policies: {names}", names=joined(", ", names or ["none"]))
