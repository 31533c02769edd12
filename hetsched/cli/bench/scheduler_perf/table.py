"""Table of the results of scheduler_perf: one line for each workload, then skipped workloads and failed runs."""

from __future__ import annotations

from rich.markup import escape

from hetsched.lab.bench.measure import BenchmarkRow, Scenario

from ...output import console, table
from .suite import OURS, RATIO, THEIRS

# Columns with a throughput or a ratio, then columns with two numbers, each with the rows that they contain.
_RATES = {f"{OURS}, pods/s": OURS, f"{THEIRS}, pods/s": THEIRS, "ratio": RATIO}
_PAIRS = {
    "created, pods/s": (f"{OURS}, created", f"{THEIRS}, created"),
    **{
        f"{name}, p50 / p99, ms": (f"{name}, created to bound, p50", f"{name}, created to bound, p99")
        for name in (OURS, THEIRS)
    },
}


def show(result: Scenario) -> None:
    """Print the result on standard output; with several turns, the spread p10 to p90 follows the median."""
    known = {one.case: one for one in result.rows}
    numbers = (*_RATES, *_PAIRS, "n")
    shown = table("workload", *numbers, right=numbers)
    for name in dict.fromkeys(one.case.rpartition(": ")[0] for one in result.rows):
        cells = [_rate(known.get(f"{name}: {suffix}")) for suffix in _RATES.values()]
        cells += [_pair(known, [f"{name}: {suffix}" for suffix in pair]) for pair in _PAIRS.values()]
        turns = max(one.n for case, one in known.items() if case.startswith(f"{name}: "))
        shown.add_row(escape(name), *cells, str(turns))
    out = console()
    out.print(shown)
    for one in result.machine["skipped"]:
        out.print(f"skipped {escape(one['case'])}: {escape(one['reason'])}", soft_wrap=True)
    for one in result.machine["failed"]:
        out.print(
            f"failed {escape(one['case'])}: {one['missing']} pods not bound: {escape(one['reason'])}", soft_wrap=True
        )
    out.print(f"{result.checks.compared} measured pods, {result.checks.different} not bound")
    facts = ", ".join(f"{name} {value}" for name, value in result.machine.items() if name not in ("skipped", "failed"))
    out.print(f"[dim]{escape(facts)}[/]", soft_wrap=True)


def _rate(one: BenchmarkRow | None) -> str:
    if one is None:
        return "-"
    digits = 2 if one.unit == "ratio" else 0
    text = f"{one.median:,.{digits}f}"
    return text if one.n == 1 else f"{text} ({one.p10:,.{digits}f} to {one.p90:,.{digits}f})"


def _pair(known: dict[str, BenchmarkRow], cases: list[str]) -> str:
    return " / ".join(f"{known[case].median:,.0f}" if case in known else "-" for case in cases)
