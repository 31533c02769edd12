"""Scope of a request: the cluster that it selects, and the namespaces that its caller sees.

A request selects its cluster by `?cluster=` or a field. Without a name, the configured default or else the only cluster
is selected. A token that is limited to namespaces sees the workloads whose pods are all in these namespaces, and the
decisions and pods in these namespaces. Requests for other objects return 404.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.conf import settings
from django.db.models import Exists, Model, OuterRef, Q, QuerySet

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision, ForgottenDecision, Hold, Pod, SubmittedObject, Workload
from hetsched.storage.hot_statements import CLUSTER_BY_NAME

from .problems import RequestRefused, not_found

M = TypeVar("M", bound=Model)

_MOST_NAMED = 10  # maximum number of clusters named in a hint
CLUSTER_QUERY = {"cluster": "Name of the cluster; may be omitted if the server has one."}


def cluster_of(name: str = "", *, hint: bool = True) -> Cluster:
    """Return the cluster of this name, or the default cluster if `name` is empty. With `hint`, the error lists the
    known clusters.

    Raises: RequestRefused 404, InputError `ClusterAmbiguous`.
    """
    name = name or settings.HETSCHED_DEFAULT_CLUSTER
    if name:
        found: Cluster | None = CLUSTER_BY_NAME.first(name=name)
        if found is None:
            raise no_cluster(name) if hint else not_found("cluster", name)
        return found
    clusters = Cluster.objects.order_by("id")[:_MOST_NAMED]
    if not clusters:
        raise RequestRefused(404, "NotFound", "no cluster exists", hint="Add a cluster with POST clusters/")
    if len(clusters) > 1:
        hint_names = Message(
            "Name one of these clusters: {names}", names=joined(", ", [cluster.name for cluster in clusters])
        )
        raise InputError("ClusterAmbiguous", "there are several clusters", place="cluster", hint=hint_names)
    return clusters[0]


def selected_cluster(request: Any) -> Cluster:
    """Return the cluster that `?cluster=` names, or the default cluster. Raises the errors of `cluster_of`."""
    return cluster_of(request.GET.get("cluster", ""))


def no_cluster(name: str) -> RequestRefused:
    """Return the problem for an unknown cluster; it lists the known clusters."""
    known = joined(", ", Cluster.objects.order_by("id").values_list("name", flat=True)[:_MOST_NAMED])
    return not_found("cluster", name, Message("Known: {names}", names=known) if known else "")


def workloads(subject: Subject) -> QuerySet[Workload]:
    """Return the workloads that the caller may see."""
    rows = Workload.objects.all()
    if subject.namespaces is None:
        return rows
    # A workload without known pods is in the namespaces of the objects that will create its pods.
    pods = Pod.objects.filter(workload=OuterRef("pk"))
    objects = SubmittedObject.objects.filter(workload=OuterRef("pk"))
    inside = _all_inside(pods, subject) & _all_inside(objects, subject) & (Exists(pods) | Exists(objects))
    return rows.filter(Q(namespace__in=subject.namespaces) | Q(namespace="") & inside)


def _all_inside(rows: QuerySet[Any], subject: Subject) -> Q:
    return Q(~Exists(rows.exclude(namespace__in=subject.namespaces)))


def holds(subject: Subject) -> QuerySet[Hold]:
    """Return the holds that the caller may see."""
    rows = Hold.objects.all()
    if subject.namespaces is None:
        return rows
    reserved_pods = Pod.objects.filter(hold=OuterRef("pk"), origin=Pod.HELD)
    inside = _all_inside(reserved_pods, subject) & Exists(reserved_pods)
    return rows.filter(Q(namespace__in=subject.namespaces) | Q(namespace="") & inside)


def may_change_hold(subject: Subject, hold: Hold) -> bool:
    """Return whether the caller owns the hold or has the operate permission."""
    return hold.owner == subject.owner or subject.may(Action.OPERATE)


def own_hold(subject: Subject, hold_id: str) -> Hold:
    """Return a hold that the caller may use or change: operators any, others only their own.

    Raises: RequestRefused 403, 404.
    """
    found = get_row(holds(subject).select_related("cluster"), "hold", hold_id)
    if not may_change_hold(subject, found):
        message = Message("hold {hold} belongs to {owner}", hold=found.pk, owner=found.held_by)
        raise RequestRefused(403, "HoldNotYours", message, place="hold")
    return found


def decisions(subject: Subject) -> QuerySet[Decision]:
    """Return the decisions that the caller may see."""
    rows = Decision.objects.all()
    return rows if subject.namespaces is None else rows.filter(namespace__in=subject.namespaces)


def deleted_decisions(subject: Subject) -> QuerySet[ForgottenDecision]:
    """Return the stored summaries of deleted decisions that the caller may see."""
    rows = ForgottenDecision.objects.all()
    return rows if subject.namespaces is None else rows.filter(namespace__in=subject.namespaces)


def check_namespaces(subject: Subject, namespaces: Iterable[str]) -> None:
    """Reject namespaces outside the caller's scope.

    Raises: RequestRefused 403.
    """
    outside = sorted({name for name in namespaces if not subject.may_in(name)})
    if outside:
        names = joined(", ", [name[:80] for name in outside[:5]])
        message = Message("this token has no access to namespace {names}", names=names)
        raise RequestRefused(403, "NamespaceNotAllowed", message)


def check_unlimited(subject: Subject) -> None:
    """Reject an operation on a whole cluster if the caller's token is limited to namespaces.

    Raises: RequestRefused 403.
    """
    if subject.namespaces is not None:
        raise RequestRefused(
            403, "NamespaceNotAllowed", "this token is limited to namespaces and cannot act on a cluster"
        )


def get_row(rows: QuerySet[M], noun: str, key: object, field: str = "pk") -> M:
    """Return the row whose `field` equals `key`; `noun` names the kind of object in the error message.

    Raises: RequestRefused 404 with the URL of the list as a hint.
    """
    row = rows.filter(**{field: key}).first()
    if row is None:
        raise not_found(noun, key)
    return row


def filter_by_query(request: Any, rows: QuerySet[Any], **fields: str) -> QuerySet[Any]:
    """Filter a list by query parameters; `fields` maps each parameter to a Django field lookup.

    Raises: RequestRefused 404 for an unknown `cluster`.
    """
    if "cluster" in fields and request.GET.get("cluster"):
        cluster_of(request.GET["cluster"])
    given = {lookup: request.GET[name] for name, lookup in fields.items() if request.GET.get(name)}
    return rows.filter(**given) if given else rows
