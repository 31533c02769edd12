"""The live document of the policies: one entry a policy, with all its versions."""

from __future__ import annotations

from typing import Any

from hetsched.contracts.times import rfc3339

from .models import Policy, PolicyRevision

TOPIC = "policies"


def policy_document(policy: Policy) -> dict[str, Any]:
    """Return the entry of one policy; keys never leave it."""
    return {
        "name": policy.name,
        "description": policy.description,
        "activeVersion": policy.active_version,
        "versions": {str(revision.version): revision_document(revision) for revision in policy.revisions.all()},
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
    """Return the whole document of the topic."""
    return {policy.name: policy_document(policy) for policy in Policy.objects.prefetch_related("revisions")}
