"""The what-if page: a form or YAML text, which the browser simulates through REST. Nothing is written.

The server only provides the choices of the form. The browser calls `POST /api/v1/what-if/` and keeps the whole input in
the URL, so that a link repeats the simulation.
"""

from __future__ import annotations

from typing import Any

from django.db.models import F, Min
from django.http import HttpResponse
from django.utils.translation import gettext as _

from hetsched.access.roles import Action
from hetsched.access.subject import subject_of
from hetsched.contracts.objects.cards import cards_of
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.tiles import tile, without_nulls
from hetsched.policies.models import Policy, PolicyRevision

from ..script_texts import grid_texts, matrix_texts, question_texts, result_texts, state_texts
from ..shell import Shell, page
from ..workloads.holds import spans
from ..workloads.why import score_weights

MOST_SUGGESTIONS = 40
COMMON_ISAS = (
    "rv64gc",
    "rva22u64",
    "rva22u64_v",
    "rva23u64",
    "x86-64-v2",
    "x86-64-v3",
    "x86-64-v4",
    "arm64",
    "armv8.2-a",
)


@page("what-if")
def what_if(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("what_if", {})
    nodes = shell.cluster.nodes.defer("report").order_by("name")
    return shell.render(
        "what_if",
        {
            "policies": Policy.objects.filter(active_version__gt=0),
            "scoring": _scoring(),
            "models": _card_models(shell.cluster),
            "isas": _isas(shell.cluster),
            "examples": _examples(),
            "spans": spans() if subject_of(shell.request).may(Action.SUBMIT) else [],
            "words": {**state_texts(), **grid_texts(), **result_texts(), **matrix_texts(), **question_texts()},
            "nodes": {node.name: without_nulls(tile(node)) for node in nodes},
        },
    )


def _scoring() -> dict[str, dict[str, Any]]:
    """Return the scoring plugins of each policy, so that a result can name the plugins that gave no score."""
    rows = PolicyRevision.objects.filter(version=F("policy__active_version")).values_list("policy__name", "spec")
    return {name: {"version": spec.version, "weights": score_weights(spec)} for name, spec in rows}


def _card_models(cluster: Cluster) -> list[str]:
    """Return suggested GPU models, read from one node of each pool."""
    samples = cluster.nodes.filter(card_count__gt=0).order_by().values("pool").annotate(first=Min("id"))
    ids = [row["first"] for row in samples[:MOST_SUGGESTIONS]]
    reports = Node.objects.filter(pk__in=ids).values_list("report", flat=True)
    return sorted({card.model for report in reports for card in cards_of(report) if card.model})


def _isas(cluster: Cluster) -> list[str]:
    """Return suggested instruction sets: common names first, then those of the nodes."""
    stated = cluster.nodes.exclude(isa="").order_by("isa").values_list("isa", flat=True).distinct()
    return list(dict.fromkeys([*COMMON_ISAS, *stated[:MOST_SUGGESTIONS]]))


def _examples() -> list[dict[str, Any]]:
    """Return three examples as the fields of the form."""
    return [
        {
            "title": _("A RISC-V build with the vector extension"),
            "text": _("4 CPUs, 8 GiB, on a node with the V extension"),
            "fields": {"cpu": "4", "memory": "8Gi", "isa": "rva22u64_v"},
        },
        {
            "title": _("A quarter of a GPU"),
            "text": _("2 CPUs, 8 GiB, 250 ‰ of one GPU and 4 GiB of its memory"),
            "fields": {"cpu": "2", "memory": "8Gi", "milli": "250", "gpumem": "4096"},
        },
        {
            "title": _("Twelve replicas of an x86-64-v3 service"),
            "text": _("1 CPU and 2 GiB each, on nodes that support x86-64-v3 or higher"),
            "fields": {"cpu": "1", "memory": "2Gi", "isa": "x86-64-v3", "replicas": "12"},
        },
    ]
