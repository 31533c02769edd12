"""Shared context of every page: permission, selected cluster and navigation.

A page requires a login and the view permission, and takes a token of the read rate limit, as REST does. It shows the
cluster in `?cluster=`, else the configured default, else the first cluster; its links keep the selection. A page with a
live topic contains the name of the topic and the revision that the topic had before the rows were read, so that the
browser detects later changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page, Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import get_resolver, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.inventory.staleness import current_staleness, watch_topic
from hetsched.journal.publish import revision_of
from web.api.problems import RequestRefused
from web.api.rates import READ, take_token

from .visible_characters import visible

MOST_QUERY_CHARACTERS = 200
GROUPS = {
    "see": gettext_lazy("Monitor"),
    "ask": gettext_lazy("Simulate"),
    "change": gettext_lazy("Change"),
    "run": gettext_lazy("Manage"),
}
# Section (the name of its route), key after `g`, label, group, and the permission that is required to see the entry. An
# entry is shown if its route exists. The top bar shows the first six entries, and the menu shows all.
PLACES = (
    ("fleet", "f", gettext_lazy("Fleet"), "see", Action.VIEW),
    ("nodes", "n", gettext_lazy("Nodes"), "see", Action.VIEW),
    ("workloads", "j", gettext_lazy("Workloads"), "see", Action.VIEW),
    ("decisions", "d", gettext_lazy("Decisions"), "see", Action.VIEW),
    ("what-if", "w", gettext_lazy("What-if"), "ask", Action.VIEW),
    ("policies", "p", gettext_lazy("Policies"), "change", Action.VIEW),
    ("queue", "q", gettext_lazy("Queue"), "see", Action.VIEW),
    ("holds", "o", gettext_lazy("Holds"), "see", Action.VIEW),
    ("balance", "b", gettext_lazy("Balance"), "see", Action.VIEW),
    ("advice", "a", gettext_lazy("Advice"), "ask", Action.VIEW),
    ("shadow", "s", gettext_lazy("Shadow mode"), "ask", Action.VIEW),
    ("clusters", "c", gettext_lazy("Clusters"), "run", Action.VIEW),
    ("audit", "u", gettext_lazy("Audit log"), "run", Action.VIEW),
    ("webhooks", "h", gettext_lazy("Webhooks"), "run", Action.SUBMIT),
    ("sessions", "e", gettext_lazy("Sessions"), "run", Action.VIEW),
    ("tokens", "t", gettext_lazy("Tokens"), "run", Action.ADMIN),
)
IN_THE_BAR = frozenset(section for section, *_rest in PLACES[:6])


class MenuEntry(msgspec.Struct, frozen=True):
    """One entry of the main navigation; the shortcut is `g`, then `key`."""

    section: str
    key: str
    label: str
    url: str
    group: str

    @property
    def in_the_bar(self) -> bool:
        return self.section in IN_THE_BAR


def places_for(subject: Subject) -> list[MenuEntry]:
    """Return the existing pages that the user may open, in the order of `PLACES`."""
    routes = get_resolver().reverse_dict
    return [
        MenuEntry(section, key, str(label), reverse(section), group)
        for section, key, label, group, action in PLACES
        if section in routes and subject.may(action)
    ]


def grouped(places: list[MenuEntry]) -> list[tuple[str, list[MenuEntry]]]:
    """Return the label and the entries of every navigation group that is not empty."""
    found = [(str(label), [place for place in places if place.group == name]) for name, label in GROUPS.items()]
    return [(label, members) for label, members in found if members]


class Shell:
    """Context of a page request: section, selected cluster, live topic and the frame of the page."""

    def __init__(self, request: HttpRequest, section: str) -> None:
        self.request = request
        self.section = section
        self.clusters = list(Cluster.objects.defer("definitions").order_by("id"))
        self.named = self.text("cluster")
        name = self.named or settings.HETSCHED_DEFAULT_CLUSTER
        self.cluster = next((found for found in self.clusters if not name or found.name == name), None)
        if self.named and self.cluster is None:
            raise Http404(_("This cluster does not exist."))
        self.topic = ""
        self._revision = 0

    def text(self, name: str) -> str:
        """Return a value of the query string, truncated and without NUL characters, because databases reject them."""
        return self.request.GET.get(name, "")[:MOST_QUERY_CHARACTERS].replace("\0", "")

    def select_cluster(self, cluster: Cluster) -> None:
        """Select the cluster of the page's object, regardless of the query string; links keep the selection."""
        if self.cluster is None or self.cluster.pk != cluster.pk:
            self.named = cluster.name
        self.cluster = cluster

    def require_cluster(self) -> Cluster:
        """Return the selected cluster.

        Raises: Http404 if there is no cluster.
        """
        if self.cluster is None:
            raise Http404(_("There are no clusters."))
        return self.cluster

    def follow(self, topic: str) -> None:
        """Subscribe the browser to a topic; call it before the rows of the page are read."""
        self.topic, self._revision = topic, revision_of(topic)

    def keep(self, **more: str) -> str:
        """Return the query string that keeps the selected cluster, with the parameters `more` added."""
        wanted = {**({"cluster": self.named} if self.named else {}), **{k: v for k, v in more.items() if v}}
        return f"?{urlencode(wanted)}" if wanted else ""

    def page_of(self, rows: Any, size: int) -> Page[Any]:
        """Return the requested page of rows, or the nearest existing page."""
        return Paginator(rows, size).get_page(self.text("page"))

    def render(self, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        keep = self.keep()
        places = places_for(subject_of(self.request))
        frame = {
            "section": self.section,
            "nav": places,
            "nav_groups": grouped(places),
            "nav_here": next(
                (entry for entry in places if entry.section == self.section and not entry.in_the_bar), None
            ),
            "cluster": self.cluster,
            "clusters": self.clusters,
            "keep": keep,
            "keep_more": f"&{keep[1:]}" if keep else "",
            "topic": self.topic,
            "topic_revision": self._revision,
            "live": bool(self.topic),
            "tour_starts": self.cluster is not None and self.cluster.kind == ClusterKind.DEMO,
            **self._live_cluster_context(),
        }
        text = render_to_string(f"pages/{template}.html", frame | context, self.request)
        return HttpResponse(visible(text), status=status)

    def _live_cluster_context(self) -> dict[str, Any]:
        """Return the template context of a live cluster (age of its data, shadow mode), or {} for other clusters."""
        if self.cluster is None or self.cluster.kind != ClusterKind.KUBERNETES:
            return {}
        connection = Connection.objects.filter(cluster=self.cluster).first()
        if connection is None:
            return {}
        connection.cluster = self.cluster
        return {
            "watched": current_staleness(connection),
            "watch_topic": watch_topic(self.cluster),
            "shadow_of": connection.shadow_of,
        }


def page(section: str) -> Callable[[Callable[..., HttpResponseBase]], Callable[..., HttpResponseBase]]:
    """Return a decorator that turns a function of a Shell and the URL arguments into a view of the console."""

    def decorate(show: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
        @require_safe
        @cache_control(private=True, no_cache=True)
        @login_required
        @functools.wraps(show)
        def view(request: HttpRequest, **parts: Any) -> HttpResponseBase:
            if not subject_of(request).may(Action.VIEW):
                raise PermissionDenied(
                    _("Your account has no role with read access to the fleet. Ask an administrator for a role.")
                )
            try:
                headers = take_token(READ, subject_of(request))
            except RequestRefused as refused:
                from .errors import too_many_requests  # imported here to avoid an import cycle

                return too_many_requests(request, refused)
            answer = show(Shell(request, section), **parts)
            for name, value in headers.items():
                answer.headers[name] = value
            return answer

        return view

    return decorate
