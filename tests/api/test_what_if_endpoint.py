"""`what-if/`: the document of the contract from the real engine on a copy; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from django.conf import settings
from django.db import connection

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.contracts.documents import encode
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.simulation.what_if import what_if
from hetsched.journal import counters
from hetsched.placement.models import Decision
from workers import canary

from .conftest import POD, Api

NODES = """\
apiVersion: v1
kind: Node
metadata: {name: big, labels: {kubernetes.io/arch: amd64}}
status:
  allocatable: {cpu: "64", memory: 256Gi, pods: "110"}
  conditions: [{type: Ready, status: "True"}]
"""
HUGE = POD.replace("500m", '"16"')


@contextmanager
def no_writes() -> Iterator[None]:
    """Fail on any statement that is not a read."""

    def judge(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        assert sql.replace("(", " ").split()[0].upper() in ("SELECT", "SAVEPOINT", "RELEASE", "PRAGMA"), sql
        return execute(sql, params, many, context)

    with connection.execute_wrapper(judge):
        yield


def ask(caller: Api, manifest: Any = POD, **more: Any) -> Any:
    with no_writes():
        return caller("POST", "what-if/", {"manifest": manifest, **more}, status=200).json()


@pytest.fixture
def viewer(api: Callable[..., Api], cluster: Any) -> Api:
    made = api("viewer")
    made.get("nodes/")  # records the first use of the token, the only write of a read
    return made


def test_what_if_has_the_fields_of_the_contract(viewer: Api) -> None:
    answer = ask(viewer)
    assert list(answer) == [
        "verdict", "summary", "policy", "evaluatedAt", "snapshot", "placements", "unplaced", "displaced", "evictions",
        "balance",
    ]  # fmt: skip
    assert (answer["verdict"], answer["policy"]) == ("placed", {"name": "hetsched", "version": 1})
    (placement,) = answer["placements"]
    assert (placement["pod"], placement["node"], placement["gpus"]) == ("default/web", "n1", [])


def test_explain_adds_every_node_with_every_score(viewer: Api) -> None:
    nodes = ask(viewer, explain=True)["nodes"]
    assert [(node["name"], node["rank"]) for node in nodes] == [("n1", 1), ("n2", 2)]
    assert nodes[0]["total"] == sum(score["weighted"] for score in nodes[0]["scores"])


def test_pod_that_fits_nowhere_has_a_reason(viewer: Api) -> None:
    answer = ask(viewer, HUGE)
    assert answer["verdict"] == "never-fits"
    (unplaced,) = answer["unplaced"]
    assert [reason["nodes"] for reason in unplaced["reasons"]] == [2]


def test_all_wrong_fields_of_a_manifest_are_listed(viewer: Api) -> None:
    def refused(manifest: str) -> dict[str, Any]:
        answer: dict[str, Any] = viewer("POST", "what-if/", {"manifest": manifest}, status=400).json()
        return answer

    one = POD.replace("500m", "-1")
    problem = refused(one.replace("name: web", "name: Web"))
    assert [(error["code"], error["place"]) for error in problem["errors"]] == [
        ("NameInvalid", "manifest#1 metadata.name"),
        ("QuantityNegative", "manifest#1 spec.containers[0].resources.requests.cpu"),
    ]
    assert problem["errors"][0] == {name: problem[name] for name in ("code", "detail", "place", "hint")}
    assert "errors" not in refused(one)


def test_nodes_can_be_supposed(viewer: Api) -> None:
    for added in (NODES, [msgspec.yaml.decode(NODES)]):
        answer = ask(viewer, HUGE, addNodes=added)
        assert [placement["node"] for placement in answer["placements"]] == ["big"]


def test_nodes_can_be_drained(viewer: Api, operator: Api, cluster: Any) -> None:
    from workers.schedule import run

    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    run(cluster.pk)
    answer = ask(viewer, POD.replace("web", "new"), drain=["n1"])
    assert [(moved["pod"], moved["from"], moved["to"]) for moved in answer["displaced"]] == [
        ("default/web", "n1", "n2")
    ]
    assert answer["placements"][0]["node"] == "n2"


def test_what_if_uses_a_policy_draft(viewer: Api) -> None:
    draft = {"plugins": [{"name": "resource-fit"}, {"name": "binpack", "weight": 2}]}
    assert ask(viewer, policyDraft=draft)["policy"] == {"name": "draft", "version": 0}
    whole = {
        "apiVersion": "hetsched.io/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": "mine"},
        "spec": draft,
    }
    assert ask(viewer, policyDraft=whole)["policy"]["name"] == "mine"


def test_what_if_uses_the_active_policy(viewer: Api) -> None:
    assert ask(viewer, policy="spread")["policy"]["name"] == "spread"
    named = POD.replace("{name: web}", "{name: web, annotations: {hetsched.io/policy: first-fit}}")
    assert ask(viewer, named)["policy"]["name"] == "first-fit"
    unknown = POD.replace("{name: web}", "{name: web, annotations: {hetsched.io/policy: none}}")
    assert ask(viewer, unknown)["verdict"] == "misconfigured"


def test_body_may_contain_a_cluster(viewer: Api) -> None:
    for inline in (NODES, {"apiVersion": "v1", "kind": "List", "items": [msgspec.yaml.decode(NODES)]}):
        assert ask(viewer, cluster=inline)["placements"][0]["node"] == "big"


def test_what_if_on_an_inline_cluster_equals_the_engine(viewer: Api) -> None:
    answer = ask(viewer, cluster=NODES, explain=True)
    content = parse_cluster([("c", NODES.encode())])
    expected = what_if(
        ClusterState(content.nodes, content.running, content.namespaces),
        compile_policy(BUILTIN["hetsched"], load_registry()),
        parse_workload([("w", POD.encode())]).pending,
        evaluated_at=answer["evaluatedAt"],
        explain=True,
    ).document()
    assert answer == msgspec.json.decode(encode(expected))


def test_bare_manifest_has_parameters_in_the_query(viewer: Api) -> None:
    answer = viewer(
        "POST", "what-if/?policy=spread&explain=true&cluster=lab", POD, kind="application/yaml", status=200
    ).json()
    assert (answer["policy"]["name"], len(answer["nodes"])) == ("spread", 2)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"drain": ["n1", "none"]}, "NodeUnknown"),
        ({"drain": ["n1", "n1"]}, "NodeRepeated"),
        ({"addNodes": NODES.replace("name: big", "name: n1")}, "NodeExists"),
        ({"addNodes": POD}, "ClusterWithoutNodes"),
        ({"cluster": POD}, "ClusterWithoutNodes"),
        ({"policy": "none"}, "PolicyUnknown"),
        ({"policyDraft": {}}, "PolicyMalformed"),
        ({"policyDraft": {"plugins": [{"name": "taints", "weight": -1}]}}, "PolicyMalformed"),
        ({"policyDraft": {"plugins": []}}, "PolicyEmpty"),
        ({"manifest": "kind: Service\napiVersion: v1\nmetadata: {name: x}"}, "WorkloadEmpty"),
    ],
)
def test_invalid_supposition_is_rejected(viewer: Api, more: Any, code: str) -> None:
    problem = viewer("POST", "what-if/", {"manifest": POD, **more}, status=400).json()
    assert problem["code"] == code
    if "weight" in str(more):
        assert (problem["place"], bool(problem["hint"])) == ("policyDraft.plugins[0].weight", True)


def test_existing_pod_is_a_conflict_unless_replaced(viewer: Api, operator: Api, cluster: Any) -> None:
    from workers.schedule import run

    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    run(cluster.pk)
    assert viewer("POST", "what-if/", {"manifest": POD}, status=409).json()["code"] == "PodExists"
    # As if it had ended: its capacity is free, and the response names the pod that was left out.
    answer = viewer("POST", "what-if/", {"manifest": POD, "replace": True}, status=200).json()
    assert (answer["verdict"], answer["replaced"]) == ("placed", ["default/web"])
    other = viewer("POST", "what-if/", {"manifest": POD.replace("web", "other"), "replace": True}, status=200)
    assert "replaced" not in other.json()
    refused = viewer("POST", "what-if/", {"manifest": POD, "replace": True, "plan": True}, status=400).json()
    assert refused["code"] == "PlanNotPossible"


def test_row_limit_is_enforced(viewer: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.api.whatif.what_if.MOST_CELLS", 1)
    problem = viewer("POST", "what-if/", {"manifest": POD, "explain": True}, status=400).json()
    assert problem["code"] == "ExplainTooLarge"


def test_concurrent_what_ifs_are_limited(viewer: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("web.api.whatif.what_if._running", threading.BoundedSemaphore(1))
    monkeypatch.setattr("web.api.whatif.what_if.PATIENCE_SECONDS", 0.01)
    from web.api.whatif import what_if as module

    with module._running:
        answer = viewer("POST", "what-if/", {"manifest": POD}, status=503)
    assert (answer.json()["code"], "Retry-After" in answer) == ("WhatIfBusy", True)
    assert ask(viewer)["verdict"] == "placed"


READS = [
    "clusters/", "clusters/lab/", "queue/?cluster=lab",
    "nodes/", "nodes/n1/", "nodes/n1/isa/", "nodes/n1/gpu/", "nodes/n1/numa/",
    "nodes/n1/balance/", "policies/", "policies/hetsched/", "plugins/", "metrics/balance/", "metrics/at-risk/",
    "decisions/", "decisions/{decision}/", "decisions/{decision}/?explain=true", "workloads/", "/healthz", "/readyz",
    "/metrics", "schema",
]  # fmt: skip


@pytest.mark.parametrize("address", READS)
def test_read_requests_write_nothing(operator: Api, decided: str, address: str) -> None:
    decision = Decision.objects.latest("id").pk
    for queue in settings.HETSCHED_VITAL_QUEUES:  # /readyz is 503 while no worker serves them
        canary.run(queue)
    counters.flush()
    with no_writes():
        operator("GET", address.format(decision=decision), status=200)


def test_policy_of_the_inline_cluster_has_precedence(viewer: Api) -> None:
    spec = msgspec.to_builtins(PolicySpec("own", (PluginUse("resource-fit"),)))
    policy = {
        "apiVersion": "hetsched.io/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": "own"},
        "spec": {"plugins": spec["plugins"]},
    }
    items = [msgspec.yaml.decode(NODES), policy]
    answer = ask(viewer, cluster={"apiVersion": "v1", "kind": "List", "items": items}, policy="own")
    assert answer["policy"]["name"] == "own"


def test_evictions_are_listed_unless_forbidden(viewer: Api) -> None:
    running = """
apiVersion: v1
kind: Pod
metadata: {name: low}
spec: {nodeName: only, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
"""
    node = """
apiVersion: v1
kind: Node
metadata: {name: only}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "10"}, conditions: [{type: Ready, status: "True"}]}
"""
    urgent = """
apiVersion: v1
kind: Pod
metadata: {name: urgent}
spec: {priority: 7, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
"""
    draft = {"plugins": [{"name": "resource-fit"}, {"name": "preemption"}]}
    asked = {"cluster": f"{node}---{running}", "policyDraft": draft}
    answer = ask(viewer, urgent, **asked)
    assert answer["verdict"] == "placed"
    assert answer["evictions"] == [{"pod": "default/low", "node": "only", "priority": 0, "pdb": None}]
    assert "eviction of default/low" in answer["summary"]
    for forbidden in ({"preempt": False}, {"noPreempt": True}):
        answer = ask(viewer, urgent, **asked, **forbidden)
        assert (answer["verdict"], answer["evictions"]) == ("not-now", [])
