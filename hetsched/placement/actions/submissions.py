"""Acceptance of workloads.

Everything is validated first; then workload, pods, idempotency key, audit entry and events are written in one
transaction. A request with the same owner, key and body gets the first response again; the same key with another body
is rejected. The cluster's revision does not change: pending pods have no reservations, so a submission never
invalidates a decision in progress.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec
from django.db import IntegrityError
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allowance import UNLIMITED, Allowance
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.remedies import ADD_POD, allowed_range
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_loads import Conflict
from hetsched.journal.audit import Actor, build_entries
from hetsched.journal.publish import publish
from hetsched.placement.in_place import fingerprint
from hetsched.placement.lifecycle import LIVE, State
from hetsched.placement.models import IdempotencyKey, Pod, Workload
from hetsched.placement.notifications.callbacks import check_callback_url
from hetsched.placement.queries.pod_counts import cluster_counts, counts_are_due
from hetsched.placement.quotas import check_ceiling, check_quota
from hetsched.policies.effective import Chooser
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import insert_together, new
from hetsched.storage.statements import fetch
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .hold_claims import claim_hold
from .image_platforms import add_image_facts

MOST_PODS = 100_000
MOST_KEPT_MANIFEST = 1 << 18
PRIORITIES = range(-(2**31), 2**31)
_KEYS = IdempotencyKey._meta.db_table


class Submission(msgspec.Struct, frozen=True):
    """An accepted workload and its response; `replayed` is True if the idempotency key was already used."""

    workload_id: str
    response: dict[str, Any]
    replayed: bool = False


def submit(
    cluster: Cluster,
    pods: Sequence[PodSpec],
    *,
    actor: Actor,
    owner: str = "",
    manifest: str = "",
    name: str = "",
    policy: str = "",
    priority: int | None = None,
    callback_url: str = "",
    idempotency_key: str = "",
    body_hash: str = "",
    hold: str = "",
    origin: str = Pod.SUBMITTED,
    allowance: Allowance = UNLIMITED,
) -> Submission:
    """Accept pods to be placed on a cluster, and wake the scheduler.

    `owner` scopes idempotency keys; `policy` and `priority` override the values of the pods. A pod with an invalid
    policy of its own is accepted and becomes *misconfigured*. The pods use the reserved capacity of `hold`, if one is
    named. `allowance` limits what the owner may submit.
    Raises: InputError `WorkloadEmpty`, `WorkloadTooLarge`, `PodDuplicate`, `PodBound`, `PriorityInvalid`, `PodExists`,
    `PolicyUnknown`, `PolicyNotAllowed`, `CallbackNotAllowed`, `IdempotencyKeyReused`, `HoldOver`, `PriorityNotAllowed`,
    `QuotaTooSmall`, `QuotaExceeded`, `NamespaceFull`; Conflict if another pod used a name during the transaction and
    has ended since.
    """
    check_pods(pods, priority)
    check_ceiling(allowance, pods, priority)
    check_callback_url(callback_url)
    if idempotency_key:
        known = stored_response(owner, idempotency_key, body_hash)
        if known is not None:
            return known
    prepared = build_pod_rows(cluster, pods, policy, priority, origin)
    try:
        with write_transaction():
            for pod in prepared:
                pod.hold_id = hold or None
            kept = {"owner": owner, "manifest": manifest[:MOST_KEPT_MANIFEST], "callback_url": callback_url}
            workload = build_workload(cluster, prepared, actor, name, policy=policy, **kept)
            response = {
                "id": workload.pk,
                "state": workload.state,
                "pods": [{"pod": pod.key, "state": pod.state} for pod in prepared],
            }
            keys = []
            if idempotency_key:
                kept = {"owner": owner, "key": idempotency_key, "body_hash": body_hash, "workload_id": workload.pk}
                keys = [new(IdempotencyKey, **kept, response=response, created_at=workload.created_at)]
            _insert([(workload, prepared)], actor, keys)
            if hold:
                claim_hold(hold, workload)
            check_quota(cluster, [(workload, pods)], owner, allowance)
            _publish_counts(cluster)
            dispatch.wake(cluster.pk)
    except IntegrityError as error:
        # A concurrent request used the key, or a pod with one of these names is live or ended during this transaction.
        known = stored_response(owner, idempotency_key, body_hash) if idempotency_key else None
        if known is not None:
            return known
        _check_names_unused(cluster, pods)
        raise Conflict(f"cluster {cluster.pk}: {error}") from error
    return Submission(workload.pk, response)


def check_pods(pods: Sequence[PodSpec], priority: int | None) -> None:
    """Reject pods that no submission may contain. Raises: InputError, as `submit` does."""
    if not pods:
        raise InputError("WorkloadEmpty", "the manifest contains no pod to place", place="manifest", hint=ADD_POD)
    if len(pods) > MOST_PODS:
        message = Message("{n} pods exceed the maximum of {m} per request", n=len(pods), m=MOST_PODS)
        raise InputError("WorkloadTooLarge", message, place="manifest", hint="Split the request")
    if priority is not None:
        check_priority(priority)
    seen: set[str] = set()
    for pod in pods:
        if pod.key in seen:
            message = Message("two pods are named {pod}", pod=pod.key)
            raise InputError("PodDuplicate", message, place="manifest", hint="Rename one of them")
        seen.add(pod.key)
        if pod.node_name:
            message = Message("{pod} already has spec.nodeName", pod=pod.key)
            raise InputError("PodBound", message, place="spec.nodeName", hint="Remove spec.nodeName")


def check_priority(priority: int) -> None:
    """Reject invalid priorities. Raises: InputError `PriorityInvalid`."""
    if priority not in PRIORITIES:
        message = Message("{value} is not a 32-bit priority", value=priority)
        hint = allowed_range(PRIORITIES.start, PRIORITIES.stop - 1)
        raise InputError("PriorityInvalid", message, place="priority", hint=hint)


def stored_response(owner: str, key: str, body_hash: str) -> Submission | None:
    """Return the stored response of this idempotency key, or None. Raises: InputError `IdempotencyKeyReused`."""
    found = fetch(f"SELECT body_hash, response FROM {_KEYS} WHERE owner = %s AND key = %s", [owner, key])  # noqa: S608
    if not found:
        return None
    kept_hash, text = found[0]
    if kept_hash != body_hash:
        raise InputError(
            "IdempotencyKeyReused",
            "the Idempotency-Key was used with another body",
            place="Idempotency-Key",
            hint="Use a new key",
        )
    response = msgspec.json.decode(text)
    return Submission(str(response["id"]), response, replayed=True)


def build_pod_rows(
    cluster: Cluster,
    pods: Sequence[PodSpec],
    policy: str,
    priority: int | None,
    origin: str,
    chooser: Chooser | None = None,
) -> list[Pod]:
    """Choose each pod's policy and build its unsaved row; without `chooser`, read the policies and their rules."""
    if not pods:
        return []
    chooser = chooser or Chooser(cluster)
    rows: list[Pod] = []
    for spec, images_until in add_image_facts(cluster, pods):
        chosen, problem = chooser.choose(spec, policy)
        if problem is not None:
            spec = msgspec.structs.replace(spec, problems=(*spec.problems, problem))
        if priority is not None:
            spec = msgspec.structs.replace(spec, priority=priority)
        rows.append(
            new(
                Pod,
                cluster_id=cluster.pk,
                namespace=spec.namespace,
                name=spec.name,
                uid=spec.uid or str(uuid.uuid4()),
                origin=origin,
                spec=spec,
                fingerprint=fingerprint(spec),
                policy=chosen.name,
                policy_rule=chosen.rule,
                priority=spec.priority,
                gang=spec.gang.name if spec.gang else "",
                # In a live cluster other controllers remove scheduling gates; the pod is queued when the watch
                # reports the removal.
                queued=not (spec.gates and origin == Pod.WATCHED),
                images_until=images_until,
                message=_gate_message(spec),
            )
        )
    return rows


