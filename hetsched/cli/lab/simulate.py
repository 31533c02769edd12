"""`hetsched simulate`: run a whole workload against a cluster, once per policy, and compare the results.

Each pod is tried once, in queue order, and pods do not end. The report folder is written at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.workload import PodSpec

from ..options import ClusterFiles, Strict, WorkloadFiles, choose_policies, compile_choice, read_inputs
from ..output import Output, OutputFormat, ProgressDisplay, console, print_json, table
from .reports import ReportFolder, make_folder, write_report

if TYPE_CHECKING:
    from hetsched.lab.report import PolicyRun

_REPORT_SAMPLES = 200


def simulate(
    cluster: ClusterFiles,
    workload: WorkloadFiles,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME|FILE",
            help="Policy to simulate; can be repeated to compare policies.",
            show_default=False,
        ),
    ] = None,
    report: ReportFolder = None,
    arrival: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Draw pods at random until the GPU demand is X times the capacity.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random pods of --arrival.", min=0)] = 0,
    strict: Strict = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Replay a workload or an openb trace and report placements and cluster metrics."""
    nodes, asked = read_inputs(cluster, workload, option="--workload", strict=strict)
    specs, pods = choose_policies(policy or [], nodes, asked)
    policies = [compile_choice(spec) for spec in specs]

    from hetsched.engine.cluster.state import ClusterState
    from hetsched.lab.replay import replay
    from hetsched.lab.report import PolicyRun

    stream = _arrivals(nodes, pods, arrival, seed)
    if report is not None:
        make_folder(report)
    state = ClusterState.of(nodes)
    state.add_storage(asked.storage, asked.devices)
    runs: list[PolicyRun] = []
    for compiled in policies:
        with ProgressDisplay(f"simulate {compiled.spec.name}", len(stream)) as track:
            samples = _REPORT_SAMPLES if report is not None else 0
            result, taken = replay(state, stream, compiled, workload=pods, samples=samples, progress=track)
        runs.append(PolicyRun(result, tuple(taken)))
    if report is not None:
        _write_report(report, nodes, stream, runs, arrival, seed)
    if output is OutputFormat.JSON:
        print_json({"results": [to_plain(run.result) for run in runs]})
    else:
        _show(runs, len(nodes.nodes), len(stream))


def _arrivals(nodes: ClusterContent, pods: list[PodSpec], ratio: float | None, seed: int) -> list[PodSpec]:
    if ratio is None:
        return pods
    from hetsched.lab.arrival import arrival_stream, gpu_capacity_milli

    try:
        return arrival_stream(pods, capacity_milli=gpu_capacity_milli(nodes.nodes), ratio=ratio, seed=seed)
    except InputError as error:
        raise error.at("--arrival") from None


def _write_report(
    folder: Path, nodes: ClusterContent, stream: list[PodSpec], runs: list[PolicyRun], arrival: float | None, seed: int
) -> None:
    from hetsched.lab.report import report_files

    facts = [("Nodes", f"{len(nodes.nodes):,}"), ("Pods already running", f"{len(nodes.running):,}")]
    facts.append(("Pods tried", f"{len(stream):,}"))
    if arrival is not None:
        facts.append(("Arrival", f"GPU demand {arrival:g} x capacity, seed {seed}"))
    write_report(folder, report_files("hetsched simulation", facts, runs))


def _show(runs: list[PolicyRun], nodes: int, pods: int) -> None:
    out = console()
    out.print(f"{pods:,} pods on {nodes:,} nodes")
    numbers = ("placed", "pending", "cpu", "memory", "gpu", "free", "strands", "balance", "pods/s")
    shown = table("policy", *numbers, right=numbers)
    shown.padding = (0, 1, 0, 0)  # fit ten columns into eighty characters
    for run in runs:
        result, metrics = run.result, run.result.metrics
        shown.add_row(
            escape(result.policy),
            f"{result.placed:,}",
            f"{result.pending:,}",
            _percent(metrics.cpu_utilization),
            _percent(metrics.memory_utilization),
            _percent(metrics.gpu_allocation),
            f"{metrics.unallocated_gpus:,.1f}",
            _percent(metrics.gpu_fragmentation),
            f"{metrics.balance:.4f}",
            f"{result.decisions_per_second:,.0f}",
        )
    out.print(shown)
    for run in runs:
        if run.result.evicted:
            left = "1 pod" if run.result.evicted == 1 else f"{run.result.evicted:,} pods"
            out.print(f"{escape(run.result.policy)} evicted {left} that were already running", soft_wrap=True)
    out.print("[dim]free: unallocated GPUs; strands: free GPU share that no shape of the workload can use[/]")


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f}%"
