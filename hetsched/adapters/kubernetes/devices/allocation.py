"""Write the devices of a pod into its resource claims before the pod is bound.

A driver prepares the devices that a claim's status lists, and two schedulers may write to the same claim. As in
kube-scheduler, each claim of the pod is handled according to its state:
    unallocated, devices chosen  the finalizer that protects an allocation is written, which also reads the claim, then
                                 the allocation and the pod's reservation in one write that names the resourceVersion
    allocated and reserved       nothing is written; this also confirms a write whose response was lost
    allocated, shared            the pod is added to `reservedFor`
    any other state              the pod is refused
If devices serve extended resources of the pod, the claim for them is created, and its name is written into the status
of the pod after all allocations (`extended_claims`).
The pod then waits for the binding conditions of its devices (`adapters.objects.devices.binding_conditions`). One event
of the pod reports the start of the wait.
If the binding of the pod is refused, the pod's reservation of the claim is removed. An allocation that was made for
this pod, or whose binding conditions failed, is also removed, unless another pod has reserved the claim.
Source: kube-scheduler's dynamicresources plugin (bindClaim, Unreserve); resource.k8s.io/v1 AllocationResult.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from hetsched.adapters.objects.devices.binding_conditions import BindingState, check_conditions, timestamp
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.times import rfc3339

from ..api import Api, ApiFailure
from ..pods.binding import BindingOutcome, BindingRequest, BindingResult, unassigned
from ..pods.pod_events import create_event, process_name
from ..resources import DEVICE_CLASSES
from .extended_claims import claim_for_extended, devices_of, release_extended_claim, write_pod_status
from .resource_claims import FINALIZER, Plain, node_selector, patch_claim, protect_claim, read_claim

_REFUSED = frozenset({400, 403, 404, 422})
_CHANGED = 409  # the claim has changed since it was read
_RELEASE_TRIES = 5


def allocate(api: Api, request: BindingRequest, *, is_ours: Callable[[], bool] = lambda: True) -> BindingOutcome | None:
    """Allocate and reserve the pod's claims, and check their binding conditions.

    Returns None if the pod can be bound, else the outcome of the first claim that fails. A claim that waits for its
    binding conditions does not delay the allocation of the next claims, so that drivers work in parallel. `is_ours`
    returns True while this process may bind the pod. It is called between the read and the write of each claim: after
    a delay, the claim may belong to a later decision.
    """
    waiting: BindingOutcome | None = None
    starts_waiting = False
    reads = [partial(_existing_claim, api, request, name) for name in request.device_claims]
    if request.extended is not None:
        reads.append(partial(claim_for_extended, api, request, request.extended, is_ours))
    try:
        for read in reads:
            claim = read()
            if not is_ours():
                return unassigned(request)
            bound = claim if isinstance(claim, BindingOutcome) else _claim(api, request, claim)
            if bound is not None:
                if bound.result is not BindingResult.WAITING:
                    return bound
                waiting = waiting or bound
                # The claim as it was read before this call allocated or reserved it.
                starts_waiting |= isinstance(claim, dict) and not _is_user(claim, request)
        if waiting is None and request.extended is not None:
            if not is_ours():
                return unassigned(request)
            refused = write_pod_status(api, request, request.extended)
            if refused is not None:
                return refused
    except ApiFailure as failure:
        if failure.status in _REFUSED:
            return BindingOutcome(request.pod_id, BindingResult.REFUSED, failure.text)
        waiting = BindingOutcome(request.pod_id, BindingResult.WAITING, failure.text)
    if waiting is not None and not request.may_wait:
        return BindingOutcome(request.pod_id, BindingResult.REFUSED, waiting.message)
    if starts_waiting:
        _report_wait(api, request)
    return waiting


def _report_wait(api: Api, request: BindingRequest) -> None:
    """Create the event of a pod that starts to wait for binding conditions, in the form of kube-scheduler."""
    now = datetime.now(UTC)
    note = f"waiting for binding conditions for device on node {request.node}"
    suffix = f"{request.uid[:8]}.{int(now.timestamp() * 1e6):x}.c"
    with suppress(ApiFailure):  # events are informational
        create_event(
            api, request, suffix=suffix, action="Scheduling", reason="BindingConditionsPending", note=note,
            now=rfc3339(now), instance=process_name(),
        )  # fmt: skip


def release(api: Api, request: BindingRequest) -> None:
    """Remove the pod's reservations, and allocations made for the pod that have no other user.

    The claim for extended resources is released too. Raises: ApiFailure.
    """
    steps = [partial(_release_claim, api, request, name) for name in request.device_claims]
    if request.extended is not None:
        steps.insert(0, partial(release_extended_claim, api, request, request.extended))
    for step in steps:
        for remaining_tries in reversed(range(_RELEASE_TRIES)):
            try:
                step()
                break
            except ApiFailure as failure:
                # The pods of a shared claim are often refused at the same time: read the claim again.
                if failure.status != _CHANGED or not remaining_tries:
                    raise


def _release_claim(api: Api, request: BindingRequest, name: str) -> None:
    claim = read_claim(api, name, request.namespace)
    if claim is None:
        return
    users = _users(claim)
    remaining = [user for user in users if user.get("uid") != request.uid]
    if len(remaining) < len(users):
        status: Plain = {"reservedFor": remaining or None}
        if not remaining and (_grants(request, name) or _has_failed(claim)):
            status["allocation"] = None
        patch_claim(api, claim, {"status": status}, "status")


def _existing_claim(api: Api, request: BindingRequest, name: str) -> Plain | BindingOutcome:
    grants = _grants(request, name)
    uid = grants[0].uid if grants else ""
    claim = protect_claim(api, name, request.namespace, uid) if uid else None
    claim = claim or read_claim(api, name, request.namespace)
    if claim is None:
        return BindingOutcome(
            request.pod_id, BindingResult.REFUSED, Message("claim {claim} no longer exists", claim=name)
        )
    return claim


def _claim(api: Api, request: BindingRequest, claim: Plain) -> BindingOutcome | None:
    meta, status = claim["metadata"], claim.get("status", {})
    name = meta["name"]
    grants = _grants(request, name)
    if "deletionTimestamp" in meta:
        return BindingOutcome(
            request.pod_id, BindingResult.REFUSED, Message("claim {claim} is being deleted", claim=name)
        )
    if grants and grants[0].uid not in ("", meta["uid"]):
        message = Message("another claim now has the name {name}", name=name)
        return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
    user = {"resource": "pods", "name": request.name, "uid": request.uid}
    users = _users(claim)
    if "allocation" in status:
        if grants and devices_of(status["allocation"]) != sorted(grant.device for grant in grants):
            message = Message("another scheduler allocated other devices to claim {claim}", claim=name)
            return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
        if grants and status["allocation"].get("nodeSelector") != node_selector(grants, request.node):
            # The pod must not run on a node that the allocation excludes. The refusal withdraws the allocation.
            message = Message("claim {claim} is allocated with the node selector of another decision", claim=name)
            return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
        if not _is_user(claim, request):
            claim = patch_claim(api, claim, {"status": {"reservedFor": [*users, user]}}, "status")
        return _conditions_outcome(request, claim)
    if not grants and claim["spec"].get("devices", {}).get("requests"):
        message = Message("claim {claim} has no devices, and the decision selected none", claim=name)
        return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
    if FINALIZER not in meta.get("finalizers", []):
        claim = patch_claim(api, claim, {"metadata": {"finalizers": [*meta.get("finalizers", []), FINALIZER]}})
    allocation = _allocation(api, claim, grants, request.node)
    claim = patch_claim(api, claim, {"status": {"allocation": allocation, "reservedFor": [*users, user]}}, "status")
    if any(grant.binding for grant in grants) and not _has_conditions(claim):
        message = Message("the API server does not store the binding conditions of claim {claim}", claim=name)
        return BindingOutcome(request.pod_id, BindingResult.REFUSED, message)
    return _conditions_outcome(request, claim)


def _conditions_outcome(request: BindingRequest, claim: Plain) -> BindingOutcome | None:
    """Return None if the binding conditions of an allocated claim are true, else why the pod waits or is refused."""
    check = check_conditions(claim, datetime.now(UTC))
    if check.message is None:
        return None
    result = BindingResult.REFUSED if check.state is BindingState.FAILED else BindingResult.WAITING
    return BindingOutcome(request.pod_id, result, check.message)


def _has_failed(claim: Plain) -> bool:
    allocated = "allocation" in claim.get("status", {})
    return allocated and check_conditions(claim, datetime.now(UTC)).state is BindingState.FAILED


def _has_conditions(claim: Plain) -> bool:
    results = claim["status"]["allocation"]["devices"].get("results", ())
    return any("bindingConditions" in result for result in results)


def _allocation(api: Api, claim: Plain, grants: Sequence[DeviceGrant], node: str) -> Plain:
    """Return the AllocationResult that drivers read, with the configuration from the device classes and the claim."""
    asked = claim["spec"].get("devices", {})
    results = [_result(grant, _request_of(asked["requests"], grant.request)) for grant in grants]
    config: list[Plain] = []
    for request in dict.fromkeys(grant.request for grant in grants):
        device_class = _request_of(asked["requests"], request)["deviceClassName"]
        said = _class(api, device_class).get("spec", {}).get("config", [])
        config += [{"source": "FromClass", "requests": [request], **item} for item in said]
    given = {result["request"] for result in results}
    for said in asked.get("config", []):
        meant = set(said.get("requests", []))
        if not meant or meant & (given | {name.partition("/")[0] for name in given}):
            config.append({"source": "FromClaim", **said})
    devices: Plain = {"results": results} if results else {}
    if config:
        devices["config"] = config
    selector = node_selector(grants, node)
    allocation: Plain = {"devices": devices}
    if selector is not None:
        allocation["nodeSelector"] = selector
    if any(grant.binding for grant in grants):  # the field exists only where the API has binding conditions
        allocation["allocationTimestamp"] = timestamp(datetime.now(UTC))
    return allocation


def _result(grant: DeviceGrant, request: Plain) -> Plain:
    """Return the result for one device, with a copy of the tolerations of its request."""
    device = grant.device
    result: Plain = {
        "request": grant.request, "driver": device.driver, "pool": device.pool, "device": device.name,
    }  # fmt: skip
    if grant.admin:
        result["adminAccess"] = True
    if grant.consumed is not None:
        result["shareID"] = str(uuid4())
        result["consumedCapacity"] = {name: _quantity(amount) for name, amount in grant.consumed.items()}
    if request.get("tolerations"):
        result["tolerations"] = request["tolerations"]
    if grant.binding is not None:
        result["bindingConditions"] = list(grant.binding.required)
        if grant.binding.failure:
            result["bindingFailureConditions"] = list(grant.binding.failure)
    return result


def _quantity(thousandths: int) -> str:
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def _request_of(requests: Sequence[Plain], name: str) -> Plain:
    """Return the request `name`, or the alternative if `name` is `request/alternative`."""
    outer, _, inner = name.partition("/")
    (request,) = [item for item in requests if item["name"] == outer]
    if not inner:
        found: Plain = request["exactly"]
        return found
    return next(item for item in request["firstAvailable"] if item["name"] == inner)


def _class(api: Api, name: str) -> Plain:
    found: Plain = json.loads(api.get(DEVICE_CLASSES.path(name=name)))
    return found


def _grants(request: BindingRequest, name: str) -> list[DeviceGrant]:
    """Return the devices that were chosen for a claim."""
    return [grant for grant in request.devices if grant.claim == name]


def _is_user(claim: Plain, request: BindingRequest) -> bool:
    return any(user.get("uid") == request.uid for user in _users(claim))


def _users(claim: Plain) -> list[Plain]:
    return list(claim.get("status", {}).get("reservedFor") or [])
