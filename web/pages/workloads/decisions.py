"""The page of one decision: explanation, input, repetition, and comparison with another decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import Http404, HttpResponse
from django.utils.translation import gettext as _

from hetsched.access.subject import subject_of
from hetsched.placement.models import Decision, ForgottenDecision
from hetsched.placement.queries.why import changes_between
from hetsched.policies.models import Policy
from web.translation import translate

from ..script_texts import after_name, matrix_texts, repeat_texts, result_texts, state_texts
from ..shell import Shell, page
from .why import omitted_scores, why


def with_sentences(decisions: Iterable[Decision]) -> list[tuple[Decision, str]]:
    """Return each decision with its translated summary, without the pod name, which the page shows separately."""
    return [(row, after_name(f"{row.namespace}/{row.pod_name}", translate(row.summary))) for row in decisions]


@page("decisions")
def decision(shell: Shell, pk: str) -> HttpResponse:
    found = _find(shell, int(pk))
    if found is None:
        return _expired(shell, int(pk))
    shell.select_cluster(found.cluster)
    compared = shell.text("with")
    other = _find(shell, int(compared)) if compared.isdecimal() and len(compared) <= 18 else None
    return shell.render(
        "decision",
        {
            "decision": found,
            "why": {**why(found, found.pod), "left_out": omitted_scores(found)},
            "other": other,
            "other_why": why(other, other.pod) if other else None,
            "compared": compared,
            "rows": _side_by_side(found, other) if other else [],
            "before": _before(found),
            "policies": Policy.objects.filter(active_version__gt=0),
            "words": {**state_texts(), **result_texts(), **matrix_texts(), **repeat_texts()},
        },
    )


def _find(shell: Shell, pk: int) -> Decision | None:
    rows = Decision.objects.select_related("cluster", "pod__node").defer("pod__spec")
    found = rows.filter(pk=pk).first()
    return found if found and subject_of(shell.request).may_in(found.namespace) else None


def _expired(shell: Shell, pk: int) -> HttpResponse:
    """Return a 410 response with the stored summary of a decision whose workload was deleted.

    Raises: Http404 if there is no stored summary.
    """
    kept = ForgottenDecision.objects.select_related("cluster").filter(pk=pk).first()
    if kept is None or not subject_of(shell.request).may_in(kept.namespace):
        raise Http404(_("Decision %(id)s does not exist.") % {"id": pk})
    shell.select_cluster(kept.cluster)
    return shell.render("decision_gone", {"kept": kept}, status=410)


def _before(decision: Decision) -> int | None:
    """Return the ID of the previous decision on the same pod, or None if this is the first one."""
    rows = Decision.objects.filter(pod_id=decision.pod_id, pk__lt=decision.pk).order_by("-pk")
    return rows.values_list("pk", flat=True).first()


def _side_by_side(one: Decision, other: Decision) -> list[dict[str, Any]]:
    """Return the rows of the table that compares two decisions."""
    words = state_texts()
    rows = [
        (_("Pod"), _pod(one), _pod(other)),
        (_("Verdict"), words[one.verdict], words[other.verdict]),
        (_("Node"), one.node_name, other.node_name),
        (_("Score"), _score(one), _score(other)),
        (_("Policy"), one.policy_words, other.policy_words),
        (_("Summary"), translate(one.summary), translate(other.summary)),
        (_("Snapshot"), one.snapshot, other.snapshot),
        (_("Revision"), str(one.cluster_revision), str(other.cluster_revision)),
        (_("Inventory revision"), str(one.inventory_revision), str(other.inventory_revision)),
    ]
    for row in changes_between(other, one).reasons:
        rows.append((f"{row.plugin}: {translate(row.message)}", str(row.now), str(row.before)))
    return [{"what": what, "one": a or "–", "other": b or "–", "differs": a != b} for what, a, b in rows]


def _pod(decision: Decision) -> str:
    return f"{decision.namespace}/{decision.pod_name}"


def _score(decision: Decision) -> str:
    return "" if decision.score is None else f"{decision.score:.2f}"
