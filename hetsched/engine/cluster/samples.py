"""Measured use of the nodes: which samples are fresh, and how the use between two samples is estimated.

The `used` of a row starts from its sample, which includes all pods placed at that time, or from the requests. Pods that
are placed or removed later add or subtract their expected use. A sample is stale if the newest sample of the cluster is
more than STALE_SECONDS newer, or if `Usage.stale` is set. A stale sample is ignored and replaced by the requests. A
sample without a readable time is considered fresh. The engine does not use a clock, so that a cluster file gives the
same result on any day. The server uses its clock to set `Usage.stale` (`hetsched.inventory.freshness`); in its states
(`clocked`) only this field decides. A sample from the future, or from a source whose samples stay valid longer, thus
does not affect other samples.
Source: MBCGT's edge case of stale metrics, reconstructed; five minutes are twenty of Prometheus' usual 15 s intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.times import seconds

from .columns import USAGE_RESOURCES
from .state_view import StateView

STALE_SECONDS = 300.0


def fresh_rows(reports: Sequence[NodeReport], *, clocked: bool = False) -> list[bool]:
    """Return for each node whether it has a fresh sample; with `clocked`, only `Usage.stale` decides."""
    counting = [report.usage is not None and not report.usage.stale for report in reports]
    if clocked:
        return counting
    taken = [
        seconds(report.usage.observed_at) if report.usage is not None and counts else None
        for report, counts in zip(reports, counting, strict=True)
    ]
    newest = max((moment for moment in taken if moment is not None), default=0.0)
    return [
        counts and (moment is None or newest - moment <= STALE_SECONDS)
        for counts, moment in zip(counting, taken, strict=True)
    ]


class Samples:
    """The freshness of every node's sample in a state; the methods write the resulting `used` to the state.

    `stale` contains the names of the nodes with stale samples.
    """

    def __init__(self, fresh: list[bool], stale: tuple[str, ...]) -> None:
        self.fresh = fresh
        self.stale = stale

    @classmethod
    def of(cls, state: StateView) -> Samples:
        """Create the samples of a state from the node reports, which include the use of all placed pods."""
        fresh = fresh_rows(state.reports, clocked=state.clocked)
        samples = cls(fresh, _stale_names(state.reports, fresh))
        for row in range(len(state.reports)):
            samples._write(state, row)
        return samples

    def take(self, state: StateView, row: int) -> None:
        """Apply the new sample of a node. It includes the use of all placed pods, and may make other samples stale."""
        fresh = fresh_rows(state.reports, clocked=state.clocked)
        changed = {other for other, now in enumerate(fresh) if now != self.fresh[other]} - {row}
        self.fresh, self.stale = fresh, _stale_names(state.reports, fresh)
        for other in (row, *sorted(changed)):
            self._write(state, other)
            state.log.append(other)

    def _write(self, state: StateView, row: int) -> None:
        usage, field = state.reports[row].usage, state.columns.field
        sample = usage.amounts if usage is not None and self.fresh[row] else {}
        for position, name in enumerate(USAGE_RESOURCES):
            field("measured")[position, row] = name in sample
            requested = field("requested")[state.resources.index[name], row] if name in state.resources.index else 0
            field("used")[position, row] = sample.get(name, requested)

    def copy(self) -> Samples:
        return Samples(list(self.fresh), self.stale)


def _stale_names(reports: Sequence[NodeReport], fresh: Sequence[bool]) -> tuple[str, ...]:
    return tuple(
        report.name
        for report, is_fresh in zip(reports, fresh, strict=True)
        if report.usage is not None and not is_fresh
    )


def report_now(state: StateView, row: int) -> NodeReport:
    """Return a node's report with its sample and its power headroom updated to the current use."""
    report = state.reports[row]
    if report.power is not None and report.power.headroom_watts is not None:
        remaining = report.power.headroom_watts - int(state.columns.field("power_placed")[0, row])
        power = msgspec.structs.replace(report.power, headroom_watts=max(remaining, 0))
        report = msgspec.structs.replace(report, power=power)
    if report.usage is None:
        return report
    used, measured = (state.columns.field(name)[:, row].tolist() for name in ("used", "measured"))
    now = {name: max(used[i], 0) for i, name in enumerate(USAGE_RESOURCES) if measured[i]}
    usage = msgspec.structs.replace(report.usage, amounts={**report.usage.amounts, **now})
    return msgspec.structs.replace(report, usage=usage)
