"""`hetsched bench`: the performance scenarios."""

from __future__ import annotations

import enum
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError

from ..api_server import api_server_errors
from ..options import read_kubeconfig
from ..output import Output, OutputFormat, ProgressDisplay, console, note, print_json, table

if TYPE_CHECKING:
    from hetsched.lab.bench.measure import BenchmarkRow, Scenario

EXIT_CHECK_FAILED = 1
_SIZE, _QUICK_SIZE = "500Nodes", "5Nodes"


class Benchmark(enum.StrEnum):
    ENGINE = "engine"
    ISA = "isa"
    WHATIF = "whatif"
    PREEMPT = "preempt"
    CLUSTER = "cluster"
    WATCH = "watch"
    CONSOLE = "console"


class Suite(enum.StrEnum):
    SCHEDULER_PERF = "scheduler-perf"


def bench(
    scenario: Annotated[Benchmark, typer.Argument(help="Scenario to run.")] = Benchmark.ENGINE,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short run that checks the scenario; its numbers are not meaningful.")
    ] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Kubeconfig of an API server without nodes, as of `make kube-up`; only for the scenario cluster.",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes (scenarios cluster, watch and console).", min=1, max=20_000)
    ] = None,
    pods: Annotated[
        int | None,
        typer.Option(
            help="Number of pods for each scheduler (cluster), or of running pods (watch and console).",
            min=1,
            max=200_000,
        ),
    ] = None,
    sockets: Annotated[
        int | None, typer.Option(help="Number of WebSocket clients (scenario console).", min=3, max=5000)
    ] = None,
    turns: Annotated[
        int,
        typer.Option(
            help="Number of runs of each scheduler, which run alternately; only for the scenario cluster.",
            min=1,
            max=100,
        ),
    ] = 1,
    kube_scheduler: Annotated[
        Path | None,
        typer.Option(
            metavar="PROGRAM",
            help="Path to kube-scheduler, by default the program on PATH; only for the scenario cluster.",
        ),
    ] = None,
    suite: Annotated[
        Suite | None,
        typer.Option(help="Run workloads of Kubernetes' scheduler_perf instead; only for the scenario cluster."),
    ] = None,
    scheduler_perf: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder test/integration/scheduler_perf of k8s.io/kubernetes, by default of the newest version in Go's"
            " module cache.",
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="WORKLOAD",
            help="Name of the workloads to run, by default 500Nodes; repeatable. A test case without this workload is"
            " skipped.",
        ),
    ] = None,
    backlog: Annotated[
        bool,
        typer.Option(
            "--backlog",
            help="Suspend the scheduler while the measured pods of scheduler_perf are created, and measure from its"
            " resumption: the throughput of the scheduler without that of the creation.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Test case of scheduler_perf to run; repeatable.")
    ] = None,
    database: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="PostgreSQL server for hetsched, as postgres://USER:PASSWORD@HOST:PORT/NAME, instead of SQLite; each"
            " run creates a database and drops it. Only for the scenarios cluster and watch.",
            show_default=False,
        ),
    ] = "",
    output: Output = OutputFormat.TEXT,
) -> None:
    """Run a performance scenario: decisions per second, ISA matching, what-if, evictions, cluster, watch,
    console.

    The exit code is 1 if a result was wrong, for example decisions that differ from a full evaluation, a what-if that
    changed state, or pods that were never bound.
    """
    show: Callable[[Scenario], None] = _show
    if database:
        _check_database(scenario, database)
    if backlog and suite is None:
        hint = "Add --suite scheduler-perf; scenario `cluster` always measures a backlog"
        raise InputError("OptionInvalid", "only scheduler_perf has measured pods", place="--backlog", hint=hint)
    if scenario is Benchmark.CLUSTER and suite is not None:
        from .scheduler_perf import suite as scheduler_perf_suite
        from .scheduler_perf import table as scheduler_perf_table

        document, program = _rivals(kubeconfig, kube_scheduler)
        folder = scheduler_perf or scheduler_perf_suite.find_configurations()
        names = sizes or [_QUICK_SIZE if quick else _SIZE]
        measured = partial(scheduler_perf_suite.run, document, configurations=folder, sizes=names, only=only or ())
        run = partial(measured, program=program, database=database, turns=turns, backlog=backlog, on_rows=_note_rows)
        show = scheduler_perf_table.show
    elif scenario is Benchmark.CLUSTER:
        from . import cluster

        document, program = _rivals(kubeconfig, kube_scheduler)
        size = (20, 40) if quick else (nodes or 1000, pods or 2000)
        measured = partial(cluster.run, document, nodes=size[0], pods=size[1])
        run = partial(measured, program=program, database=database, turns=turns)
    elif scenario is Benchmark.WATCH:
        from . import watch

        sizes_of_watch = (20, 200, 1) if quick else (nodes or 5000, pods or 50_000, 20)
        run = partial(watch.run, *sizes_of_watch, database=database)
    elif scenario is Benchmark.CONSOLE:
        from . import console as bench_console

        run = partial(
            bench_console.run, *((40, 400, 5, 4) if quick else (nodes or 5000, pods or 50_000, sockets or 200, 20))
        )
    else:
        run = partial(import_module(f"hetsched.lab.bench.{scenario.value}").run, quick=quick)
    note(f"bench {scenario.value}: takes some minutes" if not quick else f"bench {scenario.value}, quick")
    with api_server_errors(), ProgressDisplay(f"bench {scenario.value}") as track:
        result = run(progress=track)
    if output is OutputFormat.JSON:
        print_json(to_plain(result))
    else:
        show(result)
    raise typer.Exit(EXIT_CHECK_FAILED if result.checks.different else 0)


