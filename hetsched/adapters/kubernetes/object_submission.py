"""Objects that a submission brings to a live cluster: made ready, created, deleted.

Problem: a create whose answer was lost may have happened; tried again under another name it happens twice.
Rule: each object gets a name made of its own and of what identifies the submission, so a second try meets the first one
(409) and is recognised by its label. Of what was handed in, spec, labels and annotations are kept; our scheduler's name
is set where pods are described. Deleting names the uid, so that nobody else's object of that name goes.
Source: Kubernetes API conventions, "Metadata"; Kubernetes documentation, "Garbage Collection".
"""

from __future__ import annotations

import enum
import json
from hashlib import blake2b
from typing import Any

import msgspec

from hetsched.adapters.objects.documents import load_documents
from hetsched.contracts.errors import InputError
from hetsched.contracts.submitted import WORKLOAD_LABEL, Wanted

from .access_review import SUBMITTED
from .api import Api, ApiFailure, Resource

MOST_NAME = 52  # with the suffix 63 characters, what names of pods' controllers may have as a label
_BY_KIND = {(resource.api_version, resource.kind): resource for resource in SUBMITTED}
_BY_PLURAL = {resource.plural: resource for resource in SUBMITTED}


class Fate(enum.Enum):
    """What became of a call: done, refused for good, or not known yet."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Came(msgspec.Struct, frozen=True):
    """What became of a call; `ended` is how a Job stands: `succeeded`, `failed`, `gone`, empty while it goes on."""

    fate: Fate
    uid: str = ""
    message: str = ""
    ended: str = ""


def wanted(manifest: bytes, *, workload: str, identity: str, scheduler_name: str) -> list[Wanted]:
    """Return the objects of a manifest, ready to be created for a workload; `identity` names the submission for ever.

    Raises: InputError, `KindNotSubmitted` for what a live cluster is not asked to create.
    """
    suffix = blake2b(identity.encode(), digest_size=5).hexdigest()
    found: list[Wanted] = []
    taken: set[tuple[str, str, str]] = set()
    for document in load_documents(manifest, name="manifest"):
        plain = document.object
        resource = _BY_KIND.get((plain.get("apiVersion", ""), plain.get("kind", "")))
        if resource is None:
            known = ", ".join(one.kind for one in SUBMITTED)
            error = InputError(
                "KindNotSubmitted", f"{plain.get('kind')!s:.80} is not created by a submission", place="kind",
                hint=f"A live cluster takes {known}; create other objects there yourself",
            )  # fmt: skip
            raise document.locate(error)
        one = _ready(plain, resource, workload, suffix, scheduler_name)
        if (one.resource, one.namespace, one.name) in taken:
            # Several with one `generateName`; of one name they were refused before.
            own = blake2b(f"{identity}\0{len(found)}".encode(), digest_size=5).hexdigest()
            one = _ready(plain, resource, workload, own, scheduler_name)
        taken.add((one.resource, one.namespace, one.name))
        found.append(one)
    return found


def _ready(plain: dict[str, Any], resource: Resource, workload: str, suffix: str, scheduler_name: str) -> Wanted:
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
    return Wanted(resource.plural, resource.kind, namespace, name, document)


def makes(kind: str, name: str, pod_name: str, controller: str) -> bool:
    """Tell whether a pod of this name and controller (`Kind/name`) is one that an object makes, or is."""
    if kind == "Pod":
        return pod_name == name and not controller
    if kind == "Deployment":
        return controller.startswith(f"ReplicaSet/{name}-")
    return controller == f"{kind}/{name}"


def create(api: Api, one: Wanted) -> Came:
    """Create an object, or find that an earlier try did."""
    try:
        made = api.send("POST", _path(one, named=False), json.dumps(one.document).encode(), query=_BY_US)
    except ApiFailure as failure:
        if failure.status == 409:
            return _read_back(api, one, failure)
        return _failed(failure)
    return Came(Fate.DONE, _meta(made).get("uid", ""))


def delete(api: Api, one: Wanted, uid: str) -> Came:
    """Delete an object and what it made; done where it is not there or is somebody else's."""
    try:
        if not uid:
            found = _meta(api.get(_path(one)))
            if not _is_ours(found, one):
                return Came(Fate.DONE)
            uid = found["uid"]
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        api.send("DELETE", _path(one), json.dumps(body).encode())
    except ApiFailure as failure:
        return Came(Fate.DONE) if failure.status in (404, 409) else _failed(failure)
    return Came(Fate.DONE, uid)


def read(api: Api, one: Wanted, uid: str) -> Came:
    """Ask a Job how it stands; one that is not there, or is somebody else's, is gone."""
    try:
        found = json.loads(api.get(_path(one)))
    except ApiFailure as failure:
        return Came(Fate.DONE, ended="gone") if failure.status == 404 else _failed(failure)
    if uid and found["metadata"].get("uid") != uid:
        return Came(Fate.DONE, ended="gone")
    for condition in found.get("status", {}).get("conditions", ()):
        ended = _ENDS.get(condition.get("type", ""))
        if ended and condition.get("status") == "True":
            told = ": ".join(condition[name] for name in ("reason", "message") if condition.get(name))
            return Came(Fate.DONE, uid, told[:1000] if ended == "failed" else "", ended)
    return Came(Fate.UNKNOWN, uid)


_BY_US = {"fieldManager": "hetsched"}
# Conditions of a Job that is over.
_ENDS = {"Complete": "succeeded", "Failed": "failed"}
# Worth another try whatever was asked for; everything else of 4xx stays as it is.
_PASSING = frozenset({0, 408, 429})


def _failed(failure: ApiFailure) -> Came:
    passing = failure.status in _PASSING or failure.status >= 500 or failure.status == 401
    return Came(Fate.UNKNOWN if passing else Fate.REFUSED, "", str(failure)[:1000])


def _read_back(api: Api, one: Wanted, conflict: ApiFailure) -> Came:
    try:
        found = _meta(api.get(_path(one)))
    except ApiFailure as failure:
        return Came(Fate.UNKNOWN, "", str(failure)[:1000])
    return Came(Fate.DONE, found["uid"]) if _is_ours(found, one) else Came(Fate.REFUSED, "", str(conflict)[:1000])


def _is_ours(meta: dict[str, Any], one: Wanted) -> bool:
    ours: dict[str, str] = one.document["metadata"]["labels"]
    return bool((meta.get("labels") or {}).get(WORKLOAD_LABEL) == ours[WORKLOAD_LABEL])


def _path(one: Wanted, *, named: bool = True) -> str:
    return _BY_PLURAL[one.resource].path(namespace=one.namespace, name=one.name if named else "")


def _meta(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)["metadata"]
    return found
