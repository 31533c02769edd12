"""The only writers of holds: create, extend, cancel and end a hold. See `hold_claims` for claims.

The reservations of a hold are decided on a revision of the cluster and written only if nothing was reserved since. All
times are taken from the database's clock. A hold ends in one transaction that frees exactly its unused rows, so a
cleanup that runs twice, late or concurrently with a claim never frees a row twice.
Invariants: of a claim and an expiry at the same moment exactly one succeeds. Open holds are counted under the owner's
lock, so concurrent requests, on one or several clusters, cannot exceed the owner's limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import IntegrityError
from django.db.models import Q
from django.db.models.functions import Now

from hetsched.contracts.api.decision import PolicyRef
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, verbatim
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.allowance import UNLIMITED, Allowance
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import require_reason
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.inventory.node_loads import Conflict, Contradiction, advance
from hetsched.journal.audit import SYSTEM, Actor
from hetsched.journal.audit import record as audit
from hetsched.placement.lifecycle import FINISHED, QUEUED, State
from hetsched.placement.models import IdempotencyKey, Pod
from hetsched.placement.models.holds import MARK, Hold
from hetsched.placement.quotas import check_hold_quota, lock_names
from hetsched.placement.reservation_ledger import ReservedPod
from hetsched.policies.models import Policy
from hetsched.storage.batches import batched
from hetsched.storage.named_locks import lock
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import ClusterTransaction
from .hold_claims import CLAIMED
from .submissions import Submission, stored_response

MOST_PODS = 1000  # per hold
_NAME = 200  # maximum length of the pod's name within the name of its row
_FINISHED = sorted(state.value for state in FINISHED)


class HoldPart(msgspec.Struct, frozen=True):
    """The resources to reserve for one pod on one node."""

    spec: PodSpec
    node: str
    allocation: Allocation


class CreatedHold(msgspec.Struct, frozen=True):
    """A created hold and its response; `replayed` is True if the idempotency key was already used."""

    hold_id: str
    response: dict[str, Any]
    replayed: bool = False


def create_hold(
    cluster_id: int,
    parts: Sequence[HoldPart],
    *,
    revision: int,
    policy: PolicyRef,
    seconds: int,
    actor: Actor,
    owner: str,
    note: str = "",
    idempotency_key: str = "",
    body_hash: str = "",
    allowance: Allowance = UNLIMITED,
) -> CreatedHold:
    """Reserve capacity for pods that were placed on `revision` of a cluster, for `seconds`.

    `allowance` limits what the owner may hold.
    Raises: Conflict if something was reserved since, or the policy has another active version; Contradiction;
    InputError `HoldTooLong`, `HoldNotPossible`, `TooManyHolds`, `IdempotencyKeyReused`, `PriorityNotAllowed`,
    `QuotaTooSmall`, `QuotaExceeded`.
    """
    try:
        with write_transaction():
            row = _reserve(cluster_id, parts, revision, policy, _duration(seconds), actor, owner, note)
            check_hold_quota(row, [part.spec for part in parts], allowance)
            response = {
                "id": row.pk,
                "state": row.state,
                "expiresAt": rfc3339(row.expires_at),
                "pods": [{"pod": part.spec.key, "node": part.node} for part in parts],
            }
            if idempotency_key:
                IdempotencyKey.objects.create(
                    owner=owner, key=idempotency_key, body_hash=body_hash, hold=row, response=response,
                    created_at=row.created_at,
                )  # fmt: skip
    except IntegrityError as error:
        known = stored_hold(owner, idempotency_key, body_hash)
        if known is not None:
            return known
        raise Contradiction(f"cluster {cluster_id}: {error}", len(parts)) from error
    return CreatedHold(row.pk, response)


def stored_hold(owner: str, key: str, body_hash: str) -> CreatedHold | None:
    """Return the stored response to a hold request with this idempotency key, or None.

    Raises: InputError `IdempotencyKeyReused`.
    """
    known = stored_response(owner, key, body_hash) if key else None
    return None if known is None else CreatedHold(known.response["id"], known.response, replayed=True)


class _RepeatedHold(Exception):
    def __init__(self, submission: Submission) -> None:
        super().__init__()
        self.submission = submission


def submit_with_hold(
    cluster_id: int,
    parts: Sequence[HoldPart],
    submit: Callable[[str], Submission],
    *,
    revision: int,
    policy: PolicyRef,
    actor: Actor,
    owner: str,
) -> Submission:
    """Reserve planned capacity as a hold, call `submit` with the hold's id and claim the hold, in one transaction.

    Raises: the errors of `create_hold` and `submit`.
    """
    try:
        with write_transaction():
            row = _reserve(cluster_id, parts, revision, policy, CLAIMED, actor, owner, "planned", limited=False)
            submission = submit(row.pk)
            if submission.replayed:
                raise _RepeatedHold(submission)  # rolls back the new hold
    except _RepeatedHold as twin:
        return twin.submission
    except IntegrityError as error:
        raise Contradiction(f"cluster {cluster_id}: {error}", len(parts)) from error
    return submission


def extend_hold(row: Hold, seconds: int, *, actor: Actor, reason: str) -> Hold:
    """Set the expiry of a hold to `seconds` from now.

    Raises: InputError `ReasonMissing`, `HoldTooLong`, or `HoldOver` if it is claimed or has ended.
    """
    reason, lasting = require_reason(reason), _duration(seconds)
    with write_transaction():
        rows = Hold.objects.filter(pk=row.pk, state=Hold.HELD, expires_at__gt=Now())
        if not rows.update(expires_at=Now() + lasting):
            message = Message("hold {hold} is claimed or has ended", hold=row.pk)
            raise InputError("HoldOver", message, hint="Create a new hold")
        audit(
            actor=actor.name, role=actor.role, action="hold.extend", obj=row, reason=reason,
            details={"seconds": seconds},
        )  # fmt: skip
    return Hold.objects.get(pk=row.pk)


def cancel_hold(row: Hold, *, actor: Actor, reason: str) -> Hold:
    """Cancel an unclaimed hold; do nothing if the hold has ended.

    Raises: InputError `ReasonMissing`, or `HoldClaimed` if a submission has claimed it.
    """
    reason = require_reason(reason)
    with write_transaction():
        change = ClusterTransaction(advance(row.cluster_id))
        if Hold.objects.filter(pk=row.pk, state=Hold.CLAIMED).exists():
            message = Message("hold {hold} is claimed by {workload}", hold=row.pk, workload=row.workload_id or "")
            raise InputError("HoldClaimed", message, hint="Cancel that workload")
        if end_hold_rows(change, Hold.objects.filter(pk=row.pk, state=Hold.HELD), Hold.CANCELLED, verbatim(reason)):
            audit(actor=actor.name, role=actor.role, action="hold.cancel", obj=row, reason=reason)
        _close(change)
    return Hold.objects.get(pk=row.pk)


def end_holds(cluster_id: int) -> int:
    """End holds that expired by the database's clock, lost a node or belong to a finished workload; return how many."""
    rows = Hold.objects.filter(cluster_id=cluster_id, state__in=Hold.OPEN)
    late = Q(expires_at__lte=Now())
    over = Q(state=Hold.CLAIMED) & (Q(workload=None) | Q(workload__state__in=_FINISHED))
    gone = Q(pods__origin=Pod.HELD, pods__state=State.RUNNING.value, pods__node__gone=True)
    if not rows.filter(late | over | gone).exists():
        return 0
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        ended = end_hold_rows(change, rows.filter(gone), Hold.LOST, Message("a node of the hold was deleted"))
        ended += end_hold_rows(
            change, rows.filter(over), Hold.USED, Message("the submission that used the hold has ended")
        )
        ended += end_hold_rows(
            change, rows.filter(late, state=Hold.CLAIMED), Hold.USED, Message("the remaining reservations expired")
        )
        ended += end_hold_rows(
            change, rows.filter(late, state=Hold.HELD), Hold.EXPIRED, Message("the hold expired without a submission")
        )
        _close(change)
    return len(ended)


