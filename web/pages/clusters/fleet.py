"""The fleet page: workload status, use of the nodes, latest decisions.

The page contains the documents of its live topics with their revisions, so that the first paint needs no socket and the
socket resumes from these revisions. Nodes are encoded as columns, which takes a fifth of the space of one document per
node. The cluster's decisions are read from the database, because a busier cluster may have displaced them from the
topic, which has only the latest 50. The browser requests headroom separately.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext as _

from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.agent_messages import count_agents
from hetsched.inventory.models import Cluster
from hetsched.inventory.tiles import pack_tiles, without_nulls
from hetsched.journal.models import OutboxEvent
from hetsched.journal.publish import revision_of
from hetsched.placement.queries.pod_counts import published_metrics
from hetsched.placement.queries.topics import DECISIONS, decisions_document
from hetsched.policies.models import Policy
from hetsched.storage.snapshot_read import consistent_reads
from web.translation import with_summaries

from ..script_texts import grid_texts, state_texts
from ..shell import Shell, page


@page("fleet")
def fleet(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("fleet", {})
    return shell.render("fleet", {"live": True, "query": shell.text("q"), **_content(shell.cluster)})


def _content(cluster: Cluster) -> dict[str, object]:
    policy = Policy.objects.filter(name=cluster.policy_name).first()
    initial = _initial(cluster)
    events = OutboxEvent.objects.filter(topic=cluster_topic(cluster), revision=initial["revisions"]["cluster"])
    return {
        "agents": count_agents(cluster.pk),
        "policy_version": policy.active_version if policy else "?",
        "changed_at": events.values_list("created_at", flat=True).first(),
        "measures": measures(),
        "heat_measures": [
            *measures(),
            {"kind": "balance", "label": _("balance")},
            {"kind": "state", "label": _("state")},
        ],
        "verdicts": verdicts(),
        "words": {"title": _("Fleet"), **state_texts(), **grid_texts(), **fleet_texts()},
        "initial": initial,
    }


def _initial(cluster: Cluster) -> dict[str, Any]:
    """Return the documents of the page's topics with their revisions."""
    with consistent_reads():
        return {
            "revisions": {"cluster": revision_of(cluster_topic(cluster)), "decisions": revision_of(DECISIONS)},
            "cluster": without_nulls(published_metrics(Cluster.objects.get(pk=cluster.pk))),
            "columns": pack_tiles(cluster.nodes.all()),
            "decisions": without_nulls(with_summaries(decisions_document(cluster))),
        }


def fleet_texts() -> dict[str, str]:
    """Return the labels of the heat map and the headroom table."""
    return {
        "heat": _("Heat map"),
        "nodes-by": _("nodes, coloured by"),
        "balance": _("balance"),
        "state": _("state"),
        "even": _("balanced"),
        "uneven": _("unbalanced"),
        "no-cards": _("no GPUs"),
        "gone": _("removed"),
        "updates": _("Show {n} updated nodes"),
        "pool": _("Pool"),
        "headroom-now": _("now"),
        "headroom-counting": _("The first computation is in progress."),
        "headroom-unknown": _("The computation failed. hetsched retries it."),
        "headroom-fits": _("{count} more copies fit in {pool} now"),
        "headroom-fits-least": _("at least {count} more copies fit in {pool} now"),
        "headroom-emulated": _("including {count} with emulation (slower than native)"),
        "headroom-none": _("no more copies fit in {pool} now: {reason}"),
        "headroom-like": _("requested by {count} recent workloads, for example {pod}"),
        "headroom-example": _("example"),
        "headroom-part": _("{milli} ‰ of a GPU"),
        "headroom-cards": _("{cards} GPUs"),
        "headroom-anything": _("no requests"),
        "headroom-any": _("any"),
    }


def measures() -> list[dict[str, str]]:
    """Return the CPU, memory and GPU bars of a node's tile, each with its label."""
    return [
        {"kind": "cpu", "label": _("CPU")},
        {"kind": "memory", "label": _("memory")},
        {"kind": "gpu", "label": _("GPU")},
    ]


def verdicts() -> list[dict[str, str]]:
    """Return the four status counters of the page, each with the states that it counts and its link."""
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
            "label": _("Pending"),
            "meaning": _("not now, or not scheduled yet"),
        },
        {
            "state": "never-fits",
            "states": "never-fits",
            "tone": "bad",
            "label": _("Never fits"),
            "meaning": _("does not fit on any node, even an empty node"),
        },
        {
            "state": "misconfigured",
            "states": "misconfigured",
            "tone": "bad",
            "label": _("Misconfigured"),
            "meaning": _("the request is invalid"),
        },
    ]
