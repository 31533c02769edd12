"""Objects refer to each other by name, in any order and across files."""

import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_constraints import Toleration
from tests.unit.adapters.reading import content, pod, pod_text, problems

CLASSES = """\
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: usual}, value: 5, globalDefault: true}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata}
handler: kata
overhead: {podFixed: {cpu: 250m, memory: 120Mi}}
scheduling: {nodeSelector: {kata: "true"}, tolerations: [{key: kata, operator: Exists}]}
---
"""
KNOWN = content(CLASSES, workload=False)


@pytest.mark.parametrize(
    ("spec", "priority"),
    [
        ("", 5),
        ("priorityClassName: high", 1000),
        ("priorityClassName: high\npriority: 7", 7),
        ("priorityClassName: system-node-critical", 2_000_001_000),
        ("priority: -10", -10),
    ],
)
def test_priorities(spec: str, priority: int) -> None:
    assert pod(spec, known=KNOWN).priority == priority


def test_classes_of_the_same_file_are_found_at_any_position() -> None:
    assert content(pod_text("priorityClassName: high") + "---\n" + CLASSES).pending[0].priority == 1000


@pytest.mark.parametrize(
    ("field", "code"),
    [("priorityClassName", "PriorityClassUnknown"), ("runtimeClassName", "RuntimeClassUnknown")],
)
def test_unknown_class_is_a_problem_of_the_pod(field: str, code: str) -> None:
    assert problems(pod(f"{field}: none")) == [(code, f"spec.{field}")]


def test_runtime_class_adds_overhead_and_scheduling_constraints() -> None:
    found = pod("runtimeClassName: kata\nnodeSelector: {a: b}", known=KNOWN)
    assert found.shape.requests == (("cpu", 250), ("memory", 120 * 2**20), ("pods", 1))
    assert found.shape.node_selector == (("a", "b"), ("kata", "true"))
    assert found.shape.tolerations == (Toleration("kata", "Exists"),)


def test_overhead_set_by_the_api_server_is_not_added_twice() -> None:
    assert pod("runtimeClassName: kata\noverhead: {cpu: 250m}", known=KNOWN).shape.request("cpu") == 250


def test_namespaces_give_labels_and_a_default_policy() -> None:
    found = content(
        """\
        apiVersion: v1
        kind: Namespace
        metadata: {name: ml, labels: {team: research}, annotations: {hetsched.io/policy: binpack}}
        ---
        {apiVersion: v1, kind: Namespace, metadata: {name: web}}
        """
    )
    assert found.namespaces == {"ml": {"team": "research"}, "web": {}}
    assert found.namespace_policies == {"ml": "binpack"}


def test_running_pods_are_distinguished_from_pending_ones() -> None:
    text = "---\n".join(
        (
            pod_text("nodeName: n1", name="runs"),
            pod_text("", name="waits"),
            pod_text("nodeName: n1", name="done") + "status: {phase: Succeeded}\n",
            pod_text("", name="failed") + "status: {phase: Failed}\n",
        )
    )
    found = content(text, workload=False)
    assert ([p.name for p in found.running], [p.name for p in found.pending]) == (["runs"], ["waits"])


def test_identity_is_kept() -> None:
    found = content(
        """\
        apiVersion: v1
        kind: Pod
        metadata:
          name: p
          namespace: ns
          uid: u-1
          creationTimestamp: 2026-11-20T10:00:00Z
          ownerReferences: [{kind: ConfigMap, name: c}, {kind: ReplicaSet, name: web-abc, controller: true}]
        spec:
          containers: [{image: a}, {image: b}]
          initContainers: [{image: a}]
        status: {qosClass: Guaranteed}
        """
    ).pending[0]
    assert (found.key, found.uid, found.created_at, found.controller) == (
        "ns/p", "u-1", "2026-11-20T10:00:00Z", "ReplicaSet/web-abc",
    )  # fmt: skip
    assert (found.images, found.qos) == (("a", "b"), "Guaranteed")


def test_pod_deleted_before_it_ran_is_left_out() -> None:
    text = "{apiVersion: v1, kind: Pod, metadata: {name: p, deletionTimestamp: x}, spec: {%s containers: [{}]}}"
    assert content(text % "").pending == ()
    assert len(content(text % "nodeName: n,").running) == 1