def _gate_message(spec: PodSpec) -> str:
    return Message("SchedulingGated: {names}", names=joined(", ", spec.gates)) if spec.gates else Message("")


def build_workload(cluster: Cluster, pods: Sequence[Pod], actor: Actor, name: str, **made: Any) -> Workload:
    """Build the unsaved row of a workload with these pods."""
    now = timezone.now()
    namespaces = {pod.namespace for pod in pods}
    first = pods[0].spec
    row = new(
        Workload,
        namespace=namespaces.pop() if len(namespaces) == 1 else "",
        name=name or first.controller.rpartition("/")[2] or first.name,
        priority=max(pod.priority for pod in pods),
        pod_count=len(pods),
        submitted_by=actor.name[:255],
        history=[[State.PENDING.value, rfc3339(now)]],
        created_at=now,
        **made,
    )
    row.cluster = cluster
    return row


def _insert(
    groups: Sequence[tuple[Workload, list[Pod]]],
    actor: Actor,
    keys: Sequence[IdempotencyKey] = (),
) -> None:
    """Write workloads with their pods, audit entries and idempotency keys. New workloads have no subscribers yet."""
    for workload, pods in groups:
        for pod in pods:
            pod.workload, pod.created_at = workload, workload.created_at
    about = [
        (workload, "", {"cluster": workload.cluster.name, "pods": len(pods), "policy": workload.policy})
        for workload, pods in groups
    ]
    insert_together(
        [workload for workload, _ in groups],
        [pod for _, pods in groups for pod in pods],
        build_entries(actor, "workload.submit", about),
        keys,
    )


def accept_pods(
    cluster: Cluster,
    groups: Iterable[Sequence[PodSpec]],
    *,
    actor: Actor,
    origin: str = Pod.WATCHED,
    publishes: bool = True,
) -> list[Pod]:
    """Accept pending pods of a live cluster, one workload per group, inside the caller's transaction.

    If `publishes` is False, the caller publishes the cluster's topic.
    Raises: IntegrityError if a live pod with the same name exists.
    """
    wanted = list(groups)
    prepared = iter(build_pod_rows(cluster, [spec for specs in wanted for spec in specs], "", None, origin))
    made: list[tuple[Workload, list[Pod]]] = []
    for specs in wanted:
        pods = list(islice(prepared, len(specs)))
        made.append((build_workload(cluster, pods, actor, ""), pods))
    if made:
        _insert(made, actor)
        if publishes:
            _publish_counts(cluster)
    return [pod for _, pods in made for pod in pods]


def _publish_counts(cluster: Cluster) -> None:
    if counts_are_due(cluster.pk):
        publish(cluster_topic(cluster), lambda: {"counts": cluster_counts(cluster)["counts"]})


def _check_names_unused(cluster: Cluster, pods: Sequence[PodSpec]) -> None:
    """Reject the first pod with a name that is in use.

    Raises: InputError `PodExists`.
    """
    live = Pod.objects.filter(cluster=cluster, state__in=[state.value for state in LIVE])
    wanted = {pod.key for pod in pods}
    for some in batched(sorted({pod.name for pod in pods})):
        for taken in live.filter(name__in=some).only("namespace", "name", "workload_id"):
            if taken.key in wanted:
                raise InputError(
                    "PodExists",
                    Message("{pod} already exists in workload {workload}", pod=taken.key, workload=taken.workload_id)
                    if taken.workload_id
                    else Message("{pod} already exists", pod=taken.key),
                    place="manifest",
                    hint="Use another name, or cancel that workload",
                )
