"""The SQL statements that skip the ORM's compiler: at most 15, all in this module.

A statement is here if it runs in every transaction on a cluster, in every batch of watch events or decisions, or in
every REST request. All other statements use the ORM. The ADR `0021-prepared-statements` contains the measurement. A
test counts these statements and rejects prepared statements in other modules.
The models belong to higher layers, so they are looked up by name when a statement is first compiled. The condition of a
query that must use a partial index is read from that index.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.apps import apps
from django.db.models import (
    BigIntegerField,
    BooleanField,
    Case,
    CharField,
    Exists,
    ExpressionWrapper,
    F,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    When,
)
from django.db.models.aggregates import Aggregate
from django.db.models.functions import Coalesce, Now
from django.db.models.lookups import Exact

from .json_fields import StructField
from .prepared_queries import ListParameter, Parameter, PreparedQuery, PreparedUpdate
from .snapshot_read import DatabaseClock

# The columns of a cluster that each batch reads, in the order of `inventory.node_loads.ClusterColumns`. The last
# columns show whether the cluster has active nominations, evictions that were refused recently, kubelet rejections that
# are not cleared, pods or holds that pods of other schedulers may displace, and pods in the active queue.
CLUSTER_COLUMNS = (
    "revision", "layout_revision", "inventory_revision", "definitions_revision", "forgotten_revision", "policy_name",
    "decision_time", "connection__follower_epoch", "connection__shadow_of", "has_nominations", "has_refused_evictions",
    "has_rejections", "has_displaceable_pods", "has_due_pods",
)  # fmt: skip
# The columns of a pending pod that a decision needs.
PENDING_POD = (
    "id", "workload_id", "spec", "policy", "policy_rule", "state", "attempts", "decision_id", "uid", "flushed",
    "hold_id",
)  # fmt: skip
# The columns of a reservation, its node and its pod, in the order of `cluster_snapshot.ReservationColumns`.
RESERVATION = (
    "revision", "released_revision", "allocation", "spec", "node__name", "pod__namespace", "pod__name", "pod__uid",
    "pod__spec",
)  # fmt: skip


class _JsonArray(Aggregate):
    """Aggregate function that returns the values of a group as a JSON array."""

    function = "json_group_array"
    allow_distinct = True
    output_field = StructField(list[str])

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="jsonb_agg", **context)


def _rows(model: str, *conditions: Q, **filters: Any) -> QuerySet[Any]:
    found: Any = apps.get_model(model)
    rows: QuerySet[Any] = found.objects.filter(*conditions, **filters)
    return rows


def _indexed(model: str, name: str) -> Q:
    """Return the condition of a partial index or unique constraint."""
    meta = apps.get_model(model)._meta
    (condition,) = (item.condition for item in (*meta.indexes, *meta.constraints) if item.name == name)
    assert isinstance(condition, Q)
    return condition


# -- each transaction on a cluster -------------------------------------------------------------------------------------


_NEXT = ExpressionWrapper(F("revision") + 1, BigIntegerField())


def _if_places(value: Any, otherwise: Any) -> Case:
    places = Exact(Parameter("places", IntegerField()), 1)
    return Case(When(places, then=value), default=otherwise, output_field=BigIntegerField())


ADVANCE = PreparedUpdate(
    lambda: (
        _rows(
            "inventory.Cluster",
            pk=Parameter("cluster"),
            revision__range=(Parameter("revision"), Parameter("newest")),
            decisive_revision__lte=Parameter("decisive"),
            leader_epoch__range=(Parameter("earliest"), Parameter("latest")),
        )
        .defer("definitions")
        .annotate(locked_at=DatabaseClock())
    ),
    keep_plan=True,  # there are few clusters
    revision=F("revision") + 1,
    decisive_revision=_if_places(_NEXT, F("decisive_revision")),
    effects_due_since=_if_places(Coalesce(F("effects_due_since"), _NEXT), F("effects_due_since")),
)
"""Increment a cluster's revision and return its row; change nothing if decisions made on `revision` are void.

