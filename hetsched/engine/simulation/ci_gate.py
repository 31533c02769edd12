"""CI gate: findings that stop a merge, from a what-if result and the requirements of the built programs.

A manifest can be valid for the scheduler and wrong for its program. If a program is built with vector instructions but
its pod does not request them, the pod fails on a node without them. The gate uses the scheduler's verdict unchanged. It
matches the program's requirement against the pod's stated requirement as if the latter were a node, because a node may
lack any instruction set that the pod does not request. A pod is evaluated with all requirements of its programs,
including those that the pod does not state.
Invariant: without artefacts there are no findings about instruction sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from hetsched.contracts.api.decision import NearestFit, Reason, Unplaced, Verdict, WhatIfAnswer
from hetsched.contracts.api.findings import Artefact, Finding, Gate, Level, Place
from hetsched.contracts.message import Message
from hetsched.contracts.objects.warnings import ManifestWarning
from hetsched.contracts.objects.workload import IsaDemand, PodSpec
from hetsched.isa import match, parse

# Baseline of every machine of an architecture; if a program needs no more, its pod has to state only the architecture.
FLOORS = {"amd64": "x86-64-v1", "arm64": "armv8.0-a", "riscv64": "rv64gc", "riscv32": "rv32imac"}
_ARCHITECTURES = {"x86": "amd64", "arm": "arm64"}
_ANNOTATION = "metadata.annotations[hetsched.io/isa]"
_SHOWN = 3
_MOST_NAMES = 6


def with_needs(pods: Iterable[PodSpec], artefacts: Mapping[str, Sequence[Artefact]]) -> list[PodSpec]:
    """Return the pods, with the requirement of their programs added where a pod states less or nothing."""
    return [_raised(pod, artefacts.get(pod.key, ())) for pod in pods]


def judge(
    answer: WhatIfAnswer,
    pods: Sequence[PodSpec],
    artefacts: Mapping[str, Sequence[Artefact]],
    places: Mapping[str, Place],
    *,
    fail_on_not_now: bool = False,
    strict: bool = False,
) -> Gate:
    """Return the gate's result for `pods`, which were evaluated as `with_needs` returns them.

    With `strict`, a misspelt field or annotation stops a merge.
    """
    refused = {pod.pod: pod for pod in answer.unplaced}
    findings: list[Finding] = []
    for pod in pods:
        findings.extend(_of_instructions(pod, artefacts.get(pod.key, ())))
        if pod.key in refused:
            findings.extend(_of_refusal(refused[pod.key], Level.ERROR if fail_on_not_now else Level.WARNING))
    for eviction in answer.evictions:
        message = Message(
            "{pod} (priority {number}) would be evicted from {node} for this pod",
            pod=eviction.pod,
            number=eviction.priority,
            node=eviction.node,
        )
        findings.append(Finding("EvictsOthers", Level.WARNING, pods[0].key if pods else "", message))
    findings.extend(_of_manifests(answer.warnings or (), pods, places, strict=strict))
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    verdict = Verdict.worst([Verdict(finding.verdict or "misconfigured") for finding in errors])
    waiting = tuple(pod.key for pod in pods if pod.key in refused and refused[pod.key].verdict is Verdict.NOT_NOW)
    summary = _summary(pods, findings, len(waiting))
    return Gate(verdict, summary, tuple(findings), tuple(pod.key for pod in pods), dict(places), waiting)


def _of_manifests(
    warnings: Iterable[ManifestWarning], pods: Sequence[PodSpec], places: Mapping[str, Place], *, strict: bool
) -> Iterator[Finding]:
    """Yield probable misspellings in manifests, each at the first pod of its document."""
    first: dict[str, str] = {}
    for pod in pods:
        place = places.get(pod.key)
        if place is not None:
            first.setdefault(f"{place.file}#{place.document}", pod.key)
    for warning in warnings:
        document, _, field = warning.place.partition(" ")
        pod_key = first.get(document, "")
        refused = strict and warning.is_refused_by_strict
        yield Finding(
            warning.code, Level.ERROR if refused else Level.WARNING, pod_key,
            warning.message if pod_key else f"{document}: {warning.message}", field=field, hint=warning.hint or "",
            verdict="misconfigured" if refused else "",
        )  # fmt: skip


def _raised(pod: PodSpec, artefacts: Sequence[Artefact]) -> PodSpec:
    stated = pod.shape.isa.native if pod.shape.isa is not None else ""
    needed = _needed(stated, artefacts)
    if needed is None or (stated and match(parse(needed), parse(stated)).satisfied):
        return pod
    demand = msgspec.structs.replace(pod.shape.isa or IsaDemand(), native=needed, source="requirements of its programs")
    return msgspec.structs.replace(pod, shape=msgspec.structs.replace(pod.shape, isa=demand))


def _needed(stated: str, artefacts: Sequence[Artefact]) -> str | None:
    """Return the requirement, among those of the artefacts, that covers all others, or None if there is none.

    Only requirements for the architecture of `stated` are used; if it is empty, each artefact must have a single one.
    """
    wanted = [_of_architecture(artefact, stated) for artefact in artefacts]
    known = [requirement for requirement in wanted if requirement is not None]
    if not known or len(known) != len(wanted):
        return None
    return next((one for one in known if all(match(parse(other), parse(one)).satisfied for other in known)), None)


def _of_architecture(artefact: Artefact, stated: str) -> str | None:
    if stated:
        return artefact.requirements.get(architecture(stated))
    return next(iter(artefact.requirements.values())) if len(artefact.requirements) == 1 else None


def architecture(requirement: str) -> str:
    """Return the Kubernetes name of a requirement's architecture."""
    isa = parse(requirement)
    return _ARCHITECTURES.get(isa.arch, f"riscv{isa.xlen}")


