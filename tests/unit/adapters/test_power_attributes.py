"""Power: attributes of a node's NodeResourceTopology, and the draw that a pod expects."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.node_report import NodeReport, PowerReport
from tests.unit.adapters.reading import content, pod


def node(attributes: str, more: str = "") -> NodeReport:
    text = f"""
apiVersion: v1
kind: Node
metadata: {{name: n1}}
---
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {{name: n1}}
attributes: [{attributes}]
{more}
"""
    (report,) = content(text).nodes
    return report


def test_state_and_headroom_are_attributes_of_the_object() -> None:
    report = node("{name: powerState, value: Capped}, {name: powerHeadroomWatts, value: '1200'}")
    assert report.power == PowerReport("capped", 1200)
    assert report.numa is None  # written only for power


def test_zones_and_power_share_one_object() -> None:
    report = node("{name: powerState, value: 'on'}", "zones: [{name: node-0, type: Node}]")
    assert report.power == PowerReport("on", None)
    assert report.numa is not None


def test_object_without_power_gives_unknown_power() -> None:
    assert node("{name: cpuManagerPolicy, value: none}").power is None


@pytest.mark.parametrize(
    ("attribute", "problem"),
    [
        (
            "{name: powerState, value: asleep}",
            "powerState must be one of on, saving, capped, off, maintenance, not 'asleep'",
        ),
        ("{name: powerHeadroomWatts, value: 1.2kW}", "powerHeadroomWatts must be a whole number of watts, not '1.2kW'"),
    ],
)
def test_unreadable_value_is_noted_and_unknown(attribute: str, problem: str) -> None:
    report = node(attribute)
    assert report.power is None
    assert report.problems == (f"PowerUnreadable: {problem}",)


def test_pod_declares_its_expected_draw() -> None:
    assert pod(annotations={"hetsched.io/expected-watts": "350"}).shape.expected_watts == 350
    assert pod().shape.expected_watts is None


def test_invalid_expected_draw_is_a_problem_of_the_pod() -> None:
    wrong = pod(annotations={"hetsched.io/expected-watts": "350W"})
    assert [(problem.code, problem.field) for problem in wrong.problems] == [
        ("ExpectedWattsInvalid", "hetsched.io/expected-watts")
    ]
