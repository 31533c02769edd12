"""Misspelt fields, annotations and kinds of a manifest are named with a suggestion."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from hetsched.adapters.kubernetes import field_table
from hetsched.adapters.objects.manifest_warnings import MOST, refuse_warnings
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.workload import NumaDemand
from tests.unit.adapters.reading import content, pod, pod_text, problems

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    metadata: {annotations: {hetsched.io/gpu-modell: A100}}
    spec: {containers: [{name: main, resources: {request: {cpu: 1}}}]}
"""


def warnings(text: str) -> list[tuple[str, str, str]]:
    return [(warning.code, warning.place, warning.hint or "") for warning in content(text).warnings]


def test_field_table_equals_the_models_of_the_kubernetes_client() -> None:
    assert json.loads(field_table.PATH.read_bytes()) == field_table.build_table()


@pytest.mark.parametrize(
    ("spec", "place", "hint"),
    [
        ("contaners: []", "spec.contaners", "Did you mean containers?"),
        (
            "containers: [{name: main, resources: {request: {cpu: 1}}}]",
            "spec.containers[0].resources.request",
            "Did you mean requests?",
        ),
        ("nodeselector: {a: b}", "spec.nodeselector", "Did you mean nodeSelector?"),
        (
            "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExection: {}}}",
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExection",
            "Did you mean requiredDuringSchedulingIgnoredDuringExecution?",
        ),
        ("xyzzy: 1", "spec.xyzzy", "hetsched ignores unknown names"),
    ],
)
def test_unknown_field_of_a_pod_is_named_with_its_place(spec: str, place: str, hint: str) -> None:
    assert warnings(pod_text(spec)) == [("FieldUnknown", f"file.yaml#1 {place}", hint)]


def test_templates_of_controllers_are_checked() -> None:
    inside = "file.yaml#1 spec.template"
    assert warnings(DEPLOYMENT) == [
        ("FieldUnknown", f"{inside}.spec.containers[0].resources.request", "Did you mean requests?"),
        (
            "AnnotationUnknown",
            f"{inside}.metadata.annotations['hetsched.io/gpu-modell']",
            "Did you mean hetsched.io/gpu-model?",
        ),
    ]


@pytest.mark.parametrize(
    ("annotations", "labels", "code", "hint"),
    [
        ({"hetsched.io/gpu-modell": "A100"}, {}, "AnnotationUnknown", "Did you mean hetsched.io/gpu-model?"),
        (
            {"topology.crane.io/cpu-polcy": "numa"}, {}, "AnnotationUnknown",
            "Did you mean topology.crane.io/cpu-policy?",
        ),
        ({"oks/gpu-numbr": "1"}, {}, "AnnotationUnknown", "Did you mean oks/gpu-number?"),
        ({}, {"hetsched.io/gpu-model": "A100"}, "KeyMisplaced", "Move the key to annotations"),
        (
            {}, {"pod-group.scheduling.sigs.k8s.io/nam": "g"}, "LabelUnknown",
            "Did you mean pod-group.scheduling.sigs.k8s.io/name?",
        ),
        ({}, {"hetsched.io/isaa": "rv64gc"}, "LabelUnknown", "Did you mean hetsched.io/isa?"),
    ],
)  # fmt: skip
def test_unknown_annotation_or_label_of_ours_is_named(
    annotations: dict[str, str], labels: dict[str, str], code: str, hint: str
) -> None:
    ((found, _, suggested),) = warnings(pod_text(annotations=annotations, labels=labels))
    assert (found, suggested) == (code, hint)


def test_right_spelling_and_other_prefixes_give_no_warning() -> None:
    annotations = {"hetsched.io/isa": "rv64gc", "example.com/gpu-modell": "x", "oks/gpunumber": "1"}
    assert warnings(pod_text(annotations=annotations, labels={"hetsched.io/isa": "rv64gc", "app": "x"})) == []


