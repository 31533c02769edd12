"""`hetsched look`: report the faults of a cluster, with the user's own kubeconfig or with files.

The command only reads: it lists objects of the API server, and writes nothing to the cluster. No server of hetsched is
needed. Exec plugins and credential files of the kubeconfig are used as by kubectl. `kubectl hetsched look` runs the
same command by the script `kubectl-hetsched`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hetsched.contracts.api.cluster_report import (
    FRAGMENTATION,
    IMAGE_PLATFORMS,
    LEVELS,
    ClusterFinding,
    ClusterObservation,
    ClusterReport,
)
from hetsched.contracts.api.findings import Level
from hetsched.contracts.errors import InputError

from .api_server import api_server_errors
from .options import choose_policies, compile_choice, read_sources
from .output import Output, OutputFormat, ProgressDisplay, console, print_json, print_warnings, table

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "dim"}
_MOST_EVIDENCE = 4
_MOST_SHOWN = 20  # of each level
_POLICY, _KUBE_POLICY = "hetsched", "default-kube"
_ALL = "*"
_FAILURE_HINTS = {403: "The report needs permission to list nodes and pods; kubectl auth can-i list pods -A shows it"}


def look(
    filename: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE",
            help="File or folder with nodes and pods to read instead of a cluster; - reads standard input.",
            show_default=False,
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="Kubeconfig; default: KUBECONFIG, else ~/.kube/config."),
    ] = None,
    context: Annotated[
        str, typer.Option("--context", metavar="NAME", help="Context; default: the current context.")
    ] = "",
    policy: Annotated[
        str,
        typer.Option("--policy", metavar="NAME|FILE", help="Policy that explains pending pods and scores placements."),
    ] = _POLICY,
    registry: Annotated[
        list[str] | None,
        typer.Option(
            "--registry",
            metavar="HOST",
            help="Registry from which to read the platforms of images, or * for all public ones; can be repeated.",
            show_default=False,
        ),
    ] = None,
    fail_on: Annotated[
        Level, typer.Option("--fail-on", help="Lowest level of findings for which the exit code is 1.")
    ] = Level.ERROR,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the report as an HTML page.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Report the faults of a cluster: wrong instruction sets, kubelet rejections, stranded GPUs, waiting pods.

    Only reads the cluster; nothing is installed or written. Exit codes: 0 no finding at the level of --fail-on or
    above, 1 such findings, 2 invalid files or options, 3 the API server is unreachable or denies access to nodes
    or pods.
    """
    if filename and (kubeconfig is not None or context):
        raise InputError(
            "OptionInvalid", "files and a kubeconfig cannot be combined", place="-f", hint="Omit one of them"
        )
    observation = _from_files(filename) if filename else _from_cluster(kubeconfig, context)
    if registry:
        observation = _with_platforms(observation, registry)
    report = report_on(observation, policy)
    if output is OutputFormat.JSON:
        print_json(report.document())
    else:
        _show(console(), report, registries=bool(registry))
    if html is not None:
        _write_page(html, report, title=f"Cluster report: {_title(filename, context)}")
    raise typer.Exit(1 if report.fails(fail_on) else 0)


def _write_page(path: Path, report: ClusterReport, *, title: str) -> None:
    """Write the report as an HTML page. Raises: InputError `FileUnusable`."""
    from hetsched.adapters.look.html_page import html_page

    try:
        path.write_text(html_page(report, title=title), encoding="utf-8")
    except OSError as error:
        raise InputError(
            "FileUnusable", f"the page was not written: {error.strerror or error}", place=f"--html {path}",
            hint="Use a file in an existing folder that you may write to",
        ) from None  # fmt: skip


def _title(filename: list[str] | None, context: str) -> str:
    return ", ".join(filename) if filename else context or "current context"


def _from_files(filename: list[str]) -> ClusterObservation:
    from hetsched.adapters.look.dumped_cluster import parse_dump

    observation = parse_dump(read_sources(filename, "-f"))
    print_warnings(observation.content.warnings)
    if not observation.content.nodes:
        raise InputError(
            "ClusterWithoutNodes", "the files contain no Node object", place=f"-f {', '.join(filename)}",
            hint="Export the nodes with kubectl get nodes,pods -A -o yaml",
        )  # fmt: skip
    return observation


def _from_cluster(kubeconfig: Path | None, context: str) -> ClusterObservation:
    from hetsched.adapters.look.live_cluster import KINDS, observe_cluster
    from hetsched.adapters.look.user_kubeconfig import kubeconfig_paths, open_api

    api = open_api(kubeconfig_paths(kubeconfig, os.environ), context=context)
    kinds = 0
    with api_server_errors(_FAILURE_HINTS), ProgressDisplay("kinds of objects listed", KINDS) as progress:

        def count(kind: str) -> None:
            nonlocal kinds
            progress(kinds)
            kinds += 1

        return observe_cluster(api, count)


