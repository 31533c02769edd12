"""Charges of workloads against the quota of their submitter.

Each workload of an owner with a quota has one row with the amounts of the resources that the quota limits. The row is
included in the usage until the workload has finished.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Charge(models.Model):
    """The charge of one workload: amounts by resource, in millicores for cpu and in base units for all others."""

    workload = models.OneToOneField(
        "placement.Workload", on_delete=models.CASCADE, primary_key=True, related_name="charge",
        verbose_name=_("workload"),
    )  # fmt: skip
    owner = models.CharField(_("owner"), max_length=200, db_index=True)
    amounts = models.JSONField(_("amounts"))
    bounds = models.JSONField(_("quota"), default=dict)  # the quota when the amounts were charged

    class Meta:
        verbose_name = _("quota charge")
        verbose_name_plural = _("quota charges")

    def __str__(self) -> str:
        return f"{self.workload_id}: {self.owner}"
