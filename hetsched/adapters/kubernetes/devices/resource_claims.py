"""Read, patch and delete ResourceClaims, and select the nodes of their devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hetsched.adapters.objects.export.selectors import node_term
from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm

from ..api import Api, ApiFailure
from ..resources import RESOURCE_CLAIMS

FINALIZER = "resource.kubernetes.io/delete-protection"
_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"  # adds to the list of finalizers
_REFUSED = frozenset({400, 403, 404, 409, 422})
Plain = dict[str, Any]


def read_claim(api: Api, name: str, namespace: str) -> Plain | None:
    """Return a claim, or None if it does not exist. Raises: ApiFailure."""
    try:
        found: Plain = json.loads(api.get(RESOURCE_CLAIMS.path(namespace=namespace, name=name)))
    except ApiFailure as failure:
        if failure.status == 404:
            return None
        raise
    return found


def protect_claim(api: Api, name: str, namespace: str, uid: str) -> Plain | None:
    """Add the finalizer that protects an allocation to the claim with this uid, and return the claim.

    Returns None if the API server refuses, for example because the claim is another one or is being deleted. A claim
    that has the finalizer is not written. Raises: ApiFailure.
    """
    meta = {"uid": uid, "finalizers": [FINALIZER]}
    path = RESOURCE_CLAIMS.path(namespace=namespace, name=name)
    try:
        body = json.dumps({"metadata": meta}).encode()
        found: Plain = json.loads(api.send("PATCH", path, body, content=_STRATEGIC_PATCH))
    except ApiFailure as failure:
        if failure.status in _REFUSED:
            return None
        raise
    return found


def patch_claim(api: Api, read: Plain, fields: Plain, part: str = "") -> Plain:
    """Patch a claim that has not changed since it was read, and return the patched claim.

    If its resourceVersion has changed, the patch fails, and the caller reads the claim again. Raises: ApiFailure.
    """
    meta = read["metadata"]
    about = {**fields.get("metadata", {}), "resourceVersion": meta["resourceVersion"], "uid": meta["uid"]}
    path = RESOURCE_CLAIMS.path(namespace=meta["namespace"], name=meta["name"], part=part)
    written: Plain = json.loads(
        api.send("PATCH", path, json.dumps({**fields, "metadata": about}).encode(), content=_MERGE_PATCH)
    )
    return written


def delete_claim(api: Api, read: Plain) -> None:
    """Delete a claim with its allocation, if it has not changed since it was read. Raises: ApiFailure."""
    meta = read["metadata"]
    finalizers = meta.get("finalizers", [])
    try:
        if FINALIZER in finalizers:
            remaining = [name for name in finalizers if name != FINALIZER]
            meta = patch_claim(api, read, {"metadata": {"finalizers": remaining or None}})["metadata"]
        preconditions = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        path = RESOURCE_CLAIMS.path(namespace=meta["namespace"], name=meta["name"])
        api.send("DELETE", path, json.dumps(body).encode())
    except ApiFailure as failure:
        if failure.status != 404:
            raise


def node_selector(grants: Sequence[DeviceGrant], node: str) -> Plain | None:
    """Return the selector of the nodes that can access all devices, None if all nodes can access them.

    A selector of devices has one term, so the requirements of several selectors can be joined in one term.
    """
    if any(grant.node_terms is None or len(grant.node_terms) > 1 for grant in grants):
        found = NodeTerm(fields=(Expression("metadata.name", "In", (node,)),))
    else:
        terms = [term for grant in grants for term in grant.node_terms or ()]
        found = NodeTerm(
            expressions=tuple(dict.fromkeys(each for term in terms for each in term.expressions)),
            fields=tuple(dict.fromkeys(each for term in terms for each in term.fields)),
        )
    return None if found == NodeTerm() else {"nodeSelectorTerms": [node_term(found)]}
