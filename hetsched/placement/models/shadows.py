"""Decisions of shadow mode: the node that another scheduler chose, compared with hetsched's choice.

Shadow mode shows whether hetsched's choices are better before they take effect, without risk to a live cluster.
The informer watches a cluster as the shadow of one scheduler. Each pod of that scheduler that was observed pending and
is then bound gets a row, in the transaction that reserves its resources. A worker compares the choices later, on the
state before the binding (`actions.shadow_decisions`):
    same        the node that hetsched would have chosen
    equal       another node with the same score
    worse       a node with a lower score; `regret` is hetsched's score minus this score, in points (0-100)
    infeasible  a node that a filter rejects, with the reason `refusal`; `chosen` is empty if hetsched found no node
The number of waiting rows is limited. Further rows and rows that cannot be compared any more are dropped and counted.
Invariants: a compared row never changes; shadow mode writes nothing to the cluster.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.api.decision import NodeOutcome, Reason
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster
from hetsched.storage.json_fields import StructField
from hetsched.storage.message_field import MessageField


class Judgement(models.TextChoices):
    SAME = "same", _("same node")
    EQUAL = "equal", _("equal score")
    WORSE = "worse", _("lower score")
    INFEASIBLE = "infeasible", _("rejected by hetsched filters")


class Shadow(models.Model):
    """The binding of one pod by another scheduler, and its comparison with hetsched's choice."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="shadows", verbose_name=_("cluster"))
    namespace = models.CharField(_("namespace"), max_length=63)
    pod_name = models.CharField(_("pod"), max_length=253)
    uid = models.CharField(_("uid"), max_length=64)
    scheduler = models.CharField(_("scheduler"), max_length=63)
    spec = StructField(PodSpec, verbose_name=_("request"))
    node_name = models.CharField(_("actual node"), max_length=253)
    revision = models.BigIntegerField(_("reserved at revision"))
    created_at = models.DateTimeField(_("bound"))
    # The following columns are empty until the comparison.
    judged_at = models.DateTimeField(_("compared at"), null=True)
    judgement = models.CharField(_("judgement"), max_length=10, choices=Judgement, blank=True)
    chosen = models.CharField(_("node chosen by hetsched"), max_length=253, blank=True)
    their_score = models.FloatField(_("score of the actual node"), null=True)
    our_score = models.FloatField(_("score of the node chosen by hetsched"), null=True)
    regret = models.FloatField(_("regret"), null=True)
    rank = models.IntegerField(_("rank of the actual node"), null=True)
    feasible = models.IntegerField(_("feasible nodes"), default=0)
    refusal = StructField(Reason, verbose_name=_("rejection reason"), null=True)
    theirs = StructField(NodeOutcome, verbose_name=_("scores of the actual node"), null=True)
    top = StructField(tuple[NodeOutcome, ...], verbose_name=_("best nodes"), default=tuple)
    policy_name = models.CharField(_("policy"), max_length=63, blank=True)
    policy_version = models.IntegerField(_("policy version"), default=0)
    summary = MessageField(_("summary"), blank=True)

    class Meta:
        verbose_name = _("shadow decision")
        verbose_name_plural = _("shadow decisions")
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["cluster", "uid"], name="placement_shadow_once")]
        indexes = [
            models.Index(fields=["cluster", "id"], name="placement_shadow_due", condition=models.Q(judged_at=None)),
            models.Index(fields=["cluster", "judgement", "-regret"], name="placement_shadow_regret"),
        ]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod_name} on {self.node_name}"

    @property
    def key(self) -> str:
        """Return the pod's key in results, `namespace/name`."""
        return f"{self.namespace}/{self.pod_name}"
