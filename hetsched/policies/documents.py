"""Live documents of policies, golden placements and plans: one entry per name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from hetsched.contracts.times import rfc3339

from .models import GoldenPlacement, Policy, PolicyObject, PolicyPlan, PolicyRevision

TOPIC, GOLDENS, PLANS = "policies", "goldens", "plans"


def policy_document(policy: Policy) -> dict[str, Any]:
    """Return the entry of one policy, which always has the same keys."""
    return {
        "name": policy.name,
        "description": policy.description,
        "activeVersion": policy.active_version,
        "keptIn": policy.keeper.name if policy.keeper else None,
        "objects": {
            policy_object.cluster.name: object_document(policy_object) for policy_object in objects_of(policy.name)
        },
        "versions": {str(revision.version): revision_document(revision) for revision in policy.revisions.all()},
    }


def objects_of(name: str) -> list[PolicyObject]:
    """Return every cluster's SchedulingPolicy object of this name, including deleted objects that are still stored."""
    return list(PolicyObject.objects.filter(name=name).select_related("cluster"))


def object_document(policy_object: PolicyObject) -> dict[str, Any]:
    """Return the JSON document of a cluster's SchedulingPolicy object: its state and its review result."""
    problem = policy_object.problem
    return {
        "generation": policy_object.generation,
        "accepted": problem is None,
        "version": policy_object.version,
        "gone": policy_object.gone,
        "judgedAt": rfc3339(policy_object.judged_at),
        "code": problem.code if problem else "",
        "place": problem.field if problem else "",
        "message": problem.message if problem else "",
    }


def revision_document(revision: PolicyRevision) -> dict[str, Any]:
    return {
        "version": revision.version,
        "state": revision.state,
        "author": revision.author,
        "reason": revision.reason,
        "createdAt": rfc3339(revision.created_at),
        "activatedAt": rfc3339(revision.activated_at) if revision.activated_at else None,
    }


def policies_document() -> dict[str, Any]:
    """Return the complete document of the policies topic: all policies by name."""
    return {policy.name: policy_document(policy) for policy in _all()}


def _all() -> Iterable[Policy]:
    return Policy.objects.select_related("keeper").prefetch_related("revisions")


def golden_document(golden: GoldenPlacement) -> dict[str, Any]:
    """Return the entry of one golden placement, including its state under the active versions."""
    return {
        "cluster": golden.cluster.name,
        "policy": golden.policy_name,
        "enabled": golden.enabled,
        "state": golden.state,
        "expected": golden.expectation.words,
        "got": golden.got,
        "checkedAt": _time(golden.checked_at),
        "brokenSince": _time(golden.broken_since),
    }


def goldens_document() -> dict[str, Any]:
    """Return the complete document of the golden placements topic: all golden placements by name."""
    rows = GoldenPlacement.objects.select_related("cluster").defer("manifest", "pod", "cluster__definitions")
    return {golden.name: golden_document(golden) for golden in rows}


def plan_document(plan: PolicyPlan) -> dict[str, Any]:
    """Return the entry of one plan: its state and its latest activation."""
    return {
        "policy": plan.policy.name,
        "enabled": plan.enabled,
        "state": plan.state,
        "note": plan.note,
        "lastValue": plan.last_value,
        "lastLookedAt": _time(plan.last_looked_at),
        "aboveSince": _time(plan.above_since),
        "belowSince": _time(plan.below_since),
        "lastSwitchedAt": _time(plan.last_switched_at),
    }


def plans_document() -> dict[str, Any]:
    """Return the complete document of the plans topic: all policy plans by plan name."""
    return {plan.name: plan_document(plan) for plan in PolicyPlan.objects.select_related("policy")}


def _time(value: datetime | None) -> str | None:
    return rfc3339(value) if value else None
