"""`hetsched check`: may this be merged? Manifests, and what their programs need, against a fleet.

Rule: the same engine as everywhere, on a copy; nothing is written. The fleet is a snapshot in files, or a server's as
it is now. What stops a merge are pods that are misconfigured or never fit, and programs that need more than their pod
says; a pod that merely has to wait does so only with `--fail-on not-now`. Pods of the same names that run already, as
those of an earlier run do, are taken to be gone: what is checked can only follow them. Reports are written also when
the check fails.
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
from hetsched.contracts.cluster import ClusterContent
from hetsched.contracts.decision import WhatIfAnswer
from hetsched.contracts.errors import InputError
from hetsched.contracts.findings import Artefact, Gate, Level, Place
from hetsched.contracts.workload import PodSpec
from hetsched.engine.simulation.ci_gate import judge, with_needs

from .client import DEFAULT_SERVER, connect
from .options import (
    PodFiles,
    choose_policies,
    compile_choice,
    read_inputs,
    read_manifest,
    read_sources,
    told_replaced,
)
from .output import Output, OutputFormat, console, print_json

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "dim"}


class FailOn(enum.StrEnum):
    NEVER_FITS = "never-fits"
    NOT_NOW = "not-now"


def check(
    filename: PodFiles,
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", metavar="FILE", help="The fleet: files, as `hetsched cluster export` writes them."),
    ] = None,
    server: Annotated[
        str, typer.Option("--server", envvar="HETSCHED_SERVER", metavar="URL", help="Ask a server's fleet instead.")
    ] = "",
    token: Annotated[
        str, typer.Option("--token", envvar="HETSCHED_TOKEN", metavar="TOKEN", help="API token.", show_default=False)
    ] = "",
    on: Annotated[str, typer.Option("--on", metavar="NAME", help="Which of the server's clusters.")] = "",
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME|FILE", help="Policy to decide by.", show_default=False)
    ] = None,
    artefact: Annotated[
        list[str] | None,
        typer.Option(
            "--artefact",
            "--artifact",
            metavar="[IMAGE=]PATH",
            help="A program, image layout or archive that was built: of the pods with this image, or of all.",
        ),
    ] = None,
    fail_on: Annotated[FailOn, typer.Option("--fail-on", help="The least that stops a merge.")] = FailOn.NEVER_FITS,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit report.")] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Write a SARIF report.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write a page.")] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check manifests, and the programs they start, against a fleet before they are merged.

    Exit codes: 0 may be merged, 10 not now (with --fail-on not-now), 11 never fits, 12 misconfigured or asking for less
    than its programs need, 2 wrong files or options, 3 server unreachable or token refused.
    """  # fmt: skip
    built = [_inspected(argument) for argument in artefact or ()]
    if cluster:
        nodes, asked = read_inputs(cluster, filename, replace=True)
        pods, needs = _asked(asked, built)
        answer = _offline(nodes, asked, with_needs(pods, needs), policy)
    elif server or token:
        asked = parse_workload(read_sources(filename, "-f"))
        pods, needs = _asked(asked, built)
        answer = _online(server or DEFAULT_SERVER, token, on, filename, policy)
    else:
        raise InputError(
            "FleetMissing", "there is no fleet to check against", place="--cluster",
            hint="Give --cluster FILE, or --server (or HETSCHED_SERVER) with a token",
        )  # fmt: skip
    gate = judge(answer, pods, needs, _places(filename, asked), fail_on_not_now=fail_on is FailOn.NOT_NOW)
    _write(gate, junit, sarif, markdown)
    if output is OutputFormat.JSON:
        print_json({**msgspec.to_builtins(gate), "whatIf": answer.document()})
    else:
        _show(gate)
    raise typer.Exit(gate.verdict.exit_code)


# -- what was built ------------------------------------------------------------------------------------------------


def _inspected(argument: str) -> tuple[str, Artefact]:
    """Return the image that an artefact belongs to ("": all) and what it needs."""
    image, _, path = argument.rpartition("=")
    try:
        found = inspect_path(Path(path))
    except InputError as error:
        raise error.at(f"--artefact {path} ") from None
    return image, Artefact(image or path, dict(found.requirements), tuple(found.warnings))


def _asked(
    asked: ClusterContent, built: Sequence[tuple[str, Artefact]]
) -> tuple[list[PodSpec], dict[str, tuple[Artefact, ...]]]:
    pods = list(asked.pending)
    for image, _ in built:
        if image and not any(image in pod.images for pod in pods):
            known = sorted({image for pod in pods for image in pod.images})
            raise InputError(
                "ArtefactUnused", f"no pod has the image {image!r}", place="--artefact",
                hint=f"Images here: {', '.join(known) or 'none'}",
            )  # fmt: skip
    return pods, {
        pod.key: tuple(artefact for image, artefact in built if not image or image in pod.images) for pod in pods
    }


# -- where it would run --------------------------------------------------------------------------------------------


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
    told_replaced(answer.replaced or ())
    return answer


# -- telling -------------------------------------------------------------------------------------------------------


def _places(filename: Sequence[str], asked: ClusterContent) -> dict[str, Place]:
    """Return where each pod is written; pods of openb lists are not found in documents."""
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
        document = msgspec.json.encode(gate_reports.sarif(gate, version=__version__))
        sarif.write_bytes(msgspec.json.format(document, indent=2) + b"\n")
    if markdown is not None:
        markdown.write_text(gate_reports.markdown(gate), encoding="utf-8")


def _show(gate: Gate) -> None:
    out = console()
    colour = "red" if gate.verdict.exit_code else "green"
    out.print(f"[bold {colour}]{gate.verdict.value}[/]  {escape(gate.summary)}", soft_wrap=True)
    for finding in gate.findings:
        place = gate.places.get(finding.pod)
        where = f"{place.file}:{place.line} " if place else ""
        head = f"[{_COLOURS[finding.level]}]{finding.level.value}[/] \\[{finding.rule}]"
        field = f"{finding.field}: " if finding.field else ""
        out.print(f"{head} {escape(f'{where}{finding.pod}: {field}{finding.message}')}", soft_wrap=True)
        if finding.hint:
            out.print(f"  [dim]{escape(finding.hint)}[/]", soft_wrap=True)
