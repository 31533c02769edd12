"""Kubernetes' own pod groups, in the versions that API servers serve, as gangs."""

import pytest

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.wishes import GROUP_MIN_COUNT
from hetsched.contracts.objects.workload import GangMember, GangTopology
from tests.unit.adapters.reading import content, pod_text, problems

GROUP = """\
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: ring}
spec:
  schedulingPolicy: {gang: {minCount: 4}}
"""


def test_pod_group_gives_the_minimum_members() -> None:
    found = content(f"{GROUP}---\n{pod_text('schedulingGroup: {podGroupName: ring}')}")
    assert found.pending[0].gang == GangMember("ring", 4, min_field=GROUP_MIN_COUNT, disruption_mode="Single")
    assert found.pending[0].problems == ()


def test_missing_group_gives_no_minimum() -> None:
    assert content(pod_text("schedulingGroup: {podGroupName: ring}")).pending[0].gang == GangMember("ring", 0)


def test_members_of_a_basic_group_start_alone() -> None:
    group = GROUP.replace("gang: {minCount: 4}", "basic: {}")
    found = content(f"{group}---\n{pod_text('schedulingGroup: {podGroupName: ring}')}")
    assert found.pending[0].gang == GangMember("ring", 1, min_field=GROUP_MIN_COUNT, disruption_mode="Single")


def test_pod_group_of_a_workload_is_named_by_both() -> None:
    workload = """\
apiVersion: scheduling.k8s.io/v1alpha1
kind: Workload
metadata: {name: train}
spec: {podGroups: [{name: workers, policy: {gang: {minCount: 3}}}]}
"""
    found = content(f"{workload}---\n{pod_text('workloadRef: {name: train, podGroup: workers}')}")
    expected = GangMember("train.workers", 3, min_field=GROUP_MIN_COUNT, disruption_mode="Single")
    assert found.pending[0].gang == expected


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3", "v1beta1"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedulingConstraints", "{topology: [{key: rack}, {key: block}]}"),
        ("schedulingConstraints", "{topology: [{key: rack, mode: Preferred}]}"),
        ("schedulingConstraints", "{colour: blue}"),
        ("resourceClaims", "[{name: link}]"),
        ("parentCompositePodGroupName", "job"),
    ],
)
def test_unsupported_parts_of_a_group_are_reported(version: str, field: str, value: str) -> None:
    group = f"{GROUP.replace('v1alpha2', version)}  {field}: {value}\n"
    found = content(f"{group}---\n{pod_text('schedulingGroup: {podGroupName: ring}')}")
    assert problems(found.pending[0]) == [("FeatureNotSupported", f"PodGroup ring: spec.{field}")]


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3", "v1beta1"])
def test_topology_constraint_of_a_group_is_required(version: str) -> None:
    group = f"{GROUP.replace('v1alpha2', version)}  schedulingConstraints: {{topology: [{{key: example.com/rack}}]}}\n"
    found = content(f"{group}---\n{pod_text('schedulingGroup: {podGroupName: ring}')}").pending[0]
    assert found.problems == ()
    assert found.gang is not None
    assert found.gang.topology == GangTopology((), ("example.com/rack",))


@pytest.mark.parametrize(
    ("version", "written", "expected"),
    [
        ("v1alpha2", "Pod", "Single"),
        ("v1alpha2", "PodGroup", "All"),
        ("v1alpha3", "{single: {}}", "Single"),
        ("v1alpha3", "{all: {}}", "All"),
        ("v1beta1", "{all: {}}", "All"),
        ("v1beta1", "{}", "Single"),
    ],
)
def test_disruption_mode_of_a_group_applies_to_its_members(version: str, written: str, expected: str) -> None:
    group = f"{GROUP.replace('v1alpha2', version)}  disruptionMode: {written}\n"
    by_field = pod_text("schedulingGroup: {podGroupName: ring}", name="by-field")
    by_label = pod_text(labels={"scheduling.x-k8s.io/pod-group": "ring"}, name="by-label")
    pods = content(f"{group}---\n{by_field}---\n{by_label}").pending
    assert [(pod.gang and pod.gang.disruption_mode, pod.problems) for pod in pods] == [(expected, ())] * 2


def test_gang_of_labels_is_preempted_as_a_whole() -> None:
    gang = content(pod_text(labels={"pod-group.scheduling.sigs.k8s.io/name": "ring"})).pending[0].gang
    assert gang is not None
    assert gang.disruption_mode == "All"


def test_unknown_disruption_mode_is_rejected() -> None:
    with pytest.raises(InputError) as error:
        content(f"{GROUP}  disruptionMode: Sometimes\n")
    assert (error.value.code, error.value.place.split()[-1]) == ("FieldInvalid", "spec.disruptionMode")


def test_invalid_topology_key_of_a_group_is_rejected() -> None:
    with pytest.raises(InputError) as error:
        content(f"{GROUP}  schedulingConstraints: {{topology: [{{key: 'no key'}}]}}\n")
    assert (error.value.code, error.value.place.split()[-1]) == (
        "LabelInvalid", "spec.schedulingConstraints.topology[0].key",
    )  # fmt: skip


def test_long_group_names_are_distinct() -> None:
    names = ["g" * 100 + end for end in "ab"]
    texts = [pod_text(f"schedulingGroup: {{podGroupName: {name}}}", name=f"p{i}") for i, name in enumerate(names)]
    kept = [pod.gang.name for pod in content("---\n".join(texts)).pending if pod.gang]
    assert len(set(kept)) == 2
    assert {len(name) for name in kept} == {63}


def test_export_round_trip() -> None:
    limited = GROUP.replace("ring", "limited") + "  schedulingConstraints: {topology: [{key: rack}]}\n"
    limited += "  disruptionMode: PodGroup\n"
    odd = GROUP.replace("ring", "odd") + "  schedulingConstraints: {colour: blue}\n"
    pods = [pod_text(f"schedulingGroup: {{podGroupName: {name}}}", name=name) for name in ("ring", "limited", "odd")]
    found = content("---\n".join([GROUP, limited, odd, *pods]))
    assert read_content(load_documents(write_cluster(found), name="again.json"), workload=True) == found
