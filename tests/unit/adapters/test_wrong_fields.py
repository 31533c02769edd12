"""An error about a workload file lists all its wrong fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetsched.adapters import wrong_fields
from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.contracts.errors import InputError

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, annotations: {oks/gpu-memory: much}}
spec:
  priority: high
  containers: [{name: main, resources: {requests: {cpu: CPU}}}]
---
"""


def errors_of(text: str, read: Any = parse_workload) -> list[tuple[str, str]]:
    with pytest.raises(InputError) as raised:
        read([("pods.yaml", text.encode())])
    return [(error.code, error.place) for error in (raised.value, *raised.value.further)]


def test_every_wrong_field_is_listed_with_its_place() -> None:
    assert errors_of(POD.replace("NAME", "Web").replace("CPU", "-1")) == [
        ("NameInvalid", "pods.yaml#1 metadata.name"),
        ("QuantityNegative", "pods.yaml#1 spec.containers[0].resources.requests.cpu"),
        ("FieldInvalid", "pods.yaml#1 spec.priority"),
        ("GpuMemoryInvalid", "pods.yaml#1 oks/gpu-memory"),
    ]


def test_errors_of_several_documents_name_the_document() -> None:
    text = POD.replace("NAME", "a").replace("CPU", "x") + POD.replace("NAME", "b").replace("CPU", "1")
    assert errors_of(text) == [
        ("QuantityMalformed", "pods.yaml#1 spec.containers[0].resources.requests.cpu"),
        ("FieldInvalid", "pods.yaml#1 spec.priority"),
        ("FieldInvalid", "pods.yaml#2 spec.priority"),
        ("GpuMemoryInvalid", "default/a oks/gpu-memory"),
    ]


def test_items_of_a_list_are_located() -> None:
    spec = {"priority": "", "containers": [{}]}
    items = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec} for name in "ab"]
    found = errors_of(str({"apiVersion": "v1", "kind": "List", "items": items}))
    assert [place for _, place in found] == [f"pods.yaml#1 items[{number}].spec.priority" for number in range(2)]


def test_search_ends_at_a_missing_field() -> None:
    text = "{apiVersion: v1, kind: Pod, metadata: {name: A}, spec: {priority: ''}}"
    assert errors_of(text) == [
        ("NameInvalid", "pods.yaml#1 metadata.name"),
        ("FieldInvalid", "pods.yaml#1 spec.containers"),
    ]


def test_labels_with_dots_and_slashes_are_located() -> None:
    text = POD.replace("NAME, annotations", "a, labels: {example.com/a: '-'}, annotations").replace("CPU", "-1")
    assert [place for _, place in errors_of(text)][:2] == [
        "pods.yaml#1 metadata.labels['example.com/a']",
        "pods.yaml#1 spec.containers[0].resources.requests.cpu",
    ]


def test_replaced_values_cause_no_further_errors() -> None:
    text = POD.replace("oks/gpu-memory: much", "oks/gpu-number: 2").replace("NAME", "a").replace("CPU", "1")
    assert errors_of(text) == [
        ("FieldInvalid", "pods.yaml#1 metadata.annotations['oks/gpu-number']"),
        ("FieldInvalid", "pods.yaml#1 spec.priority"),
    ]


def test_search_ends_at_an_error_of_an_object() -> None:
    replicas = {"replicas": 300_000, "template": {"spec": {"containers": [{"name": "main"}]}}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": replicas}
    assert [code for code, _ in errors_of(json.dumps(deployment))] == ["TooManyPods"]


def test_controllers_are_read_with_one_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    template = {"spec": {"containers": [{"name": "main"}], "priority": ""}}
    spec = {"replicas": 3, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "Web"}, "spec": spec}
    numbers: list[int] = []

    def outcome(read: Any, documents: Any) -> Any:
        found = _outcome(read, documents)
        numbers.append(len(found[1]))
        return found

    _outcome = wrong_fields._outcome
    monkeypatch.setattr(wrong_fields, "_outcome", outcome)
    assert [place for _, place in errors_of(json.dumps(deployment))] == [
        "pods.yaml#1 metadata.name", "pods.yaml#1 spec.template.spec.priority",
    ]  # fmt: skip
    assert max(numbers) == 1


def test_long_index_in_a_place_is_no_index() -> None:
    labels = {f"a[{'9' * 5000}]": "x"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": labels}, "spec": {"containers": [{}]}}
    assert [code for code, _ in errors_of(json.dumps(pod))] == ["LabelInvalid"]


def test_search_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(POD.replace("NAME", f"p{number}").replace("CPU", "-1") for number in range(30))
    assert len(errors_of(text)) == 20
    monkeypatch.setattr(wrong_fields, "MOST_VALUES", 10)
    assert len(errors_of(text)) == 1


def test_cluster_files_report_the_first_error_only() -> None:
    assert len(errors_of(POD.replace("NAME", "a").replace("CPU", "x"), parse_cluster)) == 1
