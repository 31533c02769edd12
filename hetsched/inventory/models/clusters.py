"""Clusters and nodes.

A node row stores its whole report; frequently queried facts are duplicated in columns. `requested`, `pods` and
`gpu_milli_used` are written only by the transaction that reserves or releases resources. Every change of a cluster's
inventory or allocations first raises `Cluster.revision` by 1, which also locks the row: writers of one cluster are
serialized.
Units: cpu in millicores, memory in bytes, GPUs in thousandths.
Invariants: a node's load columns equal the sum over its active reservations, and a cluster's totals equal the sum over
its nodes.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from django.core.validators import RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.api.discovery import Discovery
from hetsched.contracts.api.stored_tokens import StoredToken
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.fact_conflicts import FactConflict
from hetsched.contracts.objects.facts import Maintenance
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.observed import Handover, Quarantined
from hetsched.storage.json_fields import StructField
from hetsched.storage.message_field import MessageField

DNS_LABEL = RegexValidator(
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z", _("Lower-case letters, digits and '-', at most 63 characters.")
)


class ClusterKind(models.TextChoices):
    OFFLINE = "offline", _("offline: nodes come from files, placements are stored only in hetsched")
    DEMO = "demo", _("demo: simulated, with a stream of workloads")
    KUBERNETES = "kubernetes", _("kubernetes: hetsched watches an API server and binds pods there")


class Cluster(models.Model):
    """One fleet of nodes. At any time, at most one leader schedules its pods."""

    name = models.CharField(_("name"), max_length=63, unique=True, validators=[DNS_LABEL])
    kind = models.CharField(_("kind"), max_length=12, choices=ClusterKind, default=ClusterKind.OFFLINE)
    policy_name = models.CharField(_("policy"), max_length=63, default="hetsched")
    # Namespaces, classes and groups that pods may refer to. Nodes, pods and policies are stored in separate tables.
    definitions = StructField(ClusterContent, verbose_name=_("definitions"), default=ClusterContent, blank=True)

    revision = models.BigIntegerField(_("revision"), default=0)
    inventory_revision = models.BigIntegerField(_("inventory revision"), default=0)
    # The revision of the latest change to the set of nodes or to definitions; facts of individual nodes may be newer.
    layout_revision = models.BigIntegerField(_("layout revision"), default=0)
    # The revision of the current definitions. A change that snapshots can apply in place raises this revision but not
    # `layout_revision`.
    definitions_revision = models.BigIntegerField(_("definitions revision"), default=0)
    # Decisions based on an earlier revision are void, because an allocation was added or facts changed at this
    # revision.
    decisive_revision = models.BigIntegerField(_("decisive revision"), default=0)
    # The revision at which the nodes' usage samples were measured. The samples include the pods allocated at that time.
    baseline_revision = models.BigIntegerField(_("baseline revision"), default=0)

    # Event -> revision of its latest occurrence. A pod that becomes unschedulable is requeued immediately if an event
    # that may make it schedulable occurred after the revision of its decision.
    event_revisions = StructField(
        dict[str, int], verbose_name=_("changes"), default=dict, blank=True, editable=False, db_column="stirred"
    )

    # Recent decision time per namespace. The scheduler uses it to share its time fairly between namespaces.
    decision_time = StructField(
        dict[str, tuple[float, float]], verbose_name=_("decision time"), default=dict, blank=True, editable=False
    )

    # The first revision whose placements are not yet counted in node loads and workloads; None if all are counted. See
    # `ClusterTransaction` in `placement.actions.change`.
    effects_due_since = models.BigIntegerField(null=True, blank=True, editable=False, db_column="unprojected_since")

    # The time of the database when `advance` locked the row.
    locked_at: datetime

    # Reservations that ended at or before this revision may be deleted, so a snapshot of an earlier revision must
    # reload.
    forgotten_revision = models.BigIntegerField(_("reservations deleted up to revision"), default=0)

    leader_epoch = models.BigIntegerField(_("leader epoch"), default=0)
    leader_id = models.CharField(_("leader"), max_length=120, blank=True)
    leader_until = models.DateTimeField(_("lease ends"), null=True, blank=True)

    node_count = models.IntegerField(_("nodes"), default=0)
    ready_count = models.IntegerField(_("ready nodes"), default=0)
    card_count = models.IntegerField(_("GPUs"), default=0)
    cards_installed = models.IntegerField(_("installed GPUs"), default=0)
    capacity = StructField(dict[str, int], verbose_name=_("capacity"), default=dict, blank=True)
    requested = StructField(dict[str, int], verbose_name=_("requested"), default=dict, blank=True)
    gpu_milli_used = models.BigIntegerField(_("GPU thousandths in use"), default=0)

    demo_seed = models.BigIntegerField(_("demo seed"), default=0)
    demo_sequence = models.BigIntegerField(_("next demo workload"), default=0)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("cluster")
        verbose_name_plural = _("clusters")
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(condition=models.Q(kind__in=ClusterKind.values), name="inventory_cluster_kind")
        ]

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """One node: its report, the columns derived from the report, and the node's load."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes", verbose_name=_("cluster"))
    name = models.CharField(_("name"), max_length=253)
    report = StructField(NodeReport, verbose_name=_("report"))
    isa_family = models.CharField(_("ISA family"), max_length=12, default="unknown")
    isa = models.TextField(_("ISA"), blank=True)  # an expanded RISC-V profile has more than 400 characters
    pool = models.CharField(_("pool"), max_length=63)
    ready = models.BooleanField(_("ready"), default=True)
    unschedulable = models.BooleanField(_("unschedulable"), default=False)
    cordoned_by_operator = models.BooleanField(_("cordoned by an operator"), default=False)
    card_count = models.IntegerField(_("GPUs"), default=0)
    # This number includes GPUs that are unhealthy or in maintenance, because pods may still use them.
    cards_installed = models.IntegerField(_("installed GPUs"), default=0)
    maintenance = StructField(tuple[Maintenance, ...], verbose_name=_("in maintenance"), default=tuple, blank=True)
    allocatable = StructField(dict[str, int], verbose_name=_("allocatable"), default=dict)

    requested = StructField(dict[str, int], verbose_name=_("requested"), default=dict)
    pods = models.IntegerField(_("pods"), default=0)
    gpu_milli_used = models.IntegerField(_("GPU thousandths in use"), default=0)
    updated_at = models.DateTimeField(_("reported"))
    changed_revision = models.BigIntegerField(_("changed at revision"), default=0)
    # The revision at which this node's usage sample was measured, if later than the cluster's `baseline_revision`. The
    # sample includes the pods allocated at that time.
    sampled_revision = models.BigIntegerField(_("sampled at revision"), default=0)
    # When the current usage sample expires; None if it cannot expire. See `freshness`.
    sample_due_at = models.DateTimeField(_("sample expires at"), null=True, blank=True, editable=False)
    # Facts that the node's kubelet contradicted. The reported values stay in use.
    doubts = StructField(
        tuple[FactConflict, ...], verbose_name=_("facts contradicted by the kubelet"), default=tuple, blank=True
    )
    # Whether the node was deleted from the API server. The row is kept until all its allocations are confirmed as
    # ended.
    gone = models.BooleanField(_("deleted"), default=False)

    class Meta:
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        ordering = ["cluster_id", "name"]
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="inventory_node_name")]
        indexes = [models.Index(fields=["cluster", "sample_due_at"], name="inventory_node_sample_due")]

    def __str__(self) -> str:
        return self.name