def _check_database(scenario: Benchmark, url: str) -> None:
    """Raises: InputError `DatabaseUnusable`."""
    if scenario not in (Benchmark.CLUSTER, Benchmark.WATCH):
        message = f"scenario `{scenario.value}` does not use this database"
        hint = "Use it with the scenarios cluster and watch"
        raise InputError("DatabaseUnusable", message, place="--database", hint=hint)
    from .databases import check_server

    check_server(url)


def _rivals(kubeconfig: Path | None, program: Path | None) -> tuple[dict[str, Any], Path]:
    """Return the kubeconfig and the path of kube-scheduler.

    Raises: InputError `ConnectionUnclear`, `ProgramMissing`.
    """
    if kubeconfig is None:
        hint = "Use --kubeconfig FILE with an API server without nodes, for example from `make kube-up`"
        raise InputError("ConnectionUnclear", "scenario `cluster` needs an API server", place="--kubeconfig", hint=hint)
    found = shutil.which(program or "kube-scheduler")
    if found is None:
        message = "kube-scheduler is not on PATH" if program is None else f"{program} is not an executable program"
        hint = "Use --kube-scheduler PROGRAM, for example the one that `make kube` builds"
        raise InputError("ProgramMissing", message, place="--kube-scheduler", hint=hint)
    return read_kubeconfig(kubeconfig, ""), Path(found)


def _note_rows(rows: Sequence[BenchmarkRow]) -> None:
    """Print rows on standard error, before the table at the end of the run."""
    for row in rows:
        note(f"{row.case}: {row.median:,.2f} {row.unit}, n {row.n}")


def _show(result: Scenario) -> None:
    numbers = ("median", "p10", "p90", "n")
    shown = table("case", *numbers, "unit", right=numbers)
    for row in result.rows:
        shown.add_row(
            escape(row.case), *(f"{value:,.1f}" for value in (row.median, row.p10, row.p90)), str(row.n), row.unit
        )
    out = console()
    out.print(shown)
    out.print(f"{result.checks.compared} results compared with the oracle, {result.checks.different} different")
    facts = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    out.print(f"[dim]{escape(facts)}[/]", soft_wrap=True)
