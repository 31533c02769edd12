"""Pods that a kubelet rejected, and the back-off of their owners.

Each rejected pod has one row. `cleared_at` is set when a pod of the same owner runs on the node or an operator clears
the rejection. `until` is the end of the owner's back-off on this node. `rest_until` is the end of the owner's back-off
on all nodes; it is set if several nodes rejected pods of the owner. See `scheduling_queue.node_backoffs`.
Invariant: a rejected pod is counted once, however often its status is reported.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.inventory.models import Cluster, Node
from hetsched.storage.message_field import MessageField


class Rejection(models.Model):
    """The rejection of one pod by its node's kubelet; `step` is the number of consecutive rejections on that node."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+", verbose_name=_("cluster"))
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="rejections", verbose_name=_("node"))
    owner = models.CharField(_("owner"), max_length=320)
    controller = models.CharField(_("controller"), max_length=320, blank=True)
    pod = models.CharField(_("pod"), max_length=320)
    uid = models.CharField(_("uid"), max_length=64)
    reason = models.CharField(_("reason"), max_length=120)
    message = MessageField(_("message"), blank=True)
    step = models.IntegerField(_("step"), default=1)
    created_at = models.DateTimeField(_("rejected at"))
    until = models.DateTimeField(_("retried at"))
    rest_until = models.DateTimeField(_("owner retried at"), null=True)
    # True if a pod of the owner has run on another node since: this row then limits the owner on this node only.
    ran_elsewhere = models.BooleanField(_("ran on another node"), default=False)
    woken_at = models.DateTimeField(_("waiting pods requeued at"), null=True)
    cleared_at = models.DateTimeField(_("cleared at"), null=True)

    class Meta:
        verbose_name = _("rejection")
        verbose_name_plural = _("rejections")
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["cluster", "uid"], name="placement_rejection_once")]
        indexes = [
            models.Index(
                fields=["cluster", "owner", "node"],
                name="placement_rejection_open",
                condition=models.Q(cleared_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"{self.pod}: {self.reason}"
