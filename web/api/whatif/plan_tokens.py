"""Plan tokens: what-if results that can be submitted unchanged.

The state of a cluster may change between a what-if and the submission, and a what-if writes nothing to the database.
The response of a what-if therefore contains a signed token with the cluster, the digests of request and result, and the
expiry. A submission sends the token with the same request. The server decides again and accepts only the same result:
every pod on the same node with the same GPUs and CPUs.
Invariants: a token grants no permission, it only adds a condition; it contains no pod or node name.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
from django.conf import settings
from django.utils.crypto import salted_hmac

from hetsched.contracts.api.decision import Plan, Verdict, WhatIfAnswer
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.times import rfc3339

LONGEST = 2000
_SALT = "hetsched.plan"


class Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a token. `request` and `answer` are digests, and `preempts` is true if evictions were allowed.

    `names` is the seed of the generated names in the result and in its submission.
    """

    version: int
    cluster: str
    request: str
    answer: str
    preempts: bool
    until: int
    names: str = ""

    @property
    def over(self) -> bool:
        return time.time() >= self.until


def request_digest(manifest: bytes, policy: str, priority: int | None) -> str:
    """Return the digest of the policy, the priority and the manifest (exact bytes) of a request."""
    return _digest(sha256(manifest).hexdigest(), policy, priority)


def answer_digest(answer: WhatIfAnswer) -> str:
    """Return the digest of the placements, their resources and the evictions of a result; scores and texts are
    excluded.
    """
    placed = [
        (placement.pod, placement.node, placement.isa, placement.zones, placement.gpus)
        for placement in answer.placements
    ]
    return _digest(answer.verdict, sorted(placed, key=lambda item: item[0]), answer.evictions)


def plan_of(
    cluster: str, request: str, answer: WhatIfAnswer, pods: Sequence[PodSpec], *, preempts: bool, names: str
) -> Plan | None:
    """Return the signed result, or None if the result cannot be reserved unchanged.

    A result cannot be reserved if a pod is not placed, if a pod would have to be evicted first, or if a pod uses volume
    or device claims, which cannot be reserved before the pod exists.
    """
    claims = any(pod.shape.claims or pod.shape.devices for pod in pods)
    if answer.verdict is not Verdict.PLACED or not answer.placements or answer.evictions or claims:
        return None
    until = int(time.time()) + settings.HETSCHED_PLAN_SECONDS
    signed = Signed(1, cluster, request, answer_digest(answer), preempts, until, names)
    body = _text(encode(signed))
    return Plan(f"{body}.{_text(_sign(body))}", rfc3339(datetime.fromtimestamp(until, UTC)))


def read(token: str) -> Signed:
    """Return the content of a token. Raises: InputError `PlanInvalid` for a token of another installation."""
    body, _, seal = token.partition(".")
    try:
        keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        if len(token) <= LONGEST and any(hmac.compare_digest(_bytes(seal), _sign(body, key)) for key in keys):
            return msgspec.json.decode(_bytes(body), type=Signed)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        pass
    raise InputError(
        "PlanInvalid",
        "the plan was not created by this installation",
        place="plan",
        hint="Copy the complete `plan.token` from a what-if with `plan: true`",
    )


def _digest(*parts: Any) -> str:
    return sha256(encode(parts)).hexdigest()[:32]


def _sign(body: str, key: str | bytes | None = None) -> bytes:
    return salted_hmac(_SALT, body, secret=key, algorithm="sha256").digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
