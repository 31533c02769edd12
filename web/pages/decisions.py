"""One decision by its own address."""

from __future__ import annotations

from collections.abc import Iterable

from django.http import Http404, HttpResponse
from django.utils.translation import gettext as _

from hetsched.placement.models import Decision, ForgottenDecision

from .shell import Shell, page
from .why import why
from .words import after_name, result_words, state_words


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
