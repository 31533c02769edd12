"""Features of kubelets: declared by nodes, and required by fields of pods."""

from __future__ import annotations

import pytest

from hetsched.adapters.anonymising import anonymised
from hetsched.adapters.files import parse_cluster
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.adapters.pod_groups import demand_key
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_features import (
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_HOST_NETWORK,
    VOLUME_BIND_MOUNT_OPTIONS,
)
from tests.unit.adapters.reading import content, pod

RULE = "restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [1]}}]"


@pytest.mark.parametrize(
    ("spec", "required"),
    [
        ("containers: [{name: a}]", ()),
        (f"containers: [{{name: a, {RULE}}}]", (RESTART_ALL_CONTAINERS,)),
        (f"containers: [{{name: a}}]\ninitContainers: [{{name: b, {RULE}}}]", (RESTART_ALL_CONTAINERS,)),
        ("containers: [{name: a, restartPolicyRules: [{action: Restart}]}]", ()),
        ("hostNetwork: true", ()),
        ("hostUsers: false", ()),
        ("hostNetwork: true\nhostUsers: true", ()),
        ("hostNetwork: true\nhostUsers: false", (USER_NAMESPACES_HOST_NETWORK,)),
        ("containers: [{name: a, volumeMounts: [{name: v, mountPath: /v, bindMountOptions: []}]}]", ()),
        (
            "containers: [{name: a, volumeMounts: [{name: v}, {name: w, bindMountOptions: [noexec]}]}]",
            (VOLUME_BIND_MOUNT_OPTIONS,),
        ),
        (
            f"containers: [{{name: a, {RULE}}}]\nhostNetwork: true\nhostUsers: false",
            (RESTART_ALL_CONTAINERS, USER_NAMESPACES_HOST_NETWORK),
        ),
    ],
)
def test_features_that_fields_of_a_pod_require(spec: str, required: tuple[str, ...]) -> None:
    assert pod(spec).shape.node_features == required


def test_node_keeps_only_features_that_pods_can_require() -> None:
    [node] = content(
        """
        apiVersion: v1
        kind: Node
        metadata: {name: n1}
        status: {declaredFeatures: [ExtendWebSocketsToKubelet, RestartAllContainersOnContainerExits]}
        """,
        workload=False,
    ).nodes
    assert node.declared_features == (RESTART_ALL_CONTAINERS,)


def test_version_of_the_kubelet_is_exported_and_anonymised() -> None:
    found = content(
        """
        apiVersion: v1
        kind: Node
        metadata: {name: n1}
        status: {nodeInfo: {kubeletVersion: v1.37.2-vendor.1}}
        """,
        workload=False,
    )
    exported = parse_cluster([("export.json", write_cluster(found))])
    assert [node.kubelet_version for node in (*found.nodes, *exported.nodes)] == ["v1.37.2-vendor.1"] * 2
    assert anonymised(found).nodes[0].kubelet_version == "v1.37"


def test_malformed_field_is_reported_with_its_path() -> None:
    with pytest.raises(InputError, match=r"must be a list of strings") as raised:
        pod("containers: [{name: a, volumeMounts: [{bindMountOptions: noexec}]}]")
    assert raised.value.place.endswith("spec.containers[0].volumeMounts[0].bindMountOptions")


def test_pods_with_other_mount_options_do_not_share_their_demands() -> None:
    def key(mount: dict[str, object]) -> bytes | None:
        return demand_key({"metadata": {}, "spec": {"containers": [{"name": "a", "volumeMounts": [mount]}]}}, "default")

    assert key({"name": "token-1"}) == key({"name": "token-2"})
    assert key({"name": "v"}) != key({"name": "v", "bindMountOptions": ["noexec"]})
