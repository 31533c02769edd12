"""Tell the API server which node a pod goes to, and know what became of it.

Problem: a reply can be lost after the write succeeded, and a pod of the same name may be another pod by now.
Rule: the Binding names the pod's uid, so another pod is never bound; what the pod holds stands in the annotations of
the Binding itself, so no pod is ever bound without it. Outcomes:
    2xx                     bound
    404                     gone
    409                     read the pod: bound where we wanted it -> bound; elsewhere, or another uid -> lost;
                            still waiting -> refused
    400, 403, 422           refused, with the server's words
    429, 5xx                tried again, after as long as the server asks for; the same binding twice is one binding
    no answer               read the pod: bound -> bound; waiting -> unknown, the binding may still come
    anything else           unknown: nobody may act as if it had failed until a read tells
After a 5xx the try may have succeeded, or still do: what is refused then is read, and a pod that waits is unknown.
All of this rests on uids. So nothing is bound through an `Api` before its server refused, in a dry run on a waiting
pod, a wrong one; where it does not, the fate of every binding is unproven and nothing was written.
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
from hetsched.contracts.allocation import Allocation, DeviceGrant
from hetsched.contracts.signing import sign

from .api import Api, ApiFailure
from .resources import PODS

_REFUSED = frozenset({400, 403, 422})
_BUSY = frozenset({429, 500, 502, 503, 504})
_NOT_TAKEN = 429  # of all that are busy the one that surely did nothing
_WRONG_UID = "00000000-0000-0000-0000-000000000000"
UNPROVEN = "the API server binds pods under wrong uids, so nothing is bound here; after it is mended, start anew"
# Those whose servers refused a wrong uid.
_proven: WeakSet[Api] = WeakSet()
_WAITS_SECONDS = (0.1, 0.5, 2.0)
_LONGEST_WAIT_SECONDS = 10.0


class Fate(enum.StrEnum):
    """What became of a binding."""

    BOUND = "bound"
    LOST = "lost"
    GONE = "gone"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    WAITING = "waiting"
    UNPROVEN = "unproven"


class ToBind(msgspec.Struct, frozen=True):
    """One pod, by its uid, and where it goes with what; its claims, with the volume chosen for each, if any was.

    `device_claims` are the names of its resource claims, `devices` what was chosen for those that were open.
    `tried`: somebody has written it before, `out`: and may still be at it.
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
    patient: bool = True
    tried: bool = False
    out: bool = False


class Bound(msgspec.Struct, frozen=True):
    """One binding's fate; `message` is the server's, for people; `read`: it was found out by reading the pod."""

    pod_id: int
    fate: Fate
    message: str = ""
    read: bool = False


def annotations_of(
    allocation: Allocation, *, uid: str, node: str, epoch: int, containers: dict[str, str], key: bytes | None = None
) -> dict[str, str]:
    """Return the annotations that tell what a pod holds: ours, and crane's where zones are named.

    Ours is signed under `key`, the one of the node's agent; without one nothing is.
    """
    document = json.loads(write_allocation(allocation, containers)) | {"uid": uid, "node": node, "epoch": epoch}
    if key is not None:
        document["sig"] = sign(document, key)
    written = {keys.ALLOCATION: json.dumps(document, separators=(",", ":"))}
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
        written[keys.TOPOLOGY_RESULT] = json.dumps(crane, separators=(",", ":"))
    return written


def _cpu(millis: int) -> str:
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"


def _always() -> bool:
    return True


