"""The first screen: is anything wrong, how full is the fleet, what was decided last.

Rule: the page carries the documents of its live topics, so the first paint needs no socket and later deltas are applied
to what is shown. Of decisions it carries its own cluster's, which a busier cluster's may have displaced in the topic.
"""

from __future__ import annotations

from django.http import HttpResponse
from django.utils.translation import gettext as _

from hetsched.inventory.hearing import agents_of
from hetsched.inventory.models import Cluster
from hetsched.inventory.tiles import without_nulls
from hetsched.placement.topics import cluster_document, decisions_document
from hetsched.policies.models import Policy

from .shell import Shell, page
from .words import grid_words, state_words


@page("fleet")
def fleet(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("fleet", {})
    return shell.render("fleet", {"live": True, "query": shell.text("q"), **_content(shell.cluster)})


def _content(cluster: Cluster) -> dict[str, object]:
    policy = Policy.objects.filter(name=cluster.policy_name).first()
    return {
        "agents": agents_of(cluster.pk),
        "policy_version": policy.active_version if policy else "?",
        "measures": measures(),
        "verdicts": verdicts(),
        "words": {"title": _("Fleet"), **state_words(), **grid_words()},
        "initial": {
            "cluster": without_nulls(cluster_document(cluster)),
            "decisions": without_nulls(decisions_document(cluster)),
        },
    }


def measures() -> list[dict[str, str]]:
    """Return the three bars of a tile, with their names."""
    return [
        {"kind": "cpu", "label": _("CPU")},
        {"kind": "memory", "label": _("memory")},
        {"kind": "gpu", "label": _("GPU")},
    ]


def verdicts() -> list[dict[str, str]]:
    """Return the four figures on top: which states each one counts, and where it leads."""
    return [
        {
            "state": "running",
            "states": "placed binding bound running",
            "tone": "good",
            "label": _("Running"),
            "meaning": _("placed, bound or running"),
        },
        {
            "state": "not-now",
            "states": "pending not-now",
            "tone": "wait",
            "label": _("Waiting"),
            "meaning": _("fits later, or not tried yet"),
        },
        {
            "state": "never-fits",
            "states": "never-fits",
            "tone": "bad",
            "label": _("Never fits"),
            "meaning": _("no node could take it, even empty"),
        },
        {
            "state": "misconfigured",
            "states": "misconfigured",
            "tone": "bad",
            "label": _("Misconfigured"),
            "meaning": _("the request itself is wrong"),
        },
    ]