def end_hold_rows(change: ClusterTransaction, holds: Any, state: str, reason: str) -> list[Hold]:
    """End these holds and free their unused capacity, inside the caller's transaction; return the ended holds."""
    ended = []
    for row in holds.distinct():
        same = Hold.objects.filter(pk=row.pk, state=row.state)
        if not same.update(state=state, ended_at=change.now, end_reason=reason):
            continue
        pods = Pod.objects.filter(hold=row, origin=Pod.HELD, state=State.RUNNING.value)
        free_capacity(change, list(pods.defer("spec").order_by("id")), Message("hold {state}", state=state))
        if state not in (Hold.CANCELLED, Hold.USED):
            audit(actor=SYSTEM.name, role=SYSTEM.role, action=f"hold.{state}", obj=row, reason=reason)
        ended.append(row)
    return ended


def free_capacity(change: ClusterTransaction, rows: Sequence[Pod], reason: str) -> None:
    """Free the reserved capacity of these rows, inside the caller's transaction."""
    change.free(rows, reason)
    change.move(rows, State.CANCELLED, queued=False, finished_at=change.now, message=reason)


def use_capacity(change: ClusterTransaction, row_ids: Sequence[int], by: str) -> None:
    """Free the hold rows used by pods placed in this transaction; end claimed holds that no further pod will use.

    Other rows of the holds stay reserved, because the decision did not treat their capacity as free.
    Raises: Conflict if the reservation of a row has ended.
    """
    if not row_ids:
        return
    rows = list(Pod.objects.filter(pk__in=row_ids, origin=Pod.HELD).defer("spec").order_by("id"))
    free_capacity(change, rows, by)
    for hold_id in sorted({row.hold_id for row in rows if row.hold_id}):
        claimed = Hold.objects.filter(pk=hold_id, state=Hold.CLAIMED)
        pods = Pod.objects.filter(hold_id=hold_id)
        if not pods.filter(origin=Pod.HELD, state=State.RUNNING.value).exists():
            claimed.update(
                state=Hold.USED, ended_at=change.now, end_reason=Message("all pods of the submission are placed")
            )
            continue
        waiting = pods.exclude(origin=Pod.HELD).filter(state__in=[state.value for state in QUEUED])
        # In a live cluster more pods of the workload may arrive; in other clusters all pods exist already.
        if change.cluster.kind != ClusterKind.KUBERNETES and not waiting.exists():
            claimed.update(expires_at=Now())


