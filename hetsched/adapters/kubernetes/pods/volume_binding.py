"""Bind the volumes of a pod's claims before the pod is bound.

The volume controller binds a claim only after the chosen volume or node was written, and a kubelet must not receive a
pod with unbound claims. Each unbound claim of the pod is handled according to the decision:
    a volume was chosen      the claim is written into the volume's `claimRef`
    a volume is provisioned  the node is written to the claim as an annotation; if the annotation later disappears,
                             provisioning has failed
The pod waits until all claims are bound. Nothing is overwritten: if an object belongs to another claim or node, the pod
is refused. Every write includes the resourceVersion that was read.
Source: kube-scheduler's VolumeBinding (bindAPIUpdate, checkBindings); annotations of component-helpers/storage/volume.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hetsched.adapters.objects.storage import SELECTED_NODE, is_bound
from hetsched.contracts.message import Message

from ..api import Api, ApiFailure, Resource
from ..resources import CLAIMS, VOLUMES
from .binding import BindingOutcome, BindingRequest, BindingResult

BOUND_BY_US = "pv.kubernetes.io/bound-by-controller"  # the volume is released when its claim is deleted
MARK = "hetsched.io/selected-for"
_PATCH = "application/merge-patch+json"
_REFUSED = frozenset({403, 404, 422})


def provide(api: Api, request: BindingRequest) -> BindingOutcome | None:
    """Make the next write for each unbound volume claim of a pod; return None if all claims are bound.

    Unless `request.may_wait` is true, a pod with unbound claims is refused.
    """
    try:
        every = (_claim(api, request, claim, volume) for claim, volume in request.claims)
        outcomes = [outcome for outcome in every if outcome is not None]
    except ApiFailure as failure:
        result = BindingResult.REFUSED if failure.status in _REFUSED else BindingResult.WAITING
        outcomes = [BindingOutcome(request.pod_id, result, failure.text)]
    # One refused claim refuses the pod, so it precedes claims that still wait.
    first = min(outcomes, key=lambda bound: bound.result is not BindingResult.REFUSED, default=None)
    if first is not None and first.result is BindingResult.WAITING and not request.may_wait:
        return msgspec.structs.replace(first, result=BindingResult.REFUSED)
    return first


def _claim(api: Api, request: BindingRequest, name: str, volume: str) -> BindingOutcome | None:
    found = _read(api, CLAIMS, name, request.namespace)
    if found is None:
        return BindingOutcome(
            request.pod_id, BindingResult.WAITING, Message("claim {claim} does not exist yet", claim=name)
        )
    meta, spec = found["metadata"], found.get("spec", {})
    if "deletionTimestamp" in meta:
        return BindingOutcome(
            request.pod_id, BindingResult.REFUSED, Message("claim {claim} is being deleted", claim=name)
        )
    phase, bound_to = found.get("status", {}).get("phase", ""), spec.get("volumeName", "")
    if is_bound(phase, meta.get("annotations", {}), bound_to):
        if volume and bound_to != volume:
            message = Message("claim {claim} was bound to a volume other than {volume}", claim=name, volume=volume)
            return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
        return None
    waits = BindingOutcome(
        request.pod_id, BindingResult.WAITING, Message("claim {claim} is not bound to a volume yet", claim=name)
    )
    if volume:
        return _take(api, request, found, volume) or waits
    return _select(api, request, found) or waits


def _take(api: Api, request: BindingRequest, claim: dict[str, Any], name: str) -> BindingOutcome | None:
    """Set the claimRef of the chosen volume; return a refusal if the volume references another claim."""
    volume = _read(api, VOLUMES, name)
    if volume is None:
        return BindingOutcome(
            request.pod_id, BindingResult.REFUSED, Message("volume {volume} no longer exists", volume=name)
        )
    meta, own = claim["metadata"], volume.get("spec", {}).get("claimRef")
    if own is None:
        reference = {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta["namespace"], "name": meta["name"],
            "uid": meta["uid"],
        }  # fmt: skip
        _patch(api, VOLUMES, volume, {"spec": {"claimRef": reference}}, {BOUND_BY_US: "yes"})
        return None
    same = (own.get("namespace"), own.get("name")) == (meta["namespace"], meta["name"])
    if same and own.get("uid") in (None, "", meta["uid"]):
        return None
    message = Message("volume {volume} is now bound to another claim", volume=name)
    return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)


def _select(api: Api, request: BindingRequest, claim: dict[str, Any]) -> BindingOutcome | None:
    """Write the node for provisioning to a claim; return a refusal if provisioning failed."""
    name, annotations = claim["metadata"]["name"], claim["metadata"].get("annotations", {})
    node, mark = annotations.get(SELECTED_NODE, ""), f"{request.uid}/{request.node}"
    if node == request.node:
        return None
    if node:
        message = Message("a volume for claim {claim} is being provisioned for {node}", claim=name, node=node)
        return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
    if annotations.get(MARK) == mark:
        _patch(api, CLAIMS, claim, {}, {MARK: None})
        message = Message("no volume for claim {claim} could be provisioned for {node}", claim=name, node=request.node)
        return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
    _patch(api, CLAIMS, claim, {}, {SELECTED_NODE: request.node, MARK: mark})
    return None


def _read(api: Api, resource: Resource, name: str, namespace: str = "") -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(api.get(resource.path(namespace=namespace, name=name)))
    except ApiFailure as failure:
        if failure.status == 404:
            return None
        raise
    return found


def _patch(
    api: Api, resource: Resource, read: dict[str, Any], fields: dict[str, Any], annotations: dict[str, str | None]
) -> None:
    """Patch an object that has not changed since it was read; after a conflict, the next `provide` retries."""
    meta = read["metadata"]
    body = {**fields, "metadata": {"resourceVersion": meta["resourceVersion"], "annotations": annotations}}
    path = resource.path(namespace=meta.get("namespace", ""), name=meta["name"])
    api.send("PATCH", path, json.dumps(body).encode(), content=_PATCH)
