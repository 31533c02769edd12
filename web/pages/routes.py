"""The URLs of the console."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.urls import path, re_path
from django.views.decorators.http import require_safe

from .account.audit import audit
from .account.sessions import sessions
from .account.tokens import tokens
from .account.webhooks import delivery, webhooks
from .clusters.balance import balance
from .clusters.fleet import fleet
from .clusters.health import clusters
from .clusters.shadow import shadow, shadow_of_pod
from .nodes.node import node
from .nodes.nodes import nodes
from .policies.policies import policies
from .policies.policy import policy
from .search import search
from .whatif.advice import advice
from .whatif.what_if import what_if
from .workloads.decision_list import decisions
from .workloads.decisions import decision
from .workloads.holds import hold, holds
from .workloads.pod_why import pod_why, workload_why
from .workloads.queue import queue
from .workloads.workload_list import workloads
from .workloads.workloads import workload


@require_safe
def icon(request: HttpRequest) -> HttpResponse:
    """Redirect `/favicon.ico`, which browsers request for pages without an icon link."""
    return redirect(static("img/mark.svg"))


# Imported files may contain node names that Kubernetes would reject; accept every name that is a single path segment.
_NODE = r"(?P<name>[^/\x00]{1,253})"

urlpatterns = [
    re_path(r"^$", fleet, name="fleet"),
    path("favicon.ico", icon),
    re_path(r"^nodes/$", nodes, name="nodes"),
    re_path(rf"^nodes/{_NODE}/$", node, name="node"),
    re_path(rf"^nodes/{_NODE}/(?P<tab>[a-z]{{1,20}})/$", node, name="node"),
    re_path(r"^workloads/$", workloads, name="workloads"),
    re_path(r"^workloads/(?P<pk>w-[0-9a-z]{1,38})/$", workload, name="workload"),
    re_path(r"^workloads/(?P<pk>w-[0-9a-z]{1,38})/why/$", workload_why, name="workload-why"),
    re_path(r"^why/(?P<pk>[0-9]{1,18})/$", pod_why, name="pod-why"),
    re_path(r"^decisions/$", decisions, name="decisions"),
    re_path(r"^decisions/(?P<pk>[0-9]{1,18})/$", decision, name="decision"),
    re_path(r"^balance/$", balance, name="balance"),
    re_path(r"^advice/$", advice, name="advice"),
    re_path(r"^search/$", search, name="search"),
    re_path(r"^shadow/$", shadow, name="shadow"),
    re_path(r"^shadow/(?P<pk>[0-9]{1,18})/$", shadow_of_pod, name="shadow-of-pod"),
    re_path(r"^queue/$", queue, name="queue"),
    re_path(r"^holds/$", holds, name="holds"),
    re_path(r"^holds/(?P<pk>h-[0-9a-z]{1,38})/$", hold, name="hold"),
    re_path(r"^sessions/$", sessions, name="sessions"),
    re_path(r"^tokens/$", tokens, name="tokens"),
    re_path(r"^webhooks/$", webhooks, name="webhooks"),
    re_path(r"^deliveries/(?P<pk>d-[0-9a-z]{1,38})/$", delivery, name="delivery"),
    re_path(r"^clusters/$", clusters, name="clusters"),
    re_path(r"^audit/$", audit, name="audit"),
    re_path(r"^what-if/$", what_if, name="what-if"),
    re_path(r"^policies/$", policies, name="policies"),
    re_path(r"^policies/(?P<name>[a-z0-9-]{1,63})/$", policy, name="policy"),
]
