"""All URLs of the REST API, and the response for unknown URLs."""

from __future__ import annotations

from functools import cache
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
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.views import APIView

from . import problems, rates
from .account import audit, sessions, tokens
from .clusters import agent, clusters, collectors, connections, shadow
from .monitoring import health, metrics, prometheus
from .nodes import isa, node_actions, nodes
from .policies import goldens, plans, plugins, policies, policy_check, previews
from .webhooks import deliveries, webhooks
from .whatif import advice, headroom, what_if
from .workloads import batches, decisions, holds, queue, why, workloads

NOUNS = (
    workloads,  # first, because Django tries the routes in this order and most requests are submissions
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
)


class AddressLimitedView(APIView):
    """View without authentication, with a rate limit per address."""

    public = True
    authentication_classes = []

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.headers |= rates.take_anonymous_token(request)


class Schema(AddressLimitedView, SpectacularAPIView):
    """OpenAPI document, readable without a token and generated once per format."""

    renderer_classes = [OpenApiJsonRenderer2, OpenApiYamlRenderer2, OpenApiJsonRenderer, OpenApiYamlRenderer]

    @extend_schema(exclude=True)
    def get(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        renderer = request.accepted_renderer
        shown = {"Content-Disposition": f'inline; filename="{self._get_filename(request, None)}"'}
        media_type = renderer.media_type
        if renderer.charset:
            media_type = f"{media_type}; charset={renderer.charset}"
        return HttpResponse(_document(renderer.media_type), content_type=media_type, headers=shown)


@cache
def _document(media_type: str) -> bytes:
    """Return the OpenAPI document in this media type; generating it takes up to 0.5 s of processor time."""
    renderer: Any = next(
        renderer_class for renderer_class in Schema.renderer_classes if renderer_class.media_type == media_type
    )
    document = Schema.generator_class().get_schema(request=None, public=True)
    return bytes(renderer().render(document, renderer_context={}))


class Docs(AddressLimitedView, SpectacularSwaggerSplitView):
    """Browsable OpenAPI document."""

    template_name = "api/docs.html"


@csrf_exempt  # the view changes nothing, and a client that misspells a URL must get a 404, not a CSRF error
def unknown_address(request: Any, rest: str) -> HttpResponse:
    """Respond to an unknown URL; redirect if only the trailing slash is missing."""
    if not rest.endswith("/") and resolve(f"{request.path}/").func is not unknown_address:
        query = request.META.get("QUERY_STRING", "")
        answer = HttpResponsePermanentRedirect(f"{request.path}/" + (f"?{query}" if query else ""))
        answer.status_code = 308  # 308 keeps the method and the body
        return answer
    return problems.response(problems.no_address(), request)


@csrf_exempt  # a wrong URL must get a 404, not a CSRF error
def extender_address(request: Any, rest: str) -> HttpResponse:
    """Respond that the scheduler extender is a separate process; it needs its own port because its callers use client
    certificates.
    """
    hint = "Start it as a separate process with its own port and certificates: hetsched scheduler --extender"
    refused = problems.RequestRefused(404, "NotFound", "this server does not serve the scheduler extender", hint=hint)
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
    re_path(r"^api/(?P<rest>.*)$", unknown_address),
    re_path(r"^extender/(?P<rest>.*)$", extender_address),
]
