"""`agent/reports/`: node agents report facts and receive the device allocations of their node.

An agent reports only for the node that its token names. The maximum size of a report is 4 MiB. The response contains
the key that signs the allocations of this node, the devices that pods hold on it, and the time of the next report.
`problems` lists facts that are not accepted yet. The key is sent over HTTPS only, unless the settings allow plain HTTP.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any, ClassVar, TypeVar

import msgspec
from django.conf import settings
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework.authentication import SessionAuthentication

from hetsched.access.roles import Action
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.messages.agent_message import (
    MOST_MESSAGE_BYTES,
    AgentAnswer,
    AgentMessage,
    NodeAllocation,
)
from hetsched.contracts.messages.agent_report import MachineProblem
from hetsched.contracts.remedies import SHORTEN_REPORT
from hetsched.inventory.agent_messages import receive
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.placement.actions import reconcile_devices
from hetsched.placement.models import Pod
from hetsched.placement.queries.kubelet_pods import pods_with_grants
from hetsched.placement.signed_grants import agent_key, signed_allocations_on

from .. import bodies, request_scope
from ..problems import RequestRefused
from ..views import ApiView, answer
from .agent_authentication import AgentTokens, agent_of

T = TypeVar("T")
_read = msgspec.json.Decoder(AgentMessage).decode


class AgentReportsView(ApiView):
    actions: ClassVar = {"POST": Action.REPORT}
    within: ClassVar = ("POST",)
    authentication_classes = [AgentTokens, SessionAuthentication]
    queries: ClassVar = {"cluster": "Name of the cluster whose API server issued the token."}

    @extend_schema(request=AgentMessage, responses=AgentAnswer)
    def post(self, request: Any) -> HttpResponse:
        """Accept the report of a node agent."""
        message = _message(request)
        agent = agent_of(request)
        if message.node != agent.node:
            detail = f"this token is bound to node {agent.node}, not to {message.node[:80]!r}"
            raise RequestRefused(403, "NodeNotYours", detail, place="node")
        cluster = request_scope.cluster_of(agent.cluster, hint=False)
        try:
            result = receive(cluster, message, known=lambda kubelet: pods_with_grants(cluster, message.node, kubelet))
        except InputError as error:
            if error.code == "NodeUnknown":
                raise RequestRefused(404, error.code, error.message, place=error.place) from None
            raise
        report = message.report
        if report is not None and report.kubelet is not None and report.kubelet.devices:
            devices = _by_uid(cluster, message.node, report.kubelet.devices)
            uuids = {card.pci_address: card.uuid for card in report.gpus or () if card.pci_address and card.uuid}
            reconcile_devices(cluster.pk, message.node, devices, advisory=not message.assigns_gpus, uuids=uuids)
        confidential = request.is_secure() or settings.HETSCHED_AGENT_KEYS_OVER_HTTP
        return answer(request, _answer(cluster, result.node, wanted=result.wanted, confidential=confidential))


def _by_uid(cluster: Cluster, node: str, devices: dict[str, T]) -> dict[str, T]:
    """Return the allocations by pod UID; replace the keys `namespace/name` of agents that do not know UIDs."""
    if not any("/" in key for key in devices):
        return devices
    rows = Pod.objects.filter(cluster=cluster, node__name=node).exclude(uid="").order_by("id")
    uids = {f"{namespace}/{name}": uid for namespace, name, uid in rows.values_list("namespace", "name", "uid")}
    return {uids.get(key, key): held for key, held in devices.items()}


def _message(request: Any) -> AgentMessage:
    """Read the report. Raises: InputError `BodyTooLarge`, `BodyMalformed`, `BodyInvalid`; RequestRefused 415."""
    bodies.media_type(request, bodies.JSON)
    body = bodies.raw(request, large=True)
    if len(body) > MOST_MESSAGE_BYTES:
        raise InputError("BodyTooLarge", bodies.too_large(len(body), MOST_MESSAGE_BYTES), hint=SHORTEN_REPORT)
    if b"\\u0000" in body:
        raise InputError("TextHasNul", "the text contains a NUL character")
    try:
        return _read(body)
    except msgspec.ValidationError:
        # Slow path for rare messages: accept integers written as 1.0, or report the error and its field.
        return bodies.convert(bodies.plain(body), AgentMessage)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        message = Message("the text is not valid JSON: {text}", text=str(error)[:200])
        raise InputError("BodyMalformed", message, hint="Send one JSON document in UTF-8") from None


def _answer(cluster: Cluster, node: Node, *, wanted: bool, confidential: bool) -> AgentAnswer:
    key = agent_key(cluster.name, node.name)
    granted = signed_allocations_on(cluster.pk, node.name) if key is not None else {}
    problems = []
    if wanted:
        problems.append(MachineProblem("ReportWanted", "send the complete report"))
    if key is None:
        problems.append(
            MachineProblem("NotSigned", "the server has no SECRET_KEY and cannot sign allocations: set SECRET_KEY")
        )
    elif not confidential:
        hint = "use https, or set HETSCHED_AGENT_KEYS_OVER_HTTP=1 on a trusted network"
        problems.append(MachineProblem("KeyWithheld", f"the node's key is not sent over plain HTTP: {hint}"))
    row = NodeFacts.objects.filter(node=node).only("quarantined").first()
    for item in row.quarantined if row is not None else ():
        text = f"{item.fact} {item.item}: accepted {item.known}, reported {item.reported}"
        problems.append(MachineProblem("FactQuarantined", text, item.id))
    return AgentAnswer(
        cluster=cluster.name,
        node=node.name,
        epoch=Cluster.objects.values_list("leader_epoch", flat=True).get(pk=cluster.pk),
        key="" if key is None or not confidential else urlsafe_b64encode(key).decode(),
        report_within_seconds=settings.HETSCHED_AGENT_REPORT_SECONDS,
        allocations=[NodeAllocation(uid, text) for uid, text in granted.items()],
        problems=problems,
    )


routes = [path("agent/reports/", AgentReportsView.as_view())]
