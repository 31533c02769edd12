"""`hetsched check`: check manifests, and the requirements of their programs, against a fleet before a merge.

The command runs the engine on a copy of the fleet and does not write anything. The fleet is a snapshot in files, or the
current state of a server. The check fails for pods that are misconfigured or never fit, and for programs that require
more than their pod requests. For a pod that merely has to wait, it fails only with `--fail-on not-now`. Running pods
with the names of checked pods (for example from an earlier run) are treated as deleted, because the checked pods will
replace them. Reports are written even if the check fails.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from hetsched import __version__
from hetsched.adapters import gate_reports
from hetsched.adapters.files import parse_workload
from hetsched.adapters.objects.documents import lines_of_documents, load_documents
from hetsched.adapters.objects.manifests import read_content
from hetsched.adapters.oci.inspection import inspect_path
from hetsched.adapters.traces.openb import looks_like_openb
from hetsched.contracts.api.decision import WhatIfAnswer
from hetsched.contracts.api.findings import Artefact, Gate, Level, Place
from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.simulation.ci_gate import judge, with_needs

from .client import DEFAULT_SERVER, connect
from .options import (
    PodFiles,
    Strict,
    choose_policies,
    compile_choice,
    print_replaced,
    read_inputs,
    read_manifest,
    read_sources,
)
from .output import Output, OutputFormat, console, print_json

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "dim"}


class CheckFailure(enum.StrEnum):
    NEVER_FITS = "never-fits"
    NOT_NOW = "not-now"


def check(
    filename: PodFiles,
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", metavar="FILE", help="Cluster files, as written by `hetsched cluster export`."),
    ] = None,
    server: Annotated[
        str,
        typer.Option(
            "--server", envvar="HETSCHED_SERVER", metavar="URL", help="Server to check against instead of files."
        ),
    ] = "",
    token: Annotated[
        str, typer.Option("--token", envvar="HETSCHED_TOKEN", metavar="TOKEN", help="API token.", show_default=False)
    ] = "",
    on: Annotated[str, typer.Option("--on", metavar="NAME", help="Name of the cluster on the server.")] = "",
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME|FILE", help="Policy for placement.", show_default=False)
    ] = None,
    artefact: Annotated[
        list[str] | None,
        typer.Option(
            "--artefact",
            "--artifact",
            metavar="[IMAGE=]PATH",
            help=(
                "Program, image layout or image archive that the pods with the image IMAGE run; without `IMAGE=`, all "
                "pods run it."
            ),
        ),
    ] = None,
    strict: Strict = False,
    fail_on: Annotated[
        CheckFailure,
        typer.Option(
            "--fail-on", help="Least severe verdict that makes the check fail; not-now also includes never-fits."
        ),
    ] = CheckFailure.NEVER_FITS,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="JUnit report to write.")] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="SARIF report to write.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Markdown report to write.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check manifests and built programs against a cluster before a merge.

    Exit codes: 0 passed, 10 not now (with --fail-on not-now), 11 never fits, 12 misconfigured, or a pod requests less
    than its program requires, 2 invalid files or options, 3 server unreachable or token rejected.
    """  # fmt: skip
    built = [_inspect(argument) for argument in artefact or ()]
    if cluster:
        nodes, asked = read_inputs(cluster, filename, replace=True, quiet=True)
        pods, needs = _collect_pods(asked, built)
        answer = _offline(nodes, asked, with_needs(pods, needs), policy)
    elif server or token:
        asked = parse_workload(read_sources(filename, "-f"))
        pods, needs = _collect_pods(asked, built)
        answer = _online(server or DEFAULT_SERVER, token, on, filename, policy)
    else:
        raise InputError(
            "FleetMissing", "no cluster is specified", place="--cluster",
            hint="Use --cluster FILE, or --server (HETSCHED_SERVER) with a token",
        )  # fmt: skip
    answer = msgspec.structs.replace(answer, warnings=asked.warnings or None)
    gate = judge(
        answer,
        pods,
        needs,
        _pod_places(filename, asked),
        fail_on_not_now=fail_on is CheckFailure.NOT_NOW,
        strict=strict,
    )
    _write(gate, junit, sarif, markdown)
    if output is OutputFormat.JSON:
        print_json({**to_plain(gate), "whatIf": answer.document()})
    else:
        _show(gate)
    raise typer.Exit(gate.verdict.exit_code)


