"""Read the configurations of scheduler_perf: each workload becomes a list of operations with resolved parameters.

A folder contains `performance-config.yaml` files; paths in a file are relative to its folder. A workload that needs an
operation, a field or a template that is not supported is returned with the reason, never dropped.
Source: test/integration/scheduler_perf/operations.go and scheduler_perf.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hetsched.contracts.errors import InputError

from .operations import KINDS, CreatePods, Operation, operation_of
from .templates import Template, TemplateError

FILE_NAME = "performance-config.yaml"
# Fields of a test case that do not change how its workloads run.
_IGNORED = {"name", "labels", "metricsCollectorConfig", "defaultThresholdMetricSelector", "workloads", "featureGates"}
_KNOWN = _IGNORED | {"workloadTemplate", "defaultPodTemplatePath"}


class PerfWorkload(msgspec.Struct, frozen=True):
    """One workload: its name `<test case>/<workload>`, its operations, feature gates, and templates by their path."""

    name: str
    operations: tuple[Operation, ...]
    gates: dict[str, bool]
    templates: dict[str, Template]


class Skipped(msgspec.Struct, frozen=True):
    """A test case or workload that is not run, with the reason."""

    name: str
    reason: str


class Unsupported(Exception):
    """Raised within this package for a workload that cannot run; the text contains the reason."""


def read(folder: Path, *, sizes: Sequence[str], only: Sequence[str] = ()) -> tuple[list[PerfWorkload], list[Skipped]]:
    """Return the workloads named in `sizes`, of all test cases or of those named in `only`, and the skipped ones.

    Raises: InputError `ConfigurationMissing` for a folder without configurations, `UnknownTestCase`.
    """
    files = sorted(folder.rglob(FILE_NAME))
    if not files:
        hint = "Use --scheduler-perf FOLDER with the folder test/integration/scheduler_perf of k8s.io/kubernetes"
        message = f"no {FILE_NAME} in the folder"
        raise InputError("ConfigurationMissing", message, place=str(folder), hint=hint)
    cases = [(path.parent, case) for path in files for case in yaml.safe_load(path.read_text())]
    names = {case["name"] for _, case in cases}
    for name in only:
        if name not in names:
            hint = f"Use one of {', '.join(sorted(names))}"
            raise InputError("UnknownTestCase", f"no test case {name!r}", place="--only", hint=hint)
    workloads: list[PerfWorkload] = []
    skipped: list[Skipped] = []
    for place, case in cases:
        if only and case["name"] not in only:
            continue
        for found in _of_case(place, case, sizes):
            (workloads if isinstance(found, PerfWorkload) else skipped).append(found)  # type: ignore[arg-type]
    return workloads, skipped


def _of_case(folder: Path, case: Mapping[str, Any], sizes: Sequence[str]) -> Iterator[PerfWorkload | Skipped]:
    wanted = [one for one in case["workloads"] if one["name"] in sizes]
    if not wanted:
        known = ", ".join(one["name"] for one in case["workloads"])
        yield Skipped(case["name"], f"no workload {' or '.join(sizes)}; the workloads are {known}")
    for one in wanted:
        name = f"{case['name']}/{one['name']}"
        try:
            yield _workload(folder, name, case, one)
        except (Unsupported, TemplateError) as error:
            yield Skipped(name, str(error))


def _workload(folder: Path, name: str, case: Mapping[str, Any], one: Mapping[str, Any]) -> PerfWorkload:
    unknown = sorted(set(case) - _KNOWN)
    if unknown:
        raise Unsupported(f"the field {unknown[0]} of a test case is not supported")
    operations = tuple(_unrolled(case["workloadTemplate"], one.get("params", {}), case.get("defaultPodTemplatePath")))
    if sum(operation.collect_metrics for operation in operations if isinstance(operation, CreatePods)) != 1:
        raise Unsupported("not exactly one createPods operation collects metrics")
    paths = {path for operation in operations for path in operation.paths()}
    return PerfWorkload(
        name,
        operations,
        {**case.get("featureGates", {}), **one.get("featureGates", {})},
        {path: _template(folder / path) for path in sorted(paths)},
    )


def _unrolled(
    template: Sequence[Mapping[str, Any]], params: Mapping[str, Any], default_pod: str | None
) -> Iterator[Operation]:
    """Yield the operations; createPodSets becomes one createPods operation for each of its namespaces."""
    for raw in template:
        fields = _resolved(raw, params)
        if fields["opcode"] != "createPodSets":
            yield _operation(fields, default_pod)
            continue
        known = {"opcode", "count", "namespacePrefix", "createPodsOp"}
        if set(fields) != known:
            raise Unsupported(f"createPodSets has fields other than {', '.join(sorted(known))}")
        inner = _resolved(fields["createPodsOp"], params)
        for number in range(fields["count"]):
            yield _operation({**inner, "namespace": f"{fields['namespacePrefix']}-{number}"}, default_pod)


def _resolved(raw: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each field `<name>Param: $x` by `<name>` with the value of parameter x."""
    fields: dict[str, Any] = {}
    for key, value in raw.items():
        if not key.endswith("Param"):
            fields.setdefault(key, value)
        elif str(value)[1:] in params:
            fields[key.removesuffix("Param")] = params[value[1:]]
        else:
            raise Unsupported(f"the workload has no parameter {value}")
    return fields


def _operation(fields: Mapping[str, Any], default_pod: str | None) -> Operation:
    try:
        operation = operation_of(fields)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    if isinstance(operation, CreatePods) and not operation.pod_template_path and default_pod:
        return msgspec.structs.replace(operation, pod_template_path=default_pod)
    return operation


def _template(path: Path) -> Template:
    try:
        found = Template(path.read_text())
    except OSError:
        raise Unsupported(f"the template {path.name} cannot be read") from None
    except TemplateError as error:
        raise TemplateError(f"{path.name}: {error}") from None
    if found.kind not in KINDS:
        raise Unsupported(f"{path.name}: objects of kind {found.kind} are not supported")
    return found
