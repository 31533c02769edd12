"""Shadow mode: compare another scheduler's choices with those of hetsched, as an overview and for one pod."""

from __future__ import annotations

import shlex
from typing import Any

from django.http import Http404, HttpResponse
from django.utils.translation import gettext as _

from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.placement.models import Judgement, Shadow
from hetsched.placement.queries.shadow_report import WORST, RegretBin, summary, worst_choices

from ..shell import Shell, page

PAGE_SIZE = 50
SECONDS_BETWEEN_LOOKS = 15  # the page polls, because comparisons have no live topic
TONES = {Judgement.SAME: "good", Judgement.EQUAL: "good", Judgement.WORSE: "wait", Judgement.INFEASIBLE: "bad"}


@page("shadow")
def shadow(shell: Shell) -> HttpResponse:
    if shell.cluster is None:
        return shell.render("shadow", {})
    shell.follow(cluster_topic(shell.cluster))
    rows = Shadow.objects.filter(cluster=shell.cluster)
    found = summary(shell.cluster, rows)
    judgement = shell.text("judgement")
    judgement = judgement if judgement in Judgement.values else ""
    listed = rows.exclude(judged_at=None).defer("spec", "theirs", "top").order_by("-id")
    shown = shell.page_of(listed.filter(judgement=judgement) if judgement else listed, PAGE_SIZE)
    most = max((bucket.pods for bucket in found.regret), default=0)
    tabs = [("", _("all"), found.judged)]
    tabs += [(one.value, str(one.label), getattr(found, one.value)) for one in Judgement]
    return shell.render(
        "shadow",
        {
            "found": found,
            "every": SECONDS_BETWEEN_LOOKS,
            "figures": [
                {"label": one.label, "pods": getattr(found, one.value), "tone": tone, "share": _share(found, one)}
                for one, tone in TONES.items()
            ],
            "bins": [
                {"label": _bin_label(bucket), "pods": bucket.pods, "ratio": bucket.pods / most if most else 0.0}
                for bucket in found.regret
            ],
            "worst": [(row, Judgement(row.judgement).label) for row in worst_choices(rows)[:WORST]],
            "rows": [(row, Judgement(row.judgement).label) for row in shown],
            "page": shown,
            "tabs": [
                {
                    "label": label,
                    "count": count,
                    "url": shell.keep(judgement=value) or "?",
                    "current": value == judgement,
                }
                for value, label, count in tabs
            ],
            "filter_query": shell.keep(judgement=judgement).replace("?", "&", 1),
            "followed": Connection.objects.filter(cluster=shell.cluster).exclude(shadow_of="").exists(),
            "has_scheduler": shell.cluster.kind == ClusterKind.KUBERNETES,
            "command": _command(shell.cluster),
        },
    )


def _command(cluster: Cluster) -> str:
    """Return the command that enters shadow mode: for this cluster, or for a new one if this has no scheduler."""
    if cluster.kind != ClusterKind.KUBERNETES:
        return "hetsched cluster add prod --kubeconfig KUBECONFIG --shadow default-scheduler"
    return f"hetsched cluster connect {shlex.quote(cluster.name)} --shadow default-scheduler"


@page("shadow")
def shadow_of_pod(shell: Shell, pk: int) -> HttpResponse:
    row = Shadow.objects.select_related("cluster").defer("spec").filter(pk=pk).first()
    if row is None:
        raise Http404(_("Comparison %(id)s does not exist.") % {"id": pk})
    shell.select_cluster(row.cluster)
    top = [node for node in row.top if node.feasible]
    nodes = [*top, *([row.theirs] if row.theirs and row.theirs.name not in {node.name for node in top} else [])]
    judgement = Judgement(row.judgement) if row.judgement else None
    return shell.render(
        "shadow_of_pod",
        {
            "row": row,
            "label": judgement.label if judgement else _("not compared yet"),
            "tone": TONES[judgement] if judgement else "",
            "nodes": nodes,
            "scores": nodes[0].scores if nodes else (),
        },
    )


def _share(found: Any, judgement: Judgement) -> str:
    return f"{100 * getattr(found, judgement.value) / found.judged:.1f} %" if found.judged else "–"


def _bin_label(bucket: RegretBin) -> str:
    if bucket.above is None:
        return _("none")
    if bucket.most is None:
        return _("more than %(points)g") % {"points": bucket.above}
    return _("%(above)g to %(most)g") % {"above": bucket.above, "most": bucket.most}