The statement locks the row, so it runs first in a transaction. The definitions, which can have megabytes, are not read.
`locked_at` is the time of the database. `places` is 1 if the transaction reserves resources and leaves the effects on
other rows to a later transaction.
"""


NODES = PreparedQuery(lambda: _rows("inventory.Node", pk__in=ListParameter("ids")).defer("report").order_by())
"""Nodes without their reports. A placement or the end of a pod changes the load of a node."""


@lru_cache(maxsize=64)
def move_pods(columns: tuple[str, ...]) -> PreparedUpdate:
    """Return a statement that moves pods (IDs `pods`) from the states `before` to `state` and sets `columns`.

    The statement returns the number of moved pods. If it is too small, a concurrent writer has moved a pod.
    """
    given: dict[str, Any] = {name: Parameter(name) for name in ("state", *columns)}
    return PreparedUpdate(
        lambda: _rows("placement.Pod", pk__in=ListParameter("pods"), state__in=ListParameter("before", str)), **given
    )


QUEUE_PODS = PreparedUpdate(
    lambda: (
        _rows("placement.Pod", cluster=Parameter("cluster"), state__in=ListParameter("states", str))
        .filter(Q(queued=False) | Q(flushed=True))
        .alias(helped=F("helped_by").bitand(Parameter("bits", IntegerField())))  # type: ignore[arg-type]
        .exclude(helped=0)
    ),
    queued=True,
    flushed=False,
)
"""Queue the rejected pods that registered one of the events `bits`; runs for each event of a transaction."""


def _touched_workloads() -> QuerySet[Any]:
    def states_of(model: str) -> Subquery:
        rows = _rows(model, workload=OuterRef("pk")).order_by().values("workload")
        return Subquery(rows.annotate(found=_JsonArray("state", distinct=True)).values("found"))

    hooks = _rows("placement.Webhook", Q(cluster=None) | Q(cluster=OuterRef("cluster")), enabled=True)
    touched = _rows("placement.Pod", pk__in=ListParameter("pods"), workload__isnull=False).order_by().values("workload")
    named = _rows("placement.Workload", pk__in=ListParameter("workloads", str)).order_by().values("pk")
    rows = _rows("placement.Workload", pk__in=touched.union(named)).defer("manifest").order_by()
    return rows.annotate(
        pod_states=states_of("placement.Pod"),
        object_states=states_of("placement.SubmittedObject"),
        has_webhooks=Exists(hooks),
    )


WORKLOADS = PreparedQuery(_touched_workloads)
"""Workloads by ID or by the IDs of their pods, without their manifests.

Each row has `pod_states` and `object_states`, the distinct states of the workload's pods and of its objects in the live
cluster (None if it has none), and `has_webhooks`. Each transaction that moves pods derives the states of their
workloads from these columns.
"""


# -- each batch of watch events ----------------------------------------------------------------------------------------


def _known_pods() -> QuerySet[Any]:
    live = _indexed("placement.Pod", "placement_pod_live_name")
    given_up = Q(state=Parameter("given_up"), origin=apps.get_model("placement.Pod").WATCHED)
    named = Q(cluster=Parameter("cluster"), namespace=Parameter("namespace"), name__in=ListParameter("names", str))
    # A union, because with an OR of the conditions the database would use neither index.
    found = _rows("placement.Pod", named & live).order_by().values("pk")
    found = found.union(_rows("placement.Pod", named & given_up).order_by().values("pk"), all=True)
    rows = _rows("placement.Pod", pk__in=found).annotate(
        has_evictions=Exists(_rows("placement.Eviction", victim=OuterRef("pk")))
    )
    return rows.select_related("node").defer("spec", "node__report").order_by()


KNOWN_PODS = PreparedQuery(_known_pods)
"""Live pods with these names, and pods from the watch in the state `given_up`, with their nodes.

Specs and node reports are not loaded. `has_evictions` is True if the pod is the victim of an eviction.
"""

ACTIVE_RESERVATIONS = PreparedQuery(
    lambda: (
        _rows("placement.Reservation", pod_id__in=ListParameter("pods"), active=True)
        .select_related("pod")
        .only("node_id", "requests", "allocation", "pod__namespace", "pod__name")
    )
)
"""Active reservations of pods by ID, with the names of the pods. Read when pods end."""

NAMESPACE_RULES = PreparedQuery(lambda: _rows("policies.NamespaceRule", cluster=Parameter("cluster")))
"""Policy rules of a cluster's namespaces. Read for each submission to a cluster with rules, and each batch of pods."""

