"""Holds: reserved capacity for pods that do not exist yet.

Between a what-if that shows that a pod fits and the submission of that pod, other pods could be placed on the capacity.
A hold therefore reserves the resources of every pod of a manifest. Each pod has a row `NAME~HOLD`, which no user can
create and no preemption evicts. The row has the labels and constraints of the future pod, and the engine treats it as
that pod. A submission names the hold and claims it; the scheduler then gives each pod of the submission the resources
of one of these rows, in the transaction that reserves the pod's resources. Unused resources are freed when the hold
ends. States:
    held       until `expires_at` by the database's clock, which may be extended
    claimed    by the submission that named it, until its pods have their resources or the claim expires
    used       completely, or as far as the pods of its submission needed
    expired    without a claim
    cancelled  by a user, with a reason
    lost       because one of its nodes was deleted, or filled by another scheduler
Invariants: a hold is claimed once; the resources of a row are used by one pod only; no message is needed to end a hold.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.inventory.models import Cluster
from hetsched.storage.message_field import MessageField

from ..ids import sortable_id

CAME = "its pod came"  # release reason of held capacity that a pod now uses
MARK = "~"  # invalid in Kubernetes names, so the name of a row never conflicts with a pod

_NAME = 200  # maximum length of the pod's name within the name of its row


def own_name(pod: str, of: str) -> str:
    """Return the name or key of a row that reserves the resources of a pod; `of` makes the name unique."""
    namespace, slash, name = pod.rpartition("/")
    return f"{namespace}{slash}{name[:_NAME]}{MARK}{of}"


def new_hold_id() -> str:
    return sortable_id("h")


class Hold(models.Model):
    """Reserved capacity for the pods of one manifest, for a limited time."""

    HELD, CLAIMED, USED, EXPIRED, CANCELLED, LOST = "held", "claimed", "used", "expired", "cancelled", "lost"
    OPEN = (HELD, CLAIMED)
    STATES = (*OPEN, USED, EXPIRED, CANCELLED, LOST)

    id = models.CharField(max_length=40, primary_key=True, default=new_hold_id, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="holds", verbose_name=_("cluster"))
    namespace = models.CharField(_("namespace"), max_length=63)  # empty if the pods are in several namespaces
    owner = models.CharField(_("owner"), max_length=200)
    held_by = models.CharField(_("held by"), max_length=255)
    note = models.CharField(_("note"), max_length=300, blank=True)
    state = models.CharField(_("state"), max_length=10, default=HELD)
    policy_name = models.CharField(_("policy"), max_length=63)
    policy_version = models.IntegerField(_("policy version"))
    pod_count = models.IntegerField(_("pods"))
    # Amounts charged to the owner's quota. For a claimed hold only the excess over the charge of its workload counts.
    amounts = models.JSONField(_("amounts"), default=dict)
    workload = models.ForeignKey("placement.Workload", on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(_("since"))
    expires_at = models.DateTimeField(_("until"))
    ended_at = models.DateTimeField(_("ended"), null=True)
    end_reason = MessageField(_("end reason"), blank=True)

    class Meta:
        verbose_name = _("hold")
        verbose_name_plural = _("holds")
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["cancelled", "claimed", "expired", "held", "lost", "used"]),
                name="placement_hold_state",
            )
        ]
        indexes = [
            models.Index(
                fields=["cluster", "expires_at"],
                name="placement_hold_open",
                condition=models.Q(state__in=["claimed", "held"]),
            ),
            models.Index(fields=["cluster", "-id"], name="placement_hold_recent"),
        ]

    def __str__(self) -> str:
        return self.id