@pytest.mark.parametrize(
    ("version", "kind", "hint"),
    [
        ("apps/v1", "Deplyment", "Did you mean Deployment?"),
        ("apps/v1", "deployment", "Did you mean Deployment?"),
        ("v1", "Deployment", "Write apiVersion: apps/v1"),
        ("extensions/v1beta1", "DaemonSet", "Write apiVersion: apps/v1"),
        ("example.com/v1", "Mystery", ""),
    ],
)
def test_unknown_workload_kind_has_a_suggestion(version: str, kind: str, hint: str) -> None:
    text = DEPLOYMENT.replace("apps/v1", version).replace("kind: Deployment", f"kind: {kind}")
    assert warnings(text) == [("KindUnknown", "file.yaml#1 kind", hint)]


TEMPLATE = """
metadata: {annotations: {hetsched.io/gpu-modell: A100}}
spec: {contaners: [], containers: [{name: main, resources: {limits: {nvidia.com/gpus: 1}}}]}
"""


@pytest.mark.parametrize(
    ("version", "kind", "path"),
    [
        ("apps/v1", "DaemonSet", ("template",)),
        ("v1", "ReplicationController", ("template",)),
        ("batch/v1", "CronJob", ("jobTemplate", "spec", "template")),
    ],
)
def test_pods_of_kinds_that_are_left_out_are_checked(version: str, kind: str, path: tuple[str, ...]) -> None:
    spec: dict[str, Any] = yaml.safe_load(TEMPLATE)
    for step in reversed(path):
        spec = {step: spec}
    written = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    inside = f"file.yaml#1 spec.{'.'.join(path)}"
    assert set(warnings(json.dumps(written))) == {
        ("FieldUnknown", f"{inside}.spec.contaners", "Did you mean containers?"),
        (
            "AnnotationUnknown",
            f"{inside}.metadata.annotations['hetsched.io/gpu-modell']",
            "Did you mean hetsched.io/gpu-model?",
        ),
        (
            "ResourceUnknown",
            f"{inside}.spec.containers[0].resources.limits.nvidia.com/gpus",
            "Did you mean nvidia.com/gpu?",
        ),
    }


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nvidia.com/gpus", "Did you mean nvidia.com/gpu?"),
        ("nvidea.com/gpu", "Did you mean nvidia.com/gpu?"),
        ("nvidia.com/GPU", "Did you mean nvidia.com/gpu?"),
        ("amd.com/gpuu", "Did you mean amd.com/gpu?"),
        ("hetsched.io/network-mbp", "Did you mean hetsched.io/network-mbps?"),
    ],
)
def test_resource_name_next_to_a_known_one_is_named_once(name: str, hint: str) -> None:
    spec = f"containers: [{{name: main, resources: {{requests: {{{name}: 1}}, limits: {{{name}: 1}}}}}}]"
    place = f"file.yaml#1 spec.containers[0].resources.requests.{name}"
    assert warnings(pod_text(spec)) == [("ResourceUnknown", place, hint)]


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu", "amd.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.5gb", "gpu.intel.com/i915", "example.com/gpu", "rdma/hca", "hetsched.io/cards",
        "hugepages-2Mi",
    ],
)  # fmt: skip
def test_resource_names_of_device_plugins_give_no_warning(name: str) -> None:
    assert warnings(pod_text(f"containers: [{{name: main, resources: {{limits: {{{name}: 1, cpu: 1}}}}}}]")) == []


def test_resource_name_that_a_known_node_offers_gives_no_warning() -> None:
    nodes = content(
        """
        apiVersion: v1
        kind: Node
        metadata: {name: n1}
        status: {allocatable: {cpu: 1, nvidia.com/gpus: 4}}
        """,
        workload=False,
    )
    text = pod_text("containers: [{name: main, resources: {limits: {nvidia.com/gpus: 1}}}]")
    assert content(text, known=nodes).warnings == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cpus", "Did you mean cpu?"), ("Memory", "Did you mean memory?"), ("mem", "Did you mean memory?"),
        ("gpu", "Did you mean nvidia.com/gpu or amd.com/gpu?"),
        ("pods", "Use a standard resource, or write DOMAIN/NAME"),
        ("xyzzy", "Use a standard resource, or write DOMAIN/NAME"),
    ],
)  # fmt: skip
def test_name_that_is_no_resource_is_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        content(pod_text(f"containers: [{{name: main, resources: {{requests: {{{name}: 1}}}}}}]"))
    assert (refused.value.code, refused.value.hint) == ("ResourceNameInvalid", hint)


