"""Decide for a request here and now, and have it booked: what holds and submissions of plans share.

Rule: the request is tried on a copy of the cluster as it is; what came out is booked only if nothing else was booked
since, else it is tried anew. No transaction is open while the engine runs. A live cluster whose rows may not be what it
is gets no bookings from here, as it gets no decisions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from hetsched.access.subject import Subject
from hetsched.contracts.decision import Verdict
from hetsched.inventory.connections import in_shadow
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_events import in_step
from hetsched.placement.actions import Conflict, Contradiction, Room, Submission, submit_as_planned

from . import bodies, plan_tokens
from .problems import Refused
from .what_if import Tried, WhatIf, ask, turn, with_plan

MOST_CONFLICTS = 20
T = TypeVar("T")
log = structlog.get_logger(__name__)


def rooms_of(tried: Tried) -> list[Room]:
    """Return what every pod of an answer would hold, in the order in which they were placed."""
    return [Room(one.pod, one.node, one.allocation) for one in tried.outcomes.values() if one.node is not None]


def check_known(cluster: Cluster) -> None:
    """Refuse what would be booked on facts that may be old. Raises: Refused 409."""
    if in_shadow(cluster.pk):
        raise Refused(409, "ClusterInShadow", f"another scheduler decides for cluster {cluster.name}")
    if not in_step(cluster):
        raise Refused(
            409, "ClusterNotInStep", f"what is known of cluster {cluster.name} may be old",
            hint="Try again once it is followed; GET clusters/ says what is wrong", headers={"Retry-After": "5"},
        )  # fmt: skip


def book(asked: WhatIf, subject: Subject, write: Callable[[Tried], T], *, names: str = "") -> T:
    """Try a request and have `write` book what came out, again and again while others are faster.

    Raises: Refused 503 `ClusterBusy` when they always are; whatever `write` raises but Conflict.
    """
    for turns in range(MOST_CONFLICTS):
        with turn():
            tried = ask(asked, subject, names)
        try:
            return write(tried)
        except Contradiction as refusal:
            log.error("placement set aside", cluster=asked.cluster, reason=str(refusal))
            raise Refused(409, "LedgerRefused", "the ledger does not admit what was decided") from refusal
        except Conflict as conflict:
            log.info("booking lost", cluster=asked.cluster, reason=str(conflict))
            time.sleep(random.uniform(0, 0.005 * 2 ** min(turns, 5)))  # noqa: S311 - jitter, not a secret
    raise Refused(
        503, "ClusterBusy", "others booked something in between every time", hint="Try again with the same key",
        headers={"Retry-After": "1"},
    )  # fmt: skip


def submit_plan(
    token: str, asked: WhatIf, subject: Subject, cluster: Cluster, submit: Callable[[str], Submission]
) -> Submission:
    """Submit a request if it is still decided as its plan says; `submit` is given the hold that keeps its room.

    Raises: InputError `PlanInvalid`; Refused 422 `PlanMismatch`, or 412 with a fresh answer.
    """
    signed = plan_tokens.read(token)
    request = plan_tokens.request_digest(bodies.source(asked.manifest), asked.policy, asked.priority)
    if (signed.cluster, signed.request) != (cluster.name, request):
        raise Refused(
            422, "PlanMismatch", "the plan is of another request", place="plan",
            hint="Submit the same manifest, byte for byte, with the same cluster, policy and priority",
        )  # fmt: skip
    check_known(cluster)
    asked = msgspec.structs.replace(asked, cluster=cluster.name, preempt=signed.preempts, plan=True)

    def write(tried: Tried) -> Submission:
        code = "PlanExpired" if signed.over else "PlanStale"
        if signed.over or plan_tokens.answer_digest(tried.answer) != signed.answer:
            raise _stale(code, asked, tried)
        return submit_as_planned(
            cluster.pk, rooms_of(tried), submit, revision=tried.revision, policy=tried.answer.policy,
            actor=subject, owner=subject.owner,
        )  # fmt: skip

    return book(asked, subject, write, names=signed.names)


def _stale(code: str, asked: WhatIf, tried: Tried) -> Refused:
    fresh = with_plan(asked, tried)
    why = "it was not submitted in time" if code == "PlanExpired" else "by now something else comes out"
    again = "whatIf.plan is a fresh plan" if fresh.plan is not None else "whatIf says why it cannot be planned any more"
    placed = fresh.verdict is Verdict.PLACED
    return Refused(
        412, code, f"nothing was submitted: {why}" + ("" if placed else f"; {fresh.summary}"), place="plan",
        hint=f"Look at whatIf; {again}", members={"what_if": fresh},
    )  # fmt: skip
