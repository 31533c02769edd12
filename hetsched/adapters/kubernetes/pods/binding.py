"""Write the Binding of a pod and determine its result.

The Binding contains the pod's uid, so another pod of the same name is never bound, and the annotations with the pod's
allocation, so no pod is bound without them. Results by response:
    2xx                     bound
    404                     gone
    409                     read the pod: bound to the wanted node -> bound; to another node -> lost; another uid
                            -> gone; still pending -> refused
    400, 403, 422           refused, with the server's message
    429, 5xx                retried after Retry-After, at most 10 s; writing the same binding twice is harmless
    no response             read the pod: bound -> bound; pending -> unknown, the binding may still take effect
    any other response      unknown: no component may treat the binding as failed until a read of the pod confirms it
After a 5xx the attempt may still succeed: a later refusal is followed by a read, and the result is unknown if the pod
is still pending. Before the first binding through an `Api`, a dry run binds a pending pod under a wrong uid. If the
server accepts the dry run, every binding is reported as unproven and nothing is written.
Source: Kubernetes core/v1 Binding; kubernetes/kubernetes#105913 (annotations and uid of a Binding).
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable
from weakref import WeakSet

import msgspec

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.allocation import write_allocation
from hetsched.contracts.message import Message
from hetsched.contracts.messages.signatures import sign
from hetsched.contracts.objects.allocation import Allocation, DeviceGrant, ExtendedClaim

from ..api import NOT_PROCESSED, Api, ApiFailure
from ..resources import PODS

_REFUSED = frozenset({400, 403, 422})
_BUSY = frozenset({429, 500, 502, 503, 504})
_NOT_TAKEN = 429  # the only busy status that guarantees that nothing was written
_WRONG_UID = "00000000-0000-0000-0000-000000000000"
UNPROVEN = Message(
    "the API server does not check the uid of a binding, so hetsched binds no pods; fix the API server, then restart "
    "hetsched"
)
# API clients whose servers refused a wrong uid.
_proven: WeakSet[Api] = WeakSet()
_WAITS_SECONDS = (0.1, 0.5, 2.0)
_LONGEST_WAIT_SECONDS = 10.0


class BindingResult(enum.StrEnum):
    """Result of a binding."""

    BOUND = "bound"
    LOST = "lost"
    GONE = "gone"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    WAITING = "waiting"
    UNPROVEN = "unproven"


class BindingRequest(msgspec.Struct, frozen=True):
    """Pod to bind (by uid), its node, its annotations, and its volume claims, each with the chosen volume, if any.

    `device_claims` lists the names of the pod's resource claims, `devices` the devices chosen for unallocated claims.
    `extended` is the claim to create for extended resources that devices serve.
    If `may_wait` is true, the pod may wait for claims that are not bound yet; otherwise it is refused. `tried` means
    that an earlier attempt sent the binding, and `in_flight` that this attempt may still take effect.
    """

    pod_id: int
    namespace: str
    name: str
    uid: str
    node: str
    annotations: dict[str, str] = {}
    claims: tuple[tuple[str, str], ...] = ()
    device_claims: tuple[str, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()
    extended: ExtendedClaim | None = None
    may_wait: bool = True
    tried: bool = False
    in_flight: bool = False


class BindingOutcome(msgspec.Struct, frozen=True):
    """Result of one binding. `message` is the server's text; `read` is true if the pod was read to find the result."""

    pod_id: int
    result: BindingResult
    message: str = ""
    read: bool = False


