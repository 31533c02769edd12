"""Preparation, creation and deletion of the objects of a submission in a live cluster.

A create whose response was lost may have succeeded; a retry under another name would create a second object. Each
object therefore gets a name that combines its own name with the submission's identity, so a retry gets 409 and
recognises the object by its label. Spec, labels and annotations of the manifest are kept; `schedulerName` is set in
every pod spec. Deletion includes the uid as a precondition, so it never removes another object of that name.
Source: Kubernetes API conventions, "Metadata"; Kubernetes documentation, "Garbage Collection".
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from hetsched.adapters.files import parse_workload
from hetsched.adapters.objects.documents import load_documents
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.submitted import WORKLOAD_LABEL, ObjectToCreate
from hetsched.contracts.objects.workload import PodSpec

from .api import Api, ApiFailure, Resource
from .connections.access_review import SUBMITTED

# With its suffix, a name has at most 63 characters, because pods have the name of their controller as a label value.
MOST_NAME = 52
_BY_KIND = {(resource.api_version, resource.kind): resource for resource in SUBMITTED}
_BY_PLURAL = {resource.plural: resource for resource in SUBMITTED}


class SubmissionResult(enum.Enum):
    """Result of a call: done, refused permanently, or unknown."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class SubmissionResponse(msgspec.Struct, frozen=True):
    """Result of a call; `ended` is `succeeded`, `failed` or `gone` for a Job that is no longer active, else empty."""

    result: SubmissionResult
    uid: str = ""
    message: str = ""
    ended: str = ""


def wanted(manifest: bytes, *, workload: str, identity: str, scheduler_name: str) -> list[ObjectToCreate]:
    """Return the objects of a manifest, ready to be created; `identity` identifies the submission and never changes.

    Raises: InputError; `KindNotSubmitted` for a kind that submissions cannot create.
    """
    suffix = blake2b(identity.encode(), digest_size=5).hexdigest()
    found: list[ObjectToCreate] = []
    taken: set[tuple[str, str, str]] = set()
    for document in load_documents(manifest, name="manifest"):
        plain = document.object
        resource = _BY_KIND.get((plain.get("apiVersion", ""), plain.get("kind", "")))
        if resource is None:
            message = Message("a submission cannot create objects of kind {kind}", kind=str(plain.get("kind"))[:80])
            known = joined(", ", [one.kind for one in SUBMITTED])
            hint = Message(
                "On a live cluster a submission can create only {text}; create other objects with kubectl", text=known
            )
            raise document.locate(InputError("KindNotSubmitted", message, place="kind", hint=hint))
        target = _ready(plain, resource, workload, suffix, scheduler_name)
        if (target.resource, target.namespace, target.name) in taken:
            # Several objects may share one `generateName`; duplicates of one `name` were rejected before.
            own = blake2b(f"{identity}\0{len(found)}".encode(), digest_size=5).hexdigest()
            target = _ready(plain, resource, workload, own, scheduler_name)
        taken.add((target.resource, target.namespace, target.name))
        found.append(target)
    return found


def _ready(
    plain: dict[str, Any], resource: Resource, workload: str, suffix: str, scheduler_name: str
) -> ObjectToCreate:
    meta = plain.get("metadata") or {}
    given = str(meta.get("name") or str(meta.get("generateName") or "").rstrip("-.") or resource.kind.lower())
    name = f"{given[:MOST_NAME].rstrip('-.')}-{suffix}"
    namespace = str(meta.get("namespace") or "default")
    labels = {**(meta.get("labels") or {}), WORKLOAD_LABEL: workload}
    spec = dict(plain.get("spec") or {})
    if resource.kind == "Pod":
        spec["schedulerName"] = scheduler_name
    else:
        template = dict(spec.get("template") or {})
        inner = dict(template.get("metadata") or {})
        inner["labels"] = {**(inner.get("labels") or {}), WORKLOAD_LABEL: workload}
        template["metadata"] = inner
        template["spec"] = {**(template.get("spec") or {}), "schedulerName": scheduler_name}
        spec["template"] = template
    kept = {"name": name, "namespace": namespace, "labels": labels, "annotations": meta.get("annotations") or {}}
    document = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": kept, "spec": spec}
    return ObjectToCreate(resource.plural, resource.kind, namespace, name, document)