def bind(
    api: Api, one: ToBind, *, sleep: Callable[[float], None] = time.sleep, is_ours: Callable[[], bool] = _always
) -> Bound:
    """Write one Binding and say what became of it; a busy server is asked a few times, while it `is_ours` to write."""
    waiting = Fate.UNKNOWN if one.out else Fate.REFUSED
    for wait in (*_WAITS_SECONDS, None):
        if not is_ours():
            return Bound(one.pod_id, Fate.UNKNOWN, "it is not ours to bind any more")
        try:
            return _bind(api, one, waiting)
        except ApiFailure as failure:
            if wait is None:
                return Bound(one.pod_id, Fate.UNKNOWN, str(failure))
            if failure.status != _NOT_TAKEN:
                waiting = Fate.UNKNOWN
            sleep(min(max(wait, failure.retry_after_seconds), _LONGEST_WAIT_SECONDS))
    raise AssertionError  # the last try returns


def _bind(api: Api, one: ToBind, waiting: Fate) -> Bound:
    """Write one Binding once; `waiting` is the fate of a pod that still waits after a refusal.

    Raises: ApiFailure where the server is busy.
    """
    try:
        if api not in _proven:
            if not refuses_wrong_uids(api, one.namespace, one.name, one.node):
                return Bound(one.pod_id, Fate.UNPROVEN, UNPROVEN)
            found = read_back(api, one, waiting=Fate.WAITING)
            if found.fate is not Fate.WAITING:  # a bound pod is refused under any uid
                return found
            _proven.add(api)
        _send(api, one.namespace, one.name, one.uid, one.node, one.annotations)
    except ApiFailure as failure:
        if failure.status == 409:
            return read_back(api, one, waiting=waiting)
        if failure.status == 404:
            return Bound(one.pod_id, Fate.GONE, failure.message)
        if failure.status in _REFUSED:
            refused = Bound(one.pod_id, Fate.REFUSED, failure.message)
            return refused if waiting is Fate.REFUSED else read_refused(api, one, refused, waiting=waiting)
        if failure.status in _BUSY:
            raise
        if failure.status == 0:
            return read_back(api, one, waiting=Fate.UNKNOWN)
        return Bound(one.pod_id, Fate.UNKNOWN, str(failure))
    return Bound(one.pod_id, Fate.BOUND)


def _send(api: Api, namespace: str, name: str, uid: str, node: str, annotations: dict[str, str], **query: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    api.send("POST", PODS.path(namespace=namespace, name=name, part="binding"), json.dumps(body).encode(), query=query)


def read_back(api: Api, one: ToBind, *, waiting: Fate) -> Bound:
    """Read what became of a pod; `waiting` is the fate where it has no node."""
    try:
        plain = json.loads(api.get(PODS.path(namespace=one.namespace, name=one.name)))
    except ApiFailure as failure:
        fate = Fate.GONE if failure.status == 404 else Fate.UNKNOWN
        return Bound(one.pod_id, fate, str(failure), read=True)
    uid, node = plain["metadata"].get("uid", ""), plain["spec"].get("nodeName", "")
    if uid != one.uid:
        return Bound(one.pod_id, Fate.GONE, "another pod has its name by now", read=True)
    if not node:
        words = "the API server refused the binding and the pod still waits"
        return Bound(one.pod_id, waiting, words, read=True)
    if node != one.node:
        return Bound(one.pod_id, Fate.LOST, f"somebody else bound it to {node}", read=True)
    return Bound(one.pod_id, Fate.BOUND, read=True)


def read_refused(api: Api, one: ToBind, refused: Bound, *, waiting: Fate) -> Bound:
    """Read what became of a pod of which another try was refused; one that waits keeps the words of the refusal."""
    found = read_back(api, one, waiting=waiting)
    return Bound(one.pod_id, waiting, refused.message, read=True) if found.fate is waiting else found


def refuses_wrong_uids(api: Api, namespace: str, name: str, node: str) -> bool:
    """Try, without effect, to bind an existing pod under a wrong uid; False where the server would.

    Raises: ApiFailure where it says anything but that this conflicts.
    """
    try:
        _send(api, namespace, name, _WRONG_UID, node, {}, dryRun="All")
    except ApiFailure as failure:
        if failure.status == 409:
            return True
        raise
    return False
