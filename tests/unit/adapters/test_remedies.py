"""Errors about fields of manifests say what to write instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.adapters.objects.fields import is_dns_label, is_dns_subdomain
from hetsched.contracts.errors import InputError
from hetsched.contracts.remedies import valid_name
from tests.unit.adapters.reading import content, pod, pod_text

POLICY = "{{apiVersion: hetsched.io/v1alpha1, kind: SchedulingPolicy, metadata: {{name: p}}, spec: {spec}}}"
SPREAD = "topologySpreadConstraints: [{{topologyKey: zone, whenUnsatisfiable: DoNotSchedule, maxSkew: {skew}}}]"
CLASS = "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: batch-high}, value: 1}\n---\n"


def hint_of(text: str) -> str:
    with pytest.raises(InputError) as refused:
        content(text)
    return refused.value.hint


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("priority: '7'", "Remove the quotes: 7"),
        ("priority: high", "Allowed range: -2147483648 to 2147483647"),
        ("priority: 3000000000", "Allowed range: -2147483648 to 2147483647"),
        ("priority: '1.5'", "Allowed range: -2147483648 to 2147483647"),
        ("priority: 'true'", "Allowed range: -2147483648 to 2147483647"),
        ("priority: '010'", "Allowed range: -2147483648 to 2147483647"),
        ("hostNetwork: '1'", "Allowed values: true, false"),
        (SPREAD.format(skew=0), "Smallest allowed value: 1"),
        (SPREAD.format(skew=2**63), "Allowed range: 1 to 9223372036854775807"),
        ("schedulerName: 5", "Write the value in quotes"),
        ("nodeSelector: {version: 1.10}", "Write the value in quotes"),
        ("nodeSelector: {a: yes}", "Write the value in quotes"),
        ("hostNetwork: 'true'", "Remove the quotes: true"),
        ("tolerations: {key: a}", 'Write a list: each item begins with "-"'),
        ("affinity: []", "Write an object: fields as NAME: VALUE"),
        (
            "tolerations: [{key: a, effect: NoSchedul}]",
            "Did you mean NoSchedule? Allowed values: NoSchedule, PreferNoSchedule, NoExecute",
        ),
        ("tolerations: [{key: a, operator: In}]", "Allowed values: Equal, Exists"),
        ("containers: [{name: My_App}]", "Did you mean my-app?"),
        ("containers: [{name: my.app}]", "Did you mean my-app?"),
        ("nodeName: a..b", "Did you mean a.b?"),
        ("containers: []", "Add a container with a name and an image"),
        (
            "containers: [{name: m, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]",
            "Set the request to 1 or less, or raise the limit",
        ),
        ("containers: [{name: m, resources: {requests: {nvidia.com/gpu: 1.5}}}]", "Use a whole number, such as 2"),
    ],
)
def test_field_of_a_pod(spec: str, hint: str) -> None:
    assert hint_of(pod_text(spec)) == hint


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("{plugins: [{name: a, wieght: 1}]}", "Did you mean weight? Known: name, weight, params"),
        ("{plugins: [{name: a, weight: 5000}]}", "Allowed range: 0 to 1000"),
        ("{plugins: [{name: a, weight: '2'}]}", "Remove the quotes: 2"),
        ("{plugins: [{name: a}], tie: {by: name}}", "Did you mean ties? Known: plugins, ties, description, version"),
        ("{plugins: [{weight: 1}]}", "Add this field"),
        ("{plugins: [{name: a}], ties: {by: rand}}", "Did you mean random? Allowed values: name, random"),
        ("{plugins: [{name: a}], ties: {seed: -1}}", "Smallest allowed value: 0"),
        ("{plugins: [{name: a}], ties: {seed: 9223372036854775808}}", "Allowed range: 0 to 9223372036854775807"),
        ("{plugins: [{name: a, params: [1]}]}", "Write an object"),
        ("{plugins: []}", "Add a plugin, such as {name: resource-fit}"),
    ],
)
def test_field_of_a_policy(spec: str, hint: str) -> None:
    assert hint_of(POLICY.format(spec=spec)) == hint


def test_reference_to_a_missing_class_names_the_nearest_one() -> None:
    (found,) = content(CLASS + pod_text("priorityClassName: batch-hgih")).pending
    assert found.problems[0].message == "there is no PriorityClass 'batch-hgih'. Did you mean batch-high?"
    assert pod("runtimeClassName: kata").problems[0].message.endswith("Create the object, or correct the name")


@given(st.text("aZ09-._/é", max_size=70), st.booleans())
def test_proposed_name_is_valid_and_differs(found: str, label: bool) -> None:
    is_valid = is_dns_label if label else is_dns_subdomain
    hint = str(valid_name(found, label=label))
    if not is_valid(found) and hint.startswith("Did you mean "):
        proposed = hint.removeprefix("Did you mean ").removesuffix("?")
        assert is_valid(proposed)
        assert proposed != found
