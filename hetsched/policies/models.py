"""Policies and their revisions.

A revision's content never changes: changing a policy adds a revision, and activating a revision only changes a
reference. A decision records the name and version of its policy, so it can be repeated as long as the revision exists.
A policy is owned by the database or by one cluster (`keeper`), whose SchedulingPolicy object is then the only writer.
Invariant: at most one revision of a policy is active, and `Policy.active_version` is its version (0 if none is active).
"""

from __future__ import annotations

from typing import Literal

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.api.golden import Expectation
from hetsched.contracts.errors import Problem
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import DNS_LABEL, Cluster
from hetsched.lab.rerun import PodChange, ReplayResult
from hetsched.storage.json_fields import StructField
from hetsched.storage.message_field import MessageField

from .plan_contracts import Condition, Measured, Once, PreviewParameters


class Policy(models.Model):
    name = models.CharField(_("name"), max_length=63, unique=True, validators=[DNS_LABEL])
    description = models.CharField(_("description"), max_length=400, blank=True)
    active_version = models.IntegerField(_("active version"), default=0)
    # The cluster whose object of this name defines the policy. If it is null, this database owns the policy.
    keeper = models.ForeignKey(
        Cluster, on_delete=models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("stored in cluster")
    )

    class Meta:
        verbose_name = _("policy")
        verbose_name_plural = _("policies")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def previous(self) -> PolicyRevision | None:
        """The revision that was active before the current one, or None if no other revision has been active."""
        retired = self.revisions.filter(state=RevisionState.RETIRED)
        return retired.order_by("-activated_at", "-version").first()


class RevisionState(models.TextChoices):
    DRAFT = "draft", _("draft")
    ACTIVE = "active", _("active")
    RETIRED = "retired", _("retired")


class PolicyRevision(models.Model):
    """One version of a policy and its author; `reason` is the reason for its last activation."""

    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="revisions", verbose_name=_("policy"))
    version = models.IntegerField(_("version"))
    spec = StructField(PolicySpec, verbose_name=_("content"))
    state = models.CharField(_("state"), max_length=8, choices=RevisionState, default=RevisionState.DRAFT)
    author = models.CharField(_("author"), max_length=255)
    reason = MessageField(_("reason"), blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    activated_at = models.DateTimeField(_("activated"), null=True)

    class Meta:
        verbose_name = _("policy revision")
        verbose_name_plural = _("policy revisions")
        ordering = ["policy_id", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["policy", "version"], name="policies_revision_version"),
            models.UniqueConstraint(
                fields=["policy"], condition=models.Q(state="active"), name="policies_revision_one_active"
            ),
            models.CheckConstraint(condition=models.Q(state__in=RevisionState.values), name="policies_revision_state"),
        ]

    def __str__(self) -> str:
        return f"{self.policy_id}@{self.version}"

    @property
    def step(self) -> Literal["activate", "rollback", "rollforward"]:
        """Name of the action that activates this version: first activation, or return to an older or newer version."""
        if self.activated_at is None:
            return "activate"
        return "rollforward" if self.version > self.policy.active_version else "rollback"


class PolicyObject(models.Model):
    """A SchedulingPolicy object of a cluster, and its review result; an object without a problem is accepted."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="policies", verbose_name=_("cluster"))
    name = models.CharField(_("name"), max_length=253)
    uid = models.CharField(_("uid"), max_length=64)
    generation = models.BigIntegerField(_("generation"))
    spec = StructField(PolicySpec, verbose_name=_("content"), null=True)
    problem = StructField(Problem, verbose_name=_("problem"), null=True)
    version = models.IntegerField(_("latest accepted version"), default=0)
    gone = models.BooleanField(_("deleted"), default=False)
    judged_at = models.DateTimeField(_("checked at"))
    since = models.DateTimeField(_("accepted or rejected since"))
    # Whether the review result was written to the status of the SchedulingPolicy object.
    reported = models.BooleanField(default=False)

    class Meta:
        verbose_name = _("policy object")
        verbose_name_plural = _("policy objects")
        ordering = ["name", "cluster_id"]
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="policies_object_once")]

    def __str__(self) -> str:
        return f"{self.cluster_id}: {self.name}"


class NamespaceRule(models.Model):
    """The default policy of a namespace's pods, and the policies that they may name; an empty list allows all."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="rules", verbose_name=_("cluster"))
    namespace = models.CharField(_("namespace"), max_length=63, validators=[DNS_LABEL])
    default_policy = models.CharField(_("default policy"), max_length=63, blank=True)
    allowed_policies = StructField(list[str], verbose_name=_("allowed policies"), default=list, blank=True)

    class Meta:
        verbose_name = _("namespace rule")
        verbose_name_plural = _("namespace rules")
        ordering = ["cluster_id", "namespace"]
        constraints = [models.UniqueConstraint(fields=["cluster", "namespace"], name="policies_rule_namespace")]

    def __str__(self) -> str:
        return self.namespace


