"""Submissions to a live cluster: hetsched creates the objects there, and their pods arrive through the watch.

A create request cannot be part of a transaction, and its response may be lost.
Therefore one transaction first writes the workload and its objects as rows. After the commit a worker creates the
objects; each attempt is made under a claim that outlasts the API call. If the result of an attempt is unknown, the next
attempt uses the same name and resolves it. Pods from the watch join the workload of the object that created them,
matched by label and by controller: the label alone is not proof, because any user can set it. Once a pod of a Job has
ended, the worker reads the state of the Job itself. Deletions follow the same procedure; the watch frees the pods'
resources once it reports that they ended.
Invariants: only enrolled namespaces are written to; this module creates no pod row before the watch reports the pod,
and frees no resources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta

from django.db import IntegrityError
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined, verbatim
from hetsched.contracts.objects.allowance import UNLIMITED, Allowance
from hetsched.contracts.objects.observed import ObservedPod
from hetsched.contracts.objects.submitted import WORKLOAD_LABEL, ObjectToCreate
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import cluster_topic, require_reason
from hetsched.inventory.models import Cluster, Connection
from hetsched.inventory.node_loads import Conflict
from hetsched.journal.audit import Actor, record
from hetsched.journal.publish import publish
from hetsched.placement.lifecycle import State
from hetsched.placement.models import IdempotencyKey, Pod, SubmittedObject, Workload, new_workload_id
from hetsched.placement.notifications.callbacks import check_callback_url
from hetsched.placement.queries.pod_counts import cluster_counts
from hetsched.placement.quotas import check_ceiling, check_quota
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import insert
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import ClusterTransaction
from .hold_claims import claim_hold, claimed_holds
from .submissions import MOST_KEPT_MANIFEST, Submission, build_pod_rows, check_pods, stored_response

CLAIM = timedelta(seconds=60)  # longer than any API call takes
LONGEST_WAIT_SECONDS = 300
LONGEST_READ_SECONDS = 30
_OPEN = (SubmittedObject.WANTED, SubmittedObject.UNWANTED, SubmittedObject.ENDING)
_THERE = (SubmittedObject.MADE, SubmittedObject.ENDING, SubmittedObject.SUCCEEDED, SubmittedObject.FAILED)


def submit_live(
    cluster: Cluster,
    pods: Sequence[PodSpec],
    *,
    manifest: bytes,
    actor: Actor,
    owner: str = "",
    name: str = "",
    policy: str = "",
    callback_url: str = "",
    idempotency_key: str = "",
    body_hash: str = "",
    hold: str = "",
    allowance: Allowance = UNLIMITED,
) -> Submission:
    """Accept a manifest whose objects are to be created in a live cluster, and wake the worker that creates them.

    `pods` are the pods of the manifest, as far as it lists them; they use the reserved capacity of `hold` if one is
    named. The submitter's permissions are checked against the objects as they will be created, not against `pods`: a
    pod whose manifest has a finished status is not in `pods` but runs once created, and a controller may have no pods
    yet.
    Raises: InputError `NamespaceNotEnrolled`, `NamespaceNotAllowed`, `KindNotSubmitted`; Conflict; the errors of
    `submit`.
    """
    from hetsched.adapters.kubernetes.object_submission import pods_of, wanted

    check_pods(pods, None)
    check_callback_url(callback_url)
    if idempotency_key:
        known = stored_response(owner, idempotency_key, body_hash)
        if known is not None:
            return known
    # reject a policy that may not be used, before anything is written
    build_pod_rows(cluster, pods, policy, None, Pod.WATCHED)
    workload_id = new_workload_id()
    identity = f"{cluster.name}\0{owner}\0{idempotency_key}" if idempotency_key else workload_id
    scheduler_name = f"hetsched-{policy}" if policy else "hetsched"
    objects = wanted(manifest, workload=workload_id, identity=identity, scheduler_name=scheduler_name)
    _check_token_namespaces(allowance, {new_object.namespace for new_object in objects})
    _check_enrolled_namespaces(cluster, {new_object.namespace for new_object in objects})
    pods = pods_of(objects, cluster.definitions)
    check_ceiling(allowance, pods, None)
    try:
        with write_transaction():
            now = timezone.now()
            namespaces = {new_object.namespace for new_object in objects}
            workload = Workload.objects.create(
                id=workload_id,
                cluster=cluster,
                namespace=namespaces.pop() if len(namespaces) == 1 else "",
                name=name or objects[0].name,
                manifest=manifest.decode()[:MOST_KEPT_MANIFEST],
                policy=policy,
                priority=max(pod.priority for pod in pods),
                pod_count=len(pods),
                submitted_by=actor.name[:255],
                owner=owner,
                callback_url=callback_url,
                history=[[State.PENDING.value, rfc3339(now)]],
                created_at=now,
            )
            SubmittedObject.objects.bulk_create(
                SubmittedObject(workload=workload, cluster=cluster, wanted=new_object, namespace=new_object.namespace)
                for new_object in objects
            )
            if hold:
                claim_hold(hold, workload)
            check_quota(cluster, [(workload, pods)], owner, allowance)
            named = [f"{new_object.namespace}/{new_object.name}" for new_object in objects if new_object.kind == "Pod"]
            shown = [{"pod": key, "state": State.PENDING.value} for key in named]
            response = {"id": workload.pk, "state": workload.state, "pods": shown}
            if idempotency_key:
                IdempotencyKey.objects.create(
                    owner=owner, key=idempotency_key, body_hash=body_hash, workload=workload, response=response,
                    created_at=now,
                )  # fmt: skip
            record(
                actor=actor.name, role=actor.role, action="workload.submit", obj=workload,
                details={"cluster": cluster.name, "objects": len(objects), "pods": len(pods), "policy": policy},
            )  # fmt: skip
            publish(cluster_topic(cluster), lambda: {"counts": cluster_counts(cluster)["counts"]})
            dispatch.wake(cluster.pk, dispatch.CREATE)
    except IntegrityError as error:
        twin = stored_response(owner, idempotency_key, body_hash) if idempotency_key else None
        if twin is not None:
            return twin
        raise Conflict(f"cluster {cluster.pk}: {error}") from error
    return Submission(workload.pk, response)


def request_deletion(workload: Workload, *, actor: Actor, reason: str) -> Workload:
    """Request the deletion of a workload's objects; its pods end when the watch reports their end.

    Raises: InputError `ReasonMissing`, or `WorkloadNotOurs` if hetsched did not create the objects.
    """
    reason = require_reason(reason)
    with write_transaction():
        change = ClusterTransaction(_lock_cluster(workload.cluster_id))
        rows = SubmittedObject.objects.filter(workload=workload)
        if not rows.exists():
            raise InputError(
                "WorkloadNotOurs",
                Message("the pods of {workload} were not created by a submission", workload=workload.pk),
                hint="Delete the pods or their controller in the cluster",
            )
        rows.filter(state=SubmittedObject.REFUSED).update(state=SubmittedObject.GONE)
        open_ones = rows.filter(state__in=(SubmittedObject.WANTED, *_THERE))
        # An attempt in progress keeps its claim; the deletion starts once that attempt has ended.
        asked = open_ones.update(state=SubmittedObject.UNWANTED, attempts=0, message=verbatim(reason))
        record(
            actor=actor.name, role=actor.role, action="workload.cancel", obj=workload, reason=reason,
            details={"objects": asked},
        )  # fmt: skip
        change.touch_workload(workload.pk)
        change.close()
        dispatch.wake(workload.cluster_id, dispatch.CREATE)
    return Workload.objects.get(pk=workload.pk)


def due_objects(cluster_id: int) -> QuerySet[SubmittedObject]:
    """Return the objects of a cluster that are due to be created, deleted or read."""
    now = Q(not_before=None) | Q(not_before__lte=timezone.now())
    return SubmittedObject.objects.filter(now, cluster_id=cluster_id, state__in=_OPEN)


def claim_objects(cluster_id: int, most: int) -> list[SubmittedObject]:
    """Claim objects to create, delete or read, so that no other worker processes them."""
    taken = []
    until = timezone.now() + CLAIM
    for submitted_object in due_objects(cluster_id).order_by("id")[:most]:
        same = due_objects(cluster_id).filter(
            pk=submitted_object.pk, state=submitted_object.state, attempts=submitted_object.attempts
        )
        if same.update(not_before=until, attempts=F("attempts") + 1):
            submitted_object.attempts += 1
            taken.append(submitted_object)
    return taken


def record_attempt(submitted_object: SubmittedObject, state: str, *, uid: str = "", message: str = "") -> None:
    """Write the result of an attempt; if the state is unchanged, schedule a retry."""
    again = state == submitted_object.state
    longest = LONGEST_READ_SECONDS if submitted_object.state == SubmittedObject.ENDING else LONGEST_WAIT_SECONDS
    wait = timedelta(seconds=min(2 ** min(submitted_object.attempts, 10), longest))
    not_before = timezone.now() + wait if again else None
    with write_transaction():
        change = ClusterTransaction(_lock_cluster(submitted_object.cluster_id))
        row = SubmittedObject.objects.filter(pk=submitted_object.pk)
        columns = {"uid": uid or submitted_object.uid, "not_before": not_before}
        if not row.filter(state=submitted_object.state).update(state=state, message=verbatim(message), **columns):
            # The workload was deleted in the meantime: keep the uid for the deletion, which is due immediately.
            row.update(uid=uid or submitted_object.uid, not_before=None)
        change.touch_workload(submitted_object.workload_id)
        change.close()


def adopt_pods(change: ClusterTransaction, arriving: Sequence[ObservedPod]) -> list[ObservedPod]:
    """Add pods of objects that hetsched created to their workloads, in the caller's transaction; return the other pods.

    Raises: IntegrityError if a live pod with the same name exists.
    """
    from hetsched.adapters.kubernetes.object_submission import makes

    labelled = {seen.spec.labels.get(WORKLOAD_LABEL, "") for seen in arriving if seen.spec is not None} - {""}
    if not labelled:
        return list(arriving)
    objects: dict[tuple[str, str], list[ObjectToCreate]] = defaultdict(list)
    rows = SubmittedObject.objects.filter(cluster=change.cluster, workload_id__in=labelled)
    for row in rows.select_related(None):
        objects[row.workload_id, row.namespace].append(row.wanted)
    groups: dict[str, list[PodSpec]] = defaultdict(list)
    others = []
    for seen in arriving:
        spec = seen.spec
        workload_id = "" if spec is None else spec.labels.get(WORKLOAD_LABEL, "")
        makers = objects.get((workload_id, seen.namespace), ())
        if spec is not None and any(
            makes(new_object.kind, new_object.name, spec.name, spec.controller) for new_object in makers
        ):
            groups[workload_id].append(spec)
        else:
            others.append(seen)
    holds = claimed_holds(groups)
    for workload in Workload.objects.filter(pk__in=groups).defer("manifest"):
        pods = build_pod_rows(change.cluster, groups[workload.pk], workload.policy, None, Pod.WATCHED)
        for pod in pods:
            pod.workload, pod.created_at, pod.hold_id = workload, change.now, holds.get(workload.pk)
        insert(pods)
        count = Pod.objects.filter(workload=workload).count()
        Workload.objects.filter(pk=workload.pk, pod_count__lt=count).update(pod_count=count)
        change.touch(pods)
    return others


def request_job_reads(cluster: Cluster, pods: Iterable[Pod]) -> None:
    """Request reads of the Jobs that these ended pods belong to, inside the caller's transaction.

    A Job may or may not replace a failed pod; only the Job's status shows whether the Job has ended.
    """
    ids = {pod.workload_id for pod in pods if pod.workload_id is not None}
    asked = []
    for some in batched(sorted(ids)):
        rows = SubmittedObject.objects.filter(cluster=cluster, workload_id__in=some)
        found = rows.filter(state__in=(SubmittedObject.MADE, SubmittedObject.ENDING))
        asked += [row.pk for row in found if row.wanted.kind == "Job"]
    if asked:
        for objects in batched(asked):
            rows = SubmittedObject.objects.filter(pk__in=objects)
            rows.update(state=SubmittedObject.ENDING, attempts=0, not_before=None)
        dispatch.wake(cluster.pk, dispatch.CREATE)


def _lock_cluster(cluster_id: int) -> Cluster:
    """Lock a cluster against other changes; other transactions may still insert rows that reference it."""
    return Cluster.objects.select_for_update(no_key=True).get(pk=cluster_id)


def _check_token_namespaces(allowance: Allowance, namespaces: set[str]) -> None:
    outside = sorted(namespaces - allowance.namespaces) if allowance.namespaces is not None else []
    if outside:
        message = Message("this token has no access to namespace {names}", names=outside[0])
        raise InputError("NamespaceNotAllowed", message, place="metadata.namespace")


def _check_enrolled_namespaces(cluster: Cluster, namespaces: set[str]) -> None:
    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is not None and connection.shadow_of:
        raise InputError(
            "ClusterInShadow",
            Message(
                "cluster {cluster} is in shadow mode: {scheduler} places its pods, and hetsched creates no objects",
                cluster=cluster.name,
                scheduler=connection.shadow_of,
            ),
            hint="Leave shadow mode with `hetsched cluster connect NAME --no-shadow`",
        )
    enrolled = set(connection.enrolled_namespaces) if connection is not None else set()
    outside = sorted(namespaces - enrolled)
    if outside:
        raise InputError(
            "NamespaceNotEnrolled",
            Message(
                "submissions may not use namespace {namespace} of cluster {cluster}",
                namespace=outside[0],
                cluster=cluster.name,
            ),
            place="metadata.namespace",
            hint=Message(
                "Enrolled namespaces: {names}; enrol others with `hetsched cluster connect`",
                names=joined(", ", sorted(enrolled)[:20]) if enrolled else Message("none"),
            ),
        )
