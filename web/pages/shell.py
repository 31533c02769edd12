"""What every page shares: who may see it, which cluster it shows, and what stands around it.

Rule: a page needs a login and the right to view. It shows the cluster of `?cluster=`, else the configured default, else
the first one; links keep the choice. A page with a live topic names it and the topic's revision as of before its rows
were read, so the browser sees whether something changed since.
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
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from hetsched.access.roles import Action
from hetsched.access.subject import subject_of
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.inventory.staleness import watch_topic, watched_now
from hetsched.journal.publish import revision_of

MOST_QUERY_CHARACTERS = 200
PLACES = (
    ("fleet", "f", gettext_lazy("Fleet")),
    ("nodes", "n", gettext_lazy("Nodes")),
    ("workloads", "j", gettext_lazy("Workloads")),
    ("decisions", "d", gettext_lazy("Decisions")),
    ("what-if", "w", gettext_lazy("What-if")),
    ("policies", "p", gettext_lazy("Policies")),
)


class Place(msgspec.Struct, frozen=True):
    """One entry of the main navigation; `key` goes there after `g`."""

    section: str
    key: str
    label: str
    url: str


class Shell:
    """One request for a page."""

    def __init__(self, request: HttpRequest, section: str) -> None:
        self.request = request
        self.section = section
        self.clusters = list(Cluster.objects.defer("definitions").order_by("id"))
        self.named = self.text("cluster")
        name = self.named or settings.HETSCHED_DEFAULT_CLUSTER
        self.cluster = next((found for found in self.clusters if not name or found.name == name), None)
        if self.named and self.cluster is None:
            raise Http404(_("There is no cluster of this name."))
        self.topic = ""
        self._revision = 0

    def text(self, name: str) -> str:
        """Return a value of the query string, cut to a sane length and without NUL, which databases refuse."""
        return self.request.GET.get(name, "")[:MOST_QUERY_CHARACTERS].replace("\0", "")

    def need_cluster(self) -> Cluster:
        """Return the cluster in view.

        Raises: Http404 when there is none yet.
        """
        if self.cluster is None:
            raise Http404(_("There is no cluster yet."))
        return self.cluster

    def follow(self, topic: str) -> None:
        """Have the browser follow a topic; call it before the rows of the page are read."""
        self.topic, self._revision = topic, revision_of(topic)

    def keep(self, **more: str) -> str:
        """Return the query string that keeps the cluster in view, and `more` with it."""
        wanted = {**({"cluster": self.named} if self.named else {}), **{k: v for k, v in more.items() if v}}
        return f"?{urlencode(wanted)}" if wanted else ""

    def page_of(self, rows: Any, size: int) -> Page[Any]:
        """Return the page of rows that `?page=` asks for, the nearest there is."""
        return Paginator(rows, size).get_page(self.text("page"))

    def render(self, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        keep = self.keep()
        frame = {
            "section": self.section,
            "nav": [Place(section, key, str(label), reverse(section)) for section, key, label in PLACES],
            "cluster": self.cluster,
            "clusters": self.clusters,
            "keep": keep,
            "keep_more": f"&{keep[1:]}" if keep else "",
            "topic": self.topic,
            "topic_revision": self._revision,
            "live": bool(self.topic),
            **self._of_a_live_cluster(),
        }
        return render(self.request, f"pages/{template}.html", frame | context, status=status)

    def _of_a_live_cluster(self) -> dict[str, Any]:
        """Return how old what is known of the cluster is, and in whose shadow it is followed; nothing of others."""
        if self.cluster is None or self.cluster.kind != ClusterKind.KUBERNETES:
            return {}
        connection = Connection.objects.filter(cluster=self.cluster).first()
        if connection is None:
            return {}
        connection.cluster = self.cluster
        return {
            "watched": watched_now(connection),
            "watch_topic": watch_topic(self.cluster),
            "shadow_of": connection.shadow_of,
        }


def page(section: str) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """Make a function of (shell, …) a view of the console."""

    def decorate(show: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @require_safe
        @cache_control(private=True, no_cache=True)
        @login_required
        @functools.wraps(show)
        def view(request: HttpRequest, **parts: Any) -> HttpResponse:
            if not subject_of(request).may(Action.VIEW):
                raise PermissionDenied(_("Your account has no role that may look at the fleet. Ask an administrator."))
            return show(Shell(request, section), **parts)

        return view

    return decorate
