"""The facts of one node by source (agent, collectors and operators), and the facts in quarantine.

A row exists only for nodes with an agent report, a collector, a quarantined fact or an override. `base` is the report
from the cluster or a file, `reported` is the agent's report, and `collected` holds the facts from collectors. The
node's report merges all three. Usage samples are stored here as they arrive and copied to the node's report in batches
(`agent_messages.apply_samples`).
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.messages.agent_report import AgentReport, MachineUsage, PinnedContainer
from hetsched.contracts.objects.collected import CollectedFact
from hetsched.contracts.objects.facts import Claims, FactInQuarantine, Override
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.storage.json_fields import StructField


class NodeFacts(models.Model):
    """The facts of a node by source, and the operators' review decisions."""

    node = models.OneToOneField("inventory.Node", on_delete=models.CASCADE, related_name="facts", primary_key=True)
    base = StructField(NodeReport)
    known = StructField(NodeReport)  # the accepted report; missing parts stay in it until their removal is approved
    reported = StructField(AgentReport, null=True)
    digest = models.CharField(max_length=64, blank=True)
    usage = StructField(MachineUsage, null=True)
    usage_taken = models.BooleanField(default=True)  # whether `usage` was copied to the node's report
    pinned = StructField(tuple[PinnedContainer, ...], null=True)
    quarantined = StructField(tuple[FactInQuarantine, ...], default=tuple)
    overrides = StructField(tuple[Override, ...], default=tuple)
    claims = StructField(Claims, default=dict)
    # The latest facts of collectors, one entry per collector.
    collected = StructField(tuple[CollectedFact, ...], default=tuple)

    # Instance and sequence of the latest agent message, and its time.
    agent = models.CharField(_("agent"), max_length=100, blank=True)
    instance = models.CharField(max_length=64, blank=True)
    started_at = models.DateTimeField(null=True)
    sequence = models.BigIntegerField(default=0)
    reported_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("node facts")
        verbose_name_plural = _("node facts")

    def __str__(self) -> str:
        return f"facts of node {self.pk}"
