"""Tables of workloads, pods, decisions and idempotency keys.

No GPU or core may ever be reserved twice, not even after a crash or a race.
The database enforces exclusivity: partial unique indexes admit one active reservation per pod, one live pod per name,
one exclusive holder per GPU and per CPU. Pod ids increase in submission order. Reservations store the cluster revisions
at which they began and ended, so that one query can return the reservations of any past state, or the changes since the
state of a scheduler cache.
Invariants: a pod is in a HOLDING state if and only if it has an active reservation (imported pods on unknown nodes have
none); decisions are never changed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.api.decision import Evicted, NodeOutcome, Reason
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.submitted import ObjectToCreate
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.waits import EVERY_BIT, WaitsFor
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.models import AppendOnly
from hetsched.storage.bulk_rows import new
from hetsched.storage.json_fields import StructField
from hetsched.storage.message_field import MessageField

from ..ids import sortable_id
from ..in_place import fingerprint
from ..lifecycle import CHOICES, LIVE, State
from .holds import Hold

_live = sorted(state.value for state in LIVE)
_known = models.Q(state__in=sorted(state.value for state in State))


# The latest decision of a pod was not reported to its cluster; the IDs of decisions increase.
UNREPORTED = models.Q(reported_decision__isnull=True) | models.Q(reported_decision__lt=models.F("decision_id"))


def new_workload_id() -> str:
    return sortable_id("w")


class Workload(models.Model):
    """One submission: a manifest and the pods that were expanded from it."""

    id = models.CharField(max_length=40, primary_key=True, default=new_workload_id, editable=False)
    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, related_name="workloads", verbose_name=_("cluster"), db_index=False
    )
    namespace = models.CharField(_("namespace"), max_length=63)
    name = models.CharField(_("name"), max_length=253)
    manifest = models.TextField(_("manifest"), blank=True)
    policy = models.CharField(_("requested policy"), max_length=63, blank=True)
    priority = models.IntegerField(_("priority"), default=0)
    state = models.CharField(_("state"), max_length=16, choices=CHOICES, default=State.PENDING.value, db_index=True)
    pod_count = models.IntegerField(_("pods"), default=0)
    submitted_by = models.CharField(_("submitted by"), max_length=255)
    owner = models.CharField(_("owner"), max_length=200, blank=True, db_index=True)
    callback_url = models.URLField(_("callback"), max_length=2000, blank=True)
    history = StructField(list[list[str]], verbose_name=_("states"), default=list)
    created_at = models.DateTimeField(_("submitted"))
    decided_at = models.DateTimeField(_("decided"), null=True)
    finished_at = models.DateTimeField(_("finished"), null=True)
    revision = models.IntegerField(_("revision"), default=1)

    class Meta:
        verbose_name = _("workload")
        verbose_name_plural = _("workloads")
        ordering = ["-id"]
        constraints = [models.CheckConstraint(condition=_known, name="placement_workload_state")]
        indexes = [
            models.Index(fields=["cluster", "-id"], name="placement_workload_recent"),
            models.Index(
                fields=["cluster", "finished_at"],
                name="placement_workload_finished",
                condition=models.Q(finished_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.id


class Pod(models.Model):
    """One pod. `queued` is True if the scheduler has to try to place the pod, no earlier than `not_before`."""

    # SUBMITTED: by a user or program. IMPORTED: already running when first observed, so its resources are reserved.
    # WATCHED: observed pending in a live cluster, with hetsched as its scheduler. ASKED: placed for another scheduler
    # through the extender; never queued in hetsched, because that scheduler retries. REMNANT: an orphaned pod, which
    # keeps a force-deleted pod's resources reserved. HELD: capacity of a hold, for a pod that does not exist yet.
    SUBMITTED, IMPORTED, WATCHED, ASKED, REMNANT = "submitted", "imported", "watched", "asked", "remnant"
    HELD = "held"
    OURS = (SUBMITTED, WATCHED, ASKED)
    GRANTED = (*OURS, HELD)  # origins of pods whose allocations hetsched decided
    NOWHERE = (REMNANT, HELD)  # origins of rows without a pod in a cluster

    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, null=True, related_name="pods", verbose_name=_("workload"), db_index=False
    )
    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, related_name="pods", verbose_name=_("cluster"), db_index=False
    )
    namespace = models.CharField(_("namespace"), max_length=63)
    name = models.CharField(_("name"), max_length=253)
    uid = models.CharField(_("uid"), max_length=64, blank=True)
    origin = models.CharField(_("origin"), max_length=10, default=SUBMITTED)
    spec = StructField(PodSpec, verbose_name=_("request"))
    # Hash of the fields that can change in place, as last observed: see `in_place`.
    fingerprint = models.CharField(max_length=16, blank=True, default="", editable=False)
    policy = models.CharField(_("policy"), max_length=63, blank=True)
    policy_rule = models.CharField(_("policy rule"), max_length=20, blank=True)
    priority = models.IntegerField(_("priority"), default=0)
    gang = models.CharField(_("gang"), max_length=63, blank=True)
    state = models.CharField(_("state"), max_length=16, choices=CHOICES, default=State.PENDING.value)
    queued = models.BooleanField(_("queued"), default=True)
    attempts = models.IntegerField(_("attempts"), default=0)
    not_before = models.DateTimeField(_("not before"), null=True)
    # Time until which the pod waits for the platforms of its images. If it has passed, the platforms may still change;
    # null means that they are final.
    images_until = models.DateTimeField(_("waits for image platforms until"), null=True)
    # The time of the last attempt to place the pod, and the events that it registered (`helped_by`: as a bit set).
    tried_at = models.DateTimeField(_("last attempt"), null=True)
    waits_for = StructField(tuple[WaitsFor, ...], verbose_name=_("waits for"), default=tuple)
    helped_by = models.IntegerField(default=EVERY_BIT, editable=False)
    # True if the pod was requeued without a registered event, because an event may have been missed.
    flushed = models.BooleanField(default=False, editable=False)
    node = models.ForeignKey(Node, on_delete=models.SET_NULL, null=True, related_name="+", verbose_name=_("node"))
    allocation = StructField(Allocation, verbose_name=_("allocation"), null=True)
    decision = models.ForeignKey(
        "Decision", on_delete=models.RESTRICT, null=True, related_name="+", verbose_name=_("latest decision")
    )
    # The hold that the row belongs to, or whose capacity the pod uses.
    hold = models.ForeignKey(
        Hold, on_delete=models.SET_NULL, null=True, related_name="pods", editable=False, db_index=False
    )
    # The decision last reported to the pod's cluster.
    reported_decision = models.BigIntegerField(null=True, editable=False)
    report_failed_at = models.DateTimeField(null=True, editable=False)
    message = MessageField(_("message"), blank=True)
    created_at = models.DateTimeField(_("created"))
    decided_at = models.DateTimeField(_("decided"), null=True)
    started_at = models.DateTimeField(_("started"), null=True)
    finished_at = models.DateTimeField(_("finished"), null=True)

    class Meta:
        verbose_name = _("pod")
        verbose_name_plural = _("pods")
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(condition=_known, name="placement_pod_state"),
            models.UniqueConstraint(
                fields=["cluster", "namespace", "name"],
                condition=models.Q(state__in=_live),
                name="placement_pod_live_name",
            ),
        ]
        indexes = [
            models.Index(
                fields=["cluster", "-priority", "id"], name="placement_pod_queue", condition=models.Q(queued=True)
            ),
            # Finished pods are kept for days: without the state, each search would read all of them.
            models.Index(fields=["cluster", "state"], name="placement_pod_cluster_state"),
            models.Index(
                fields=["cluster", "state"],
                name="placement_pod_unreported",
                condition=models.Q(decision__isnull=False) & UNREPORTED,
            ),
            models.Index(
                fields=["cluster", "finished_at"],
                name="placement_pod_foreign_ended",
                condition=models.Q(workload__isnull=True, finished_at__isnull=False),
            ),
            models.Index(fields=["workload", "state"], name="placement_pod_workload_state"),
            models.Index(
                fields=["cluster", "state", "not_before"],
                name="placement_pod_orphaned",
                condition=models.Q(origin="remnant"),
            ),
            models.Index(fields=["hold"], name="placement_pod_hold", condition=models.Q(hold__isnull=False)),
            models.Index(
                fields=["cluster", "namespace", "gang"], name="placement_pod_gang", condition=~models.Q(gang="")
            ),
        ]

    def __str__(self) -> str:
        return self.key

    @classmethod
    def due(cls, now: Any) -> models.Q:
        """Return the condition for pods in the active queue at a time: queued, back-off over, no wait for images."""
        backed_off = models.Q(not_before=None) | models.Q(not_before__lte=now)
        return models.Q(queued=True) & backed_off & cls.images_known(now)

    @classmethod
    def images_known(cls, now: Any) -> models.Q:
        """Return the condition for pods that do not wait for image platforms, or whose wait is over at `now`."""
        return models.Q(images_until=None) | models.Q(images_until__lte=now)

    @classmethod
    def charged(
        cls, cluster: Cluster, spec: PodSpec, node_id: int | None, allocation: Allocation | None, now: datetime
    ) -> Pod:
        """Return the unsaved row of a pod that another scheduler placed on its node."""
        return new(
            cls,
            cluster_id=cluster.pk,
            namespace=spec.namespace,
            name=spec.name,
            uid=spec.uid,
            origin=cls.IMPORTED,
            spec=spec,
            fingerprint=fingerprint(spec),
            priority=spec.priority,
            gang=spec.gang.name if spec.gang else "",
            state=State.RUNNING.value,
            queued=False,
            node_id=node_id,
            allocation=allocation,
            created_at=now,
            started_at=now,
        )

    @property
    def key(self) -> str:
        """Return the pod's key in results, `namespace/name`."""
        return f"{self.namespace}/{self.name}"


