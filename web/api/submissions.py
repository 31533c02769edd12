"""Submit a manifest: the body of `POST workloads/`.

Rule: a manifest (YAML, JSON, openb CSV) comes as it is, with the rest in the query string, or wrapped in
`{"manifest", "policy", …}`. Everything is checked before anything is written; nothing is decided here.
`Idempotency-Key`: the same owner, key and body get the first answer again, another body is refused. A submission may
name room that was held for it, or the plan that it relies on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
from django.conf import settings

from hetsched.access.subject import Subject
from hetsched.access.tokens import allowance_of
from hetsched.adapters.files import parse_workload
from hetsched.contracts.errors import InputError
from hetsched.contracts.workload import PodSpec
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement.actions import Submission, submit, submit_there
from hetsched.placement.actions.submissions import answered
from hetsched.placement.models import Pod
from hetsched.storage.named_locks import undisturbed
from hetsched.storage.prepared_queries import Given, Prepared

from . import bodies, plan_tokens, reach
from .documents import Document, Request
from .paging import integer
from .planned import submit_plan
from .problems import Refused
from .what_if import WhatIf

SUBMIT_QUERIES = {
    "policy": "POST of a bare manifest: the policy to decide by.",
    "priority": "POST of a bare manifest: the priority of all its pods.",
    "callbackUrl": "POST of a bare manifest: whom to tell.",
    "hold": "POST of a bare manifest: the hold whose room its pods get.",
    "plan": "POST of a bare manifest: the plan to go by, from a what-if.",
}
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEY_RULE = "it must be 1 to 255 printable ASCII characters without blanks"


class Submit(Request, frozen=True):
    """A manifest as text or as an object (a `List` for several), and how to treat it.

    `hold` names room that was held for its pods; `plan` is the token of a what-if that has to come true.
    """

    manifest: str | dict[str, Any]
    cluster: str = ""
    policy: str = ""
    priority: int | None = None
    callback_url: str = ""
    name: str = ""
    hold: str = ""
    plan: str = ""


class PodState(Document, frozen=True):
    pod: str
    state: str


class Accepted(Document, frozen=True):
    """The answer to a submission."""

    id: str
    state: str
    pods: list[PodState]


class Looked(msgspec.Struct, frozen=True):
    """A submission that was read: for which cluster, and which pods it stands for."""

    asked: Submit
    manifest: bytes
    cluster: Cluster
    pods: list[PodSpec]


def accept(request: Any, subject: Subject) -> Submission:
    """Accept the submission in a request.

    Raises: InputError, or Refused 403, 404, 409, 412, 415, 422, 429, 503.
    """
    key, body_hash = idempotency_key(request), fingerprint(request)
    return take(look_at(_read(request), subject, key, body_hash), subject, key, body_hash)


def look_at(asked: Submit, subject: Subject, key: str, body_hash: str) -> Looked:
    """Read a submission and check that its sender may make it; nothing is written.

    `body_hash` is what identifies it under its key.

    Raises: InputError, or Refused as `accept` does.
    """
    manifest = bodies.source(asked.manifest)
    cluster = reach.cluster_of(asked.cluster)
    _refuse_flood(cluster, lambda: bool(key) and answered(subject.owner, key, body_hash) is not None)
    pods = pods_of(manifest, cluster, _names_for(asked, subject, cluster, key))
    reach.check_namespaces(subject, {pod.namespace for pod in pods})
    return Looked(asked, manifest, cluster, pods)


def take(looked: Looked, subject: Subject, key: str, body_hash: str) -> Submission:
    """Accept one submission; `body_hash` is what identifies it under its key.

    Raises: InputError, or Refused as `accept` does.
    """
    return undisturbed(lambda: _take(looked, subject, key, body_hash))


def _take(looked: Looked, subject: Subject, key: str, body_hash: str) -> Submission:
    asked, manifest, cluster, pods = looked.asked, looked.manifest, looked.cluster, looked.pods
    there = cluster.kind == ClusterKind.KUBERNETES
    if there and asked.priority is not None:
        # Its API server knows priorities by class only.
        raise InputError(
            "PriorityInvalid", "a live cluster takes its priorities from classes", place="priority",
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
            return submit_there(cluster, pods, manifest=manifest, hold=hold, **common)
        return submit(cluster, pods, manifest=manifest.decode(), priority=asked.priority, hold=hold, **common)

    # Whoever repeats what was accepted is answered, whatever became of its hold or plan since.
    known = answered(subject.owner, key, body_hash) if key and (asked.hold or asked.plan) else None
    if known is not None:
        return known
    if not asked.plan:
        return write(reach.own_hold(subject, asked.hold).pk if asked.hold else "")
    if asked.hold:
        raise InputError("PlanNotPossible", "a plan holds its own room", place="hold", hint="Name one of the two")
    wish = WhatIf(manifest=asked.manifest, cluster=asked.cluster, policy=asked.policy, priority=asked.priority)
    return submit_plan(asked.plan, wish, subject, cluster, write)


def _refuse_flood(cluster: Cluster, is_repeated: Callable[[], bool]) -> None:
    """Bound what one cluster's queue may grow to, whoever fills it; what is repeated adds nothing to it."""
    most = settings.HETSCHED_MOST_WAITING_PODS
    if _waiting(most)(cluster=cluster.pk) and not is_repeated():
        raise Refused(
            429,
            "TooManyWaiting",
            f"{most} pods wait in cluster {cluster.name} already",
            hint="Try again later with the same Idempotency-Key",
            headers={"Retry-After": "30"},
        )


