"""Room that is kept for pods that do not exist yet.

Problem: between an answer "it fits" and the submission that relies on it, others take the room.
Rule: a hold books, in the one ledger of reservations, what every pod of a manifest would hold. Each has a row of our
own, `NAME~HOLD`, which nobody can create and nobody evicts, with the labels and rules of the pod that it stands for:
to the engine it is that pod. A submission names the hold and claims it; the scheduler then gives each of its pods the
room of one of these rows, in the transaction that books the pod. Whatever is left over is let go when the hold ends:
    held       until `expires_at` by the database's clock, which may be put off
    claimed    by the submission that named it, until its pods have their room, or did not come in time
    used       all of it, or as much as the pods of its submission needed
    expired    nobody came                         cancelled    by somebody, with a reason
    lost       a node of it is gone, or was filled by another scheduler
Invariants: a hold is claimed once; the room of a row goes to one pod; no message is needed for any of it to end.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.inventory.models import Cluster

from .ids import sortable_id

CAME = "its pod came"  # why room is let go that the pod has by now
MARK = "~"  # no API server takes it in a name, so no pod is ever mistaken for what is ours alone


def new_hold_id() -> str:
    return sortable_id("h")


class Hold(models.Model):
    """Room for the pods of one manifest, for a while."""

    HELD, CLAIMED, USED, EXPIRED, CANCELLED, LOST = "held", "claimed", "used", "expired", "cancelled", "lost"
    OPEN = (HELD, CLAIMED)
    STATES = (*OPEN, USED, EXPIRED, CANCELLED, LOST)

    id = models.CharField(max_length=40, primary_key=True, default=new_hold_id, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="holds", verbose_name=_("cluster"))
    namespace = models.CharField(_("namespace"), max_length=63)  # empty where its pods lie in several
    owner = models.CharField(_("owner"), max_length=200)
    held_by = models.CharField(_("held by"), max_length=255)
    note = models.CharField(_("note"), max_length=300, blank=True)
    state = models.CharField(_("state"), max_length=10, default=HELD)
    policy_name = models.CharField(_("policy"), max_length=63)
    policy_version = models.IntegerField(_("policy version"))
    pod_count = models.IntegerField(_("pods"))
    # What counts against its owner's quota; once it is claimed, as far as it is more than what its workload counts.
    amounts = models.JSONField(_("amounts"), default=dict)
    workload = models.ForeignKey("placement.Workload", on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(_("since"))
    expires_at = models.DateTimeField(_("until"))
    ended_at = models.DateTimeField(_("ended"), null=True)
    end_reason = models.CharField(_("why it ended"), max_length=300, blank=True)

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
