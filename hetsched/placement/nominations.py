"""Pods for which others have to leave a live cluster, and those others; gangs that are bound in part.

Problem: on a live cluster a pod leaves when its containers have ended, minutes after it was asked to, or it does not.
Rule: a nomination says for which node a waiting pod is meant and with what it will hold there; from then on the engine
books it there beside its victims, so that nobody of its own or lower priority takes what they leave. It ends with the
pod's wait: placed there or elsewhere, deleted, overridden by a more important pod, or given up because a victim may
not be evicted or does not go. Each victim is an `Eviction` of its own:
    wanted    somebody still has to ask the API server          asked     it was asked; the victim goes, or is gone
    refused   a budget or a right keeps the victim              dropped   the nomination ended before anybody asked
An eviction without a nomination takes back a member of a gang that did not become whole (`HalfGang`).
Invariants: a nominated pod waits and holds nothing; it has one active nomination at most; a victim's hold ends by proof
of its absence alone.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.allocation import Allocation
from hetsched.inventory.models import Cluster, Node
from hetsched.storage.json_fields import StructField


class Nomination(models.Model):
    """One waiting pod and the node that is kept for it, from one cluster revision to another."""

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
    end_reason = models.CharField(_("why it ended"), max_length=300, blank=True)

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


class Eviction(models.Model):
    """One pod that has to leave for a nominated one; `budget` is the disruption budget that its leaving breaks."""

    WANTED, ASKED, REFUSED, DROPPED = "wanted", "asked", "refused", "dropped"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    nomination = models.ForeignKey(Nomination, on_delete=models.CASCADE, null=True, related_name="evictions")
    victim = models.ForeignKey("placement.Pod", on_delete=models.CASCADE, related_name="evictions")
    budget = models.CharField(_("disruption budget"), max_length=320, blank=True)
    state = models.CharField(_("state"), max_length=8, default=WANTED)
    attempts = models.IntegerField(_("attempts"), default=0)
    # Until then nobody tries, or the refused victim is spared.
    not_before = models.DateTimeField(_("not before"), null=True)
    reason = models.CharField(_("reason"), max_length=500, blank=True)  # where it is not the nomination
    message = models.CharField(_("message"), max_length=500, blank=True)

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


class HalfGang(models.Model):
    """A gang of which too few members are bound, because a binding was refused; since when, and the last refusal."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    namespace = models.CharField(_("namespace"), max_length=63)
    gang = models.CharField(_("gang"), max_length=63)
    least = models.IntegerField(_("members that it needs"))
    patience_seconds = models.IntegerField(_("patience in seconds"))
    since = models.DateTimeField(_("since"))
    reason = models.CharField(_("reason"), max_length=500)

    class Meta:
        verbose_name = _("half-bound gang")
        verbose_name_plural = _("half-bound gangs")
        constraints = [
            models.UniqueConstraint(fields=["cluster", "namespace", "gang"], name="placement_half_gang_once")
        ]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.gang}"


class CommitRefusal(models.Model):
    """One placement that was decided for a node and that the rows of the ledger did not admit."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(_("refused"))

    class Meta:
        verbose_name = _("refused commit")
        verbose_name_plural = _("refused commits")
        indexes = [models.Index(fields=["cluster", "created_at"], name="placement_commit_refusal")]

    def __str__(self) -> str:
        return f"{self.node_id} at {self.created_at}"
