"""Topology levels of gangs, from annotations of pods, PodGroups and Topologies of Kueue."""

from __future__ import annotations

import pytest

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.adapters.objects.keys import GANG_MIN_AVAILABLE, GANG_NAME
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.objects.workload import GangTopology
from tests.unit.adapters.reading import content, pod, pod_text, problems

KUEUE, OWN = "kueue.x-k8s.io", "hetsched.io"
GANG = {GANG_NAME: "ring", GANG_MIN_AVAILABLE: "2"}
TOPOLOGY = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: Topology
metadata: {name: racks}
spec:
  levels: [{nodeLabel: block}, {nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]
"""
GROUP = """\
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: ring}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  schedulingConstraints: {topology: [{key: block}]}
"""


def levels(annotations: dict[str, str]) -> GangTopology | None:
    found = pod(annotations=annotations, labels=GANG)
    assert found.problems == ()
    assert found.gang is not None
    return found.gang.topology


@pytest.mark.parametrize("prefix", [KUEUE, OWN])
def test_annotation_values_are_label_keys(prefix: str) -> None:
    assert levels({f"{prefix}/podset-required-topology": "rack"}) == GangTopology((), ("rack",))
    assert levels({f"{prefix}/podset-preferred-topology": "rack"}) == GangTopology(("rack",))
    assert levels({f"{prefix}/podset-unconstrained-topology": "true"}) is None
    assert levels({}) is None


def test_own_annotations_list_levels() -> None:
    found = levels({f"{OWN}/podset-preferred-topology": "a.io/host, rack,block"})
    assert found == GangTopology(("a.io/host", "rack", "block"))
    assert found.choices == (("a.io/host", "rack", "block"), ("rack", "block"), ("block",))


def test_preferred_levels_lie_within_the_required_level() -> None:
    stated = {f"{OWN}/podset-required-topology": "block", f"{OWN}/podset-preferred-topology": "rack"}
    found = levels(stated)
    assert found == GangTopology(("rack",), ("block",))
    assert found.choices == (("rack", "block"), ("block",))
    # Preferred levels from the required one on have no effect.
    assert levels({**stated, f"{OWN}/podset-preferred-topology": "rack,block,row"}) == found


def test_topology_of_kueue_adds_the_wider_levels() -> None:
    def read(**annotations: str) -> GangTopology | None:
        stated = {f"{KUEUE}/podset-{name}-topology": level for name, level in annotations.items()}
        found = content(f"{TOPOLOGY}---\n{pod_text(annotations=stated, labels=GANG)}").pending[0].gang
        return None if found is None else found.topology

    assert read(preferred="rack") == GangTopology(("rack", "block"))
    assert read(preferred="block") == GangTopology(("block",))
    assert read(required="rack") == GangTopology((), ("rack", "block"))
    assert read(required="other") == GangTopology((), ("other",))


def test_topology_of_the_cluster_applies_to_a_workload_file() -> None:
    known = content(TOPOLOGY, workload=False)
    assert known.topologies == {"racks": ("block", "rack", "kubernetes.io/hostname")}
    found = pod(annotations={f"{KUEUE}/podset-preferred-topology": "rack"}, labels=GANG, known=known)
    assert found.gang is not None
    assert found.gang.topology == GangTopology(("rack", "block"))


def test_annotations_of_members_refine_the_pod_group() -> None:
    text = pod_text("schedulingGroup: {podGroupName: ring}", annotations={f"{OWN}/podset-preferred-topology": "rack"})
    found = content(f"{GROUP}---\n{text}").pending[0]
    assert found.gang is not None
    assert found.gang.topology == GangTopology(("rack",), ("block",))


@pytest.mark.parametrize(
    ("annotations", "code", "field", "part"),
    [
        ({f"{KUEUE}/podset-required-topology": "no key"}, "GangTopologyInvalid", f"{KUEUE}/podset-required-topology",
         "'no key' is not a valid label key: name a label of the nodes"),
        ({f"{KUEUE}/podset-required-topology": ""}, "GangTopologyInvalid", f"{KUEUE}/podset-required-topology",
         "'' is not a valid label key"),
        # Kueue's annotations contain one key.
        ({f"{KUEUE}/podset-preferred-topology": "rack,block"}, "GangTopologyInvalid",
         f"{KUEUE}/podset-preferred-topology", "'rack,block' is not a valid label key"),
        ({f"{OWN}/podset-preferred-topology": "rack,rack"}, "GangTopologyInvalid", f"{OWN}/podset-preferred-topology",
         "not distinct"),
        ({f"{OWN}/podset-preferred-topology": ",".join(f"l{n}" for n in range(17))}, "GangTopologyInvalid",
         f"{OWN}/podset-preferred-topology", "at most 16 levels"),
        ({f"{OWN}/podset-unconstrained-topology": "perhaps"}, "GangTopologyInvalid",
         f"{OWN}/podset-unconstrained-topology", "one of true, false"),
        ({f"{OWN}/podset-unconstrained-topology": "true", f"{KUEUE}/podset-required-topology": "rack"},
         "AnnotationContradiction", f"{OWN}/podset-unconstrained-topology", "contradict each other"),
        ({f"{OWN}/podset-required-topology": "rack", f"{KUEUE}/podset-required-topology": "block"},
         "AnnotationContradiction", f"{OWN}/podset-required-topology", "contradict each other"),
    ],
)  # fmt: skip
def test_wrong_values_are_problems(annotations: dict[str, str], code: str, field: str, part: str) -> None:
    found = pod(annotations=annotations, labels=GANG)
    assert problems(found) == [(code, field)]
    assert part in found.problems[0].message
    assert found.gang is not None
    assert found.gang.topology is None


def test_annotation_that_contradicts_the_pod_group_is_a_problem() -> None:
    text = pod_text("schedulingGroup: {podGroupName: ring}", annotations={f"{OWN}/podset-required-topology": "rack"})
    found = content(f"{GROUP}---\n{text}").pending[0]
    assert problems(found) == [("AnnotationContradiction", f"{OWN}/podset-required-topology")]
    assert "spec.schedulingConstraints.topology block" in found.problems[0].message


def test_pods_without_a_gang() -> None:
    # Kueue selects the nodes of its own pods, so its annotations are not a problem.
    assert pod(annotations={f"{KUEUE}/podset-required-topology": "rack"}).problems == ()
    found = pod(annotations={f"{OWN}/podset-required-topology": "rack"})
    assert problems(found) == [("GangTopologyInvalid", f"{OWN}/podset-required-topology")]


@pytest.mark.parametrize(
    "annotations",
    [
        {f"{KUEUE}/podset-preferred-topology": "rack"},
        {f"{KUEUE}/podset-required-topology": "rack"},
        {f"{OWN}/podset-required-topology": "rack,row", f"{OWN}/podset-preferred-topology": "kubernetes.io/hostname"},
        {f"{OWN}/podset-required-topology": "no key"},
        {f"{OWN}/podset-unconstrained-topology": "true", f"{OWN}/podset-required-topology": "rack"},
    ],
)
def test_export_round_trip(annotations: dict[str, str]) -> None:
    grouped = pod_text("schedulingGroup: {podGroupName: ring}", name="q")
    found = content("---\n".join([TOPOLOGY, GROUP, pod_text(annotations=annotations, labels=GANG), grouped]))
    assert read_content(load_documents(write_cluster(found), name="again.json"), workload=True) == found