@pytest.mark.parametrize("workload", [True, False])
@pytest.mark.parametrize("kind", ["ResourceQuota", "LimitRange"])
def test_admission_rule_that_is_not_simulated_is_named(kind: str, workload: bool) -> None:
    text = f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{hard: {{pods: 1}}}}"
    (found,) = content(text, workload=workload).warnings
    assert (found.code, found.place) == ("AdmissionNotSimulated", "file.yaml#1 kind")
    refuse_warnings([found])  # strict parsing accepts it
    other = content(text.replace("apiVersion: v1", "apiVersion: example.com/v1"), workload=workload)
    assert other.warnings == ()


def test_error_carries_the_other_warnings_of_its_file() -> None:
    wrong = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: [], nodeselector: {}}\n---\n"
    with pytest.raises(InputError) as refused:
        content(wrong + pod_text("xyzzy: 1", name="y"))
    assert refused.value.hint == "spec.contaners is not known. Did you mean containers?"
    assert [warning.place for warning in refused.value.warnings] == [
        "file.yaml#1 spec.nodeselector",
        "file.yaml#2 spec.xyzzy",
    ]
    assert refused.value.at("outer ").warnings == refused.value.warnings


def test_strict_mode_lists_all_rejected_fields() -> None:
    found = content(pod_text("xyzzy: 1\nnodeselector: {a: b}")).warnings
    with pytest.raises(InputError) as refused:
        refuse_warnings(found)
    assert (refused.value.place, refused.value.warnings) == (found[0].place, found[1:])


def test_misspellings_precede_rules_that_are_not_simulated() -> None:
    rule = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: r%d}\n---\n"
    found = content("".join(rule % number for number in range(MOST)) + pod_text("nodeselector: {a: b}")).warnings
    assert (len(found), found[0].code, found[1].code) == (MOST, "FieldUnknown", "AdmissionNotSimulated")
    with pytest.raises(InputError):
        refuse_warnings(found)


VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: x}
spec: {tasks: [{replicas: 2, template: {spec: {containers: [{name: main, image: example.com/train:1}]}}}]}
"""
PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: x}
spec: {pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [{name: pytorch}]}}}}}
"""


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (VOLCANO, "Did you mean batch/v1/Job?"),
        (PYTORCH, "Did you mean batch/v1/Job?"),
        (PYTORCH.replace("PyTorchJob", "Mystery"), ""),
    ],
)
def test_pod_template_at_any_depth_of_an_unknown_kind_is_named(text: str, hint: str) -> None:
    assert warnings(text) == [("KindUnknown", "file.yaml#1 kind", hint)]


@pytest.mark.parametrize(
    "text",
    [
        PYTORCH.replace("containers: [{name: pytorch}]", "containers: []"),
        PYTORCH.replace("{name: pytorch}", "{image: x}"),
        PYTORCH.replace("template", "tmpl"),
        "apiVersion: v1\nkind: PodTemplate\nmetadata: {name: x}\ntemplate: {spec: {containers: [{name: main}]}}",
    ],
)
def test_object_without_a_pod_template_gives_no_warning(text: str) -> None:
    assert warnings(text) == []


@pytest.mark.parametrize(
    ("path", "container"),
    [
        (("pattern",), {"name": "*", "image": "!*:latest"}),
        (("validate", "pattern"), {"(name)": "*", "resources": {}}),
        (("validate", "pattern"), {"name": "main", "image": "a"}),
        (("mutate", "patchStrategicMerge"), {"name": "sidecar", "image": "a"}),
    ],
)
def test_pattern_of_a_policy_is_no_pod_template(path: tuple[str, ...], container: dict[str, Any]) -> None:
    rule: dict[str, Any] = {"spec": {"template": {"spec": {"containers": [container]}}}}
    for step in reversed(path):
        rule = {step: rule}
    policy = {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "metadata": {"name": "x"}}
    assert warnings(json.dumps({**policy, "spec": {"rules": [{"name": "r", **rule}]}})) == []


