"""Misspelt fields of a manifest over REST: warnings in the response, a problem document with `strict`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import a_node
from tests.situations import a_cluster

from .conftest import POD, Api

TYPO = POD.replace("requests:", "request:")
KIND = """
apiVersion: apps/v1
kind: Deplyment
metadata: {name: web}
spec: {template: {spec: {containers: [{name: main}]}}}
"""


@pytest.fixture
def submitter(api: Callable[..., Api], db: Any) -> Api:
    a_cluster(a_node("n1").cpu(8))
    return api("submitter")


@pytest.mark.parametrize(("address", "status"), [("what-if/", 200), ("workloads/", 202)])
def test_misspelt_field_is_a_warning_and_an_error_if_strict(submitter: Api, address: str, status: int) -> None:
    answer = submitter("POST", address, {"manifest": TYPO}, status=status).json()
    (warning,) = answer["warnings"]
    assert (warning["code"], warning["hint"]) == ("FieldUnknown", "Did you mean requests?")
    assert warning["place"] == "manifest#1 spec.containers[0].resources.request"
    body = {"manifest": TYPO.replace("web", "other"), "strict": True}
    for problem in (
        submitter("POST", address, body, status=400).json(),
        submitter("POST", f"{address}?strict=true", TYPO, kind="application/yaml", status=400).json(),
    ):
        assert (problem["code"], problem["hint"]) == ("FieldUnknown", "Did you mean requests?")


def test_right_manifest_has_no_warnings(submitter: Api) -> None:
    assert "warnings" not in submitter("POST", "what-if/", {"manifest": POD}, status=200).json()
    assert "warnings" not in submitter("POST", "workloads/", {"manifest": POD, "strict": True}, status=202).json()


def test_misspelt_kind_is_named_if_no_pod_remains(submitter: Api) -> None:
    for address in ("what-if/", "workloads/"):
        problem = submitter("POST", address, {"manifest": KIND}, status=400).json()
        assert problem["code"] == "WorkloadEmpty"
        assert "Did you mean Deployment?" in problem["hint"]


def test_cluster_of_the_query_applies_to_a_document(submitter: Api) -> None:
    a_cluster(a_node("m1").cpu(1), name="other")
    huge = {"manifest": POD.replace("500m", '"6"')}
    assert submitter("POST", "what-if/?cluster=fleet", huge, status=200).json()["placements"][0]["node"] == "n1"
    assert submitter("POST", "what-if/?cluster=other", huge, status=200).json()["verdict"] == "never-fits"
    same = {**huge, "cluster": "other"}
    assert submitter("POST", "what-if/?cluster=other", same, status=200).json()["verdict"] == "never-fits"
    problem = submitter("POST", "what-if/?cluster=fleet", same, status=400).json()
    assert (problem["code"], problem["place"]) == ("ClusterAmbiguous", "cluster")


def test_problem_document_carries_the_other_warnings(submitter: Api) -> None:
    wrong = TYPO.replace("kind: Pod", "kind: Pod\nxyzzy: 1").replace("request:", "limits: {cpu: 2x}, request:")
    for address in ("what-if/", "workloads/"):
        problem = submitter("POST", address, {"manifest": wrong}, status=400).json()
        assert (problem["code"], [warning["code"] for warning in problem["warnings"]]) == (
            "QuantityMalformed",
            ["FieldUnknown", "FieldUnknown"],
        )
        strict = submitter("POST", address, {"manifest": TYPO + "xyzzy: 1\n", "strict": True}, status=400).json()
        assert [strict["code"], *(warning["code"] for warning in strict["warnings"])] == [
            "FieldUnknown",
            "FieldUnknown",
        ]
    assert "warnings" not in submitter("POST", "what-if/", {"manifest": "kind: Pod"}, status=400).json()


QUOTA = "\n---\napiVersion: v1\nkind: ResourceQuota\nmetadata: {name: team}\nspec: {hard: {pods: 1}}\n"
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: 8, memory: 8Gi, pods: 9}}\n"


def test_quota_of_an_inline_or_imported_cluster_is_named(api: Callable[..., Api], db: Any) -> None:
    operator = api("operator")
    a_cluster(a_node("n1").cpu(8), name="site")
    answer = operator("POST", "what-if/", {"manifest": POD, "cluster": NODE + QUOTA}, status=200).json()
    (warning,) = answer["warnings"]
    assert (warning["code"], warning["place"]) == ("AdmissionNotSimulated", "cluster#2 kind")
    address = "clusters/site/import/?reason=x"
    answer = operator("POST", address, NODE + QUOTA, kind="application/yaml", if_match="*", status=200).json()
    assert [(item["code"], item["place"]) for item in answer["warnings"]] == [
        ("AdmissionNotSimulated", "import#2 kind")
    ]
    assert "warnings" not in operator("POST", address, NODE, kind="application/yaml", if_match="*", status=200).json()
    assert "warnings" not in operator("POST", "what-if/", {"manifest": POD, "cluster": "site"}, status=200).json()


def test_misspelling_in_an_inline_cluster_is_an_error_if_strict(submitter: Api) -> None:
    group = "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMembers: 2}\n"
    body = {"manifest": POD, "cluster": f"{NODE}{QUOTA}---\n{group}"}
    codes = [warning["code"] for warning in submitter("POST", "what-if/", body, status=200).json()["warnings"]]
    assert codes == ["FieldUnknown", "AdmissionNotSimulated"]
    problem = submitter("POST", "what-if/", {**body, "strict": True}, status=400).json()
    assert (problem["code"], problem["place"]) == ("FieldUnknown", "cluster#3 spec.minMembers")