class SubmittedObject(models.Model):
    """One object that a submission creates in a live cluster; its pods arrive through the watch.

    It is `wanted` until the API server has created (`made`) or rejected it, and `unwanted` until its deletion is
    confirmed. A Job with an ended pod is `ending` until the API server reports that it `succeeded` or `failed`.
    """

    WANTED, MADE, REFUSED, UNWANTED, GONE = "wanted", "made", "refused", "unwanted", "gone"
    ENDING, SUCCEEDED, FAILED = "ending", "succeeded", "failed"

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="objects_there")
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    wanted = StructField(ObjectToCreate, verbose_name=_("object"))
    namespace = models.CharField(_("namespace"), max_length=63)
    state = models.CharField(_("state"), max_length=10, default=WANTED)
    uid = models.CharField(_("uid"), max_length=64, blank=True)
    message = MessageField(_("message"), blank=True)
    attempts = models.IntegerField(_("attempts"), default=0)
    # End of a worker's claim, or earliest time of the next attempt.
    not_before = models.DateTimeField(_("not before"), null=True)

    class Meta:
        verbose_name = _("submitted object")
        verbose_name_plural = _("submitted objects")
        ordering = ["id"]
        indexes = [
            models.Index(
                fields=["cluster"],
                name="placement_object_due",
                condition=models.Q(state__in=["ending", "unwanted", "wanted"]),
            )
        ]

    def __str__(self) -> str:
        return f"{self.wanted.kind} {self.namespace}/{self.wanted.name}"


