"""Which samples of measured use still count.

Rule: a sample is stale when the newest sample of the cluster is more than STALE_SECONDS younger; a stale one counts as
none, and requests take its place. A sample that does not say when it was taken, or not readably, counts as fresh.
Why not the clock: the engine has none, and a file must give the same answer tomorrow.
Source: MBCGT's edge case of stale metrics, reconstructed; five minutes are twenty of Prometheus' usual 15 s intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetsched.contracts.node_report import NodeReport
from hetsched.contracts.times import seconds

STALE_SECONDS = 300.0


def fresh_rows(reports: Sequence[NodeReport]) -> list[bool]:
    """Return for each node whether it has a sample that counts."""
    taken = [None if report.usage is None else seconds(report.usage.observed_at) for report in reports]
    newest = max((moment for moment in taken if moment is not None), default=0.0)
    return [
        report.usage is not None and (moment is None or newest - moment <= STALE_SECONDS)
        for report, moment in zip(reports, taken, strict=True)
    ]