def pods_of(objects: Iterable[ObjectToCreate], known: ClusterContent | None) -> tuple[PodSpec, ...]:
    """Return the pods that the objects will create; `known` is the content of the cluster.

    Raises: InputError; `PodBound` for a pod whose spec.nodeName is set.
    """
    items = [target.document for target in objects]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()
    content = parse_workload([("manifest", listed)], known=known)
    if content.running:
        raise InputError(
            "PodBound", Message("{pod} already has spec.nodeName", pod=content.running[0].key), place="spec.nodeName"
        )
    return content.pending


def makes(kind: str, name: str, pod_name: str, controller: str) -> bool:
    """Return whether an object is, or creates, the pod with this name and controller (`Kind/name`)."""
    if kind == "Pod":
        return pod_name == name and not controller
    if kind == "Deployment":
        return controller.startswith(f"ReplicaSet/{name}-")
    return controller == f"{kind}/{name}"


def create(api: Api, target: ObjectToCreate) -> SubmissionResponse:
    """Create an object, or find the one that an earlier attempt created."""
    try:
        made = api.send("POST", _path(target, named=False), json.dumps(target.document).encode(), query=_BY_US)
    except ApiFailure as failure:
        if failure.status == 409:
            return _read_back(api, target, failure)
        return _failed(failure)
    return SubmissionResponse(SubmissionResult.DONE, _meta(made).get("uid", ""))


def delete(api: Api, target: ObjectToCreate, uid: str) -> SubmissionResponse:
    """Delete an object and its dependents; the result is also DONE if the submission's object does not exist."""
    try:
        if not uid:
            found = _meta(api.get(_path(target)))
            if not _is_ours(found, target):
                return SubmissionResponse(SubmissionResult.DONE)
            uid = found["uid"]
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        api.send("DELETE", _path(target), json.dumps(body).encode())
    except ApiFailure as failure:
        return SubmissionResponse(SubmissionResult.DONE) if failure.status in (404, 409) else _failed(failure)
    return SubmissionResponse(SubmissionResult.DONE, uid)


def read(api: Api, target: ObjectToCreate, uid: str) -> SubmissionResponse:
    """Read the state of a Job, which is `gone` if no Job with this name and uid exists."""
    try:
        found = json.loads(api.get(_path(target)))
    except ApiFailure as failure:
        return SubmissionResponse(SubmissionResult.DONE, ended="gone") if failure.status == 404 else _failed(failure)
    if uid and found["metadata"].get("uid") != uid:
        return SubmissionResponse(SubmissionResult.DONE, ended="gone")
    for condition in found.get("status", {}).get("conditions") or ():
        ended = _ENDS.get(condition.get("type", ""))
        if ended and condition.get("status") == "True":
            message = ": ".join(condition[name] for name in ("reason", "message") if condition.get(name))
            return SubmissionResponse(SubmissionResult.DONE, uid, message[:1000] if ended == "failed" else "", ended)
    return SubmissionResponse(SubmissionResult.UNKNOWN, uid)


_BY_US = {"fieldManager": "hetsched"}
# Condition type of a finished Job -> state of the Job.
_ENDS = {"Complete": "succeeded", "Failed": "failed"}
# Statuses after which a call is retried. Other 4xx statuses are permanent, except 401.
_PASSING = frozenset({0, 408, 429})


def _failed(failure: ApiFailure) -> SubmissionResponse:
    passing = failure.status in _PASSING or failure.status >= 500 or failure.status == 401
    return SubmissionResponse(
        SubmissionResult.UNKNOWN if passing else SubmissionResult.REFUSED, "", str(failure)[:1000]
    )


def _read_back(api: Api, target: ObjectToCreate, conflict: ApiFailure) -> SubmissionResponse:
    try:
        found = _meta(api.get(_path(target)))
    except ApiFailure as failure:
        return SubmissionResponse(SubmissionResult.UNKNOWN, "", str(failure)[:1000])
    return (
        SubmissionResponse(SubmissionResult.DONE, found["uid"])
        if _is_ours(found, target)
        else SubmissionResponse(SubmissionResult.REFUSED, "", str(conflict)[:1000])
    )


def _is_ours(meta: dict[str, Any], target: ObjectToCreate) -> bool:
    ours: dict[str, str] = target.document["metadata"]["labels"]
    return bool((meta.get("labels") or {}).get(WORKLOAD_LABEL) == ours[WORKLOAD_LABEL])


def _path(target: ObjectToCreate, *, named: bool = True) -> str:
    return _BY_PLURAL[target.resource].path(namespace=target.namespace, name=target.name if named else "")


def _meta(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)["metadata"]
    return found
