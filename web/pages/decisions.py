"""The ledger of decisions, and one decision by its own address."""

from __future__ import annotations

from collections.abc import Iterable

from django.http import Http404, HttpResponse
from django.utils.translation import gettext as _

from hetsched.placement.lifecycle import LABELS, State
from hetsched.placement.models import Decision, ForgottenDecision
from hetsched.placement.topics import DECISIONS

from .shell import Shell, page
from .why import why
from .words import after_name, result_words, state_words

PAGE_SIZE = 50
VERDICTS = (State.PLACED, State.NOT_NOW, State.NEVER_FITS, State.MISCONFIGURED)


@page("decisions")
def decisions(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("decisions", {})
    shell.follow(DECISIONS)
    verdict, query = shell.text("verdict"), shell.text("q")
    rows = Decision.objects.filter(cluster=shell.cluster)
    if verdict in {state.value for state in VERDICTS}:
        rows = rows.filter(verdict=verdict)
    if query:
        rows = rows.filter(pod_name__icontains=query)
    found = shell.page_of(rows.defer("reasons", "top", "allocation", "evictions").order_by("-id"), PAGE_SIZE)
    tabs = [("", _("all"))] + [(state.value, LABELS[state]) for state in VERDICTS]
    return shell.render(
        "decisions",
        {
            "query": query,
            "verdict": verdict,
            "tabs": [
                {"label": label, "url": shell.keep(verdict=value, q=query) or "?", "current": value == verdict}
                for value, label in tabs
            ],
            "page": found,
            "rows": with_sentences(found.object_list),
            "filter_query": shell.keep(verdict=verdict, q=query).replace("?", "&", 1),
        },
    )


def with_sentences(decisions: Iterable[Decision]) -> list[tuple[Decision, str]]:
    """Return decisions with what their rows say beside the pod's name."""
    return [(row, after_name(f"{row.namespace}/{row.pod_name}", row.summary)) for row in decisions]


@page("decisions")
def decision(shell: Shell, pk: int) -> HttpResponse:
    found = Decision.objects.select_related("cluster", "pod__node").defer("pod__spec").filter(pk=pk).first()
    if found is None:
        kept = ForgottenDecision.objects.filter(pk=pk).first()
        if kept is not None:
            raise Http404(_("Only the summary of this decision was kept: %(summary)s") % {"summary": kept.summary})
        raise Http404(_("There is no decision %(id)s.") % {"id": pk})
    shell.cluster = found.cluster
    words = {**state_words(), **result_words()}
    return shell.render("decision", {"decision": found, "why": why(found, found.pod), "words": words})
