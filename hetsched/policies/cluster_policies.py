"""Policies that clusters keep: their objects become versions here, as the REST door would take them.

Rule: a name that nobody has is the cluster's that brings it first, and its object says what decides: every new content
that passes `check` becomes a version and, where it keeps every golden placement, decides at once. What does not is
refused with the reason, and the version before goes on. A name that is kept here or by another cluster is refused;
`keep` hands a policy over, either way, and nothing else does. An object that is gone leaves its last version deciding,
still the cluster's, until it comes again or somebody takes the policy over.
Invariants: a refused object changes nothing that decides; of a name at most one object is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from django.db import transaction
from django.utils import timezone

from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.observed import ObservedPolicy
from hetsched.contracts.policy import PolicySpec
from hetsched.inventory.actions import require_reason
from hetsched.inventory.ledger import Conflict
from hetsched.inventory.models import Cluster, Connection
from hetsched.journal.audit import Actor, Program, record
from hetsched.journal.publish import publish_many

from .actions import activate, check, locked, same, save_draft
from .documents import TOPIC, policy_document
from .models import Policy, PolicyObject


def follow_policies(
    cluster_id: int, seen: Sequence[ObservedPolicy], *, epoch: int, listed: Collection[str] | None = None
) -> list[str]:
    """Take in what a cluster's objects say, by the follower of `epoch`; return the names of those judged otherwise.

    `listed`: all objects there are, after a list; what is known and not among them is gone.
    Raises: Conflict when another follower took over.
    """
    cluster = Cluster.objects.get(pk=cluster_id)
    changed = []
    for one in (*seen, *_missing(cluster, listed)):
        with transaction.atomic():
            if not Connection.objects.select_for_update().filter(cluster=cluster, follower_epoch=epoch).exists():
                raise Conflict(f"cluster {cluster_id} is followed by somebody else")
            if _take_in(cluster, one):
                changed.append(one.name)
    return changed


def keep(name: str, cluster: Cluster | None, *, actor: Actor, reason: str) -> Policy:
    """Have a policy kept by a cluster, whose object decides from now on, or here; objects of others are refused.

    Raises: InputError `ReasonMissing`, `PolicyUnknown`, `PolicyObjectMissing`, or what is wrong with the object.
    """
    reason = require_reason(reason)
    with transaction.atomic():
        policy = locked(name, kept=True)
        before, policy.keeper = policy.keeper, cluster
        policy.save(update_fields=["keeper"])
        details = {"before": where_kept(before), "after": where_kept(cluster)}
        record(actor=actor.name, role=actor.role, action="policy.keep", obj=policy, reason=reason, details=details)
        rows = PolicyObject.objects.select_for_update().filter(name=name, gone=False).order_by("id")
        objects = {row.cluster_id: row for row in rows}
        if cluster is not None:
            mine = objects.get(cluster.pk)
            if mine is None:
                message = f"cluster {cluster.name} has no SchedulingPolicy {name}"
                raise InputError("PolicyObjectMissing", message, hint="Create the object there first", place="cluster")
            if mine.spec is None and mine.problem is not None:
                raise InputError(mine.problem.code, mine.problem.message, place=mine.problem.field)
            if mine.spec is not None:
                check(mine.spec)
        for row in objects.values():
            _judge(row)
        publish_many({TOPIC: lambda: {policy.name: policy_document(policy)}})
    return policy


def where_kept(cluster: Cluster | None) -> str:
    """Say where a policy is kept."""
    return "the database" if cluster is None else f"cluster {cluster.name}"


def _missing(cluster: Cluster, listed: Collection[str] | None) -> Iterable[ObservedPolicy]:
    if listed is None:
        return ()
    known = PolicyObject.objects.filter(cluster=cluster, gone=False).values_list("name", flat=True)
    return [ObservedPolicy(name, gone=True) for name in sorted(set(known) - set(listed))]


def _take_in(cluster: Cluster, one: ObservedPolicy) -> bool:
    """Write what an object says by now, and judge it; return whether that changed anything."""
    row = PolicyObject.objects.filter(cluster=cluster, name=one.name).first()
    if one.gone:
        if row is None or row.gone:
            return False
        row.gone, row.told = True, True
        row.save(update_fields=["gone", "told"])
        about = ("policy", one.name)
        actor = _of(cluster)
        record(actor=actor.name, role=actor.role, action="policy.gone", obj=about, details={"version": row.version})
        _publish(one.name)
        return True
    now = timezone.now()
    if row is None:
        row = PolicyObject(cluster=cluster, name=one.name, judged_at=now, since=now)
    before = None if row.pk is None else (row.uid, row.generation, row.spec, row.problem, row.gone)
    row.uid, row.generation, row.spec, row.gone = one.uid, one.generation, one.spec, False
    if before == (row.uid, row.generation, row.spec, None, False):
        return False  # an accepted one says again what it said
    return _judge(row, one.problem, before=before)


def _judge(row: PolicyObject, unreadable: Problem | None = None, *, before: object = ()) -> bool:
    """Make an object's content the active version, or say why not; write it down where that is news."""
    was, new = (row.problem, row.version), row.pk is None
    if row.spec is None:
        row.problem = unreadable or row.problem
    else:
        try:
            row.version, row.problem = _version(row.cluster, row.spec, row.generation), None
        except InputError as error:
            row.problem = Problem(error.code, error.place, error.advice[:500])
    if before == (row.uid, row.generation, row.spec, row.problem, row.gone):
        return False
    now = timezone.now()
    if new or (was[0] is None) is not (row.problem is None):
        row.since = now
    row.judged_at, row.told = now, False
    row.save()
    _publish(row.name)
    return True


def _version(cluster: Cluster, spec: PolicySpec, generation: int) -> int:
    """Return the version that has this content and decides; it is made where there is none.

    Raises: InputError `PolicyNameTaken`, or as `check` does, and nothing is written; GoldenPlacementBroken, and a draft
    is left.
    """
    check(spec)
    Policy.objects.get_or_create(name=spec.name, defaults={"keeper": cluster})
    policy = locked(spec.name, kept=True)
    if policy.keeper_id != cluster.pk:
        place = where_kept(policy.keeper)
        raise InputError(
            "PolicyNameTaken",
            f"policy {spec.name} is kept in {place}",
            place="metadata.name",
            hint="Take another name, or have it handed over: POST /api/v1/policies/NAME/owner/",
        )
    active = policy.revisions.filter(version=policy.active_version).first()
    if active is not None and same(active.spec, spec):
        return active.version
    actor, reason = _of(cluster), f"generation {generation} of the object in {where_kept(cluster)}"
    draft = save_draft(spec, actor=actor, reason=reason, kept_by=cluster)
    return activate(spec.name, draft.version, actor=actor, reason=reason, kept_by=cluster).version


def _publish(name: str) -> None:
    policy = Policy.objects.filter(name=name).first()
    if policy is not None:
        publish_many({TOPIC: lambda: {name: policy_document(policy)}})


def _of(cluster: Cluster) -> Program:
    return Program(f"cluster {cluster.name}")
