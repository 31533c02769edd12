"""What is said of one node beside its own row: by its agent, by others, by operators; and what does not count yet.

Rule: only nodes have a row here that an agent reports for or a collector asks about, or of which something is in
quarantine or overridden. `base` is what the cluster or a file says, `told` what the agent says, `collected` what other
systems say; the node's own report is what they come to. Use
is kept here as it comes in and taken into the node's report in batches (`facts.take_samples`).
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.agent_report import AgentReport, MachineUsage, PinnedContainer
from hetsched.contracts.collected import CollectedFact
from hetsched.contracts.facts import Claims, FactInQuarantine, Override
from hetsched.contracts.node_report import NodeReport
from hetsched.storage.json_fields import StructField


class NodeFacts(models.Model):
    """The words on one node, and what an operator ruled about them."""

    node = models.OneToOneField("inventory.Node", on_delete=models.CASCADE, related_name="facts", primary_key=True)
    base = StructField(NodeReport)
    known = StructField(NodeReport)  # what counted last, with what is missing by now
    told = StructField(AgentReport, null=True)
    digest = models.CharField(max_length=64, blank=True)
    usage = StructField(MachineUsage, null=True)
    usage_taken = models.BooleanField(default=True)  # into the node's report
    pinned = StructField(tuple[PinnedContainer, ...], null=True)
    quarantined = StructField(tuple[FactInQuarantine, ...], default=tuple)
    overrides = StructField(tuple[Override, ...], default=tuple)
    claims = StructField(Claims, default=dict)
    # What collectors told last, one entry each.
    collected = StructField(tuple[CollectedFact, ...], default=tuple)

    # Which start of which agent was heard last, and when.
    agent = models.CharField(_("agent"), max_length=100, blank=True)
    instance = models.CharField(max_length=64, blank=True)
    started_at = models.DateTimeField(null=True)
    sequence = models.BigIntegerField(default=0)
    heard_at = models.DateTimeField(_("heard of"), null=True)

    class Meta:
        verbose_name = _("facts of a node")
        verbose_name_plural = _("facts of nodes")

    def __str__(self) -> str:
        return f"facts of node {self.pk}"
