"""Summary of shadow mode: how often another scheduler chose the same node as hetsched, and its regret.

Shares are fractions of the compared pods. `choices` is the number of pods with more than one feasible node, because
with a single feasible node both schedulers always agree. Regret is the score of hetsched's node minus the score of the
other scheduler's node; it is computed over the pods on nodes that hetsched's filters accept.
Units: points of the policy, 0-100.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.db.models import Count, F, Q, QuerySet

from hetsched.inventory.models import Cluster, Connection
from hetsched.placement.models import Judgement, Shadow

EDGES = (1.0, 5.0, 10.0, 25.0, 50.0)
WORST = 10


class RegretBin(msgspec.Struct, frozen=True, rename="camel"):
    """Number of pods whose regret is above `above` and at most `most` points; None means no limit on that side."""

    above: float | None
    most: float | None
    pods: int


class InfeasibleReason(msgspec.Struct, frozen=True, rename="camel"):
    """The number of pods on nodes that a filter of hetsched rejects, for one reason."""

    plugin: str
    code: str
    pods: int


class ShadowSummary(msgspec.Struct, frozen=True, rename="camel"):
    """Shadow mode results of a cluster; `waiting` pods are not compared yet, and `dropped` pods are never compared."""

    cluster: str
    scheduler: str | None
    judged: int
    waiting: int
    dropped: int
    same: int
    equal: int
    worse: int
    infeasible: int
    choices: int
    same_of_choices: int
    agreement: float | None
    as_good: float | None
    regret_mean: float | None
    regret_median: float | None
    regret_p90: float | None
    regret_most: float | None
    regret: tuple[RegretBin, ...]
    refused_for: tuple[InfeasibleReason, ...]


def summary(cluster: Cluster, rows: QuerySet[Shadow]) -> ShadowSummary:
    """Summarize the shadow comparisons `rows` of a cluster."""
    counts = rows.aggregate(
        waiting=Count("id", filter=Q(judged_at=None)),
        judged=Count("id", filter=Q(judged_at__isnull=False)),
        choices=Count("id", filter=Q(feasible__gt=1)),
        same_of_choices=Count("id", filter=Q(feasible__gt=1, judgement=Judgement.SAME)),
        **{judgement.value: Count("id", filter=Q(judgement=judgement.value)) for judgement in Judgement},
    )
    judged = counts["judged"]
    known = rows.filter(regret__isnull=False).order_by().values_list("regret", flat=True)
    regrets = sorted(regret for regret in known if regret is not None)
    connection = Connection.objects.filter(cluster=cluster).first()
    return ShadowSummary(
        cluster=cluster.name,
        scheduler=(connection.shadow_of or None) if connection is not None else None,
        dropped=connection.shadow_dropped if connection is not None else 0,
        agreement=round(counts["same"] / judged, 4) if judged else None,
        as_good=round((counts["same"] + counts["equal"]) / judged, 4) if judged else None,
        regret_mean=round(sum(regrets) / len(regrets), 4) if regrets else None,
        regret_median=_at(regrets, 0.5),
        regret_p90=_at(regrets, 0.9),
        regret_most=_at(regrets, 1.0),
        regret=_bins(regrets),
        refused_for=_refused_for(rows),
        **counts,
    )


def worst_choices(rows: QuerySet[Shadow]) -> QuerySet[Shadow]:
    """Return the pods on worse or infeasible nodes: those on infeasible nodes first, then by descending regret."""
    odd = rows.filter(judgement__in=[Judgement.WORSE.value, Judgement.INFEASIBLE.value])
    return odd.order_by(F("regret").desc(nulls_first=True), "-id").defer("spec", "theirs", "top")


def _at(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 4) if ordered else None


def _bins(regrets: list[float]) -> tuple[RegretBin, ...]:
    bins = [RegretBin(None, 0.0, sum(regret <= 0 for regret in regrets))]
    for above, most in zip((0.0, *EDGES), (*EDGES, None), strict=True):
        inside = sum(above < regret and (most is None or regret <= most) for regret in regrets)
        bins.append(RegretBin(above, most, inside))
    return tuple(bins)


def _refused_for(rows: QuerySet[Shadow]) -> tuple[InfeasibleReason, ...]:
    counted: dict[tuple[str, str], int] = {}
    for refusal in rows.filter(judgement=Judgement.INFEASIBLE.value).values_list("refusal", flat=True):
        if refusal is not None:
            key = refusal.plugin, refusal.code
            counted[key] = counted.get(key, 0) + 1
    ordered: list[Any] = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return tuple(InfeasibleReason(plugin, code, pods) for (plugin, code), pods in ordered)