class Connection(models.Model):
    """The connection to the API server of a Kubernetes cluster. The kubeconfig is sealed and never shown."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="connection", primary_key=True)
    sealed_kubeconfig = models.TextField(blank=True, editable=False)  # empty: this process runs inside the cluster
    server = models.CharField(_("API server"), max_length=300, blank=True)
    # The uid of the namespace kube-system, stored at the first contact. A cluster with another uid is rejected.
    cluster_uid = models.CharField(_("uid of the cluster"), max_length=64, blank=True)
    # The holder identity with which the processes of this installation acquire the cluster's Lease.
    installation = models.UUIDField(_("installation"), default=uuid.uuid4, editable=False)
    enrolled_namespaces = models.JSONField(_("namespaces for submissions"), default=list, blank=True)
    # Whether the pull secrets of pods are read to look up their images.
    read_pull_secrets = models.BooleanField(_("pull secrets are read"), default=False)
    failure = MessageField(_("informer failure"), blank=True)
    # Shadow mode: the bindings of the scheduler with this name are compared with our decisions, and nothing is written
    # to the cluster.
    shadow_of = models.CharField(_("scheduler compared in shadow mode"), max_length=63, blank=True)
    shadow_dropped = models.BigIntegerField(_("pods not compared"), default=0, editable=False)
    # The staleness of the cluster's data as last published to live pages; see `staleness`.
    facts_at = models.DateTimeField(_("data as of"), null=True, blank=True, editable=False)
    stale_since = models.DateTimeField(_("stale since"), null=True, blank=True, editable=False)
    stale_reason = MessageField(_("reason for stale data"), blank=True, editable=False)
    # The lease and epoch of the informer. Writes with an older epoch are rejected.
    follower_id = models.CharField(_("informer"), max_length=120, blank=True)
    follower_until = models.DateTimeField(_("informer lease ends"), null=True, blank=True)
    follower_epoch = models.BigIntegerField(_("informer epoch"), default=0)
    follower_handover = StructField(Handover, null=True, editable=False)
    # The credentials that discovery uses instead of the in-cluster account, the lease of discovery, and its latest
    # result.
    sealed_discovery_kubeconfig = models.TextField(blank=True, editable=False)
    # End and renewal failure of each service account token in the stored kubeconfigs.
    stored_tokens = StructField(tuple[StoredToken, ...], default=tuple, blank=True, editable=False)
    discovery = StructField(Discovery, verbose_name=_("discovery"), null=True, editable=False)
    discoverer_id = models.CharField(max_length=120, blank=True, editable=False)
    discoverer_until = models.DateTimeField(null=True, blank=True, editable=False)
    discoverer_epoch = models.BigIntegerField(default=0, editable=False)
    reporter_id = models.CharField(max_length=120, blank=True, editable=False)
    reporter_until = models.DateTimeField(null=True, blank=True, editable=False)
    reporter_epoch = models.BigIntegerField(default=0, editable=False)

    class Meta:
        verbose_name = _("connection")
        verbose_name_plural = _("connections")

    def __str__(self) -> str:
        return f"{self.cluster_id}: {self.server}"


class Sync(models.Model):
    """Sync state of one resource type of a Kubernetes cluster; `epoch` is that of the informer that wrote it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="syncs", verbose_name=_("cluster"))
    resource = models.CharField(_("resource"), max_length=120)
    required = models.BooleanField(_("required"), default=True)  # no decision is made before it has synced
    epoch = models.BigIntegerField(_("informer epoch"))
    synced_at = models.DateTimeField(_("last full list"), null=True)
    alive_at = models.DateTimeField(_("last event"), null=True)
    objects_count = models.IntegerField(_("objects"), default=0)
    relists = models.IntegerField(_("lists"), default=0)
    failures = models.IntegerField(_("failures in a row"), default=0)
    reason = MessageField(_("last failure"), blank=True)
    quarantined = StructField(tuple[Quarantined, ...], verbose_name=_("unreadable objects"), default=tuple)

    class Meta:
        verbose_name = _("sync")
        verbose_name_plural = _("syncs")
        constraints = [models.UniqueConstraint(fields=["cluster", "resource"], name="inventory_sync_once")]

    def __str__(self) -> str:
        return f"{self.cluster_id}: {self.resource}"