ACTIVE_POLICIES = PreparedQuery(
    lambda: (
        _rows("policies.PolicyRevision", policy__active_version__gt=0, version=F("policy__active_version"))
        .annotate(written=ExpressionWrapper(F("created_at"), CharField()))
        .values_list("policy__name", "version", "id", "written")
    )
)
"""For each active policy: its name, its active version, and the ID and creation time of that revision.

The time has the text form of the database. Submissions and decisions read these columns.
"""


# -- each batch of decisions -------------------------------------------------------------------------------------------


def _cluster_columns() -> QuerySet[Any]:
    eviction = apps.get_model("placement.Eviction")
    refused = _rows("placement.Eviction", _indexed("placement.Eviction", "placement_eviction_open"))
    # The redundant conditions make SQLite choose an index without the ended or cleared rows.
    pods = apps.get_model("placement.Pod")
    flags = {
        "has_due_pods": pods.objects.filter(pods.due(Now())),
        "has_nominations": _rows("placement.Nomination", active=True, ended_revision=None),
        "has_refused_evictions": refused.filter(state=eviction.REFUSED, not_before__gt=Now()),
        "has_rejections": _rows("placement.Rejection", cleared_at=None, owner__gte=""),
    }
    rows = _rows("inventory.Cluster", pk=Parameter("cluster"))
    found: dict[str, Any] = {name: Exists(flagged.filter(cluster=OuterRef("pk"))) for name, flagged in flags.items()}
    placed = _rows("placement.Pod", state="placed")
    holds = _rows("placement.Hold", _indexed("placement.Hold", "placement_hold_open"))
    either = (Q(Exists(model.filter(cluster=OuterRef("pk")))) for model in (placed, holds))
    found["has_displaceable_pods"] = ExpressionWrapper(next(either) | next(either), BooleanField())
    return rows.annotate(**found).order_by().values_list(*CLUSTER_COLUMNS)


CLUSTER = PreparedQuery(_cluster_columns)
"""The columns `CLUSTER_COLUMNS` of a cluster. Read several times per batch of decisions, once per batch of events."""

DUE_PODS = PreparedQuery(
    lambda: (
        _rows("placement.Pod", apps.get_model("placement.Pod").due(Parameter("now")), cluster=Parameter("cluster"))
        .order_by("-priority", "id")
        .values_list(*PENDING_POD)
    )
)
"""The columns `PENDING_POD` of a cluster's first due pods, in the order of the queue's index; pass a `limit`."""


def _changed_reservations() -> QuerySet[Any]:
    began = {"revision__gt": Parameter("since"), "revision__lte": Parameter("until")}
    ended = {"released_revision__gt": Parameter("since")}
    # A union, because with an OR of the conditions SQLite would read all reservations that the cluster ever had.
    found, others = (
        _rows("placement.Reservation", cluster=Parameter("cluster"), **changed).order_by().values("pk")
        for changed in (began, ended)
    )
    rows = _rows("placement.Reservation", pk__in=found.union(others, all=True), revision__lte=Parameter("until"))
    return rows.order_by("revision", "id").values_list(*RESERVATION)


CHANGED_RESERVATIONS = PreparedQuery(_changed_reservations)
"""The columns `RESERVATION` of reservations that began or ended after the revision `since`.

Reservations that began after `until` are left out.
"""


# -- each REST request -------------------------------------------------------------------------------------------------


TOKENS = PreparedQuery(
    lambda: (
        _rows("access.Token", token_key=Parameter("key")).select_related("user").annotate(group=F("user__groups__name"))
    )
)
"""Tokens with this key and their users, once for each `group` of the user (None without groups)."""

CLUSTER_BY_NAME = PreparedQuery(
    lambda: _rows("inventory.Cluster", name=Parameter("name")).annotate(
        has_rules=Exists(_rows("policies.NamespaceRule", cluster=OuterRef("pk")))
    )
)
"""The cluster that a request names; `has_rules` is True if its namespaces have policy rules."""
