"""Nominated pods in live clusters, their victims, and gangs of which only some members are bound.

A nomination stores the node and the allocation for a pod that waits until the containers of its victims have ended.
While it is active, the engine assumes the pod on that node, so that no pod of the same or lower priority is placed on
the resources that the victims release. It ends when the pod is placed or deleted, is superseded by a pod of higher
priority, or when a victim may not be evicted or is not deleted in time. Each victim has its own `Eviction`:
    wanted    the API server has not accepted the eviction yet
    asked     the API server accepted the eviction; the victim is terminating or deleted
    refused   a disruption budget or missing permissions prevent the eviction
    dropped   the nomination ended before the request
An eviction without a nomination removes a member of an incomplete gang (`PartiallyBoundGang`) or executes a rebalance
move.
Invariants: a nominated pod is pending and has no reservation; it has at most one active nomination; a victim's
reservation ends only with proof of its absence.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.objects.allocation import Allocation
from hetsched.inventory.models import Cluster, Node
from hetsched.storage.json_fields import StructField
from hetsched.storage.message_field import MessageField


class Nomination(models.Model):
    """The nomination of one pending pod for a node, valid from one cluster revision to another."""

    pod = models.ForeignKey(
        "placement.Pod", on_delete=models.CASCADE, related_name="nominations", verbose_name=_("pod")
    )
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+", verbose_name=_("node"))
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+", verbose_name=_("cluster"))
    allocation = StructField(Allocation, verbose_name=_("allocation"))
    active = models.BooleanField(_("active"), default=True)
    revision = models.BigIntegerField(_("since revision"))
    ended_revision = models.BigIntegerField(_("until revision"), null=True)
    created_at = models.DateTimeField(_("created"))
    ended_at = models.DateTimeField(_("ended"), null=True)
    end_reason = MessageField(_("end reason"), blank=True)

    class Meta:
        verbose_name = _("nomination")
        verbose_name_plural = _("nominations")
        constraints = [
            models.UniqueConstraint(
                fields=["pod"], condition=models.Q(active=True), name="placement_nomination_one_active"
            )
        ]
        indexes = [
            models.Index(fields=["cluster"], name="placement_nomination_active", condition=models.Q(active=True)),
            models.Index(fields=["cluster", "revision"], name="placement_nomination_since"),
            models.Index(fields=["cluster", "ended_revision"], name="placement_nomination_until"),
        ]

    def __str__(self) -> str:
        return f"{self.pod_id} for {self.node_id}"


def nominations_of_gang(cluster_id: int, revision: int, namespace: str, gang: str) -> models.QuerySet[Nomination]:
    """Return the active nominations that the decisions of one revision made for members of a gang."""
    return Nomination.objects.filter(
        cluster_id=cluster_id, revision=revision, active=True, pod__namespace=namespace, pod__gang=gang
    )


class Eviction(models.Model):
    """The eviction of one victim; `budget` is the disruption budget that the eviction violates."""

    WANTED, ASKED, REFUSED, DROPPED = "wanted", "asked", "refused", "dropped"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    nomination = models.ForeignKey(Nomination, on_delete=models.CASCADE, null=True, related_name="evictions")
    victim = models.ForeignKey("placement.Pod", on_delete=models.CASCADE, related_name="evictions")
    # The move of a rebalance plan that requested the eviction.
    move = models.ForeignKey("placement.RebalanceMove", on_delete=models.SET_NULL, null=True, related_name="evictions")
    budget = models.CharField(_("disruption budget"), max_length=320, blank=True)
    state = models.CharField(_("state"), max_length=8, default=WANTED)
    attempts = models.IntegerField(_("attempts"), default=0)
    # The eviction is not retried before this time; a refused victim is spared until then.
    not_before = models.DateTimeField(_("not before"), null=True)
    reason = MessageField(_("reason"), blank=True)  # for evictions without a nomination
    message = MessageField(_("message"), blank=True)

    class Meta:
        verbose_name = _("eviction")
        verbose_name_plural = _("evictions")
        ordering = ["id"]
        indexes = [
            models.Index(
                fields=["cluster"],
                name="placement_eviction_open",
                condition=models.Q(state__in=["refused", "wanted"]),
            )
        ]

    def __str__(self) -> str:
        return f"{self.victim_id} for {self.nomination_id}"


class Preemption(models.Model):
    """A completed preemption: the victim, the preemptor, the decision and the time."""

    victim = models.ForeignKey("placement.Pod", on_delete=models.CASCADE, related_name="preemptions")
    # The preemptor. The columns with its name are kept when its row is deleted.
    preemptor = models.ForeignKey("placement.Pod", on_delete=models.SET_NULL, null=True, related_name="+")
    decision = models.ForeignKey("placement.Decision", on_delete=models.SET_NULL, null=True, related_name="+")
    namespace = models.CharField(_("namespace"), max_length=63)
    name = models.CharField(_("name"), max_length=253)
    node_name = models.CharField(_("node"), max_length=253)
    created_at = models.DateTimeField(_("preempted"))

    class Meta:
        verbose_name = _("preemption")
        verbose_name_plural = _("preemptions")
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.victim_id} by {self.key}"

    @property
    def key(self) -> str:
        """`namespace/name` of the preemptor."""
        return f"{self.namespace}/{self.name}"


class PartiallyBoundGang(models.Model):
    """A gang with too few bound members, and the time (`since`) and reason of the first rejected binding."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    namespace = models.CharField(_("namespace"), max_length=63)
    gang = models.CharField(_("gang"), max_length=63)
    least = models.IntegerField(_("required members"))
    patience_seconds = models.IntegerField(_("timeout in seconds"))
    since = models.DateTimeField(_("since"))
    reason = MessageField(_("reason"))

    class Meta:
        db_table = "placement_halfgang"
        verbose_name = _("partially bound gang")
        verbose_name_plural = _("partially bound gangs")
        constraints = [
            models.UniqueConstraint(fields=["cluster", "namespace", "gang"], name="placement_half_gang_once")
        ]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.gang}"


class RejectedCommit(models.Model):
    """A placement on a node that was rejected at commit because it contradicted the reservation rows."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(_("rejected at"))

    class Meta:
        db_table = "placement_commitrefusal"
        verbose_name = _("rejected commit")
        verbose_name_plural = _("rejected commits")
        indexes = [models.Index(fields=["cluster", "created_at"], name="placement_commit_refusal")]

    def __str__(self) -> str:
        return f"{self.node_id} at {self.created_at}"
