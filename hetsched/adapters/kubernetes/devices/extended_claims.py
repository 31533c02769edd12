"""Create the claim for the extended resources of a pod that devices serve, and name it in the status of the pod.

The kubelet reads the name of the claim, and the requests of each container, in the status of the pod. They must be
written before the pod is bound, and the API server does not permit their removal. The name of the claim is therefore
always the same for one pod: a repeated creation finds the existing claim, and the status stays valid.
A claim that an earlier decision left, with other requests or devices, is replaced. If the binding is refused after the
status names the claim, the claim loses its allocation and remains: the kubelet asks no device plugin for the resources
that the status names, so the pod needs a node on which devices serve one of its resources (plugin `devices`).
kube-scheduler deletes the claim, and a kubelet with a device plugin then cannot start the pod. The pod owns the claim,
so that the garbage collector deletes it with the pod.
Source: KEP-5004; kube-scheduler's dynamicresources plugin (`bindClaim`); kubelet, `cm/dra/manager.go` and
`cm/devicemanager/manager.go` (1.37); API server, `registry/core/pod/strategy.go`.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from hetsched.adapters.objects import keys
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import ExtendedClaim
from hetsched.contracts.objects.devices import DeviceId

from ..api import Api, ApiFailure
from ..pods.binding import BindingOutcome, BindingRequest, BindingResult, unassigned
from ..pods.pod_events import patch_status
from ..resources import PODS, RESOURCE_CLAIMS
from .resource_claims import Plain, delete_claim, node_selector, patch_claim, read_claim

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
_OTHER_POD = 409  # another pod has the name of this pod: the patch names a uid and no resourceVersion


def claim_for_extended(
    api: Api, request: BindingRequest, extended: ExtendedClaim, is_ours: Callable[[], bool]
) -> Plain | BindingOutcome:
    """Return the pod's claim, which is created or replaced if necessary, or why the pod is not bound.

    `is_ours` returns True while this process may bind the pod; only then is the claim written. Raises: ApiFailure.
    """
    found = read_claim(api, extended.name, request.namespace)
    if not is_ours():
        return unassigned(request)
    if found is not None:
        if not _is_owned(found, request.uid):
            message = Message("claim {claim} belongs to another object", claim=extended.name)
            return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
        if _is_current(found, request, extended):
            return found
        delete_claim(api, found)
    path = RESOURCE_CLAIMS.path(namespace=request.namespace)
    created: Plain = json.loads(api.send("POST", path, json.dumps(_claim_object(request, extended)).encode()))
    return created


def write_pod_status(api: Api, request: BindingRequest, extended: ExtendedClaim) -> BindingOutcome | None:
    """Name the claim in the status of the pod; return why the pod is refused, or None. Raises: ApiFailure."""
    status = {
        "resourceClaimName": extended.name,
        "requestMappings": [
            {"containerName": each.container, "resourceName": each.resource, "requestName": each.request}
            for each in extended.mappings
        ],
    }
    try:
        written = json.loads(patch_status(api, request, {"extendedResourceClaimStatus": status}))
    except ApiFailure as failure:
        if failure.status == _OTHER_POD:
            return BindingOutcome(request.pod_id, BindingResult.REFUSED, failure.text)
        raise
    if "extendedResourceClaimStatus" in written.get("status", {}):
        return None
    message = Message(
        "the API server does not store claim {claim} in the status of the pod: enable its feature gate "
        "DRAExtendedResource",
        claim=extended.name,
    )
    return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)


def release_extended_claim(api: Api, request: BindingRequest, extended: ExtendedClaim) -> None:
    """Withdraw the allocation of the pod's claim, and delete the claim unless the status of the pod names it.

    Raises: ApiFailure.
    """
    found = read_claim(api, extended.name, request.namespace)
    if found is None or not _is_owned(found, request.uid):
        return
    if not _is_named(api, request, extended):
        delete_claim(api, found)
    elif "allocation" in found.get("status", {}):
        patch_claim(api, found, {"status": {"allocation": None, "reservedFor": None}}, "status")


def delete_extended_claim(api: Api, request: BindingRequest, extended: ExtendedClaim) -> None:
    """Delete the pod's claim if it is the claim of this decision. Raises: ApiFailure.

    The claim of a pod that a later decision has bound is kept: the later decision may have the same devices.
    """
    found = read_claim(api, extended.name, request.namespace)
    if found is None or not _is_owned(found, request.uid) or not _is_current(found, request, extended):
        return
    pod = _pod(api, request)
    if pod is None or keys.ALLOCATION not in (pod["metadata"].get("annotations") or {}):
        delete_claim(api, found)


def _is_named(api: Api, request: BindingRequest, extended: ExtendedClaim) -> bool:
    """Return whether the pod exists and its status names the claim. Raises: ApiFailure."""
    pod = _pod(api, request)
    status = {} if pod is None else pod.get("status", {}).get("extendedResourceClaimStatus", {})
    return bool(status.get("resourceClaimName") == extended.name)


def _pod(api: Api, request: BindingRequest) -> Plain | None:
    """Return the pod of a binding, or None if it does not exist any more. Raises: ApiFailure."""
    try:
        pod: Plain = json.loads(api.get(PODS.path(namespace=request.namespace, name=request.name)))
    except ApiFailure as failure:
        if failure.status == 404:
            return None
        raise
    return pod if pod["metadata"].get("uid") == request.uid else None


def devices_of(allocation: Plain) -> list[DeviceId]:
    """Return the devices of an AllocationResult, ordered."""
    found = allocation.get("devices", {}).get("results", [])
    return sorted(DeviceId(item["driver"], item["pool"], item["device"]) for item in found)


def _is_owned(claim: Plain, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in claim["metadata"].get("ownerReferences", ()))


def _is_current(claim: Plain, request: BindingRequest, extended: ExtendedClaim) -> bool:
    """Return whether a claim has the requests of the decision, and no allocation or that of the decision.

    A device that several nodes can access may be bound to the node of an earlier decision.
    """
    if "deletionTimestamp" in claim["metadata"] or not _has_requests(claim, extended):
        return False
    allocation = claim.get("status", {}).get("allocation")
    if allocation is None:
        return True
    grants = [grant for grant in request.devices if grant.claim == extended.name]
    has_devices = devices_of(allocation) == sorted(grant.device for grant in grants)
    return has_devices and allocation.get("nodeSelector") == node_selector(grants, request.node)


def _has_requests(claim: Plain, extended: ExtendedClaim) -> bool:
    found = [(one["name"], one.get("exactly", {})) for one in claim["spec"].get("devices", {}).get("requests", ())]
    stated = [(name, exactly.get("deviceClassName"), exactly.get("count")) for name, exactly in found]
    return stated == [(one.name, one.device_class, one.count) for one in extended.requests]


def _claim_object(request: BindingRequest, extended: ExtendedClaim) -> Plain:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": request.name, "uid": request.uid, "controller": True}
    requests = [
        {
            "name": one.name,
            "exactly": {"deviceClassName": one.device_class, "allocationMode": "ExactCount", "count": one.count},
        }
        for one in extended.requests
    ]
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "name": extended.name,
            "namespace": request.namespace,
            "annotations": {ANNOTATION: "true"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": requests}},
    }
