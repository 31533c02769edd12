"""The OpenAPI 3.1 document at `schema`: complete, valid, and matched by every response."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from django.utils import timezone

from hetsched.contracts.api.decision import NodeOutcome, PluginScore, Reason
from hetsched.inventory.models import Cluster, Collector
from hetsched.placement.models import Decision, Delivery, Rebalance, RebalanceMove, Shadow, Webhook
from hetsched.policies.models import PolicyRevision, Preview
from hetsched.policies.plan_contracts import PreviewParameters
from tests.builders import a_pod
from web.api import routes
from workers import replay

from .conftest import POD, Api


@pytest.fixture
def document(operator: Api) -> Any:
    answer = operator("GET", "schema", status=200)
    assert answer["Content-Type"].startswith("application/json")
    return answer.json()


def test_document_is_openapi_3_1_with_unique_operations(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) > 30


def test_every_operation_has_description_roles_and_errors(document: Any) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description"), (path, method)
            tokens = "agent" if path.startswith("/api/v1/agent/") else "bearer"
            assert operation["security"] == [{tokens: []}, {"cookieAuth": []}], (path, method)
            assert "application/problem+json" in operation["responses"]["default"]["content"], (path, method)


def test_references_resolve(document: Any) -> None:
    def references(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


ADDRESSES = {
    "audit/": "audit/", "audit/chain/": "audit/chain/",
    "callback-secret/": "callback-secret/", "webhooks/": "webhooks/", "webhooks/{webhook_id}/": "webhooks/wh-1/",
    "deliveries/": "deliveries/", "deliveries/{delivery_id}/": "deliveries/d-1/",
    "clusters/": "clusters/", "clusters/{name}/": "clusters/lab/", "decisions/": "decisions/",
    "clusters/{name}/collectors/": "clusters/lab/collectors/", "collectors/": "collectors/",
    "clusters/{name}/collectors/{collector}/": "clusters/lab/collectors/racks/",
    "decisions/{decision_id}/again/": "decisions/{decision}/again/",
    "pods/{pod_id}/why/": "pods/{pod}/why/?outlook=true",
    "holds/": "holds/", "holds/{hold_id}/": "holds/{hold}/",
    "isa/": "isa/", "isa/parse/": "isa/parse/?text=rv64gc_zba",
    "decisions/{decision_id}/": "decisions/{decision}/?explain=true", "metrics/balance/": "metrics/balance/",
    "metrics/at-risk/": "metrics/at-risk/", "metrics/headroom/": "metrics/headroom/", "nodes/": "nodes/",
    "nodes/{name}/": "nodes/n2/", "nodes/{name}/balance/": "nodes/n1/balance/", "nodes/{name}/gpu/": "nodes/n2/gpu/",
    "nodes/{name}/isa/": "nodes/n1/isa/", "nodes/{name}/numa/": "nodes/n1/numa/", "plugins/": "plugins/",
    "plugins/{name}/": "plugins/binpack/", "policies/": "policies/", "policies/{name}/": "policies/hetsched/",
    "policies/{name}/versions/": "policies/hetsched/versions/",
    "policies/{name}/versions/{version}/": "policies/hetsched/versions/1/", "queue/": "queue/",
    "sessions/": "sessions/",
    "policies/{name}/versions/{version}/diff/{other}/": "policies/hetsched/versions/0/diff/1/",
    "policies/{name}/versions/{version}/goldens/": "policies/hetsched/versions/1/goldens/",
    "policies/{name}/preview/": "policies/spread/preview/",
    "policies/{name}/preview/{preview}/": "policies/spread/preview/1/",
    "policies/{name}/preview/{preview}/changes/": "policies/spread/preview/1/changes/",
    "policy-plans/": "policy-plans/", "policy-plans/{name}/": "policy-plans/p/",
    "golden-placements/": "golden-placements/", "golden-placements/{name}/": "golden-placements/g/",
    "clusters/{name}/rebalances/": "clusters/lab/rebalances/",
    "clusters/{name}/rebalances/{number}/": "clusters/lab/rebalances/1/",
    "shadow/": "shadow/", "shadow/report/": "shadow/report/", "shadow/{shadow_id}/": "shadow/1/",
    "workloads/": "workloads/",
    "workloads/{workload_id}/": "workloads/{}/", "workloads/{workload_id}/pods/": "workloads/{}/pods/",
}  # fmt: skip


def check(document: Any, path: str, method: str, status: int, value: Any) -> None:
    content = document["paths"][f"/api/v1/{path}"][method]["responses"][str(status)]["content"]
    schema = {**content["application/json"]["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def a_comparison() -> None:
    """Create a shadow comparison with all fields that a response may have."""
    score = PluginScore("binpack", 10.0, 10.0, 1.0, 10.0)
    node = NodeOutcome("n1", "default/p", True, None, (score,), 10.0, 1)
    Shadow.objects.create(
        id=1, cluster=Cluster.objects.get(), namespace="default", pod_name="p", uid="u", scheduler="default-scheduler",
        spec=a_pod("p").build(), node_name="n1", revision=1, created_at=timezone.now(), judged_at=timezone.now(),
        judgement="infeasible", chosen="n2", our_score=10.0, feasible=1, top=(node,), theirs=node, policy_version=1,
        policy_name="hetsched", refusal=Reason("GpuNone", "gpu-fit", 1, "the node has no GPU"), summary="so it is",
    )  # fmt: skip


def a_plan_of_moves() -> None:
    """Create a plan that an operator confirmed."""
    plan = Rebalance.objects.create(
        id=1, cluster=Cluster.objects.get(), goal="room", summary="by 1 move", token="t", asked_by="ada", reason="room",
        created_at=timezone.now(),
    )  # fmt: skip
    RebalanceMove.objects.create(
        rebalance=plan, step=1, pod_key="default/p", source="n1", target="n2", changed_at=timezone.now()
    )


def a_webhook_with_a_delivery() -> None:
    """Create a webhook and a delivery of it with one attempt."""
    now = timezone.now()
    to = {"url": "https://ci.example/", "host": "ci.example", "owner": "user:1", "created_at": now}
    Webhook.objects.create(id="wh-1", name="ci", created_by="ada", **to)
    made = Delivery.objects.create(
        id="d-1", webhook_id="wh-1", workload="w-1", event="workload.placed", body='{"state":"placed"}', attempts=1,
        not_before=now, began_at=now, status=503, code="Answer503", **to,
    )  # fmt: skip
    made.log.create(at=now, took_millis=12, status=503, code="Answer503")


def a_hold(operator: Api) -> str:
    """Create a hold for a pod with GPUs."""
    pod = POD.replace("web", "held").replace("cpu: 500m", "cpu: 500m, nvidia.com/gpu: 1")
    return str(operator("POST", "holds/", pod, kind="application/yaml", status=201).json()["id"])


def policy_objects(admin: Api) -> None:
    """Create one object of each kind that belongs to policies."""
    golden = {"name": "g", "cluster": "lab", "manifest": POD, "expect": {"nodes": ["n1", "n2"]}, "reason": "agreed"}
    admin("POST", "golden-placements/", golden, status=201)
    condition = {
        "cluster": "lab", "metric": "gpuAllocation", "above": 0.8, "aboveVersion": 1, "below": 0.5, "belowVersion": 2,
    }  # fmt: skip
    admin("POST", "policies/hetsched/versions/", {"plugins": [{"name": "resource-fit"}]}, status=201)
    admin(
        "POST", "policy-plans/", {"name": "p", "policy": "hetsched", "condition": condition, "reason": "x"}, status=201
    )
    revision = PolicyRevision.objects.get(policy__name="spread")
    Preview.objects.create(
        id=1, policy=revision.policy, version=1, cluster=Cluster.objects.get(), asked=PreviewParameters(scope="all"),
        asked_by="ada", owner="user:1", asked_at=timezone.now(),
    )  # fmt: skip
    assert replay.run(1)


def test_get_responses_match_the_schema(document: Any, api: Any, operator: Api, decided: str) -> None:
    a_comparison()
    policy_objects(api("policy-admin"))
    a_plan_of_moves()
    a_webhook_with_a_delivery()
    Collector.objects.create(cluster=Cluster.objects.get(), name="racks", kind="prometheus-load", load=True)
    described = {path.removeprefix("/api/v1/") for path, methods in document["paths"].items() if "get" in methods}
    assert described == {*ADDRESSES, "clusters/{name}/export/", "tokens/"}
    made = Decision.objects.latest("id")
    there = {"decision": made.pk, "pod": made.pod_id, "hold": a_hold(operator)}
    for path, address in ADDRESSES.items():
        answer = operator("GET", address.format(decided, **there), status=200)
        check(document, path, "get", 200, answer.json())


def test_write_responses_match_the_schema(document: Any, api: Any, operator: Api, cluster: Any) -> None:
    accepted = operator("POST", "workloads/", POD, kind="application/yaml", status=202).json()
    check(document, "workloads/", "post", 202, accepted)
    acted = operator(
        "POST", f"workloads/{accepted['id']}/actions/", {"action": "cancel", "reason": "x"}, if_match="*", status=200
    )
    check(document, "workloads/{workload_id}/actions/", "post", 200, acted.json())
    asked = operator("POST", "what-if/?explain=true", POD, kind="application/yaml", status=200)
    check(document, "what-if/", "post", 200, asked.json())
    planned = operator("POST", "what-if/?plan=true", POD, kind="application/yaml", status=200).json()
    check(document, "what-if/", "post", 200, planned)
    held = operator("POST", "holds/", POD, kind="application/yaml", status=201).json()
    check(document, "holds/", "post", 201, held)
    longer = {"action": "extend", "reason": "x"}
    acted = operator("POST", f"holds/{held['id']}/actions/", longer, if_match="*", status=200)
    check(document, "holds/{hold_id}/actions/", "post", 200, acted.json())
    check(document, "holds/{hold_id}/", "delete", 200, operator("DELETE", f"holds/{held['id']}/", status=200).json())
    items = [{"manifest": POD.replace("web", "one"), "key": "k"}, {"manifest": POD.replace("500m", "-1")}]
    for sent, status in ((items[:1], 202), (items, 207)):
        many = operator("POST", "submissions/", {"items": sent}, status=status)
        check(document, "submissions/", "post", status, many.json())
    made = operator("POST", "clusters/", {"name": "more", "reason": "x"}, status=201)
    check(document, "clusters/", "post", 201, made.json())
    draft = {"name": "mine", "plugins": [{"name": "taints"}]}
    saved = api("policy-admin")("POST", "policies/", draft, status=201)
    check(document, "policies/", "post", 201, saved.json())
    cordoned = operator(
        "POST", "nodes/n1/actions/?cluster=lab", {"action": "cordon", "reason": "x"}, if_match="*", status=200
    )
    check(document, "nodes/{name}/actions/", "post", 200, cordoned.json())


def test_problems_fit(document: Any, operator: Api, cluster: Any) -> None:
    schema = {"$ref": "#/components/schemas/Problem", "components": document["components"]}
    never = {"manifest": POD.replace("500m", "900")}
    for answer in (
        operator("GET", "nodes/none/", status=404),
        operator("POST", "holds/", never, status=409),  # with the what-if that explains it
        operator("POST", "submissions/", {"items": [{"manifest": "x"}], "allOrNothing": True}, status=422),
    ):
        jsonschema.Draft202012Validator(schema).validate(answer.json())


def test_yaml_is_returned_on_request(operator: Api) -> None:
    answer = operator("GET", "schema", accept="application/yaml", status=200)
    assert answer.content.startswith(b"openapi: 3.1")


def test_document_is_generated_once_per_format(operator: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: anonymous clients may read it, and 60 requests of one address took 15 s of processor time."""
    formats = ("application/json", "application/yaml", "application/vnd.oai.openapi+json")
    before = [operator("GET", "schema", accept=accept, status=200) for accept in formats]
    generated: list[Any] = []
    monkeypatch.setattr(routes.Schema.generator_class, "get_schema", lambda *args, **named: generated.append(1) or {})
    again = [operator("GET", "schema", accept=accept, status=200) for accept in formats]
    assert [item.content for item in again] == [item.content for item in before]
    assert generated == []


def test_documentation_page_has_no_inline_script_or_style(operator: Api) -> None:
    page = operator("GET", "docs", accept="text/html", status=200)
    text = page.content.decode()
    assert "<style" not in text
    assert "<script>" not in text
    assert "script-src 'self'" in page["Content-Security-Policy"]
    script = operator("GET", "docs?script=", accept="*/*", status=200)
    assert (script["Content-Type"], b"/api/v1/schema" in script.content) == ("application/javascript", True)