@lru_cache(maxsize=8)
def _waiting(number: int) -> Prepared[Any]:
    """Return the query for the pod that waits in this place, whatever the order."""
    rows = Pod.objects.filter(cluster=Given("cluster"), queued=True).order_by().values_list("id", flat=True)
    return Prepared(lambda: rows[number - 1 : number])


def _read(request: Any) -> Submit:
    query = request.GET
    # Read before it is known whether it counts: what a document comes with is checked too.
    priority = integer(request, "priority", 0, least=-(2**31), most=2**31 - 1) if "priority" in query else None
    asked = bodies.wrapped(request, Submit)
    if asked is not None:
        return asked
    return Submit(
        manifest=bodies.text(bodies.raw(request, large=True)),
        cluster=query.get("cluster", ""),
        policy=query.get("policy", ""),
        priority=priority,
        callback_url=query.get("callbackUrl", ""),
        name=query.get("name", ""),
        hold=query.get("hold", ""),
        plan=query.get("plan", ""),
    )


def _names_for(asked: Submit, subject: Subject, cluster: Cluster, key: str) -> str:
    """Return what generated names are made of: the plan that told them, the key, or else this submission alone."""
    if asked.plan:
        return plan_tokens.read(asked.plan).names
    return f"{cluster.name}\0{subject.owner}\0{key}" if key else uuid4().hex


def pods_of(manifest: bytes, cluster: Cluster, names: str) -> list[PodSpec]:
    """Return the pods that a manifest stands for; `names` is what generated names are made of.

    Raises: InputError.
    """
    content = parse_workload([("manifest", manifest)], known=cluster.definitions, names=names)
    if content.running:
        raise InputError(
            "PodBound",
            f"{content.running[0].key} has a node already",
            place="spec.nodeName",
            hint="Leave spec.nodeName out; pods that run come in with their cluster",
        )
    return list(content.pending)


def idempotency_key(request: Any) -> str:
    """Return the key of a request, empty if it has none. Raises: InputError `IdempotencyKeyInvalid`."""
    key: str = request.headers.get("Idempotency-Key", "").strip()
    if "," in key:
        # Servers and proxies join headers of one name: nobody could tell one key from two.
        raise InputError(
            "IdempotencyKeyInvalid", "there are several, or it holds a comma", place="Idempotency-Key",
            hint="Send the header once, with a key without commas",
        )  # fmt: skip
    if key:
        check_key(key, "Idempotency-Key")
    return key


def check_key(key: str, place: str) -> None:
    """Refuse what is no key. Raises: InputError `IdempotencyKeyInvalid`."""
    if not _KEY.fullmatch(key):
        raise InputError("IdempotencyKeyInvalid", _KEY_RULE, place=place)


def fingerprint(request: Any, what: str = "") -> str:
    """Return what identifies the body of a request, how it is to be read, and what it is for."""
    query = sorted((name, request.GET[name]) for name in request.GET)
    return sha256(
        msgspec.json.encode([*([what] if what else []), request.content_type, query]) + request.body
    ).hexdigest()


def _checked_name(name: str) -> str:
    if len(name) > 253 or "\0" in name:
        raise InputError("NameInvalid", "a name has at most 253 characters", place="name")
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
            "CallbackUrlInvalid", "it is not an http or https address", place="callbackUrl", hint="Without a password"
        )
    return url
