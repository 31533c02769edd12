"""What the device plugin of a node really gave the pods there, beside what they were granted.

Rule: one row per pod that holds cards on a node whose agent tells what was handed out. `granted` is what the decision
gave it, `cards` what it has; None: nothing was handed out yet, or it cannot be told which cards that is. `advisory`:
somebody else's device plugin chooses, so a grant is a wish until `cards` says what came of it.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.allocation import CardGrant
from hetsched.inventory.models import Node
from hetsched.storage.json_fields import StructField


class HandedOut(models.Model):
    """The cards that one pod was given by its node."""

    pod = models.OneToOneField(
        "placement.Pod", on_delete=models.CASCADE, related_name="handed_out", verbose_name=_("pod")
    )
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+", verbose_name=_("node"))
    # The reservation that the row is about; another one is another grant.
    reservation = models.BigIntegerField(editable=False)
    advisory = models.BooleanField(_("advisory"))
    granted = StructField(tuple[CardGrant, ...], verbose_name=_("granted"), default=tuple)
    cards = StructField(tuple[int, ...], verbose_name=_("handed out"), null=True)
    problem = models.CharField(_("problem"), max_length=400, blank=True)
    seen_at = models.DateTimeField(_("seen"))

    class Meta:
        verbose_name = _("cards handed out")
        verbose_name_plural = _("cards handed out")
        indexes = [models.Index(fields=["node"], name="placement_handed_out_node")]

    def __str__(self) -> str:
        return f"{self.pod_id}: {self.cards}"
