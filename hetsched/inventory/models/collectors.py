"""An external source of node facts, and its status.

Operators configure its requests and interval (`collection.configure`); the collecting task writes the status.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from hetsched.storage.message_field import MessageField


class Collector(models.Model):
    """One collector of a cluster. Its token is sealed and never shown."""

    cluster = models.ForeignKey(
        "inventory.Cluster", on_delete=models.CASCADE, related_name="collectors", verbose_name=_("cluster")
    )
    name = models.CharField(_("name"), max_length=63)
    kind = models.CharField(_("kind"), max_length=63)
    params: Any = models.JSONField(_("parameters"), default=dict, blank=True)
    sealed_token = models.TextField(blank=True, editable=False)
    enabled = models.BooleanField(_("enabled"), default=True)
    load = models.BooleanField(_("measures usage"), default=False, editable=False)
    interval_seconds = models.PositiveIntegerField(_("interval in seconds"), default=30)
    # The number of consecutive failures and the age of an observation (seconds) after which the collector's facts are
    # stale.
    most_failures = models.PositiveIntegerField(_("failed queries until stale"), default=1)
    most_age_seconds = models.PositiveIntegerField(_("maximum sample age in seconds"), default=120)
    version = models.PositiveIntegerField(default=1, editable=False)

    due_at = models.DateTimeField(default=timezone.now, editable=False)
    tried_at = models.DateTimeField(_("last query"), null=True, editable=False)
    answered_at = models.DateTimeField(_("last response"), null=True, editable=False)
    failures = models.PositiveIntegerField(_("failures in a row"), default=0, editable=False)
    failure_code = models.CharField(max_length=63, blank=True, editable=False)
    failure = MessageField(_("last failure"), blank=True, editable=False)
    # The time since when all facts of the enabled collector have been stale.
    stale_since = models.DateTimeField(_("stale since"), null=True, editable=False)
    problems: Any = models.JSONField(default=list, blank=True, editable=False)
    nodes_reported = models.PositiveIntegerField(_("nodes"), default=0, editable=False)
    nodes_stale = models.PositiveIntegerField(_("nodes with stale samples"), default=0, editable=False)

    class Meta:
        verbose_name = _("collector")
        verbose_name_plural = _("collectors")
        ordering = ["cluster_id", "name"]
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="inventory_collector_name")]

    def __str__(self) -> str:
        return f"{self.cluster_id}: {self.name}"
