"""What a workload is charged with against the quota of who submitted it.

Rule: one row per workload of an owner with a quota, with the amounts that the quota is about; it counts until the
workload is over.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Charge(models.Model):
    """Amounts by resource, in millicores for cpu and base units for all others."""

    workload = models.OneToOneField(
        "placement.Workload", on_delete=models.CASCADE, primary_key=True, related_name="charge",
        verbose_name=_("workload"),
    )  # fmt: skip
    owner = models.CharField(_("owner"), max_length=200, db_index=True)
    amounts = models.JSONField(_("amounts"))
    bounds = models.JSONField(_("quota"), default=dict)  # which they were counted against

    class Meta:
        verbose_name = _("charge")
        verbose_name_plural = _("charges")

    def __str__(self) -> str:
        return f"{self.workload_id}: {self.owner}"
