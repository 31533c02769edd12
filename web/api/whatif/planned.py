"""Decide a request immediately and reserve the result. Used for holds and for submissions of plans.

The request is decided on a copy of the cluster. The result is reserved only if no other reservation was made in the
meantime, otherwise the request is decided again. No transaction is open while the engine runs. A live cluster with
stale data gets no reservations, just as the scheduler makes no decisions for it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from hetsched.access.subject import Subject
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.message import Message, joined
from hetsched.inventory.connections import is_in_shadow
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_events import is_synced
from hetsched.placement.actions import Conflict, Contradiction, HoldPart, Submission, submit_with_hold

from .. import bodies
from ..problems import RequestRefused
from . import plan_tokens
from .what_if import WhatIf, WhatIfRun, simulate, simulation_slot, with_plan

MOST_CONFLICTS = 20
T = TypeVar("T")
log = structlog.get_logger(__name__)


def reserved_parts(tried: WhatIfRun) -> list[HoldPart]:
    """Return the capacity to reserve for every pod of a result, in placement order."""
    return [
        HoldPart(outcome.pod, outcome.node, outcome.allocation)
        for outcome in tried.outcomes.values()
        if outcome.node is not None
    ]


def check_reservable(cluster: Cluster) -> None:
    """Reject reservations on a cluster with possibly stale data or in shadow mode. Raises: RequestRefused 409."""
    if is_in_shadow(cluster.pk):
        template = "cluster {cluster} is in shadow mode: another scheduler places its pods"
        raise RequestRefused(409, "ClusterInShadow", Message(template, cluster=cluster.name))
    if not is_synced(cluster):
        message = Message("the data of cluster {cluster} may be stale", cluster=cluster.name)
        hint = "Retry when the informer of the cluster is in sync; GET clusters/ shows its state"
        raise RequestRefused(409, "ClusterNotInStep", message, hint=hint, headers={"Retry-After": "5"})


def reserve(asked: WhatIf, subject: Subject, write: Callable[[WhatIfRun], T], *, names: str = "") -> T:
    """Decide a request and let `write` reserve the result; decide again if another reservation was made in between.

    Raises: RequestRefused 503 `ClusterBusy` after the last conflict; RequestRefused 409 `LedgerRefused`; any exception
    of `write` except Conflict.
    """
    for turns in range(MOST_CONFLICTS):
        with simulation_slot():
            tried = simulate(asked, subject, names)
        try:
            return write(tried)
        except Contradiction as refusal:
            log.error("placement rejected by the database", cluster=asked.cluster, reason=str(refusal))
            raise RequestRefused(
                409, "LedgerRefused", "the reservation of the decision conflicts with an existing reservation"
            ) from refusal
        except Conflict as conflict:
            log.info("reservation lost", cluster=asked.cluster, reason=str(conflict))
            time.sleep(random.uniform(0, 0.005 * 2 ** min(turns, 5)))  # noqa: S311 - jitter, not a secret
    raise RequestRefused(
        503,
        "ClusterBusy",
        "concurrent reservations changed the cluster at every attempt",
        hint="Try again with the same Idempotency-Key",
        headers={"Retry-After": "1"},
    )


def submit_plan(
    token: str, asked: WhatIf, subject: Subject, cluster: Cluster, submit: Callable[[str], Submission]
) -> Submission:
    """Submit a request if its result is still the one in its plan; `submit` gets the ID of the hold that reserves the
    capacity.

    Raises: InputError `PlanInvalid`; RequestRefused 422 `PlanMismatch`, or 412 with a new result.
    """
    signed = plan_tokens.read(token)
    request = plan_tokens.request_digest(bodies.source(asked.manifest), asked.policy, asked.priority)
    if (signed.cluster, signed.request) != (cluster.name, request):
        raise RequestRefused(
            422, "PlanMismatch", "the plan was created for a different request", place="plan",
            hint="Submit the same manifest, byte for byte, with the same cluster, policy and priority",
        )  # fmt: skip
    check_reservable(cluster)
    asked = msgspec.structs.replace(asked, cluster=cluster.name, preempt=signed.preempts, plan=True)

    def write(tried: WhatIfRun) -> Submission:
        code = "PlanExpired" if signed.over else "PlanStale"
        if signed.over or plan_tokens.answer_digest(tried.answer) != signed.answer:
            raise _stale_plan(code, asked, tried)
        return submit_with_hold(
            cluster.pk, reserved_parts(tried), submit, revision=tried.revision, policy=tried.answer.policy,
            actor=subject, owner=subject.owner,
        )  # fmt: skip

    return reserve(asked, subject, write, names=signed.names)


def _stale_plan(code: str, asked: WhatIf, tried: WhatIfRun) -> RequestRefused:
    fresh = with_plan(asked, tried)
    why = "the plan has expired" if code == "PlanExpired" else "the placement would now differ from the plan"
    again = (
        "Check whatIf, and use the new plan in whatIf.plan"
        if fresh.plan is not None
        else "Check whatIf for the reason why the placement can no longer be planned"
    )
    causes = [Message(why)] if fresh.verdict is Verdict.PLACED else [Message(why), fresh.summary]
    detail = Message("nothing was submitted: {detail}", detail=joined("; ", causes))
    return RequestRefused(412, code, detail, place="plan", hint=again, members={"what_if": fresh})
