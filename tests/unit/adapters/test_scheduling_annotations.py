"""Annotations: NUMA, load profile, expected use, policy and gang."""

import msgspec
import pytest

from hetsched.contracts.objects.wishes import GROUP_MIN_MEMBER as MIN_MEMBER
from hetsched.contracts.objects.workload import GangMember, NumaDemand
from tests.unit.adapters.reading import content, pod, problems

CRANE, OWN = "topology.crane.io/", "hetsched.io/"


@pytest.mark.parametrize(
    ("annotations", "demand"),
    [
        ({}, None),
        ({CRANE + "topology-awareness": "true"}, NumaDemand(aware=True)),
        ({OWN + "topology-awareness": "false"}, NumaDemand(aware=False)),
        ({CRANE + "cpu-policy": "numa"}, NumaDemand(aware=None, cpu_policy="numa")),
        ({CRANE + "cpu-policy": "exclusive", OWN + "cpu-policy": "exclusive"}, NumaDemand(cpu_policy="exclusive")),
        (
            {OWN + "cpu-policy": "immovable", OWN + "topology-awareness": "true"},
            NumaDemand(aware=True, cpu_policy="immovable"),
        ),
    ],
)
def test_numa_annotations(annotations: dict[str, str], demand: NumaDemand | None) -> None:
    found = pod(annotations=annotations)
    assert (found.shape.numa, found.problems) == (demand, ())


@pytest.mark.parametrize(
    ("annotations", "code", "field"),
    [
        ({OWN + "topology-awareness": "yes"}, "TopologyAwarenessInvalid", OWN + "topology-awareness"),
        ({OWN + "cpu-policy": "static"}, "CpuPolicyInvalid", OWN + "cpu-policy"),
        (
            {CRANE + "cpu-policy": "numa", OWN + "cpu-policy": "exclusive"},
            "AnnotationContradiction",
            OWN + "cpu-policy",
        ),
        ({OWN + "load-profile": "lazy"}, "LoadProfileInvalid", OWN + "load-profile"),
        ({OWN + "load-profile": "peaks=9-17"}, "LoadProfileInvalid", OWN + "load-profile"),
        ({OWN + "load-profile": "peaks=09-25"}, "LoadProfileInvalid", OWN + "load-profile"),
        ({OWN + "expected-usage": "2 cores"}, "ExpectedUsageInvalid", OWN + "expected-usage"),
        ({OWN + "expected-usage": "[]"}, "ExpectedUsageInvalid", OWN + "expected-usage"),
        ({OWN + "expected-usage": '{"cpu": "-1"}'}, "ExpectedUsageInvalid", OWN + "expected-usage"),
        ({OWN + "expected-usage": '{"cpu": "1", "cpu": "2"}'}, "ExpectedUsageInvalid", OWN + "expected-usage"),
        ({OWN + "expected-usage": "{" * 1000}, "ExpectedUsageInvalid", OWN + "expected-usage"),
        ({OWN + "policy": "No Such"}, "PolicyNameInvalid", OWN + "policy"),
        ({OWN + "policy": ""}, "PolicyNameInvalid", OWN + "policy"),
    ],
)
def test_invalid_annotations_are_problems_of_the_pod(annotations: dict[str, str], code: str, field: str) -> None:
    assert problems(pod(annotations=annotations)) == [(code, field)]


@pytest.mark.parametrize("profile", ["busy", "idle", "peaks=09-17", "peaks=22-06"])
def test_load_profiles(profile: str) -> None:
    assert pod(annotations={OWN + "load-profile": profile}).shape.load_profile == profile


def test_expected_use_is_kept_in_base_units() -> None:
    found = pod(annotations={OWN + "expected-usage": '{"memory": "1Gi", "cpu": 1.5, "hetsched.io/disk-mbps": "40"}'})
    assert found.shape.expected_usage == (("cpu", 1500), ("hetsched.io/disk-mbps", 40), ("memory", 2**30))


@pytest.mark.parametrize(
    ("annotations", "spec", "policy", "rule"),
    [
        ({}, "", "", ""),
        ({OWN + "policy": "spread"}, "schedulerName: hetsched-binpack", "spread", "annotation"),
        ({}, "schedulerName: hetsched-binpack", "binpack", "scheduler-name"),
        ({}, "schedulerName: hetsched", "", ""),
        ({}, "schedulerName: default-scheduler", "", ""),
    ],
)
def test_policy_annotation_precedes_the_scheduler_name(
    annotations: dict[str, str], spec: str, policy: str, rule: str
) -> None:
    found = pod(spec, annotations=annotations)
    assert (found.policy, found.policy_rule) == (policy, rule)


def test_scheduler_name_without_a_policy_is_a_problem_of_the_pod() -> None:
    assert problems(pod("schedulerName: hetsched-")) == [("PolicyNameInvalid", "spec.schedulerName")]


def test_gang_size_is_read_from_labels() -> None:
    labels = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "3"}
    assert pod(labels=labels).gang == GangMember("g", 3)


def test_invalid_gang_size_is_a_problem_of_the_pod() -> None:
    labels = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "all"}
    assert problems(pod(labels=labels)) == [("GangInvalid", "pod-group.scheduling.sigs.k8s.io/min-available")]


def test_gang_size_is_read_from_the_pod_group_of_the_namespace() -> None:
    groups = content(
        """\
        {apiVersion: scheduling.x-k8s.io/v1alpha1, kind: PodGroup, metadata: {name: g}, spec: {minMember: 4}}
        ---
        apiVersion: scheduling.x-k8s.io/v1alpha1
        kind: PodGroup
        metadata: {name: g, namespace: b}
        spec: {minMember: 9}
        """
    )
    assert pod(labels={"scheduling.x-k8s.io/pod-group": "g"}, known=groups).gang == GangMember(
        "g", 4, min_field=MIN_MEMBER
    )
    assert pod(labels={"scheduling.x-k8s.io/pod-group": "unknown"}, known=groups).gang == GangMember("unknown", 0)


def test_gang_has_timeout_and_resources_of_its_pod_group() -> None:
    groups = content(
        """\
        apiVersion: scheduling.x-k8s.io/v1alpha1
        kind: PodGroup
        metadata: {name: g}
        spec: {minMember: 2, scheduleTimeoutSeconds: 10, minResources: {cpu: "3"}}
        """
    )
    found = GangMember("g", 2, timeout_seconds=10, min_resources=(("cpu", 3000),), min_field=MIN_MEMBER)
    assert pod(labels={"scheduling.x-k8s.io/pod-group": "g"}, known=groups).gang == found


def test_gang_in_the_older_label_uses_its_pod_group() -> None:
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
    groups = content(msgspec.json.encode({**group, "spec": {"minMember": 4}}).decode())
    name = "pod-group.scheduling.sigs.k8s.io/name"
    assert pod(labels={name: "g"}, known=groups).gang == GangMember("g", 4, min_field=MIN_MEMBER)
    stated = {name: "g", "pod-group.scheduling.sigs.k8s.io/min-available": "3"}
    assert pod(labels=stated, known=groups).gang == GangMember("g", 3)
