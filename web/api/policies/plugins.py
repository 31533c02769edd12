"""`plugins/`: every plugin with its extension points and the JSON Schema of its parameters."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.engine.framework.registry import Registry, load_registry

from ..documents import Document, Rows, page_of
from ..pagination import LIST_QUERIES, page_of_sorted
from ..problems import not_found
from ..views import ApiView, answer


class PluginInfo(Document, frozen=True):
    """A plugin; `params` is the JSON Schema of its parameters.

    `helpedBy` lists the events after which pods that the plugin rejected are retried.
    """

    name: str
    summary: str
    points: list[str]
    reads: str
    scope: str
    helped_by: list[str]
    params: dict[str, Any]
    defaults: dict[str, Any]


@cache
def registry() -> Registry:
    """Return the plugins of this process; they change only with a restart."""
    return load_registry()


class PluginsView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = LIST_QUERIES

    @extend_schema(responses=page_of(PluginInfo))
    def get(self, request: Any) -> HttpResponse:
        """List plugins by name."""
        found, following = page_of_sorted(request, registry().describe(), "name")
        return answer(request, Rows(found, following))


class PluginView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=PluginInfo)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show one plugin."""
        found = next((plugin for plugin in registry().describe() if plugin["name"] == name), None)
        if found is None:
            raise not_found("plugin", name)
        return answer(request, found)


routes = [path("plugins/", PluginsView.as_view()), path("plugins/<str:name>/", PluginView.as_view())]