_write = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` creates an encoder in each call


def annotations_of(
    allocation: Allocation, *, uid: str, node: str, epoch: int, containers: dict[str, str], key: bytes | None = None
) -> dict[str, str]:
    """Return the annotations that state a pod's allocation: our own, and crane's if the allocation names NUMA zones.

    Our annotation is signed with `key`, the key of the node's agent; without a key it is unsigned.
    """
    document = json.loads(write_allocation(allocation, containers)) | {"uid": uid, "node": node, "epoch": epoch}
    if key is not None:
        document["sig"] = sign(document, key)
    written = {keys.ALLOCATION: _write(document)}
    zones = [zone for zone in allocation.zones if zone.cpu_millis]
    if zones:
        crane = [
            {
                "name": f"node{position}" if not zone.name.startswith("node") else zone.name.replace("-", ""),
                "type": "Node",
                "resources": {"capacity": {"cpu": _cpu(zone.cpu_millis)}},
            }
            for position, zone in enumerate(zones)
        ]
        written[keys.TOPOLOGY_RESULT] = _write(crane)
    return written


def _cpu(millis: int) -> str:
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"


def _always() -> bool:
    return True


def unassigned(request: BindingRequest) -> BindingOutcome:
    """Return the result of a binding that this scheduler may no longer write."""
    message = Message("the pod is no longer assigned to this scheduler")
    return BindingOutcome(request.pod_id, BindingResult.UNKNOWN, message)


def bind(
    api: Api,
    request: BindingRequest,
    *,
    sleep: Callable[[float], None] = time.sleep,
    is_ours: Callable[[], bool] = _always,
    first_failure: ApiFailure | None = None,
) -> BindingOutcome:
    """Write one Binding and return its result.

    Calls to a busy server are retried while `is_ours` confirms that the pod is still assigned to this scheduler.
    `first_failure` is the failure of the first attempt if it was made already.
    """
    waiting = BindingResult.UNKNOWN if request.in_flight else BindingResult.REFUSED
    for wait in (*_WAITS_SECONDS, None):
        if first_failure is None and not is_ours():
            return unassigned(request)
        try:
            return _bind(api, request, waiting, first_failure)
        except ApiFailure as failure:
            if wait is None:
                return BindingOutcome(request.pod_id, BindingResult.UNKNOWN, failure.text)
            if failure.status != _NOT_TAKEN and failure.reason != NOT_PROCESSED:
                waiting = BindingResult.UNKNOWN
            if not is_ours():
                return unassigned(request)
            first_failure = None
            sleep(min(max(wait, failure.retry_after_seconds), _LONGEST_WAIT_SECONDS))
    raise AssertionError  # the last attempt always returns


def _bind(
    api: Api, request: BindingRequest, waiting: BindingResult, failed: ApiFailure | None = None
) -> BindingOutcome:
    """Write one Binding once; `waiting` is the result if the pod is still pending after a refusal.

    `failed` is the failure of this attempt if it was made already. Raises: ApiFailure if the server is busy.
    """
    try:
        if failed is not None:
            raise failed
        if not is_proven(api):
            if not refuses_wrong_uids(api, request.namespace, request.name, request.node):
                return BindingOutcome(request.pod_id, BindingResult.UNPROVEN, UNPROVEN)
            found = read_back(api, request, waiting=BindingResult.WAITING)
            if found.result is not BindingResult.WAITING:  # a bound pod is refused under any uid: no proof
                return found
            _proven.add(api)
        api.send("POST", *binding_call(request))
    except ApiFailure as failure:
        if failure.status == 409:
            return read_back(api, request, waiting=waiting)
        if failure.status == 404:
            return BindingOutcome(request.pod_id, BindingResult.GONE, failure.message)
        if failure.status in _REFUSED:
            refused = BindingOutcome(request.pod_id, BindingResult.REFUSED, failure.message)
            return refused if waiting is BindingResult.REFUSED else read_refused(api, request, refused, waiting=waiting)
        if failure.status in _BUSY or failure.reason == NOT_PROCESSED:
            raise
        if failure.status == 0:
            return read_back(api, request, waiting=BindingResult.UNKNOWN)
        return BindingOutcome(request.pod_id, BindingResult.UNKNOWN, failure.text)
    return BindingOutcome(request.pod_id, BindingResult.BOUND)


def is_proven(api: Api) -> bool:
    """Return whether the API server has refused a wrong uid."""
    return api in _proven


def binding_call(request: BindingRequest) -> tuple[str, bytes]:
    """Return path and body of the POST that writes a Binding."""
    return _call(request.namespace, request.name, request.uid, request.node, request.annotations)


def _call(namespace: str, name: str, uid: str, node: str, annotations: dict[str, str]) -> tuple[str, bytes]:
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    return PODS.path(namespace=namespace, name=name, part="binding"), _write(body).encode()


def read_back(api: Api, request: BindingRequest, *, waiting: BindingResult) -> BindingOutcome:
    """Read the pod and return the result of its binding; `waiting` is the result if the pod has no node."""
    try:
        plain = json.loads(api.get(PODS.path(namespace=request.namespace, name=request.name)))
    except ApiFailure as failure:
        result = BindingResult.GONE if failure.status == 404 else BindingResult.UNKNOWN
        return BindingOutcome(request.pod_id, result, failure.text, read=True)
    uid, node = plain["metadata"].get("uid", ""), plain["spec"].get("nodeName", "")
    if uid != request.uid:
        return BindingOutcome(
            request.pod_id, BindingResult.GONE, Message("another pod now has the name of this pod"), read=True
        )
    if not node:
        words = Message("the API server rejected the binding, and the pod is still pending")
        return BindingOutcome(request.pod_id, waiting, words, read=True)
    if node != request.node:
        return BindingOutcome(
            request.pod_id,
            BindingResult.LOST,
            Message("another scheduler bound the pod to {node}", node=node),
            read=True,
        )
    return BindingOutcome(request.pod_id, BindingResult.BOUND, read=True)


def read_refused(
    api: Api, request: BindingRequest, refused: BindingOutcome, *, waiting: BindingResult
) -> BindingOutcome:
    """Read the pod after a refusal. The result of a pending pod is `waiting`, with the message of the refusal."""
    found = read_back(api, request, waiting=waiting)
    return BindingOutcome(request.pod_id, waiting, refused.message, read=True) if found.result is waiting else found


def refuses_wrong_uids(api: Api, namespace: str, name: str, node: str) -> bool:
    """Return whether the server refuses, in a dry run, to bind an existing pod under a wrong uid.

    Raises: ApiFailure for any error other than 409.
    """
    try:
        api.send("POST", *_call(namespace, name, _WRONG_UID, node, {}), query={"dryRun": "All"})
    except ApiFailure as failure:
        if failure.status == 409:
            return True
        raise
    return False
