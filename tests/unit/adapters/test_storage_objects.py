"""Volumes, claims, classes and attach limits of objects, and the claims that pods contain or name."""

import pytest

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.storage import PersistentVolume, Storage, StorageClass, VolumeClaim
from hetsched.contracts.objects.workload import ClaimRequest, ClaimUse
from tests.unit.adapters.reading import content, pod, pod_text, problems

CLUSTER = """\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: csi.example.org
volumeBindingMode: WaitForFirstConsumer
allowedTopologies: [{matchLabelExpressions: [{key: topology.kubernetes.io/zone, values: [a, b]}]}]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk, labels: {failure-domain.beta.kubernetes.io/zone: a__b, tier: gold}}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: local
  claimRef: {kind: PersistentVolumeClaim, namespace: ns, name: data, uid: u-1}
  csi: {driver: csi.example.org, volumeHandle: h-1}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [x]}]}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: ns, uid: u-1}
spec: {accessModes: [ReadWriteOnce], storageClassName: local, volumeName: disk, resources: {requests: {storage: 5Gi}}}
status: {phase: Bound}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: late, namespace: ns, annotations: {volume.kubernetes.io/selected-node: n}}
spec: {accessModes: [ReadWriteOncePod], volumeMode: Block, selector: {matchLabels: {tier: gold}}}
status: {phase: Pending}
---
apiVersion: v1
kind: Node
metadata: {name: n}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: n}
spec: {drivers: [{name: csi.example.org, nodeID: n, allocatable: {count: 3}}, {name: other, nodeID: n}]}
"""
GIB = 2**30


def again(found: ClusterContent) -> ClusterContent:
    return read_content(load_documents(write_cluster(found), name="again.json"), workload=False)


def test_storage_equals_its_objects() -> None:
    found = content(CLUSTER, workload=False)
    gold = content(pod_text("topologySpreadConstraints: []")).pending  # a plain pod has no claims
    assert gold[0].shape.claims == ()
    assert found.storage.classes == {
        "fast": StorageClass(
            "csi.example.org", True, True, (NodeTerm((Expression("topology.kubernetes.io/zone", "In", ("a", "b")),)),)
        )
    }
    assert found.storage.volumes == {
        "disk": PersistentVolume(
            name="disk",
            capacity_bytes=10 * GIB,
            modes=("ReadWriteOnce",),
            storage_class="local",
            labels={"failure-domain.beta.kubernetes.io/zone": "a__b", "tier": "gold"},
            terms=(NodeTerm((Expression("disk", "In", ("x",)),)),),
            zones=(Expression("topology.kubernetes.io/zone", "In", ("a", "b")),),
            claim="ns/data",
            claim_uid="u-1",
            source="csi",
            driver="csi.example.org",
            handle="h-1",
        )
    }
    bound, late = found.storage.claims["ns/data"], found.storage.claims["ns/late"]
    asks = ClaimRequest("local", 5 * GIB, ("ReadWriteOnce",))
    assert bound == VolumeClaim("ns", "data", asks, uid="u-1", volume="disk")
    assert (late.asks.storage_class, late.asks.block, late.asks.modes) == (None, True, ("ReadWriteOncePod",))
    assert (late.volume, late.selected_node) == ("", "n")
    assert found.nodes[0].attach_limits == {"csi.example.org": 3}


def test_claim_has_its_volume_only_when_bound() -> None:
    text = """\
        apiVersion: v1
        kind: PersistentVolumeClaim
        metadata: {{name: data}}
        spec: {{volumeName: disk}}
        status: {{phase: {phase}}}
        """
    read = [content(text.format(phase=phase)) for phase in ("Bound", "Pending", "Lost")]
    claims = [found.storage.claims["default/data"] for found in read]
    assert [(claim.volume, claim.wanted, claim.lost) for claim in claims] == [
        ("disk", "", False),
        ("", "disk", False),
        ("", "disk", True),
    ]


@pytest.mark.parametrize(("phase", "volume"), [("Pending", "disk"), ("Lost", "")])
def test_claim_annotated_as_bound_has_its_volume(phase: str, volume: str) -> None:
    text = f"""\
        apiVersion: v1
        kind: PersistentVolumeClaim
        metadata: {{name: data, annotations: {{pv.kubernetes.io/bind-completed: "yes"}}}}
        spec: {{volumeName: disk}}
        status: {{phase: {phase}}}
        """
    assert content(text).storage.claims["default/data"].volume == volume


def test_pods_name_claims_or_have_ephemeral_ones() -> None:
    found = pod(
        """\
        volumes:
        - {name: a, persistentVolumeClaim: {claimName: data}}
        - {name: b, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: fast}}}}
        - {name: c, emptyDir: {}}
        """
    )
    assert found.problems == ()
    assert found.shape.claims == (ClaimUse("data"), ClaimUse("p-b", ClaimRequest("fast")))


def test_stateful_set_pods_have_separate_claims() -> None:
    found = content(
        """\
        apiVersion: apps/v1
        kind: StatefulSet
        metadata: {name: db}
        spec:
          replicas: 2
          volumeClaimTemplates: [{metadata: {name: data}, spec: {resources: {requests: {storage: 1Gi}}}}]
          template: {spec: {containers: [{}]}}
        """
    )
    asks = ClaimRequest(None, GIB)
    assert [pod.shape.claims for pod in found.pending] == [
        (ClaimUse("data-db-0", asks),),
        (ClaimUse("data-db-1", asks),),
    ]
    assert again(found).pending == found.pending


def test_export_round_trip() -> None:
    text = pod_text(
        """\
        schedulingGates: [{name: example.org/hold}]
        volumes:
        - {name: a, persistentVolumeClaim: {claimName: data}}
        - {name: b, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: fast}}}}
        """
    )
    found = content(f"{CLUSTER}---\n{text}", workload=False)
    assert again(found) == found


@pytest.mark.parametrize(
    ("kind", "spec", "place"),
    [
        ("PersistentVolume", "accessModes: [Sometimes]", "spec.accessModes"),
        ("PersistentVolume", "capacity: {storage: -1}", "spec.capacity.storage"),
        ("PersistentVolumeClaim", "volumeMode: Tape", "spec.volumeMode"),
        ("PersistentVolumeClaim", "selector: {matchLabels: [a]}", "spec.selector.matchLabels"),
    ],
)
def test_invalid_object_is_rejected_with_its_field(kind: str, spec: str, place: str) -> None:
    with pytest.raises(InputError) as refusal:
        content(f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\nspec:\n  {spec}\n")
    assert refusal.value.place == f"file.yaml#1 {place}"


def test_claim_without_a_name_is_rejected() -> None:
    with pytest.raises(InputError) as refusal:
        pod("volumes: [{name: a, persistentVolumeClaim: {}}]")
    assert refusal.value.code == "NameInvalid"


def test_content_without_storage_is_empty() -> None:
    assert not content(pod_text()).storage
    assert content(pod_text()).storage == Storage()
    assert problems(pod("volumes: [{name: a, emptyDir: {}}]")) == []
