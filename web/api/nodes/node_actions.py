"""`nodes/{name}/actions/`: operator actions on a node, its GPUs, its zones and its reported facts.

Each action needs a reason and If-Match with the tag of the node, and is recorded in the audit trail. A token that is
limited to namespaces cannot run any of them, because a node action affects all pods on the node.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.errors import InputError
from hetsched.inventory.actions import cordon, uncordon
from hetsched.inventory.fact_review import override, reject
from hetsched.inventory.maintenance import set_maintenance
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Actor
from hetsched.placement.actions import approve_fact
from hetsched.placement.actions.kubelet_rejections import trust_node

from .. import bodies
from ..documents import Request
from . import facts
from .nodes import NodeResource


class NodeAction(Request, frozen=True):
    """Action on a node.

    `fact` is the id of a quarantined fact to approve or reject, or the name of a fact to override with `value` until
    the time `until`. Without `value`, the override is removed. `maintenance` of a `card` or a `zone` lasts until the
    time `until`, or until `end-maintenance`.
    """

    action: Literal[
        "cordon", "uncordon", "trust", "approve", "reject", "override", "maintenance", "end-maintenance"
    ]  # fmt: skip
    reason: str
    fact: str = ""
    value: str | None = None
    until: str | None = None
    card: int | None = None
    zone: str | None = None


_PLAIN = {"cordon": cordon, "uncordon": uncordon, "trust": trust_node}
_RULINGS = {"approve": approve_fact, "reject": reject}


def _act(cluster: Cluster, name: str, asked: NodeAction, actor: Actor) -> None:
    if asked.action in _PLAIN:
        _PLAIN[asked.action](cluster, name, actor=actor, reason=asked.reason)
    elif asked.action in _RULINGS:
        _RULINGS[asked.action](cluster, name, asked.fact, actor=actor, reason=asked.reason)
    elif asked.action == "override":
        override(cluster, name, asked.fact, asked.value, asked.until, actor=actor, reason=asked.reason)
    else:
        part, which = _maintenance_part(asked)
        until = (asked.until or "") if asked.action == "maintenance" else None
        set_maintenance(cluster, name, part, which, until, actor=actor, reason=asked.reason)


def _maintenance_part(asked: NodeAction) -> tuple[str, str]:
    if (asked.card is None) == (asked.zone is None):
        raise InputError(
            "ActionIncomplete",
            "the request names no GPU and no zone for maintenance",
            place="card",
            hint="Send either card or zone",
        )
    return ("card", str(asked.card)) if asked.card is not None else ("zone", asked.zone or "")


class NodeActionsView(NodeResource):
    actions: ClassVar = {"POST": Action.OPERATE}
    matched: ClassVar = {"POST": True}

    @extend_schema(request=NodeAction, responses=facts.NodeDetail)
    def post(self, request: Any, name: str) -> HttpResponse:
        """Cordon or uncordon a node, put a GPU or zone into maintenance, or review, override or trust facts; needs
        If-Match.
        """
        asked = bodies.read(request, NodeAction)
        with self.matched_object() as node:
            _act(node.cluster, name, asked, self.subject)
        return self.written(self.get_object())


routes = [path("nodes/<str:name>/actions/", NodeActionsView.as_view())]