def _of_instructions(pod: PodSpec, artefacts: Sequence[Artefact]) -> Iterator[Finding]:
    demand = pod.shape.isa
    stated = demand.native if demand is not None else ""
    emulated = demand is not None and bool(demand.emulated or demand.qemu)
    for artefact in artefacts:
        for warning in artefact.warnings:
            yield Finding("ArtefactDoubtful", Level.WARNING, pod.key, f"{artefact.name}: {warning}")
        if not stated:
            if not emulated:
                yield from _unstated(pod, artefact, artefact.requirements)
        elif architecture(stated) not in artefact.requirements:
            has = ", ".join(sorted(artefact.requirements)) or "no executable program"
            yield Finding(
                "IsaOtherArchitecture", Level.ERROR, pod.key,
                f"{artefact.name} contains {has}, but the pod asks for {stated}", field=demand.source if demand else "",
                hint="Build it for this architecture, or ask for one that it contains", verdict="misconfigured",
            )  # fmt: skip
        elif demand is not None and demand.source == "kubernetes.io/arch":
            # A node selector names an architecture but not the ISA level of the build.
            yield from _unstated(pod, artefact, [architecture(stated)])
        else:
            yield from _compared(pod, stated, demand.source if demand else "", artefact)


def _unstated(pod: PodSpec, artefact: Artefact, architectures: Iterable[str]) -> Iterator[Finding]:
    for arch in architectures:
        requirement = artefact.requirements[arch]
        if requirement is None:
            yield _unknown(pod, artefact, arch)
        elif arch not in FLOORS or not match(parse(requirement), parse(FLOORS[arch])).satisfied:
            yield Finding(
                "IsaUnstated", Level.WARNING, pod.key,
                f"{artefact.name} needs {requirement}, but the pod does not ask for it and may run on any {arch} node",
                field=_ANNOTATION, hint=f"Add the annotation hetsched.io/isa: {requirement}",
            )  # fmt: skip


def _compared(pod: PodSpec, stated: str, source: str, artefact: Artefact) -> Iterator[Finding]:
    requirement = artefact.requirements[architecture(stated)]
    if requirement is None:
        yield _unknown(pod, artefact, architecture(stated))
        return
    need, offer = parse(requirement), parse(stated)
    missing = match(need, offer).missing
    if missing:
        yield Finding(
            "IsaUnderstated", Level.ERROR, pod.key,
            f"{artefact.name} needs {requirement}, but the pod asks only for {stated}: {_first_names(missing)} "
            "may be missing on its node", field=source, hint=f"Ask for {requirement}", verdict="misconfigured",
        )  # fmt: skip
    elif match(offer, need).missing:
        more = _first_names(match(offer, need).missing)
        yield Finding(
            "IsaOverstated", Level.NOTE, pod.key,
            f"{artefact.name} needs only {requirement}, but the pod also asks for {more}, which excludes nodes",
            field=source, hint=f"{requirement} is sufficient",
        )  # fmt: skip


def _unknown(pod: PodSpec, artefact: Artefact, arch: str) -> Finding:
    return Finding(
        "IsaUnknown", Level.WARNING, pod.key, f"{artefact.name}: the requirements of its {arch} programs are unknown"
    )


def _of_refusal(refused: Unplaced, not_now: Level) -> Iterator[Finding]:
    if refused.verdict is Verdict.MISCONFIGURED:
        for reason in refused.reasons:
            yield Finding(
                reason.code, Level.ERROR, refused.pod, f"misconfigured: {reason.message}", field=reason.field or "",
                verdict="misconfigured",
            )  # fmt: skip
        return
    never = refused.verdict is Verdict.NEVER_FITS
    causes = "; ".join(map(_reason, refused.reasons)) or "no node accepts the pod"
    yield Finding(
        "NeverFits" if never else "NotNow", Level.ERROR if never else not_now, refused.pod,
        f"{'never fits this cluster' if never else 'does not fit now'}: {causes}",
        hint="; or ".join(map(_change, refused.nearest_fit[:_SHOWN])), verdict="never-fits" if never else "not-now",
    )  # fmt: skip


def _reason(reason: Reason) -> str:
    missing = f", missing {_first_names(reason.missing)}" if reason.missing else ""
    return f"{reason.nodes} node{'s' * (reason.nodes != 1)}: {reason.message}{missing}"


def _change(fit: NearestFit) -> str:
    nodes = fit.nodes[:_SHOWN]
    more = fit.count - len(nodes)
    return f"{fit.change} on {', '.join(nodes)}{f' and {more} more' if more > 0 else ''}"


def _first_names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _summary(pods: Sequence[PodSpec], findings: Sequence[Finding], waiting: int) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    total = len(pods)
    wrong = len({finding.pod for finding in findings if finding.level is Level.ERROR and finding.pod})
    totals = ", ".join(f"{count} {level.value}{'s' if count != 1 else ''}" for level, count in counts.items() if count)
    if wrong:
        return f"{wrong} of {len(pods)} pods would not run as {'it is' if len(pods) == 1 else 'they are'}: {totals}"
    if counts[Level.ERROR]:
        return f"the manifests do not pass the check: {totals}"
    counted = f": {totals}" if totals else ""
    if waiting:
        do = "does" if waiting == 1 else "do"
        whole = "the pod does not fit now" if total == 1 else f"{waiting} of {total} pods {do} not fit now"
        return f"{whole} and would stay pending; this does not fail the check{counted}"
    return f"{'the pod passes' if total == 1 else f'all {total} pods pass'} the check{counted}"