class Decision(AppendOnly):
    """A decision about one pod: the cluster state, the policy revision, the verdict and its reasons."""

    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, related_name="decisions", verbose_name=_("cluster"), db_index=False
    )
    workload = models.ForeignKey(
        Workload, on_delete=models.CASCADE, null=True, related_name="decisions", verbose_name=_("workload")
    )
    pod = models.ForeignKey(Pod, on_delete=models.CASCADE, related_name="decisions", verbose_name=_("pod"))
    namespace = models.CharField(_("namespace"), max_length=63)
    pod_name = models.CharField(_("pod name"), max_length=253)
    verdict = models.CharField(_("verdict"), max_length=16)
    node_name = models.CharField(_("node"), max_length=253, blank=True)
    policy_name = models.CharField(_("policy"), max_length=63)
    policy_version = models.IntegerField(_("policy version"))
    policy_rule = models.CharField(_("policy rule"), max_length=20, blank=True)
    snapshot = models.CharField(_("snapshot"), max_length=64)
    cluster_revision = models.BigIntegerField(_("cluster revision"))
    inventory_revision = models.BigIntegerField(_("inventory revision"))
    score = models.FloatField(_("score"), null=True)
    summary = MessageField(_("summary"))
    allocation = StructField(Allocation, verbose_name=_("allocation"), null=True)
    reasons = StructField(tuple[Reason, ...], verbose_name=_("reasons"), default=tuple)
    top = StructField(tuple[NodeOutcome, ...], verbose_name=_("best nodes"), default=tuple)
    evictions = StructField(tuple[Evicted, ...], verbose_name=_("evictions"), default=tuple)
    waits_for = StructField(tuple[WaitsFor, ...], verbose_name=_("waits for"), default=tuple)
    # The row of the hold that the pod used, as `namespace/name`.
    used_reservation = models.CharField(_("used capacity of a hold"), max_length=320, blank=True, db_column="room")
    # The node for which the pod is nominated until its victims are gone.
    nominated_node = models.CharField(_("nominated node"), max_length=253, blank=True)
    created_at = models.DateTimeField(_("decided"))

    class Meta:
        verbose_name = _("decision")
        verbose_name_plural = _("decisions")
        ordering = ["-id"]
        indexes = [models.Index(fields=["cluster", "-id"], name="placement_decision_recent")]

    def __str__(self) -> str:
        return f"{self.pk}: {self.verdict} {self.namespace}/{self.pod_name}"

    @property
    def policy_words(self) -> str:
        return f"{self.policy_name} v{self.policy_version}"

    @property
    def pod_spec(self) -> PodSpec:
        """The spec that was decided: without the claim that a later binding of the placed pod named in its status."""
        spec: PodSpec = self.pod.spec
        return msgspec.structs.replace(spec, extended_claim="") if self.node_name and spec.extended_claim else spec


class ForgottenDecision(models.Model):
    """The summary of a decision of a deleted workload, shown at the decision's permalink."""

    id = models.BigIntegerField(primary_key=True)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+", verbose_name=_("cluster"))
    namespace = models.CharField(_("namespace"), max_length=63)
    verdict = models.CharField(_("verdict"), max_length=16)
    summary = MessageField(_("summary"))
    created_at = models.DateTimeField(_("decided"), db_index=True)

    def __str__(self) -> str:
        return f"{self.pk}: {self.verdict}, forgotten"


class IdempotencyKey(models.Model):
    """The first response to a request with a key, per owner."""

    owner = models.CharField(max_length=200)
    key = models.CharField(max_length=255)
    body_hash = models.CharField(max_length=64)
    # The object that the response describes: a workload or a hold.
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, null=True, related_name="+")
    hold = models.ForeignKey(Hold, on_delete=models.CASCADE, null=True, related_name="+")
    response = models.JSONField()
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="placement_idempotency_once")]

    def __str__(self) -> str:
        return f"{self.owner}: {self.key}"