@pytest.mark.parametrize(
    ("kind", "version", "namespaced"),
    [
        ("Pod", "v1", True),
        ("Node", "v1", False),
        ("Namespace", "v1", False),
        ("NodeGpu", "hetsched.io/v1alpha1", False),
    ],
)
def test_duplicate_object_name_is_rejected(kind: str, version: str, namespaced: bool) -> None:
    one = (
        f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: a, namespace: %s}}, spec: {{containers: [{{}}]}}}}\n"
    )
    with pytest.raises(InputError) as refused:
        content("---\n".join((one % "x", one % "x")))
    assert (refused.value.code, refused.value.place) == ("ObjectDuplicate", "file.yaml#2 metadata.name")
    if namespaced:
        assert len(content("---\n".join((one % "x", one % "y"))).pending) == 2


def test_unused_kinds_and_groups_are_ignored() -> None:
    found = content("{apiVersion: v1, kind: ConfigMap}\n---\n{apiVersion: other.io/v1, kind: Node, metadata: 7}\n")
    assert found == content("{apiVersion: v1, kind: Service, spec: {ports: []}}")


def test_policies_keep_their_order_weights_and_parameters() -> None:
    found = content(
        """\
        apiVersion: hetsched.io/v1alpha1
        kind: SchedulingPolicy
        metadata: {name: binpack-gpu}
        spec:
          plugins:
          - {name: resource-fit}
          - {name: binpack, weight: 2, params: {shape: [[0, 0], [100, 10]], resources: {cpu: 1, nvidia.com/gpu: 1}}}
          ties: {by: random, seed: 7}
        """
    ).policies[0]
    assert [(plugin.name, plugin.weight) for plugin in found.plugins] == [("resource-fit", 1.0), ("binpack", 2.0)]
    assert found.plugins[1].params == {"shape": [[0, 0], [100, 10]], "resources": {"cpu": 1, "nvidia.com/gpu": 1}}
    assert (found.name, found.ties.by, found.ties.seed) == ("binpack-gpu", "random", 7)


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ("{}", "spec.plugins"),
        ("{plugins: []}", "spec.plugins"),
        ("{plugins: [{name: a, weight: -1}]}", "spec.plugins[0].weight"),
        ("{plugins: [{name: a, weight: 1001}]}", "spec.plugins[0].weight"),
        ("{plugins: [{name: a, wieght: 1}]}", "spec.plugins[0].wieght"),
        ("{plugins: [{weight: 1}]}", "spec.plugins[0].name"),
        ("{plugins: [{name: a}, {name: a}]}", "spec.plugins[1].name"),
        ("{plugins: [{name: a}], ties: {by: luck}}", "spec.ties.by"),
        ("{plugins: [{name: a}], ties: {seed: -1}}", "spec.ties.seed"),
    ],
)
def test_wrong_policies_are_refused(spec: str, place: str) -> None:
    with pytest.raises(InputError) as refused:
        content(f"{{apiVersion: hetsched.io/v1alpha1, kind: SchedulingPolicy, metadata: {{name: p}}, spec: {spec}}}")
    assert (refused.value.code, refused.value.place) == ("PolicyMalformed", f"file.yaml#1 {place}")


@pytest.mark.parametrize("name", ["", "A", "..", "a_b", "a" * 254, "-a", "a/b", "é", "a\u200b"])
def test_names_are_rfc_1123(name: str) -> None:
    with pytest.raises(InputError) as refused:
        content(f"{{apiVersion: v1, kind: Pod, metadata: {{name: '{name}'}}, spec: {{containers: [{{}}]}}}}")
    assert refused.value.code == "NameInvalid"


def test_invalid_node_name_of_a_pod_is_rejected() -> None:
    with pytest.raises(InputError) as refused:
        pod("nodeName: ../../secrets")
    assert (refused.value.code, refused.value.place) == ("NameInvalid", "file.yaml#1 spec.nodeName")


def test_annotations_are_bounded_as_in_the_api_server() -> None:
    assert pod(annotations={"a": "x" * 200_000}).problems == ()
    with pytest.raises(InputError) as refused:
        pod(annotations={"a": "x" * 200_000, "b": "x" * 70_000})
    assert (refused.value.code, refused.value.place) == ("ObjectTooLarge", "file.yaml#1 metadata.annotations")


def test_invalid_uid_rejects_the_file() -> None:
    with pytest.raises(InputError) as refused:
        content(f"{{apiVersion: v1, kind: Pod, metadata: {{name: p, uid: {'u' * 65}}}, spec: {{}}}}")
    assert refused.value.place == "file.yaml#1 metadata.uid"
