"""Rebalance plans that an operator confirmed, and their progress.

The moves of a plan are executed in its order; each move begins when the previous move has ended. States of a move:
    waiting   not begun
    leaving   the eviction is requested; the replacement of the pod is not placed yet
    moved     the pod runs on another node, or it ended and no controller recreates it
    stopped   the move was not possible, or the plan stopped before it
If a move is not possible, the plan stops. Completed moves are not reverted.
Invariant: at most one plan of a cluster is in progress.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.inventory.models import Cluster
from hetsched.storage.message_field import MessageField


class Rebalance(models.Model):
    """A confirmed rebalance plan: its goal, the operator who confirmed it and the reason."""

    RUNNING, DONE, STOPPED = "running", "done", "stopped"
    STATES = ((RUNNING, _("in progress")), (DONE, _("done")), (STOPPED, _("stopped")))

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="rebalances", verbose_name=_("cluster"))
    goal = models.CharField(_("goal"), max_length=10)
    summary = MessageField(_("summary"))
    token = models.CharField(_("plan"), max_length=40)
    state = models.CharField(_("state"), max_length=8, choices=STATES, default=RUNNING)
    message = MessageField(_("message"), blank=True)
    asked_by = models.CharField(_("confirmed by"), max_length=255)
    role = models.CharField(_("role"), max_length=100, blank=True)
    reason = models.TextField(_("reason"))
    created_at = models.DateTimeField(_("confirmed"))
    finished_at = models.DateTimeField(_("finished"), null=True)

    class Meta:
        verbose_name = _("rebalance")
        verbose_name_plural = _("rebalances")
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster"], condition=models.Q(state="running"), name="placement_rebalance_one_running"
            )
        ]

    def __str__(self) -> str:
        return f"{self.pk}: {self.summary}"


class RebalanceMove(models.Model):
    """The move of one pod in a plan; the pods of a gang share a step.

    `actual_node` is the node of the moved pod or of its replacement.
    """

    WAITING, LEAVING, MOVED, STOPPED = "waiting", "leaving", "moved", "stopped"
    STATES = ((WAITING, _("waiting")), (LEAVING, _("evicting")), (MOVED, _("moved")), (STOPPED, _("stopped")))

    rebalance = models.ForeignKey(Rebalance, on_delete=models.CASCADE, related_name="moves")
    step = models.IntegerField(_("step"))
    pod = models.ForeignKey("placement.Pod", on_delete=models.SET_NULL, null=True, related_name="+")
    pod_key = models.CharField(_("pod"), max_length=320)
    uid = models.CharField(_("uid"), max_length=64, blank=True)
    source = models.CharField(_("from"), max_length=253)
    target = models.CharField(_("to"), max_length=253)
    state = models.CharField(_("state"), max_length=8, choices=STATES, default=WAITING)
    actual_node = models.CharField(_("actual node"), max_length=253, blank=True, db_column="came_to")
    message = MessageField(_("message"), blank=True)
    changed_at = models.DateTimeField(_("changed"))

    class Meta:
        verbose_name = _("move")
        verbose_name_plural = _("moves")
        ordering = ["step", "id"]

    def __str__(self) -> str:
        return f"{self.pod_key}: {self.source} to {self.target}"
