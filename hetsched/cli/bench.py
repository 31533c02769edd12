"""`hetsched bench`: the performance scenarios."""

from __future__ import annotations

import enum
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.markup import escape

from .output import Output, OutputFormat, Track, console, note, print_json, table

if TYPE_CHECKING:
    from hetsched.lab.bench.measure import Scenario

EXIT_CHECK_FAILED = 1


class Benchmark(enum.StrEnum):
    ENGINE = "engine"
    ISA = "isa"
    WHATIF = "whatif"
    PREEMPT = "preempt"


def bench(
    scenario: Annotated[Benchmark, typer.Argument(help="What to measure.")] = Benchmark.ENGINE,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny run: shows that it works, measures nothing.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Measure speed on this machine: decisions a second, ISA matching, what-if answers, evictions.

    Exit code 1 if what was measured was wrong (picks that differ from a full sweep, a what-if that changed state).
    """
    run: Callable[..., Scenario] = import_module(f"hetsched.lab.bench.{scenario.value}").run
    note(f"bench {scenario.value}: this takes some minutes" if not quick else f"bench {scenario.value}, quick")
    with Track(f"bench {scenario.value}") as track:
        result = run(quick=quick, progress=track)
    if output is OutputFormat.JSON:
        print_json(msgspec.to_builtins(result))
    else:
        _show(result)
    raise typer.Exit(EXIT_CHECK_FAILED if result.checks.different else 0)


def _show(result: Scenario) -> None:
    numbers = ("median", "p10", "p90", "n")
    shown = table("case", *numbers, "unit", right=numbers)
    for row in result.rows:
        shown.add_row(
            escape(row.case), *(f"{value:,.1f}" for value in (row.median, row.p10, row.p90)), str(row.n), row.unit
        )
    out = console()
    out.print(shown)
    out.print(f"{result.checks.compared} answers compared with the oracle, {result.checks.different} different")
    facts = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    out.print(f"[dim]{escape(facts)}[/]", soft_wrap=True)
