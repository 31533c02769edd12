"""Plans: answers of a what-if that can be submitted as they are.

Problem: what a what-if answered may not be so any more when its asker submits, and nothing was written meanwhile.
Rule: the answer comes with a token that this installation signed: of which cluster and which request, what came out,
until when. Nothing is kept here. Whoever submits names the token and sends the same request; it is decided anew, and
goes on only if the same comes out: every pod on the same node, with the same cards and CPUs.
Invariants: a token gives no right to anything, it only adds a condition; it holds no name of any pod or node.
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

from hetsched.contracts.decision import Plan, Verdict, WhatIfAnswer
from hetsched.contracts.errors import InputError
from hetsched.contracts.times import rfc3339
from hetsched.contracts.workload import PodSpec

LONGEST = 2000
_SALT = "hetsched.plan"


class Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a token says: `request` and `answer` are digests; `preempts`: evictions were not ruled out.

    `names` is what the answer's generated names are made of, and those of its submission.
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
    """Return what identifies a request: its manifest byte for byte, and how it is to be treated."""
    return _digest(sha256(manifest).hexdigest(), policy, priority)


def answer_digest(answer: WhatIfAnswer) -> str:
    """Return what identifies an answer: who goes where, with what, and who has to leave; no scores, no words."""
    placed = [(one.pod, one.node, one.isa, one.zones, one.gpus) for one in answer.placements]
    return _digest(answer.verdict, sorted(placed, key=lambda one: one[0]), answer.evictions)


def plan_of(
    cluster: str, request: str, answer: WhatIfAnswer, pods: Sequence[PodSpec], *, preempts: bool, names: str
) -> Plan | None:
    """Sign an answer; None where there is nothing that could be booked as it stands.

    That is: not every pod is placed, somebody would have to leave first, or a pod uses volume or device claims, which
    are nobody's before it exists.
    """
    claims = any(pod.shape.claims or pod.shape.devices for pod in pods)
    if answer.verdict is not Verdict.PLACED or not answer.placements or answer.evictions or claims:
        return None
    until = int(time.time()) + settings.HETSCHED_PLAN_SECONDS
    signed = Signed(1, cluster, request, answer_digest(answer), preempts, until, names)
    body = _text(msgspec.json.encode(signed))
    return Plan(f"{body}.{_text(_seal(body))}", rfc3339(datetime.fromtimestamp(until, UTC)))


def read(token: str) -> Signed:
    """Return what a token says. Raises: InputError `PlanInvalid` for one that this installation did not sign."""
    body, _, seal = token.partition(".")
    try:
        keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        if len(token) <= LONGEST and any(hmac.compare_digest(_bytes(seal), _seal(body, key)) for key in keys):
            return msgspec.json.decode(_bytes(body), type=Signed)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        pass
    raise InputError(
        "PlanInvalid",
        "it is no plan of this installation",
        place="plan",
        hint="Take it whole from `plan.token` of a what-if that was asked with `plan`",
    )


def _digest(*parts: Any) -> str:
    return sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def _seal(body: str, key: str | bytes | None = None) -> bytes:
    return salted_hmac(_SALT, body, secret=key, algorithm="sha256").digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