def prune_holds(cluster_id: int, *, before: Any) -> None:
    """Delete holds that ended before a time."""
    Hold.objects.filter(cluster_id=cluster_id, ended_at__lt=before).delete()


def _duration(seconds: int) -> timedelta:
    most = settings.HETSCHED_LONGEST_HOLD_SECONDS
    if not 1 <= seconds <= most:
        raise InputError(
            "HoldTooLong", Message("the duration of a hold must be 1 to {n} seconds", n=most), place="seconds"
        )
    return timedelta(seconds=seconds)


def _reserve(
    cluster_id: int,
    parts: Sequence[HoldPart],
    revision: int,
    policy: PolicyRef,
    lasting: timedelta,
    actor: Actor,
    owner: str,
    note: str,
    *,
    limited: bool = True,
) -> Hold:
    """Create a hold and reserve its capacity, inside the caller's transaction."""
    check_hold_parts(parts)
    namespaces = {part.spec.namespace for part in parts}
    # Lock these names before the cluster and its topics, in the order that submissions use.
    lock(lock_names(cluster_id, () if limited else namespaces, owner))
    cluster = advance(cluster_id, revision=revision)
    if Policy.objects.filter(name=policy.name).exclude(active_version=policy.version).exists():
        raise Conflict(Message("policy {policy} now has another active version", policy=policy.name))
    open_ones = Hold.objects.filter(owner=owner, state=Hold.HELD)
    if limited and open_ones.count() >= settings.HETSCHED_MOST_HOLDS:
        raise InputError(
            "TooManyHolds",
            Message("you have {n} open holds, the maximum", n=settings.HETSCHED_MOST_HOLDS),
            hint="Cancel or use a hold first",
        )
    change = ClusterTransaction(cluster)
    row = Hold.objects.create(
        cluster=cluster,
        namespace=namespaces.pop() if len(namespaces) == 1 else "",
        owner=owner,
        held_by=actor.name[:255],
        note=note[:300],
        policy_name=policy.name,
        policy_version=policy.version,
        pod_count=len(parts),
        created_at=change.now,
        expires_at=Now() + lasting,
    )
    row.refresh_from_db(fields=["expires_at"])
    node_ids = _nodes(cluster, {part.node for part in parts})
    pods = [_row(change, row, part, node_ids[part.node], at) for at, part in enumerate(parts)]
    Pod.objects.bulk_create(pods, batch_size=500)
    reserved = [
        ReservedPod(pod.pk, node_ids[part.node], pod.spec, part.allocation)
        for pod, part in zip(pods, parts, strict=True)
    ]
    change.reserve(reserved, cluster.leader_epoch)
    audit(
        actor=actor.name, role=actor.role, action="hold.create", obj=row,
        details={"cluster": cluster.name, "pods": len(parts), "until": rfc3339(row.expires_at)},
    )  # fmt: skip
    change.close()
    return row


def check_hold_parts(parts: Sequence[HoldPart]) -> None:
    """Reject pods for which a hold cannot reserve capacity. Raises: InputError `HoldNotPossible`."""
    if not 1 <= len(parts) <= MOST_PODS:
        message = Message("a hold must have 1 to {n} pods, not {m}", n=MOST_PODS, m=len(parts))
        raise InputError("HoldNotPossible", message, place="manifest")
    for part in parts:
        if part.spec.shape.claims or part.spec.shape.devices:
            raise InputError(
                "HoldNotPossible",
                Message(
                    "{pod} uses volume or device claims, which a hold cannot reserve",
                    pod=part.spec.key,
                ),
                place="manifest",
                hint="Submit the pod without a hold",
            )


def _nodes(cluster: Cluster, names: set[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in batched(sorted(names)):
        found |= dict(Node.objects.filter(cluster=cluster, name__in=some).values_list("name", "id"))
    lost = names - found.keys()
    if lost:
        raise Conflict(Message("node {node} was deleted", node=min(lost)))
    return found


def _row(change: ClusterTransaction, row: Hold, part: HoldPart, node_id: int, at: int) -> Pod:
    was = part.spec
    name = f"{was.name[:_NAME]}{MARK}{row.pk}" + (f".{at}" if was.name[_NAME:] else "")
    spec: PodSpec = msgspec.structs.replace(
        was, name=name, uid="", gang=None, gates=(), controller_uid="", preemptible=False, stays="hold", node_name="",
        allocation=None,
    )  # fmt: skip
    pod = Pod.charged(change.cluster, spec, node_id, part.allocation, change.now)
    pod.origin, pod.hold = Pod.HELD, row
    pod.message = Message("capacity for {pod}, reserved by {name}", pod=was.key, name=row.held_by)
    return pod


def _close(change: ClusterTransaction) -> None:
    change.requeue()
    change.close()
    dispatch.wake(change.cluster.pk)