SETTINGS = {
    "PodGroup": "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: x}\nspec: {%s}",
    "ElasticQuota": "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata: {name: x}\nspec: {%s}",
    "Namespace": "apiVersion: v1\nkind: Namespace\nmetadata: {name: x, %s}",
    "NodeResourceTopology": (
        "apiVersion: topology.node.k8s.io/v1alpha2\nkind: NodeResourceTopology\nmetadata: {name: x}\n"
        "zones: [{name: node-0, type: Node, %s}]"
    ),
}


@pytest.mark.parametrize("workload", [True, False])
@pytest.mark.parametrize(
    ("kind", "field", "code", "place", "hint"),
    [
        ("PodGroup", "minMembers: 4", "FieldUnknown", "spec.minMembers", "minMember"),
        ("ElasticQuota", "maximum: {cpu: 4}, Max: {}", "FieldUnknown", "spec.Max", "max"),
        (
            "Namespace", "annotations: {hetsched.io/polcy: gang}", "AnnotationUnknown",
            "metadata.annotations['hetsched.io/polcy']", "hetsched.io/policy",
        ),
        (
            "Namespace", "labels: {hetsched.io/policy: gang}", "KeyMisplaced", "metadata.labels['hetsched.io/policy']",
            "Move the key to annotations",
        ),
        ("NodeResourceTopology", "resorces: []", "FieldUnknown", "zones[0].resorces", "resources"),
        (
            "NodeResourceTopology", "attributes: [{name: offline-capacity, value: '1'}]", "AttributeUnknown",
            "zones[0].attributes[0].name", "offline_capacity",
        ),
        (
            "NodeResourceTopology", "attributes: {hetshed.io/cpus: 0-3}", "AttributeUnknown",
            "zones[0].attributes['hetshed.io/cpus']", "hetsched.io/cpus",
        ),
    ],
)  # fmt: skip
def test_misspelt_field_of_a_setting_is_named(
    kind: str, field: str, code: str, place: str, hint: str, *, workload: bool
) -> None:
    found = content(SETTINGS[kind] % field, workload=workload).warnings
    hint = hint if hint.startswith("Move") else f"Did you mean {hint}?"
    assert (code, f"file.yaml#1 {place}", hint) in [
        (warning.code, warning.place, warning.hint or "") for warning in found
    ]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("PodGroup", "minMember: 4, minResources: {cpu: 4}, scheduleTimeoutSeconds: 10"),
        ("ElasticQuota", "min: {cpu: 4}, max: {cpu: 8}"),
        ("Namespace", "annotations: {hetsched.io/policy: gang, example.com/a: b}, labels: {pool: a}"),
        (
            "NodeResourceTopology",
            "parent: s, costs: [{name: node-0, value: 10}], resources: [{name: cpu, capacity: 4, allocatable: 4, "
            "available: 4}], attributes: [{name: offline_capacity, value: '1'}, {name: nodeTopologyPodsFingerprint, "
            "value: x}]",
        ),
    ],
)
def test_right_fields_of_settings_give_no_warning(kind: str, field: str) -> None:
    assert warnings(SETTINGS[kind] % field) == []


@pytest.mark.parametrize(
    ("annotations", "hint"),
    [
        ({"hetshed.io/gpu-model": "A100"}, "Did you mean hetsched.io/gpu-model?"),
        ({"hetshed.io/gpu-modell": "A100"}, "Did you mean hetsched.io/gpu-model?"),
        ({"topology.crane.i0/cpu-policy": "numa"}, "Did you mean topology.crane.io/cpu-policy?"),
    ],
)
def test_misspelt_prefix_is_named(annotations: dict[str, str], hint: str) -> None:
    ((code, _, suggested),) = warnings(pod_text(annotations=annotations))
    assert (code, suggested) == ("AnnotationUnknown", hint)