class GoldenPlacement(models.Model):
    """A pod with an expected placement; a policy that places it differently cannot be activated.

    If `policy_name` is empty, it guards all policies. `state` is the result of the last check under the active
    versions.
    """

    KEPT, BROKEN, UNKNOWN, OFF = "kept", "broken", "unknown", "off"

    name = models.CharField(_("name"), max_length=63, unique=True, validators=[DNS_LABEL])
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="goldens", verbose_name=_("cluster"))
    policy_name = models.CharField(_("applies to policy"), max_length=63, blank=True)
    manifest = models.TextField(_("pod"))
    pod = StructField(PodSpec, editable=False)
    expectation = StructField(Expectation, verbose_name=_("expectation"))
    enabled = models.BooleanField(_("enabled"), default=True)
    author = models.CharField(_("author"), max_length=255)
    reason = models.TextField(_("reason"), blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    changed_at = models.DateTimeField(_("changed"))
    state = models.CharField(_("state"), max_length=8, default=UNKNOWN)
    got = MessageField(_("actual result"), blank=True)
    checked_at = models.DateTimeField(_("checked at"), null=True)
    broken_since = models.DateTimeField(_("broken since"), null=True)
    # The decision whose cluster state is used for the check. If null, the cluster's nodes are used as if they were
    # empty.
    decision = models.BigIntegerField(_("created from decision"), null=True, editable=False)
    # Hash of the nodes and versions that were used for the last check. The result depends only on them.
    judged_on = models.CharField(max_length=64, blank=True, editable=False)

    class Meta:
        verbose_name = _("golden placement")
        verbose_name_plural = _("golden placements")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class AgreedState(models.Model):
    """The cluster state of the decision from which a golden placement was created, as compressed JSON."""

    golden = models.OneToOneField(GoldenPlacement, on_delete=models.CASCADE, related_name="agreed_state")
    content = models.BinaryField(_("cluster"))
    size = models.IntegerField(_("bytes"))

    class Meta:
        verbose_name = _("cluster state of a golden placement")
        verbose_name_plural = _("cluster states of golden placements")

    def __str__(self) -> str:
        return f"{self.golden_id}: {self.size} bytes"


class PolicyPlan(models.Model):
    """Planned activation of policy versions: once at a set time, or when a cluster's metric crosses a bound."""

    WAITING, DONE, REFUSED, SKIPPED, OFF = "waiting", "done", "refused", "skipped", "off"

    name = models.CharField(_("name"), max_length=63, unique=True, validators=[DNS_LABEL])
    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="plans", verbose_name=_("policy"))
    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, null=True, related_name="plans", verbose_name=_("cluster")
    )
    once = StructField(Once, verbose_name=_("once"), null=True)
    condition = StructField(Condition, verbose_name=_("condition"), null=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    author = models.CharField(_("author"), max_length=255)
    reason = models.TextField(_("reason"), blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    changed_at = models.DateTimeField(_("changed"))
    state = models.CharField(_("state"), max_length=8, default=WAITING)
    note = MessageField(_("note"), blank=True)
    # A run claims the plan by advancing this time.
    due_at = models.DateTimeField(_("due"), editable=False)
    last_looked_at = models.DateTimeField(_("checked at"), null=True)
    last_value = models.FloatField(_("last value"), null=True)
    # The side of the condition that was entered last: above, below, or none yet.
    side = models.CharField(max_length=5, blank=True, editable=False)
    above_since = models.DateTimeField(_("above since"), null=True)
    below_since = models.DateTimeField(_("below since"), null=True)
    last_switched_at = models.DateTimeField(_("last activated"), null=True)

    class Meta:
        verbose_name = _("policy plan")
        verbose_name_plural = _("policy plans")
        ordering = ["name"]
        indexes = [models.Index(fields=["due_at"], name="policies_plan_due", condition=models.Q(enabled=True))]

    def __str__(self) -> str:
        return self.name


class Measure(models.Model):
    """The metrics of a cluster at one time, used by plans and kept for a week so that plans can be tested."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="measures", verbose_name=_("cluster"))
    at = models.DateTimeField(_("at"))
    figures = StructField(Measured, verbose_name=_("metrics"))

    class Meta:
        verbose_name = _("measurement")
        verbose_name_plural = _("measurements")
        ordering = ["cluster_id", "at"]
        constraints = [models.UniqueConstraint(fields=["cluster", "at"], name="policies_measure_once")]

    def __str__(self) -> str:
        return f"{self.cluster_id} at {self.at}"


class Preview(models.Model):
    """A replay of a cluster's recorded decisions under a policy version; `seen_at` is the heartbeat of its runner."""

    WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"
    OPEN = (RUNNING, WAITING)

    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="previews", verbose_name=_("policy"))
    version = models.IntegerField(_("version"))
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="previews", verbose_name=_("cluster"))
    asked = StructField(PreviewParameters, verbose_name=_("parameters"))
    state = models.CharField(_("state"), max_length=10, default=WAITING)
    progress = models.FloatField(_("progress"), default=0.0)
    asked_by = models.CharField(_("requested by"), max_length=255)
    owner = models.CharField(_("owner"), max_length=200)
    asked_at = models.DateTimeField(_("requested at"))
    started_at = models.DateTimeField(_("started"), null=True)
    ended_at = models.DateTimeField(_("ended"), null=True)
    seen_at = models.DateTimeField(_("last heartbeat"), null=True)
    problem = StructField(Problem, verbose_name=_("problem"), null=True)
    result = StructField(ReplayResult, verbose_name=_("result"), null=True)
    changes = StructField(tuple[PodChange, ...], verbose_name=_("changes"), default=tuple)

    class Meta:
        verbose_name = _("policy preview")
        verbose_name_plural = _("policy previews")
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner"], condition=models.Q(state__in=["running", "waiting"]), name="policies_preview_one"
            )
        ]

    def __str__(self) -> str:
        return f"{self.policy_id}@{self.version} #{self.pk}"