# -- built artefacts ----------------------------------------------------------------------------------------------


def _inspect(argument: str) -> tuple[str, Artefact]:
    """Return the image of an artefact ("" for all images) and its requirements."""
    image, _, path = argument.rpartition("=")
    try:
        found = inspect_path(Path(path))
    except InputError as error:
        raise error.at(f"--artefact {path}" + " " * bool(error.place)) from None
    return image, Artefact(image or path, dict(found.requirements), tuple(found.warnings))


def _collect_pods(
    asked: ClusterContent, built: Sequence[tuple[str, Artefact]]
) -> tuple[list[PodSpec], dict[str, tuple[Artefact, ...]]]:
    pods = list(asked.pending)
    for image, _ in built:
        if image and not any(image in pod.images for pod in pods):
            known = sorted({image for pod in pods for image in pod.images})
            raise InputError(
                "ArtefactUnused", f"no pod has the image {image!r}", place="--artefact",
                hint=f"Images of the pods: {', '.join(known) or 'none'}",
            )  # fmt: skip
    return pods, {
        pod.key: tuple(artefact for image, artefact in built if not image or image in pod.images) for pod in pods
    }


# -- placement ---------------------------------------------------------------------------------------------------


def _offline(nodes: ClusterContent, asked: ClusterContent, pods: list[PodSpec], policy: str | None) -> WhatIfAnswer:
    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.simulation.what_if import what_if

    (spec,), chosen = choose_policies([policy] if policy else [], nodes, msgspec.structs.replace(asked, pending=pods))
    state = ClusterState.of(nodes)
    state.add_storage(asked.storage, asked.devices)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return what_if(state, compile_choice(spec), chosen, evaluated_at=now)


def _online(server: str, token: str, on: str, filename: Sequence[str], policy: str | None) -> WhatIfAnswer:
    with connect(server, token) as client:
        answer = client.what_if(read_manifest(filename), cluster=on, policy=policy or "", replace=True)
    print_replaced(answer.replaced or ())
    return answer


# -- report ------------------------------------------------------------------------------------------------------


def _pod_places(filename: Sequence[str], asked: ClusterContent) -> dict[str, Place]:
    """Return each pod's file, document number and line; pods of openb lists are omitted."""
    places: dict[str, Place] = {}
    for name, data in read_sources([file for file in filename if file != "-"], "-f"):
        if looks_like_openb(data) is not None:
            continue
        lines = lines_of_documents(data)
        for document in load_documents(data, name=name):
            made = read_content([document], workload=True, known=asked).pending
            line = lines[document.number - 1] if document.number <= len(lines) else 1
            places.update({pod.key: Place(name, document.number, line) for pod in made})
    return places


def _write(gate: Gate, junit: Path | None, sarif: Path | None, markdown: Path | None) -> None:
    if junit is not None:
        junit.write_bytes(gate_reports.junit(gate))
    if sarif is not None:
        document = encode(gate_reports.sarif(gate, version=__version__))
        sarif.write_bytes(msgspec.json.format(document, indent=2) + b"\n")
    if markdown is not None:
        markdown.write_text(gate_reports.markdown(gate), encoding="utf-8")


def _show(gate: Gate) -> None:
    out = console()
    colour = "red" if gate.verdict.exit_code else "yellow" if gate.waiting else "green"
    out.print(f"[bold {colour}]{gate.headline}[/]  {escape(gate.summary)}", soft_wrap=True)
    for finding in gate.findings:
        place = gate.places.get(finding.pod)
        where = f"{place.file}:{place.line} " if place else ""
        head = f"[{_COLOURS[finding.level]}]{finding.level.value}[/] \\[{finding.rule}]"
        where += f"{finding.pod}: " if finding.pod else ""
        where += f"{finding.field}: " if finding.field else ""
        out.print(f"{head} {escape(where + finding.message)}", soft_wrap=True)
        if finding.hint:
            out.print(f"  [dim]{escape(finding.hint)}[/]", soft_wrap=True)
