"""Volumes in a cluster file, claims in it or in the file of the pods, and gated pods."""

from pathlib import Path

from tests.unit.cli.calling import document, run

CLUSTER = """\
apiVersion: v1
kind: Node
metadata: {name: n-a, labels: {topology.kubernetes.io/zone: a}}
status: {allocatable: {cpu: "8", memory: 32Gi, pods: "110"}}
---
apiVersion: v1
kind: Node
metadata: {name: n-b, labels: {topology.kubernetes.io/zone: b}}
status: {allocatable: {cpu: "8", memory: 32Gi, pods: "110"}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk, labels: {topology.kubernetes.io/zone: b}}
spec: {capacity: {storage: 10Gi}, accessModes: [ReadWriteOnce], storageClassName: local, hostPath: {path: /disk}}
"""
CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 5Gi}}}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  containers: [{name: main}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""


def files(folder: Path, cluster: str, pods: str) -> tuple[str, ...]:
    for name, text in (("cluster.yaml", cluster), ("pods.yaml", pods)):
        (folder / name).write_text(text)
    return ("whatif", "-f", str(folder / "pods.yaml"), "--cluster", str(folder / "cluster.yaml"), "-o", "json")


def test_claim_is_found_in_either_file(tmp_path: Path) -> None:
    for cluster, pods in ((f"{CLUSTER}---\n{CLAIM}", POD), (CLUSTER, f"{CLAIM}---\n{POD}")):
        answer = document(run(*files(tmp_path, cluster, pods)))
        assert [placed["node"] for placed in answer["placements"]] == ["n-b"]


def test_missing_claim_is_not_now(tmp_path: Path) -> None:
    asked = run(*files(tmp_path, CLUSTER, POD))
    assert asked.exit_code == 10
    (unplaced,) = document(asked)["unplaced"]
    assert [reason["code"] for reason in unplaced["reasons"]] == ["VolumeClaimMissing"]


def test_gated_pod_is_not_now(tmp_path: Path) -> None:
    held = POD.replace("containers:", "schedulingGates: [{name: example.org/hold}]\n  containers:")
    asked = run(*files(tmp_path, f"{CLUSTER}---\n{CLAIM}", held))
    assert asked.exit_code == 10
    assert [reason["code"] for reason in document(asked)["unplaced"][0]["reasons"]] == ["SchedulingGated"]
