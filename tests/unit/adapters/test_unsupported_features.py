import pytest

from tests.unit.adapters.reading import pod, problems


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("volumes: [{name: b, emptyDir: {}}, {name: a, rbd: {image: x}}]", "spec.volumes[1].rbd"),
        ("volumes: [{name: a, gcePersistentDisk: {pdName: x}}]", "spec.volumes[0].gcePersistentDisk"),
        ("workloadRef: {name: a, podGroup: b, podGroupReplicaKey: c}", "spec.workloadRef.podGroupReplicaKey"),
    ],
)  # fmt: skip
def test_unsupported_feature_is_a_problem_with_its_field(spec: str, field: str) -> None:
    assert problems(pod(spec)) == [("FeatureNotSupported", field)]


@pytest.mark.parametrize(
    "spec",
    [
        "schedulingGates: []",
        "volumes: [{name: a, configMap: {name: c}}, {name: b, hostPath: {path: /x}}, {name: c, projected: {}}]",
        "dnsPolicy: ClusterFirst\nsomethingNew: {a: 1}",
    ],
)
def test_fields_without_influence_on_placement_are_ignored(spec: str) -> None:
    assert pod(spec).problems == ()
