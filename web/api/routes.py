"""All addresses of REST, and what is answered where there is none."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse, HttpResponsePermanentRedirect
from django.urls import include, path, re_path, resolve
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.renderers import (
    OpenApiJsonRenderer,
    OpenApiJsonRenderer2,
    OpenApiYamlRenderer,
    OpenApiYamlRenderer2,
)
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.views import APIView

from . import (
    advice,
    agent,
    audit,
    batches,
    clusters,
    collectors,
    connections,
    decisions,
    deliveries,
    goldens,
    headroom,
    health,
    holds,
    isa,
    metrics,
    node_actions,
    nodes,
    plans,
    plugins,
    policies,
    policy_check,
    previews,
    problems,
    prometheus,
    queue,
    rates,
    sessions,
    shadow,
    tokens,
    webhooks,
    what_if,
    why,
    workloads,
)

NOUNS = (
    advice,
    agent,
    audit,
    batches,
    clusters,
    collectors,
    connections,
    decisions,
    deliveries,
    goldens,
    headroom,
    holds,
    isa,
    metrics,
    node_actions,
    nodes,
    plans,
    plugins,
    policies,
    policy_check,
    previews,
    queue,
    sessions,
    shadow,
    tokens,
    webhooks,
    what_if,
    why,
    workloads,
)


class Counted(APIView):
    """Answers anybody, so often an address."""

    public = True
    authentication_classes = []

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.headers |= rates.take_strangers_turn(request)


class Schema(Counted, SpectacularAPIView):
    """The OpenAPI document; what the product can do is no secret."""

    renderer_classes = [OpenApiJsonRenderer2, OpenApiYamlRenderer2, OpenApiJsonRenderer, OpenApiYamlRenderer]


class Docs(Counted, SpectacularSwaggerSplitView):
    """The document, browsable."""

    template_name = "api/docs.html"


@csrf_exempt  # changes nothing; a program that misspells an address must hear that, not of forms and cookies
def nowhere(request: Any, rest: str) -> HttpResponse:
    """Answer an address that is not there; one that lacks only its last slash is told the right one."""
    if not rest.endswith("/") and resolve(f"{request.path}/").func is not nowhere:
        query = request.META.get("QUERY_STRING", "")
        answer = HttpResponsePermanentRedirect(f"{request.path}/" + (f"?{query}" if query else ""))
        answer.status_code = 308  # keeps the method and the body
        return answer
    return problems.response(problems.Refused(404, "NotFound", "there is nothing at this address"), request)


@csrf_exempt  # as above
def elsewhere(request: Any, rest: str) -> HttpResponse:
    """Say where the scheduler extender is: not here, since whoever calls it brings a client certificate."""
    hint = "It is a process of its own, with its own port and certificates: hetsched scheduler --extender"
    refused = problems.Refused(404, "NotFound", "the scheduler extender does not listen at this address", hint=hint)
    return problems.response(refused, request)


urlpatterns = [
    path(
        "api/v1/",
        include(
            [
                *(route for noun in NOUNS for route in noun.routes),
                path("schema", Schema.as_view(), name="schema"),
                path("docs", Docs.as_view(url_name="schema"), name="docs"),
            ]
        ),
    ),
    *health.routes,
    *prometheus.routes,
    re_path(r"^api/(?P<rest>.*)$", nowhere),
    re_path(r"^extender/(?P<rest>.*)$", elsewhere),
]
