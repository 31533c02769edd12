"""Cluster-owned policies: SchedulingPolicy objects become versions after the same checks as REST requests.

An unused name is assigned to the first cluster with an object of that name, and that object defines the policy. New
content that passes `check_policy` becomes a version and, if it satisfies every golden placement, is activated
immediately. Otherwise the object is rejected with the reason, and the previous version stays active. An object is
rejected if its name is owned by this database or by another cluster; only `set_owner` changes the owner. After an
object is deleted, its last version stays active and owned by the cluster, until the object is created again or the
policy gets another owner.
Invariants: a rejected object does not change the active version; at most one object per name is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from django.utils import timezone

from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message
from hetsched.contracts.objects.observed import ObservedPolicy
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.inventory.actions import require_reason
from hetsched.inventory.models import Cluster, Connection
from hetsched.inventory.node_loads import Conflict
from hetsched.journal.audit import Actor, Program, record
from hetsched.journal.publish import publish_many
from hetsched.storage.write_lock import write_transaction

from .actions import activate, check_policy, has_same_content, lock_policy, save_draft
from .documents import TOPIC, policy_document
from .models import Policy, PolicyObject


def apply_policy_objects(
    cluster_id: int, seen: Sequence[ObservedPolicy], *, epoch: int, listed: Collection[str] | None = None
) -> list[str]:
    """Apply the policy objects that the informer of `epoch` observed; return the names whose review result changed.

    After a full list, `listed` contains the names of all objects in the cluster; stored objects with other names were
    deleted.
    Raises: Conflict if another informer has taken over.
    """
    cluster = Cluster.objects.get(pk=cluster_id)
    changed = []
    for observed in (*seen, *_deleted_objects(cluster, listed)):
        with write_transaction():
            if not Connection.objects.select_for_update().filter(cluster=cluster, follower_epoch=epoch).exists():
                raise Conflict(f"another process watches cluster {cluster_id}")
            if _apply_object(cluster, observed):
                changed.append(observed.name)
    return changed


def set_owner(name: str, cluster: Cluster | None, *, actor: Actor, reason: str) -> Policy:
    """Set the owner of a policy: a cluster, whose object then defines the policy, or None for this database.

    Objects of other clusters are rejected.
    Raises: InputError `ReasonMissing`, `PolicyUnknown`, `PolicyObjectMissing`, or the problem for which the object was
    rejected.
    """
    reason = require_reason(reason)
    with write_transaction():
        policy = lock_policy(name, kept=True)
        before, policy.keeper = policy.keeper, cluster
        policy.save(update_fields=["keeper"])
        details = {"before": owner_of(before), "after": owner_of(cluster)}
        record(actor=actor.name, role=actor.role, action="policy.keep", obj=policy, reason=reason, details=details)
        rows = PolicyObject.objects.select_for_update().filter(name=name, gone=False).order_by("id")
        objects = {row.cluster_id: row for row in rows}
        if cluster is not None:
            mine = objects.get(cluster.pk)
            if mine is None:
                message = Message("cluster {cluster} has no SchedulingPolicy {name}", cluster=cluster.name, name=name)
                raise InputError(
                    "PolicyObjectMissing", message, hint="Create the object in the cluster first", place="cluster"
                )
            if mine.spec is None and mine.problem is not None:
                raise InputError(mine.problem.code, mine.problem.message, place=mine.problem.field)
            if mine.spec is not None:
                check_policy(mine.spec)
        for row in objects.values():
            _review(row)
        publish_many({TOPIC: lambda: {policy.name: policy_document(policy)}})
    return policy


def owner_of(cluster: Cluster | None) -> Message:
    """Return the text that names the owner of a policy: this database (None) or a cluster."""
    return Message("the database") if cluster is None else Message("cluster {cluster}", cluster=cluster.name)


def _deleted_objects(cluster: Cluster, listed: Collection[str] | None) -> Iterable[ObservedPolicy]:
    if listed is None:
        return ()
    known = PolicyObject.objects.filter(cluster=cluster, gone=False).values_list("name", flat=True)
    return [ObservedPolicy(name, gone=True) for name in sorted(set(known) - set(listed))]


def _apply_object(cluster: Cluster, observed: ObservedPolicy) -> bool:
    """Save the observed content or deletion of an object, and review new content; return whether anything changed."""
    row = PolicyObject.objects.filter(cluster=cluster, name=observed.name).first()
    if observed.gone:
        if row is None or row.gone:
            return False
        row.gone, row.reported = True, True
        row.save(update_fields=["gone", "reported"])
        about = ("policy", observed.name)
        actor = _actor_of(cluster)
        record(actor=actor.name, role=actor.role, action="policy.gone", obj=about, details={"version": row.version})
        _publish(observed.name)
        return True
    now = timezone.now()
    if row is None:
        row = PolicyObject(cluster=cluster, name=observed.name, judged_at=now, since=now)
    before = None if row.pk is None else (row.uid, row.generation, row.spec, row.problem, row.gone)
    row.uid, row.generation, row.spec, row.gone = observed.uid, observed.generation, observed.spec, False
    if before == (row.uid, row.generation, row.spec, None, False):
        return False  # an accepted object without changes
    return _review(row, observed.problem, before=before)


def _review(row: PolicyObject, unreadable: Problem | None = None, *, before: object = ()) -> bool:
    """Activate an object's content, or record why it was rejected; save and publish the result if it changed."""
    was, new = (row.problem, row.version), row.pk is None
    if row.spec is None:
        row.problem = unreadable or row.problem
    else:
        try:
            row.version, row.problem = _active_version(row.cluster, row.spec, row.generation), None
        except InputError as error:
            row.problem = Problem(error.code, error.place, error.advice)
    if before == (row.uid, row.generation, row.spec, row.problem, row.gone):
        return False
    now = timezone.now()
    if new or (was[0] is None) is not (row.problem is None):
        row.since = now
    row.judged_at, row.reported = now, False
    row.save()
    _publish(row.name)
    return True


def _active_version(cluster: Cluster, spec: PolicySpec, generation: int) -> int:
    """Return the active version with this content; create and activate it if necessary.

    Raises: InputError `PolicyNameTaken`, or the errors of `check_policy`, without writing anything;
    GoldenPlacementBroken, after saving a draft.
    """
    check_policy(spec)
    Policy.objects.get_or_create(name=spec.name, defaults={"keeper": cluster})
    policy = lock_policy(spec.name, kept=True)
    if policy.keeper_id != cluster.pk:
        raise InputError(
            "PolicyNameTaken",
            Message("policy {name} is managed in {text}", name=spec.name, text=owner_of(policy.keeper)),
            place="metadata.name",
            hint="Use another name, or transfer the policy: POST /api/v1/policies/NAME/owner/",
        )
    active = policy.revisions.filter(version=policy.active_version).first()
    if active is not None and has_same_content(active.spec, spec):
        return active.version
    actor = _actor_of(cluster)
    reason = Message("generation {n} of the object in cluster {cluster}", n=generation, cluster=cluster.name)
    draft = save_draft(spec, actor=actor, reason=reason, kept_by=cluster)
    return activate(spec.name, draft.version, actor=actor, reason=reason, kept_by=cluster).version


def _publish(name: str) -> None:
    policy = Policy.objects.filter(name=name).first()
    if policy is not None:
        publish_many({TOPIC: lambda: {name: policy_document(policy)}})


def _actor_of(cluster: Cluster) -> Program:
    return Program(f"cluster {cluster.name}")