def _with_platforms(observation: ClusterObservation, registries: list[str]) -> ClusterObservation:
    import msgspec

    from hetsched.adapters.http.outbound import AllowedHosts, is_place
    from hetsched.adapters.look.image_platforms import with_image_platforms

    for host in registries:
        if host != _ALL and not is_place(host):
            raise InputError(
                "OptionInvalid", f"{host!r} is not a host", place="--registry", hint="Use host or host:port"
            )
    content = with_image_platforms(observation.content, AllowedHosts(frozenset(map(str.lower, registries))))
    return msgspec.structs.replace(observation, content=content)


def report_on(observation: ClusterObservation, policy: str = _POLICY) -> ClusterReport:
    """Return the report on a cluster; `policy` explains pending pods and scores placements."""
    from hetsched.engine.framework.builtin_policies import BUILTIN
    from hetsched.engine.look.report import report_of

    (spec,), _ = choose_policies([policy], observation.content, observation.content)
    return report_of(
        observation,
        compile_choice(spec, preemption=False),
        compile_choice(BUILTIN[_KUBE_POLICY]),
        evaluated_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _show(out: Console, report: ClusterReport, *, registries: bool) -> None:
    counts = ", ".join(_counted(report.counts[level.value], level) for level in LEVELS)
    worst = next((level for level in LEVELS if report.counts[level.value]), None)
    colour = "green" if worst is None else _COLOURS[worst]
    out.print(
        f"[bold {colour}]{counts}[/]  {report.nodes:,} nodes, {report.running:,} running pods, {report.pending:,} "
        "pending pods",
        soft_wrap=True,
    )
    for level in LEVELS:
        found = [finding for finding in report.findings if finding.level is level]
        for finding in found[:_MOST_SHOWN]:
            _show_finding(out, finding)
        if len(found) > _MOST_SHOWN:
            others = _counted(len(found) - _MOST_SHOWN, level)
            out.print(f"\n{others} more; --html and -o json contain all findings", soft_wrap=True)
    gpus = report.gpus
    if gpus.total:
        out.print(f"\nGPUs: {gpus.allocated:g} of {gpus.total:,} allocated, {gpus.stranded:,} stranded")
        if gpus.fragmentation is not None:
            out.print(f"GPU fragmentation: {gpus.fragmentation:.1%}, {FRAGMENTATION}", soft_wrap=True)
    regret = report.regret
    if regret.compared:
        out.print(
            f"placements: {regret.elsewhere:,} of {regret.compared:,} compared pods would run on another node, mean "
            f"regret {regret.mean:.2f} points",
            soft_wrap=True,
        )
    if regret.largest:
        shown = table("pod", "node", "node of the policy", "regret", "rank", right=("regret", "rank"))
        for one in regret.largest[:5]:
            shown.add_row(escape(one.pod), escape(one.node), escape(one.better), f"{one.regret:.2f}", str(one.rank))
        out.print(shown)
    for part in report.unchecked:
        out.print(f"[dim]not checked: {_printable(f'{part.part}: {part.reason}')}[/]", soft_wrap=True)
        if part.part == IMAGE_PLATFORMS and not registries:
            hint = "Allow the registries of the images: --registry HOST, or --registry '*'"
            out.print(f"[dim]  {hint}[/]", soft_wrap=True)
    out.print(f"[dim]policy {escape(report.policy.name)}; the cluster was only read[/]", soft_wrap=True)


def _counted(count: int, level: Level) -> str:
    return f"{count:,} {level.value}{'' if count == 1 else 's'}"


def _printable(text: str) -> str:
    """Return a text for a terminal: messages of kubelets may contain control sequences."""
    return escape("".join(letter if letter.isprintable() else " " for letter in text))


def _show_finding(out: Console, finding: ClusterFinding) -> None:
    about = f"{finding.kind} {finding.name}".strip()
    number = f" ({finding.count:,})" if finding.count > 1 else ""
    out.print(
        f"\n[{_COLOURS[finding.level]}]{finding.level.value}[/] \\[{finding.code}] "
        f"{_printable(f'{about}{number}: {finding.message}')}",
        soft_wrap=True,
    )
    for text in finding.evidence[:_MOST_EVIDENCE]:
        out.print(f"  {_printable(text)}", soft_wrap=True)
    if not finding.evidence and finding.affected:
        more = f" and {finding.count - len(finding.affected):,} more" if finding.count > len(finding.affected) else ""
        out.print(f"  {_printable(', '.join(finding.affected) + more)}", soft_wrap=True)
    out.print(f"  [dim]remedy: {_printable(finding.remedy)}[/]", soft_wrap=True)
