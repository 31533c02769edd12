"""Results of the CI check in formats of CI pipelines: JUnit test reports, SARIF for code scanning, Markdown comments.

JUnit has one test case for each pod. A test case fails only if the pod has errors. A test case is marked as skipped if
the pod does not fit now and the check does not treat this as an error. SARIF has one result for each finding, at the
first line of the pod's document. All text comes from manifests and is escaped for its format.
Source: JUnit XML as CI servers read it (testsuites/testsuite/testcase/failure); SARIF 2.1.0 (OASIS).
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from hetsched.contracts.api.findings import Finding, Gate, Level, Place
from hetsched.contracts.errors import with_hint

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_MARKS = {Level.ERROR: "✗", Level.WARNING: "!", Level.NOTE: "·"}
# Characters that XML 1.0 cannot represent, escaped or not.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~&-])")


def junit(gate: Gate) -> bytes:
    """Return a JUnit document."""
    suites = ElementTree.Element("testsuites")
    by_file: dict[str, list[str]] = {}
    for pod in gate.pods:
        by_file.setdefault(_place(gate, pod).file, []).append(pod)
    for file, pods in by_file.items():
        suite = ElementTree.SubElement(suites, "testsuite", name=_xml(file), tests=str(len(pods)))
        failed = skipped = 0
        for pod in pods:
            place = _place(gate, pod)
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml(file), name=_xml(pod), file=_xml(file), line=str(place.line)
            )
            errors = [finding for finding in gate.of(pod) if finding.level is Level.ERROR]
            others = [finding for finding in gate.of(pod) if finding.level is not Level.ERROR]
            if errors:
                failed += 1
                failure = ElementTree.SubElement(
                    case, "failure", type=_xml(errors[0].rule), message=_xml(errors[0].message)
                )
                failure.text = _xml("\n".join(map(_line, errors)))
            waits = next((finding for finding in others if finding.verdict == "not-now"), None)
            if waits is not None and not errors:
                skipped += 1
                ElementTree.SubElement(case, "skipped", message=_xml(waits.message))
            if others:
                ElementTree.SubElement(case, "system-out").text = _xml("\n".join(map(_line, others)))
        suite.set("failures", str(failed))
        suite.set("skipped", str(skipped))
    of_files = gate.of("")
    if of_files:
        wrong = [finding for finding in of_files if finding.level is Level.ERROR]
        suite = ElementTree.SubElement(suites, "testsuite", name="manifests", tests="1", failures=str(int(bool(wrong))))
        case = ElementTree.SubElement(suite, "testcase", classname="manifests", name="kinds and fields")
        if wrong:
            failure = ElementTree.SubElement(case, "failure", type=_xml(wrong[0].rule), message=_xml(wrong[0].message))
            failure.text = _xml("\n".join(map(_line, wrong)))
        ElementTree.SubElement(case, "system-out").text = _xml("\n".join(map(_line, of_files)))
    return bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))


def sarif(gate: Gate, *, version: str) -> dict[str, Any]:
    """Return a SARIF document with one run."""
    rules = sorted({finding.rule for finding in gate.findings})
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "hetsched", "version": version, "rules": [{"id": rule} for rule in rules]}},
                "results": [_result(gate, finding, rules) for finding in gate.findings],
            }
        ],
    }


def _result(gate: Gate, finding: Finding, rules: list[str]) -> dict[str, Any]:
    place = _place(gate, finding.pod)
    region = {"startLine": max(place.line, 1)}
    artefact = {"uri": quote(PurePath(place.file).as_posix())}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": finding.level.value,
        "message": {"text": _line(finding)},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": artefact, "region": region},
                "logicalLocations": [{"name": finding.pod, "kind": "resource"}],
            }
        ],
    }


def markdown(gate: Gate) -> str:
    """Return a Markdown report for a merge request comment."""
    lines = [f"### hetsched: {gate.headline}", "", _escaped(gate.summary), ""]
    if gate.findings:
        lines += ["| | pod | rule | what | what to do |", "|---|---|---|---|---|"]
    for finding in gate.findings:
        place = _place(gate, finding.pod)
        where = f"{_escaped(finding.pod)}<br>{_escaped(place.file)}:{place.line}"
        cells = (_MARKS[finding.level] + f" {finding.level.value}", where, finding.rule)
        texts = (_escaped(finding.message), _escaped(finding.hint))
        lines.append(f"| {' | '.join((*cells, *texts))} |")
    return "\n".join(lines) + "\n"


def _place(gate: Gate, pod: str) -> Place:
    return gate.places.get(pod) or Place("manifest", 1, 1)


def _line(finding: Finding) -> str:
    field = f"{finding.field}: " if finding.field else ""
    return f"{f'{finding.pod}: ' if finding.pod else ''}{field}{with_hint(finding.message, finding.hint)}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))
