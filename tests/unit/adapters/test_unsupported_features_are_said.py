import pytest

from tests.unit.adapters.reading import content, pod, problems


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("resourceClaims: [{name: a, resourceClaimName: b}]", "spec.resourceClaims"),
        ("schedulingGates: [{name: a}]", "spec.schedulingGates"),
        ("volumes: [{name: a, emptyDir: {}}, {name: b, persistentVolumeClaim: {claimName: c}}]",
         "spec.volumes[1].persistentVolumeClaim"),
        ("volumes: [{name: a, ephemeral: {volumeClaimTemplate: {}}}]", "spec.volumes[0].ephemeral"),
        ("volumes: [{name: a, gcePersistentDisk: {pdName: x}}]", "spec.volumes[0].gcePersistentDisk"),
        ("workloadRef: {name: a}", "spec.workloadRef"),
    ],
)  # fmt: skip
def test_a_pod_that_needs_them_is_refused_with_the_field(spec: str, field: str) -> None:
    assert problems(pod(spec)) == [("FeatureNotSupported", field)]


@pytest.mark.parametrize(
    "spec",
    [
        "schedulingGates: []",
        "volumes: [{name: a, configMap: {name: c}}, {name: b, hostPath: {path: /x}}, {name: c, projected: {}}]",
        "dnsPolicy: ClusterFirst\nsomethingNew: {a: 1}",
    ],
)
def test_what_does_not_influence_placement_is_ignored(spec: str) -> None:
    assert pod(spec).problems == ()


def test_claim_templates_of_a_stateful_set_are_named() -> None:
    found = content(
        """\
        apiVersion: apps/v1
        kind: StatefulSet
        metadata: {name: db}
        spec: {volumeClaimTemplates: [{metadata: {name: data}}], template: {spec: {containers: [{}]}}}
        """
    )
    assert problems(found.pending[0]) == [("FeatureNotSupported", "spec.volumeClaimTemplates")]
