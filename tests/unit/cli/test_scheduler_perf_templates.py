"""Templates of scheduler_perf: the supported subset of Go's text/template, and the fields of objects."""

from __future__ import annotations

import pytest

from hetsched.cli.bench.scheduler_perf.templates import Template, TemplateError

POD = "kind: Pod\nmetadata:\n  name: pod-%s\n"


@pytest.mark.parametrize(
    ("action", "name"),
    [
        ("{{.Index}}", "pod-7"),
        ("{{ .Count }}", "pod-10"),
        ("{{- .Index -}}", "pod-7"),
        ("{{Mod .Index 4}}", "pod-3"),
        ("{{ DivideInt .Index 5 }}", "pod-1"),
        ("{{AddInt .Index 1 2}}", "pod-10"),
        ("{{SubtractInt .Count .Index}}", "pod-3"),
        ("{{MultiplyInt .Index 2}}-{{.Index}}", "pod-14-7"),
    ],
)
def test_actions_are_replaced_by_numbers(action: str, name: str) -> None:
    assert Template(POD % action).render(7, 10)["metadata"]["name"] == name


@pytest.mark.parametrize(
    "action",
    ["{{if .Index}}a{{end}}", "{{ DivideFloat .Index 5 }}", "{{.Name}}", "{{Mod (AddInt .Index 1) 2}}", "{{Mod 1}}"],
)
def test_other_actions_are_rejected(action: str) -> None:
    with pytest.raises(TemplateError, match="template action"):
        Template(POD % action)


@pytest.mark.parametrize("text", ["- a\n", "metadata: {}\n", "a: [\n"])
def test_text_without_an_object_is_rejected(text: str) -> None:
    with pytest.raises(TemplateError):
        Template(text)


def test_objects_of_a_fixed_template_are_independent() -> None:
    template = Template(POD % 1)
    template.render(0, 1)["metadata"]["name"] = "changed"
    assert template.render(0, 1)["metadata"]["name"] == "pod-1"


def test_fields_begin_with_a_lower_case_letter_and_data_is_unchanged() -> None:
    text = "kind: Pod\nspec:\n  constraints:\n  - NodeTaintsPolicy: Honor\nmetadata:\n  labels: {Team: a}\n"
    found = Template(text).render(0, 1)
    assert found["spec"] == {"constraints": [{"nodeTaintsPolicy": "Honor"}]}
    assert found["metadata"] == {"labels": {"Team": "a"}}