@pytest.mark.parametrize(
    "key", ["topology.kubernetes.io/zone", "netsched.io/queue", "scheduling.k8s.io/group-name", "gpu-model"]
)
def test_prefix_of_another_tool_gives_no_warning(key: str) -> None:
    assert warnings(pod_text(annotations={key: "x"}, labels={key: "x"})) == []


def test_unknown_kind_without_pods_gives_no_warning() -> None:
    assert warnings("apiVersion: example.com/v1\nkind: Deplyment\nmetadata: {name: x}\nspec: {size: 1}") == []


def test_number_of_warnings_is_bounded() -> None:
    assert len(warnings(pod_text("\n".join(f"unknown{number}: 1" for number in range(3 * MOST))))) == MOST


def test_strict_mode_rejects_a_misspelling_after_many_warnings() -> None:
    quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {cpu: 1}}\n---\n"
    found = content(quota * MOST + pod_text("nodeselector: {a: b}")).warnings
    assert len(found) == MOST
    with pytest.raises(InputError, match="FieldUnknown"):
        refuse_warnings(found)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("hetshed.io/isa", "hetsched.io/isa"),
        ("hetsched/isa", "hetsched.io/isa"),
        ("Hetsched.io/isa", "hetsched.io/isa"),
        ("topology.crane/cpu-policy", "topology.crane.io/cpu-policy"),
    ],
)
def test_misspelt_prefix_of_an_annotation_is_named(key: str, meant: str) -> None:
    ((code, _, hint),) = warnings(pod_text(annotations={key: "none"}))
    assert (code, hint) == ("AnnotationUnknown", f"Did you mean {meant}?")


@pytest.mark.parametrize("key", ["kubernetes.io/isa", "example.com/gpu-model", "topology.kubernetes.io/zone", "isa"])
def test_annotation_of_another_project_gives_no_warning(key: str) -> None:
    assert warnings(pod_text(annotations={key: "x"})) == []


@pytest.mark.parametrize(("name", "value"), [("topology-awareness", "yes"), ("cpu-policy", "static")])
def test_unknown_value_of_a_crane_annotation_counts_as_its_default(name: str, value: str) -> None:
    key = f"topology.crane.io/{name}"
    found = pod(annotations={key: value, "hetsched.io/load-profile": "busy"})
    assert (found.shape.numa, problems(found)) == (None, [])
    ((code, place, hint),) = warnings(pod_text(annotations={key: value}))
    assert (code, place) == ("AnnotationValueUnknown", f"file.yaml#1 metadata.annotations['{key}']")
    assert hint in ("Use true or false", "Use none or exclusive or immovable or numa")
    both = pod(annotations={"topology.crane.io/topology-awareness": "true", "topology.crane.io/cpu-policy": "static"})
    assert both.shape.numa == NumaDemand(aware=True)


@pytest.mark.parametrize(("value", "aware"), [("True", True), ("1", True), ("F", False)])
def test_awareness_of_crane_is_a_go_boolean(value: str, aware: bool) -> None:
    annotations = {"topology.crane.io/topology-awareness": value}
    assert pod(annotations=annotations).shape.numa == NumaDemand(aware=aware)
    assert warnings(pod_text(annotations=annotations)) == []


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: [{name: main}]}",
            "spec.containers",
            "spec.contaners is not known. Did you mean containers?",
        ),
        (
            DEPLOYMENT.replace("template:", "tmplate:"),
            "spec.template.spec.containers",
            "spec.tmplate is not known. Did you mean template?",
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n- "
            + json.dumps({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"},
                "spec": {
                    "containers": [{"name": "a"}],
                    "topologySpreadConstraints": [
                        {"maxSkew": 1, "topologyKeys": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                    ],
                },
            }),
            "items[0].spec.topologySpreadConstraints[0].topologyKey",
            "spec.topologySpreadConstraints[0].topologyKeys is not known. Did you mean topologyKey?",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {nodeSelektor: {}, containers: []}",
            "spec.containers",
            "Add a container with a name and an image",
        ),
    ],
)  # fmt: skip
def test_error_caused_by_a_misspelt_field_names_that_field(text: str, place: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        content(text)
    assert (refused.value.place, refused.value.hint) == (f"file.yaml#1 {place}", hint)
