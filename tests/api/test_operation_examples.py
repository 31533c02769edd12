"""The OpenAPI document has a recorded example of every operation, which matches its schema.

`HETSCHED_WRITE_EXAMPLES=1` with this file writes `web/api/examples.json` from the requests and responses of this run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jsonschema
import msgspec
import pytest
from django.test import Client

from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.observed import ObservedPolicy
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import import_cluster
from hetsched.placement.models import Decision, Delivery
from hetsched.policies.cluster_policies import apply_policy_objects
from tests.builders import a_node, a_pod
from tests.situations import placed
from web.api import examples
from web.api.examples import FILE, JSON
from workers import callback, replay, schedule

from .conftest import POD, Api
from .story import Story, shape
from .test_agent_report_endpoint import message
from .test_isa_endpoints import PROGRAM
from .test_openapi_document import a_comparison, document

__all__ = ["document"]

NODES = """\
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/arch: amd64}}
status: {allocatable: {cpu: "8", memory: 32Gi, pods: "110"}}
"""
BINPACK = {"plugins": [{"name": "resource-fit"}, {"name": "binpack", "weight": 2}]}


@pytest.fixture
def story(api: Callable[..., Api], person: Any, decided: str, settings: Any) -> Story:
    """Call every operation once."""
    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_DEFAULT_CLUSTER = "lab"
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example"]
    settings.HETSCHED_SOURCE_HOSTS = ["prometheus.example:9090"]
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    person("root", superuser=True)
    root = Client(headers={"user-agent": "Firefox on Linux"}, raise_request_exception=False)
    root.post("/login/", {"username": "root", "password": "a long enough password"})
    ask = Story(api, root)
    a_comparison()
    for part in (_questions, _workloads, _fleet, _policies, _policy_workflow, _moves, _live, _webhooks, _tokens):
        part(ask, decided)
    return ask


def _workloads(ask: Story, decided: str) -> None:
    body = {"manifest": POD.replace("web", "train"), "callbackUrl": "https://ci.example/done"}
    made = ask("submitter", "POST", "workloads/", body, status=202)["id"]
    ask("viewer", "GET", "workloads/", query={"state": "pending"})
    ask("viewer", "GET", "queue/")
    schedule.run(Cluster.objects.get().pk)
    ask("viewer", "GET", "workloads/{workload_id}/", query={"wait": 30}, workload_id=made)
    ask("viewer", "GET", "workloads/{workload_id}/pods/", workload_id=made)
    urgent = {"action": "retry", "reason": "there is room now"}
    ask("operator", "POST", "workloads/{workload_id}/actions/", urgent, match=f"workloads/{decided}/",
        workload_id=decided)  # fmt: skip
    ask("submitter", "DELETE", "workloads/{workload_id}/", match=f"workloads/{made}/", workload_id=made)
    items = [{"manifest": POD.replace("web", "first"), "key": "build-1/first"}, {"manifest": POD.replace("500m", "-1")}]
    ask("submitter", "POST", "submissions/", {"items": items}, status=207)
    hold = {"manifest": POD.replace("web", "later"), "seconds": 600, "note": "for the release"}
    held = ask("submitter", "POST", "holds/", hold, status=201)["id"]
    ask("viewer", "GET", "holds/")
    ask("viewer", "GET", "holds/{hold_id}/", hold_id=held)
    longer = {"action": "extend", "seconds": 900, "reason": "the build takes longer"}
    ask("submitter", "POST", "holds/{hold_id}/actions/", longer, match=f"holds/{held}/", hold_id=held)
    ask("submitter", "DELETE", "holds/{hold_id}/", match=f"holds/{held}/", hold_id=held)


def _fleet(ask: Story, decided: str) -> None:
    ask("viewer", "GET", "clusters/")
    ask("viewer", "GET", "clusters/{name}/", name="lab")
    ask("operator", "POST", "clusters/", {"name": "more", "reason": "a second room"}, status=201)
    ask("operator", "POST", "clusters/{name}/import/", {"manifest": NODES, "reason": "first nodes"},
        match="clusters/more/", name="more")  # fmt: skip
    ask("operator", "GET", "clusters/{name}/export/", name="more")
    collector = {
        "kind": "prometheus-load", "params": {"url": "http://prometheus.example:9090"}, "reason": "measured load",
    }  # fmt: skip
    ask("operator", "PUT", "clusters/{name}/collectors/{collector}/", collector, status=201, name="lab",
        collector="load")  # fmt: skip
    ask("viewer", "GET", "collectors/")
    ask("viewer", "GET", "clusters/{name}/collectors/", name="lab")
    ask("viewer", "GET", "clusters/{name}/collectors/{collector}/", name="lab", collector="load")
    ask("operator", "DELETE", "clusters/{name}/collectors/{collector}/", status=204, match="*",
        query={"reason": "moved"}, name="lab", collector="load")  # fmt: skip
    ask("agent", "POST", "agent/reports/", message())
    ask("viewer", "GET", "nodes/")
    for route in ("nodes/{name}/", "nodes/{name}/isa/", "nodes/{name}/numa/", "nodes/{name}/balance/"):
        ask("viewer", "GET", route, name="n1")
    ask("viewer", "GET", "nodes/{name}/gpu/", name="n2")
    cordon = {"action": "cordon", "reason": "a fan is loud"}
    ask("operator", "POST", "nodes/{name}/actions/", cordon, match="nodes/n2/", name="n2")
    ask("operator", "POST", "nodes/{name}/actions/", {**cordon, "action": "uncordon"}, match="nodes/n2/", name="n2")
    for route in ("metrics/balance/", "metrics/at-risk/", "metrics/headroom/", "audit/", "audit/chain/"):
        ask("viewer", "GET", route)


def _questions(ask: Story, decided: str) -> None:
    made = Decision.objects.filter(workload=decided).earliest("id")
    ask("viewer", "POST", "what-if/", {"manifest": POD.replace("web", "maybe")})
    ask("viewer", "GET", "decisions/", query={"limit": 2})
    ask("viewer", "GET", "decisions/{decision_id}/", decision_id=made.pk)
    ask("viewer", "GET", "decisions/{decision_id}/again/", decision_id=made.pk)
    ask("viewer", "GET", "pods/{pod_id}/why/", pod_id=made.pod_id)
    ask("viewer", "GET", "isa/")
    ask("viewer", "GET", "isa/parse/", query={"text": "rv64gc_zba"})
    ask("viewer", "POST", "isa/inspect/", PROGRAM, kind="application/octet-stream")
    ask("viewer", "GET", "plugins/")
    ask("viewer", "GET", "plugins/{name}/", name="binpack")
    ask("viewer", "GET", "shadow/")
    ask("viewer", "GET", "shadow/report/")
    ask("viewer", "GET", "shadow/{shadow_id}/", shadow_id=1)


def _policies(ask: Story, decided: str) -> None:
    admin = "policy-admin"
    ask("viewer", "GET", "policies/")
    ask(admin, "POST", "policies/", {"name": "full-first", "description": "fill nodes up", **BINPACK}, status=201)
    ask(admin, "POST", "policies/{name}/versions/", BINPACK, status=201, name="spread")
    for route in ("policies/{name}/", "policies/{name}/versions/"):
        ask("viewer", "GET", route, name="spread")
    ask("viewer", "GET", "policies/{name}/versions/{version}/", name="spread", version=2)
    ask("viewer", "GET", "policies/{name}/versions/{version}/diff/{other}/", name="spread", version=1, other=2)
    ask("viewer", "GET", "policies/{name}/versions/{version}/goldens/", name="spread", version=2)
    ask("viewer", "POST", "policies/{name}/check/", BINPACK, name="spread")
    begun = ask(admin, "POST", "policies/{name}/preview/", {"version": 2}, status=202, name="spread")["id"]
    assert replay.run(begun)
    ask("viewer", "GET", "policies/{name}/preview/", name="spread")
    ask("viewer", "GET", "policies/{name}/preview/{preview}/", name="spread", preview=begun)
    ask("viewer", "GET", "policies/{name}/preview/{preview}/changes/", name="spread", preview=begun)
    ask(admin, "DELETE", "policies/{name}/preview/{preview}/", status=204, name="spread", preview=begun)
    chosen = {"version": 2, "reason": "the preview moves few pods"}
    ask(admin, "POST", "policies/{name}/activate/", chosen, match="policies/spread/", name="spread")
    ask(admin, "POST", "policies/{name}/rollback/", {"reason": "too full"}, match="policies/spread/", name="spread")


def _policy_workflow(ask: Story, decided: str) -> None:
    admin = "policy-admin"
    golden = {"cluster": "lab", "manifest": POD, "expect": {"nodes": ["n1", "n2"]}, "reason": "agreed with the team"}
    ask(admin, "POST", "golden-placements/", {"name": "small-pods", **golden}, status=201)
    ask("viewer", "GET", "golden-placements/")
    ask("viewer", "GET", "golden-placements/{name}/", name="small-pods")
    ask("viewer", "POST", "golden-placements/check/", {"policy": "spread", **BINPACK})
    at = "golden-placements/small-pods/"
    ask(admin, "PUT", "golden-placements/{name}/", {**golden, "enabled": False}, match=at, name="small-pods")
    ask(admin, "DELETE", "golden-placements/{name}/", status=204, match=at, query={"reason": "no longer so"},
        name="small-pods")  # fmt: skip
    condition = {
        "cluster": "lab", "metric": "gpuAllocation", "above": 0.8, "aboveVersion": 2, "below": 0.5, "belowVersion": 1,
    }  # fmt: skip
    plan = {"policy": "spread", "condition": condition, "reason": "cards are scarce by day"}
    ask(admin, "POST", "policy-plans/", {"name": "scarce-cards", **plan}, status=201)
    ask("viewer", "GET", "policy-plans/")
    ask("viewer", "GET", "policy-plans/{name}/", name="scarce-cards")
    ask("viewer", "POST", "policy-plans/preview/", {"condition": condition})
    at = "policy-plans/scarce-cards/"
    ask(admin, "PUT", "policy-plans/{name}/", {**plan, "enabled": False}, match=at, name="scarce-cards")
    ask(admin, "DELETE", "policy-plans/{name}/", status=204, match=at, query={"reason": "over"}, name="scarce-cards")


def _moves(ask: Story, decided: str) -> None:
    """Of a and b, 5 - 4 = 1 and 4 - 1 = 3 CPUs are left: for 4, right has to move from b to a."""
    nodes = (a_node("a").cpu(5).build(), a_node("b").cpu(4).build())
    tight = import_cluster(ClusterContent(nodes=nodes), name="tight", actor=SYSTEM)
    placed(tight, "a", a_pod("left").cpu(4))
    placed(tight, "b", a_pod("right").cpu(1))
    goal = {"goal": "room", "manifest": POD.replace("500m", "'4'")}
    ask("viewer", "POST", "clusters/{name}/advice/", goal, name="tight")
    tag = ask.caller("operator")("POST", "clusters/tight/advice/", goal, status=200)["ETag"]
    confirmed = {**goal, "reason": "make room"}
    begun = ask("operator", "POST", "clusters/{name}/rebalances/", confirmed, status=202, match=tag, name="tight")["id"]
    ask("viewer", "GET", "clusters/{name}/rebalances/", name="tight")
    ask("viewer", "GET", "clusters/{name}/rebalances/{number}/", name="tight", number=begun)
    stop = {"action": "stop", "reason": "not today"}
    at = f"clusters/tight/rebalances/{begun}/"
    ask("operator", "POST", "clusters/{name}/rebalances/{number}/actions/", stop, match=at, name="tight", number=begun)


def _live(ask: Story, decided: str) -> None:
    west = create_cluster(name="west", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=west, follower_epoch=1, server="https://127.0.0.1:1")
    spec = PolicySpec("mine", (PluginUse("resource-fit"),))
    apply_policy_objects(west.pk, [ObservedPolicy("mine", "uid-mine", 1, spec)], epoch=1)
    taken = {"cluster": None, "reason": "west goes away"}
    ask("policy-admin", "POST", "policies/{name}/owner/", taken, match="policies/mine/", name="mine")
    enrolled = {"namespaces": ["team"], "reason": "the team moves in"}
    ask("operator", "PUT", "clusters/{name}/connection/", enrolled, match="clusters/west/", name="west")
    ask("operator", "POST", "clusters/{name}/test/", name="west")


def _webhooks(ask: Story, decided: str) -> None:
    wanted = {"name": "pipeline", "url": "https://ci.example/hetsched", "states": ["failed"], "reason": "CI"}
    made = ask("submitter", "POST", "webhooks/", wanted, status=201)["id"]
    ask("submitter", "GET", "webhooks/")
    ask("submitter", "GET", "webhooks/{webhook_id}/", webhook_id=made)
    at = f"webhooks/{made}/"
    ask("submitter", "PUT", "webhooks/{webhook_id}/", {**wanted, "namespaces": ["team"]}, match=at, webhook_id=made)
    ask("submitter", "POST", "webhooks/{webhook_id}/secret/", {"reason": "yearly"}, webhook_id=made)
    delivery = ask("submitter", "POST", "webhooks/{webhook_id}/test/", status=202, webhook_id=made)["id"]
    callback.record_outcome(
        Delivery.objects.get(pk=delivery), callback.DeliveryOutcome(41, 410, "Answer410", final=True)
    )
    ask("submitter", "GET", "deliveries/", query={"state": "dead"})
    ask("submitter", "GET", "deliveries/{delivery_id}/", delivery_id=delivery)
    ask.caller("submitter")("PUT", at, wanted, if_match="*", status=200)
    ask(
        "submitter",
        "POST",
        "deliveries/{delivery_id}/redeliver/",
        {"reason": "fixed"},
        status=202,
        delivery_id=delivery,
    )
    ask("submitter", "DELETE", "webhooks/{webhook_id}/", status=204, match=at, query={"reason": "over"},
        webhook_id=made)  # fmt: skip
    ask("submitter", "POST", "callback-secret/", {"reason": "verify callbacks"})
    ask("submitter", "GET", "callback-secret/")
    ask("submitter", "DELETE", "callback-secret/", status=204, query={"reason": "over"})


def _tokens(ask: Story, decided: str) -> None:
    wanted = {"name": "pipeline", "role": "submitter", "namespaces": ["team"], "days": 30, "reason": "CI of the team"}
    key = ask("root", "POST", "tokens/", wanted, status=201)["key"]
    ask("root", "GET", "tokens/")
    ask("root", "POST", "tokens/{key}/revoke/", {"reason": "it leaked"}, status=204, key=key)
    ask("root", "GET", "sessions/")
    ask("root", "POST", "sessions/end/", {"reason": "a laptop was lost"})


def test_every_example_matches_its_request_and_response(story: Story, document: Any) -> None:
    described = {
        f"{method.upper()} {path.removeprefix('/api/v1/')}"
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert set(story.examples) == described, "an operation has no example: add it to this story"
    if os.environ.get("HETSCHED_WRITE_EXAMPLES"):
        found = {name: example for name, (example, _) in sorted(story.examples.items())}
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        examples.examples.cache_clear()
    kept = examples.examples()
    for name, (example, answer) in story.examples.items():
        assert name in kept, f"{name} has no example yet: write the examples as the docstring of this file says"
        shown = kept[name]
        assert (shown.status, shown.media) == (example.status, example.media), name
        assert shape(shown.answer) == shape(example.answer), f"{name} has another response: write the examples again"
        assert (shown.request, shown.query) == (example.request, example.query), name
        _check_answer(document, name, shown.status, answer)


def test_every_example_fits_its_schema(document: Any) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path.removeprefix('/api/v1/')}"
            shown = examples.examples()[name]
            _check_answer(document, name, shown.status, shown.answer)
            for parameter in operation.get("parameters", ()):
                if "example" in parameter:
                    _fits(document, parameter["schema"], parameter["example"])
                assert "example" in parameter or parameter["in"] != "path", (name, parameter["name"])
            body = operation.get("requestBody", {}).get("content", {})
            if shown.request is not None:
                assert body[shown.media]["example"] == shown.request
                _fits(document, body[shown.media]["schema"], shown.request)
            answers = operation["responses"][str(shown.status)].get("content", {})
            assert not answers or answers[JSON]["example"] == shown.answer, name


def test_no_example_holds_a_secret() -> None:
    text = FILE.read_text()
    assert "whsec_shown-this-once" in text
    assert "hs_shown-this-once" in text
    assert "BEGIN" not in text


def _check_answer(document: Any, name: str, status: int, answer: Any) -> None:
    method, _, path = name.partition(" ")
    content = document["paths"][f"/api/v1/{path}"][method.lower()]["responses"][str(status)].get("content")
    if content:
        _fits(document, content[JSON]["schema"], answer)


def _fits(document: Any, schema: Any, value: Any) -> None:
    judge = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
    assert [f"{error.json_path}: {error.message[:200]}" for error in judge.iter_errors(value)] == []
