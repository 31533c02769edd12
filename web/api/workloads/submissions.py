"""Submit a manifest: the body of `POST workloads/`.

The body is a manifest (YAML, JSON, openb CSV) with options in the query string, or a document `{"manifest", "policy",
…}`. Everything is checked before anything is written; placements are decided later. A request with the
`Idempotency-Key` and owner of an earlier request gets the response of that request again if the body is the same, and
is rejected otherwise. A submission may name a hold whose capacity it uses, or a plan whose result it requires.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
from django.conf import settings

from hetsched.access.subject import Subject
from hetsched.access.tokens import allowance_of
from hetsched.adapters.files import parse_workload
from hetsched.adapters.objects.manifest_warnings import kind_hint, refuse_warnings
from hetsched.contracts.api.workload import PodState
from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.warnings import ManifestWarning
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.remedies import ADD_POD
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement.actions import Submission, submit, submit_live
from hetsched.placement.actions.submissions import stored_response
from hetsched.placement.quotas import has_queued, was_queue_short
from hetsched.storage.named_locks import retry_on_deadlock

from .. import bodies, request_scope
from ..documents import Document, Request
from ..pagination import flag, integer
from ..problems import RequestRefused
from ..whatif import plan_tokens
from ..whatif.planned import submit_plan
from ..whatif.what_if import WhatIf, with_query_cluster

SUBMIT_QUERIES = {
    "policy": "POST of a bare manifest: policy for placement.",
    "priority": "POST of a bare manifest: priority of all pods.",
    "callbackUrl": "POST of a bare manifest: callback URL.",
    "hold": "POST of a bare manifest: id of the hold to use.",
    "plan": "POST of a bare manifest: plan from a what-if.",
    "strict": "POST of a bare manifest: true rejects unknown fields, annotations and kinds.",
}
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEY_RULE = "the value must be 1 to 255 printable ASCII characters without spaces"


class Submit(Request, frozen=True):
    """Manifest as text or as an object (a `List` for several objects), with options.

    `hold` names the hold whose capacity its pods use; `plan` is the token of a what-if whose placement is required.
    `strict` rejects unknown fields, annotations and kinds instead of warning about them.
    """

    manifest: str | dict[str, Any]
    cluster: str = ""
    policy: str = ""
    priority: int | None = None
    callback_url: str = ""
    name: str = ""
    hold: str = ""
    plan: str = ""
    strict: bool = False


class Accepted(Document, frozen=True):
    """Response to a submission; `warnings` lists probable misspellings and is absent if there are none."""

    id: str
    state: str
    pods: list[PodState]
    warnings: list[ManifestWarning] | msgspec.UnsetType = msgspec.UNSET


class ParsedSubmission(msgspec.Struct, frozen=True):
    """A parsed submission: its cluster and its pods."""

    asked: Submit
    manifest: bytes
    cluster: Cluster
    pods: list[PodSpec]
    warnings: tuple[ManifestWarning, ...] = ()


def accept(request: Any, subject: Subject) -> Submission:
    """Accept the submission in a request.

    Raises: InputError, or RequestRefused 403, 404, 409, 412, 415, 422, 429, 503.
    """
    key, body_hash = idempotency_key(request), fingerprint(request)
    looked = parse_submission(_read(request), subject, key, body_hash)
    taken = accept_parsed(looked, subject, key, body_hash)
    if not looked.warnings:
        return taken
    return msgspec.structs.replace(taken, response={**taken.response, "warnings": to_plain(looked.warnings)})


def parse_submission(asked: Submit, subject: Subject, key: str, body_hash: str) -> ParsedSubmission:
    """Parse a submission and check that its sender is allowed to submit it; nothing is written.

    `body_hash` is the digest of the request, to detect that the idempotency `key` is reused for another request.
    Raises: InputError, or RequestRefused as `accept` does.
    """
    manifest = bodies.source(asked.manifest)
    cluster = request_scope.cluster_of(asked.cluster)
    _limit_queue(cluster, lambda: bool(key) and stored_response(subject.owner, key, body_hash) is not None)
    content = _content_of(manifest, cluster, _names_for(asked, subject, cluster, key))
    if asked.strict:
        refuse_warnings(content.warnings)
    pods = list(content.pending)
    request_scope.check_namespaces(subject, {pod.namespace for pod in pods})
    return ParsedSubmission(asked, manifest, cluster, pods, content.warnings)


def accept_parsed(looked: ParsedSubmission, subject: Subject, key: str, body_hash: str) -> Submission:
    """Accept one parsed submission.

    `body_hash` is the digest of the request, to detect that the idempotency `key` is reused for another request.
    Raises: InputError, or RequestRefused as `accept` does.
    """
    return retry_on_deadlock(lambda: _store(looked, subject, key, body_hash))


def _store(looked: ParsedSubmission, subject: Subject, key: str, body_hash: str) -> Submission:
    asked, manifest, cluster, pods = looked.asked, looked.manifest, looked.cluster, looked.pods
    there = cluster.kind == ClusterKind.KUBERNETES
    if there and asked.priority is not None:
        # In a live cluster, a pod gets its priority only through a PriorityClass object.
        raise InputError(
            "PriorityInvalid", "on a live cluster, priorities are set by PriorityClass objects", place="priority",
            hint="Set priorityClassName in the manifest",
        )  # fmt: skip
    common: dict[str, Any] = {
        "actor": subject,
        "owner": subject.owner,
        "name": _checked_name(asked.name),
        "policy": asked.policy,
        "callback_url": _checked_callback(asked.callback_url),
        "idempotency_key": key,
        "body_hash": body_hash,
        "allowance": allowance_of(subject.token),
    }

    def write(hold: str) -> Submission:
        if there:
            return submit_live(cluster, pods, manifest=manifest, hold=hold, **common)
        return submit(cluster, pods, manifest=manifest.decode(), priority=asked.priority, hold=hold, **common)

    # A repeated request gets the first response, even if its hold or plan has ended in the meantime.
    known = stored_response(subject.owner, key, body_hash) if key and (asked.hold or asked.plan) else None
    if known is not None:
        return known
    if not asked.plan:
        return write(request_scope.own_hold(subject, asked.hold).pk if asked.hold else "")
    if asked.hold:
        raise InputError(
            "PlanNotPossible", "hold and plan cannot be combined", place="hold", hint="Use either hold or plan"
        )
    wish = WhatIf(manifest=asked.manifest, cluster=asked.cluster, policy=asked.policy, priority=asked.priority)
    return submit_plan(asked.plan, wish, subject, cluster, write)


def _limit_queue(cluster: Cluster, is_repeated: Callable[[], bool]) -> None:
    """Reject a submission with 429 if the queue of its cluster is full, even if the sender has no pods in the queue.

    A repeated submission is not rejected, because it adds no pods. A queue that was much shorter a moment ago is not
    counted again: each submission counts it in its transaction, and a count reads all queued pods.
    """
    most = settings.HETSCHED_MOST_WAITING_PODS
    if not was_queue_short(cluster, most) and has_queued(cluster, most) and not is_repeated():
        raise RequestRefused(
            429,
            "TooManyWaiting",
            Message("cluster {cluster} already has {n} pending pods, the maximum", cluster=cluster.name, n=most),
            hint="Try again later with the same Idempotency-Key",
            headers={"Retry-After": "30"},
        )


def _read(request: Any) -> Submit:
    query = request.GET
    # Parse the parameter even if the body is a document, for which it is ignored, so that an invalid value is always
    # reported.
    priority = integer(request, "priority", 0, least=-(2**31), most=2**31 - 1) if "priority" in query else None
    asked = bodies.wrapped_document(request, Submit)
    if asked is not None:
        return with_query_cluster(asked, query.get("cluster", ""))
    return Submit(
        manifest=bodies.text(bodies.raw(request, large=True)),
        cluster=query.get("cluster", ""),
        policy=query.get("policy", ""),
        priority=priority,
        callback_url=query.get("callbackUrl", ""),
        name=query.get("name", ""),
        hold=query.get("hold", ""),
        plan=query.get("plan", ""),
        strict=flag(request, "strict"),
    )


def _names_for(asked: Submit, subject: Subject, cluster: Cluster, key: str) -> str:
    """Return the seed for generated names: the seed of the plan, else the idempotency key, else a random seed."""
    if asked.plan:
        return plan_tokens.read(asked.plan).names
    return f"{cluster.name}\0{subject.owner}\0{key}" if key else uuid4().hex


def _content_of(manifest: bytes, cluster: Cluster, names: str) -> ClusterContent:
    """Parse a manifest; `names` is the seed of generated names. Raises: InputError."""
    content = parse_workload([("manifest", manifest)], known=cluster.definitions, names=names)
    if content.running:
        raise InputError(
            "PodBound",
            Message("{pod} already has spec.nodeName", pod=content.running[0].key),
            place="spec.nodeName",
            hint="Remove spec.nodeName; running pods are imported with their cluster",
        )
    if not content.pending:
        message, hint = "the manifest contains no pod to place", kind_hint(content.warnings) or ADD_POD
        raise InputError("WorkloadEmpty", message, place="manifest", hint=hint)
    return content


def idempotency_key(request: Any) -> str:
    """Return the idempotency key of a request, or "" if it has none. Raises: InputError `IdempotencyKeyInvalid`."""
    key: str = request.headers.get("Idempotency-Key", "").strip()
    if "," in key:
        # Servers and proxies join repeated headers, so two keys look like a single key.
        raise InputError(
            "IdempotencyKeyInvalid", "the header occurs several times or contains a comma", place="Idempotency-Key",
            hint="Send the header once, without a comma in the key",
        )  # fmt: skip
    if key:
        check_key(key, "Idempotency-Key")
    return key


def check_key(key: str, place: str) -> None:
    """Check the syntax of an idempotency key; `place` is its header or field.

    Raises: InputError `IdempotencyKeyInvalid`.
    """
    if not _KEY.fullmatch(key):
        raise InputError("IdempotencyKeyInvalid", _KEY_RULE, place=place, hint="Send a new UUID as the key")


def fingerprint(request: Any, what: str = "") -> str:
    """Return the digest of a request: its body, content type and query string, and its purpose `what`."""
    query = sorted((name, request.GET[name]) for name in request.GET)
    return sha256(encode([*([what] if what else []), request.content_type, query]) + request.body).hexdigest()


def _checked_name(name: str) -> str:
    if len(name) > 253 or "\0" in name:
        message = "a name must have at most 253 characters"
        raise InputError("NameInvalid", message, place="name", hint="Shorten the name")
    return name


def _checked_callback(url: str) -> str:
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.username
    except ValueError:
        usable = False
    if not usable or len(url) > 2000 or not url.isprintable() or not url.isascii():
        raise InputError(
            "CallbackUrlInvalid",
            "the value is not an http or https URL",
            place="callbackUrl",
            hint="Write a URL such as https://ci.example.com/done, without a password",
        )
    return url
