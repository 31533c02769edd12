"""Search over the console: pages, nodes, pods, decisions, extensions, policies and clusters.

Each group returns its best hits and a link to the full list, as a page or, for the `/` dialog, as JSON. In large
tables, the search uses an index or only the most recent rows.
Every known instruction-set extension, level and profile is found by its name or purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from django.db.models import Q
from django.http import HttpResponse, JsonResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from hetsched.access.subject import subject_of
from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Node
from hetsched.inventory.tiles import shorten_isa
from hetsched.isa import parse
from hetsched.isa.arm import ARM
from hetsched.isa.riscv_table import EXTENSIONS, PROFILES
from hetsched.isa.x86 import X86
from hetsched.placement.lifecycle import LABELS, State
from hetsched.placement.models import Decision, Pod, Workload
from hetsched.policies.models import Policy
from web.api import request_scope
from web.translation import translate

from .script_texts import after_name
from .shell import Shell, page, places_for
from .workloads.holds import LABELS as HOLD_LABELS


class Extension(msgspec.Struct, frozen=True):
    """Extension, level or profile; `requirement` is the ISA string of a request that requires it."""

    name: str
    family: str
    description: str
    requirement: str


@cache
def extensions() -> tuple[Extension, ...]:
    """Return everything that a request can require: profiles and levels first, then extensions by name."""
    found = [Extension(name, "RISC-V", "", name) for name in PROFILES]
    found += [Extension(level, "x86", "", level) for level in X86.levels]
    found += [Extension(level, "Arm", "", level) for level in ARM.levels]
    for name, row in sorted(EXTENSIONS.items()):
        written = f"rv64i{name}" if len(name) == 1 else f"rv64i_{name}"
        found.append(Extension(name, "RISC-V", row.get("description", ""), written))
    found += [Extension(name, "x86", "", f"x86-64-v1+{name}") for name in sorted(set(X86.features.values()))]
    found += [Extension(name, "Arm", "", f"armv8.0-a+{name}") for name in sorted(set(ARM.features.values()))]
    return tuple(extension for extension in found if _is_requirement(extension.requirement))


def _is_requirement(requirement: str) -> bool:
    try:
        parse(requirement)
    except InputError:
        return False
    return True


def find(word: str, most: int) -> list[Extension]:
    """Return the extensions that match a word: the exact name first, then prefixes, then other matches."""
    wanted = word.lower()
    ranked = [(_rank(extension, wanted), extension) for extension in extensions()]
    ranked = [pair for pair in ranked if pair[0] is not None]
    ranked.sort(key=lambda pair: pair[0] or 0)
    return [extension for _rank, extension in ranked[:most]]


def _rank(extension: Extension, wanted: str) -> int | None:
    if extension.name == wanted:
        return 0
    if extension.name.startswith(wanted):
        return 1
    if wanted in extension.name:
        return 2
    return 3 if len(wanted) > 2 and wanted in extension.description.lower() else None


MOST = 6
RECENT_DECISIONS = 20_000
NOTE_CHARACTERS = 90


class SearchHit(msgspec.Struct, frozen=True):
    title: str
    url: str
    note: str = ""


class Group(msgspec.Struct, frozen=True):
    """Search hits of one kind; `more` is the URL of the full list, or "" if there is none."""

    label: str
    hits: list[SearchHit]
    more: str = ""


@page("search")
def search(shell: Shell) -> HttpResponse:
    query = shell.text("q").strip()
    groups = [group for group in (find_in(shell, query) for find_in in _GROUPS) if group.hits]
    if shell.text("format") == "json":
        return JsonResponse({"groups": to_plain(groups)})
    return shell.render("search_results", {"query": query, "groups": groups})


def _address(shell: Shell, name: str, *parts: Any, **more: str) -> str:
    return f"{reverse(name, args=parts)}{shell.keep(**more)}"


def _places(shell: Shell, query: str) -> Group:
    wanted = query.lower()
    places = places_for(subject_of(shell.request))
    found = [entry for entry in places if wanted in entry.label.lower() or entry.section.startswith(wanted)]
    hits = [SearchHit(entry.label, entry.url + shell.keep(), f"g {entry.key}") for entry in found]
    return Group(_("Pages"), hits[: MOST if query else len(hits)])


def _clusters(shell: Shell, query: str) -> Group:
    found = [cluster for cluster in shell.clusters if query and query.lower() in cluster.name]
    hits = [
        SearchHit(cluster.name, f"{reverse('fleet')}?{urlencode({'cluster': cluster.name})}", cluster.kind)
        for cluster in found
    ]
    return Group(_("Clusters"), hits[:MOST])


def _nodes(shell: Shell, query: str) -> Group:
    if not query or shell.cluster is None:
        return Group(_("Nodes"), [])
    rows = Node.objects.filter(cluster=shell.cluster).filter(
        Q(name__text_contains=query) | Q(pool__text_contains=query)
    )
    found = rows.order_by("name").values_list("name", "pool", "isa")[:MOST]
    hits = [
        SearchHit(name, _address(shell, "node", name), f"{pool} · {shorten_isa(isa, 40)}") for name, pool, isa in found
    ]
    return Group(_("Nodes"), hits, _more(shell, "nodes", hits, q=_quoted(query)))


def _pods(shell: Shell, query: str) -> Group:
    if len(query) < 2 or shell.cluster is None:
        return Group(_("Workloads"), [])
    if query.startswith("w-"):
        named = Workload.objects.filter(pk__startswith=query.lower()).order_by("pk")[:MOST]
        return Group(
            _("Workloads"),
            [SearchHit(workload.pk, reverse("workload", args=[workload.pk]), workload.name) for workload in named],
        )
    namespace, slash, name = query.rpartition("/")
    wanted = Q(namespace=namespace, name__text_contains=name) if slash else Q(name__text_contains=query)
    rows = Pod.objects.filter(wanted, cluster=shell.cluster).exclude(workload=None).order_by("-id")
    found = rows.values_list("namespace", "name", "workload_id", "state")[:MOST]
    hits = [
        SearchHit(
            f"{space}/{pod}",
            f"{reverse('workload', args=[workload])}?{urlencode({'pod': f'{space}/{pod}'})}",
            str(LABELS[State(state)]),
        )
        for space, pod, workload, state in found
    ]
    return Group(_("Workloads"), hits, _more(shell, "workloads", hits, q=_quoted(query)))


def _holds(shell: Shell, query: str) -> Group:
    if len(query) < 2 or shell.cluster is None:
        return Group(_("Holds"), [])
    rows = request_scope.holds(subject_of(shell.request)).filter(cluster=shell.cluster)
    found = rows.filter(Q(note__text_contains=query) | Q(pk__text_starts=query)).order_by("-id")[:MOST]
    hits = [
        SearchHit(row.note or row.pk, _address(shell, "hold", row.pk), str(HOLD_LABELS[row.state])) for row in found
    ]
    return Group(_("Holds"), hits, _more(shell, "holds", hits, q=_quoted(query), show="all"))


def _decisions(shell: Shell, query: str) -> Group:
    if len(query) < 2 or shell.cluster is None:
        return Group(_("Decisions"), [])
    rows = Decision.objects.filter(cluster=shell.cluster).order_by("-id")
    newest = rows.values_list("id", flat=True).first() or 0
    wanted = Q(pod_name__text_contains=query.rpartition("/")[2], id__gt=newest - RECENT_DECISIONS)
    if query.isdecimal() and len(query) <= 18:
        wanted |= Q(pk=int(query))
    found = rows.filter(wanted).values_list("id", "namespace", "pod_name", "summary")[:MOST]
    hits = [
        SearchHit(
            f"{pk} {space}/{pod}",
            _address(shell, "decision", pk),
            Truncator(after_name(f"{space}/{pod}", translate(summary))).chars(NOTE_CHARACTERS),
        )
        for pk, space, pod, summary in found
    ]
    return Group(_("Decisions"), hits, _more(shell, "decisions", hits, q=_quoted(query)))


def _extensions(shell: Shell, query: str) -> Group:
    hits = [
        SearchHit(
            extension.name,
            _address(shell, "nodes", q=f"isa>={extension.requirement}"),
            " · ".join(filter(None, _of(extension))),
        )
        for extension in (find(query, MOST) if query else [])
    ]
    return Group(_("Extensions (links to the nodes that have the extension)"), hits)


def _of(one: Any) -> tuple[str, str]:
    return one.family, one.description


def _policies(shell: Shell, query: str) -> Group:
    rows = Policy.objects.filter(Q(name__text_contains=query) | Q(description__text_contains=query)).order_by("name")
    found = rows.values_list("name", "description")[:MOST] if query else []
    hits = [
        SearchHit(name, _address(shell, "policy", name), Truncator(text).chars(NOTE_CHARACTERS)) for name, text in found
    ]
    return Group(_("Policies"), hits)


def _more(shell: Shell, name: str, hits: list[SearchHit], **parameters: str) -> str:
    return _address(shell, name, **parameters) if len(hits) == MOST else ""


def _quoted(query: str) -> str:
    """Quote a query, so that a filter expression contains it as one free word."""
    return '"' + query.replace('"', "") + '"'


_GROUPS: tuple[Callable[[Shell, str], Group], ...] = (
    _places,
    _nodes,
    _pods,
    _holds,
    _decisions,
    _extensions,
    _policies,
    _clusters,
)
