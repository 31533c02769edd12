"""Permissions of every route for every role, from one table; a route without a row fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver

from hetsched.contracts.objects.fact_conflicts import FactConflict
from hetsched.inventory.models import Node
from web.api.routes import extender_address, unknown_address, urlpatterns

from .conftest import POD, Api

ROLES = ("viewer", "submitter", "operator", "policy-admin", "agent")
LOOK = {"viewer", "submitter", "operator", "policy-admin"}
SUBMIT = {"submitter", "operator"}
OPERATE = {"operator"}
POLICY = {"policy-admin"}
REPORT = {"agent"}
ADMIN: set[str] = set()  # superusers, who have no role
ALL = {"anonymous", *ROLES}

TABLE: dict[tuple[str, str], set[str]] = {
    ("api/v1/agent/reports/", "POST"): REPORT,
    ("api/v1/audit/", "GET"): LOOK,
    ("api/v1/audit/chain/", "GET"): LOOK,
    ("api/v1/tokens/", "GET"): ADMIN,
    ("api/v1/tokens/", "POST"): ADMIN,
    ("api/v1/tokens/<str:key>/revoke/", "POST"): ADMIN,
    ("api/v1/clusters/", "GET"): LOOK,
    ("api/v1/clusters/", "POST"): OPERATE,
    ("api/v1/clusters/<str:name>/", "GET"): LOOK,
    ("api/v1/clusters/<str:name>/collectors/", "GET"): LOOK,
    ("api/v1/clusters/<str:name>/collectors/<str:collector>/", "GET"): LOOK,
    ("api/v1/clusters/<str:name>/collectors/<str:collector>/", "PUT"): OPERATE,
    ("api/v1/clusters/<str:name>/collectors/<str:collector>/", "DELETE"): OPERATE,
    ("api/v1/clusters/<str:name>/connection/", "PUT"): OPERATE,
    ("api/v1/clusters/<str:name>/test/", "POST"): OPERATE,
    ("api/v1/clusters/<str:name>/advice/", "POST"): LOOK,
    ("api/v1/clusters/<str:name>/rebalances/", "GET"): LOOK,
    ("api/v1/clusters/<str:name>/rebalances/", "POST"): OPERATE,
    ("api/v1/clusters/<str:name>/rebalances/<int:number>/", "GET"): LOOK,
    ("api/v1/clusters/<str:name>/rebalances/<int:number>/actions/", "POST"): OPERATE,
    ("api/v1/queue/", "GET"): LOOK,
    ("api/v1/clusters/<str:name>/import/", "POST"): OPERATE,
    ("api/v1/clusters/<str:name>/export/", "GET"): OPERATE,
    ("api/v1/collectors/", "GET"): LOOK,
    ("api/v1/callback-secret/", "GET"): SUBMIT,
    ("api/v1/callback-secret/", "POST"): SUBMIT,
    ("api/v1/callback-secret/", "DELETE"): SUBMIT,
    ("api/v1/deliveries/", "GET"): SUBMIT,
    ("api/v1/deliveries/<str:delivery_id>/", "GET"): SUBMIT,
    ("api/v1/deliveries/<str:delivery_id>/redeliver/", "POST"): SUBMIT,
    ("api/v1/webhooks/", "GET"): SUBMIT,
    ("api/v1/webhooks/", "POST"): SUBMIT,
    ("api/v1/webhooks/<str:webhook_id>/", "GET"): SUBMIT,
    ("api/v1/webhooks/<str:webhook_id>/", "PUT"): SUBMIT,
    ("api/v1/webhooks/<str:webhook_id>/", "DELETE"): SUBMIT,
    ("api/v1/webhooks/<str:webhook_id>/secret/", "POST"): SUBMIT,
    ("api/v1/webhooks/<str:webhook_id>/test/", "POST"): SUBMIT,
    ("api/v1/decisions/", "GET"): LOOK,
    ("api/v1/decisions/<int:decision_id>/", "GET"): LOOK,
    ("api/v1/decisions/<int:decision_id>/again/", "GET"): LOOK,
    ("api/v1/pods/<int:pod_id>/why/", "GET"): LOOK,
    ("api/v1/golden-placements/", "GET"): LOOK,
    ("api/v1/golden-placements/", "POST"): POLICY,
    ("api/v1/golden-placements/check/", "POST"): LOOK,
    ("api/v1/golden-placements/<str:name>/", "GET"): LOOK,
    ("api/v1/golden-placements/<str:name>/", "PUT"): POLICY,
    ("api/v1/golden-placements/<str:name>/", "DELETE"): POLICY,
    ("api/v1/holds/", "GET"): LOOK,
    ("api/v1/holds/", "POST"): SUBMIT,
    ("api/v1/holds/<str:hold_id>/", "GET"): LOOK,
    ("api/v1/holds/<str:hold_id>/", "DELETE"): SUBMIT,
    ("api/v1/holds/<str:hold_id>/actions/", "POST"): SUBMIT,
    ("api/v1/isa/", "GET"): LOOK,
    ("api/v1/isa/parse/", "GET"): LOOK,
    ("api/v1/isa/inspect/", "POST"): LOOK,
    ("api/v1/metrics/balance/", "GET"): LOOK,
    ("api/v1/metrics/at-risk/", "GET"): LOOK,
    ("api/v1/metrics/headroom/", "GET"): LOOK,
    ("api/v1/nodes/", "GET"): LOOK,
    ("api/v1/nodes/<str:name>/", "GET"): LOOK,
    ("api/v1/nodes/<str:name>/isa/", "GET"): LOOK,
    ("api/v1/nodes/<str:name>/gpu/", "GET"): LOOK,
    ("api/v1/nodes/<str:name>/numa/", "GET"): LOOK,
    ("api/v1/nodes/<str:name>/balance/", "GET"): LOOK,
    ("api/v1/nodes/<str:name>/actions/", "POST"): OPERATE,
    ("api/v1/plugins/", "GET"): LOOK,
    ("api/v1/plugins/<str:name>/", "GET"): LOOK,
    ("api/v1/policy-plans/", "GET"): LOOK,
    ("api/v1/policy-plans/", "POST"): POLICY,
    ("api/v1/policy-plans/preview/", "POST"): LOOK,
    ("api/v1/policy-plans/<str:name>/", "GET"): LOOK,
    ("api/v1/policy-plans/<str:name>/", "PUT"): POLICY,
    ("api/v1/policy-plans/<str:name>/", "DELETE"): POLICY,
    ("api/v1/policies/", "GET"): LOOK,
    ("api/v1/policies/", "POST"): POLICY,
    ("api/v1/policies/<str:name>/", "GET"): LOOK,
    ("api/v1/policies/<str:name>/versions/", "GET"): LOOK,
    ("api/v1/policies/<str:name>/versions/", "POST"): POLICY,
    ("api/v1/policies/<str:name>/versions/<int:version>/", "GET"): LOOK,
    ("api/v1/policies/<str:name>/versions/<int:version>/diff/<int:other>/", "GET"): LOOK,
    ("api/v1/policies/<str:name>/versions/<int:version>/goldens/", "GET"): LOOK,
    ("api/v1/policies/<str:name>/activate/", "POST"): POLICY,
    ("api/v1/policies/<str:name>/check/", "POST"): LOOK,
    ("api/v1/policies/<str:name>/preview/", "GET"): LOOK,
    ("api/v1/policies/<str:name>/preview/", "POST"): POLICY,
    ("api/v1/policies/<str:name>/preview/<int:preview>/", "GET"): LOOK,
    ("api/v1/policies/<str:name>/preview/<int:preview>/", "DELETE"): POLICY,
    ("api/v1/policies/<str:name>/preview/<int:preview>/changes/", "GET"): LOOK,
    ("api/v1/policies/<str:name>/rollback/", "POST"): POLICY,
    ("api/v1/policies/<str:name>/owner/", "POST"): POLICY,
    ("api/v1/sessions/", "GET"): LOOK,
    ("api/v1/sessions/end/", "POST"): LOOK,
    ("api/v1/shadow/", "GET"): LOOK,
    ("api/v1/shadow/report/", "GET"): LOOK,
    ("api/v1/shadow/<int:shadow_id>/", "GET"): LOOK,
    ("api/v1/submissions/", "POST"): SUBMIT,
    ("api/v1/what-if/", "POST"): LOOK,
    ("api/v1/workloads/", "GET"): LOOK,
    ("api/v1/workloads/", "POST"): SUBMIT,
    ("api/v1/workloads/<str:workload_id>/", "GET"): LOOK,
    ("api/v1/workloads/<str:workload_id>/", "DELETE"): SUBMIT,
    ("api/v1/workloads/<str:workload_id>/pods/", "GET"): LOOK,
    ("api/v1/workloads/<str:workload_id>/actions/", "POST"): SUBMIT,
    ("api/v1/schema", "GET"): ALL,
    ("api/v1/docs", "GET"): ALL,
    ("healthz", "GET"): ALL,
    ("readyz", "GET"): ALL,
    ("livez", "GET"): ALL,
    ("metrics", "GET"): {"anonymous", *LOOK},  # anonymous calls of this machine
}
# Routes that a token limited to namespaces may write; all other writes are rejected.
WITHIN = {
    ("api/v1/holds/", "POST"),
    ("api/v1/holds/<str:hold_id>/", "DELETE"),
    ("api/v1/holds/<str:hold_id>/actions/", "POST"),
    ("api/v1/submissions/", "POST"),
    ("api/v1/callback-secret/", "DELETE"),
    ("api/v1/callback-secret/", "POST"),
    ("api/v1/deliveries/<str:delivery_id>/redeliver/", "POST"),
    ("api/v1/webhooks/", "POST"),
    ("api/v1/webhooks/<str:webhook_id>/", "DELETE"),
    ("api/v1/webhooks/<str:webhook_id>/", "PUT"),
    ("api/v1/webhooks/<str:webhook_id>/secret/", "POST"),
    ("api/v1/webhooks/<str:webhook_id>/test/", "POST"),
    ("api/v1/agent/reports/", "POST"),
    ("api/v1/isa/inspect/", "POST"),
    ("api/v1/policies/<str:name>/check/", "POST"),
    ("api/v1/policy-plans/preview/", "POST"),
    ("api/v1/what-if/", "POST"),
    ("api/v1/workloads/", "POST"),
    ("api/v1/workloads/<str:workload_id>/", "DELETE"),
    ("api/v1/workloads/<str:workload_id>/actions/", "POST"),
}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def routes(patterns: list[Any], before: str = "") -> Iterator[str]:
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern) and pattern.callback not in (unknown_address, extender_address):
            yield route


ROUTES = sorted(set(routes(urlpatterns)))


def test_permission_table_has_exactly_the_routes() -> None:
    assert sorted({route for route, _ in TABLE}) == ROUTES


def address_of(route: str, workload: str) -> str:
    """Fill a route in with existing objects."""
    name = {
        "nodes": "n1",
        "clusters": "lab",
        "policies": "hetsched",
        "plugins": "taints",
        "golden-placements": "g",
        "policy-plans": "p",
    }
    kind = route.removeprefix("api/v1/").partition("/")[0]
    filled = route.replace("<str:name>", name.get(kind, "")).replace("<str:workload_id>", workload)
    filled = filled.replace("<str:collector>", "racks").replace("<str:hold_id>", "h-1")
    filled = filled.replace("<int:number>", "1").replace("<str:webhook_id>", "wh-1").replace("<str:delivery_id>", "d-1")
    for number in (
        "<int:decision_id>",
        "<int:version>",
        "<int:shadow_id>",
        "<int:pod_id>",
        "<int:other>",
        "<int:preview>",
    ):
        filled = filled.replace(number, "1")
    return "/" + filled


@pytest.mark.parametrize("route", ROUTES)
def test_permission_table_matches_responses(api: Callable[..., Api], decided: str, route: str) -> None:
    address = address_of(route, decided)
    for role in ("anonymous", *ROLES):
        caller = api(role)
        for method in METHODS:
            status = caller(method, address, {"x": 1}).status_code
            allowed = TABLE.get((route, method))
            if allowed is None:
                # A route without permission for any role does not exist.
                assert status == 405, (role, method)
            elif role in allowed:
                assert status not in (401, 403, 405, 500), (role, method)
            else:
                assert status == (401 if role == "anonymous" else 403), (role, method)


def test_limited_token_changes_only_objects_of_its_namespaces(api: Callable[..., Api], decided: str) -> None:
    callers = {role: api(role, "team") for role in ROLES}
    wrong = []
    for route, method in sorted(row for row in TABLE if row[1] != "GET"):
        for role in TABLE[route, method] & set(ROLES):
            answer = callers[role](method, address_of(route, decided), {"x": 1}, if_match="*")
            refused = answer.status_code == 403 and answer.json()["code"] == "NamespaceNotAllowed"
            if refused is ((route, method) in WITHIN):
                wrong.append((method, route, role, answer.status_code))
    assert not wrong


def test_superuser_has_every_permission(person: Any, decided: str) -> None:
    person("root", superuser=True)
    client = Client(raise_request_exception=False)
    assert client.login(username="root", password="a long enough password")
    for route, method in TABLE:
        answer = client.generic(method, address_of(route, decided), b'{"x":1}', content_type="application/json")
        assert answer.status_code not in (401, 403, 405, 500), (route, method)


def test_session_write_requires_the_csrf_token(person: Any, cluster: Any) -> None:
    person("ada", "submitter")
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.login(username="ada", password="a long enough password")
    refused = client.post("/api/v1/workloads/", POD, content_type="application/yaml")
    assert (refused.status_code, refused.json()["code"]) == (403, "CsrfFailed")
    client.cookies["csrftoken"] = "a" * 32
    accepted = client.post(
        "/api/v1/workloads/", POD, content_type="application/yaml", headers={"x-csrftoken": "a" * 32}
    )
    assert accepted.status_code == 202, accepted.content


CARD = "namespace: rest, annotations: {oks/gpu-number: '1', hetsched.io/gpu-milli: '300'}}"


class TestNamespacedToken:
    OTHER = POD.replace("{name: web}", "{name: theirs, namespace: rest}")
    OWN = POD.replace("{name: web}", "{name: ours, namespace: team}")

    @pytest.fixture
    def theirs(self, cluster: Any, operator: Api) -> str:
        from workers.schedule import run

        accepted = operator("POST", "workloads/", self.OTHER, kind="application/yaml", status=202)
        run(cluster.pk)
        return str(accepted.json()["id"])

    @pytest.fixture
    def limited(self, api: Callable[..., Api]) -> Api:
        return api("submitter", "team")

    def test_limited_token_submits_and_sees_its_own_workloads(self, limited: Api, theirs: str) -> None:
        own = limited("POST", "workloads/", self.OWN, kind="application/yaml", status=202).json()["id"]
        assert [row["id"] for row in limited.get("workloads/")["items"]] == [own]
        assert limited.get(f"workloads/{own}/")["namespace"] == "team"

    def test_submits_nowhere_else(self, limited: Api, cluster: Any) -> None:
        for manifest in (self.OTHER, f"{self.OWN}---\n{self.OTHER}", POD):
            answer = limited("POST", "workloads/", manifest, kind="application/yaml")
            assert (answer.status_code, answer.json()["code"]) == (403, "NamespaceNotAllowed")
        assert limited.get("workloads/")["items"] == []

    @pytest.mark.parametrize("address", ["workloads/{}/", "workloads/{}/pods/"])
    def test_foreign_object_is_not_found(self, limited: Api, theirs: str, address: str) -> None:
        limited("GET", address.format(theirs), status=404)

    def test_limited_token_acts_on_its_workloads_only(self, limited: Api, theirs: str, operator: Api) -> None:
        limited("DELETE", f"workloads/{theirs}/", status=404)
        limited("POST", f"workloads/{theirs}/actions/", {"action": "cancel", "reason": "x"}, if_match="*", status=404)
        assert operator.get(f"workloads/{theirs}/")["state"] == "placed"

    def test_limited_token_reads_no_foreign_decisions(self, limited: Api, theirs: str, operator: Api) -> None:
        (decision,) = operator.get("decisions/")["items"]
        assert limited.get("decisions/")["items"] == []
        limited("GET", f"decisions/{decision['id']}/", status=404)

    def test_limited_token_sees_loads_but_no_foreign_pods(self, limited: Api, theirs: str, operator: Api) -> None:
        node = operator.get("decisions/")["items"][0]["node"]
        assert operator.get(f"nodes/{node}/")["pods"] == ["rest/theirs"]
        seen = limited.get(f"nodes/{node}/")
        assert (seen["pods"], seen["podCount"]) == ([], 1)

    def test_doubt_reads_name_no_out_of_scope_pods(self, limited: Api, cluster: Any, operator: Api) -> None:
        at = "2026-11-21T10:00:00Z"
        doubts = tuple(FactConflict("numa", at, pod, "Refused", f"{pod} does not fit") for pod in ("rest/p", "team/p"))
        Node.objects.filter(name="n1").update(doubts=doubts)
        assert [(doubt["pod"], doubt["message"]) for doubt in operator.get("nodes/n1/")["doubts"]] == [
            ("rest/p", "rest/p does not fit"), ("team/p", "team/p does not fit"),
        ]  # fmt: skip
        shown = limited.get("nodes/n1/")["doubts"]
        assert [(item["reason"], item["pod"], item["message"]) for item in shown] == [
            ("Refused", None, None), ("Refused", "team/p", "team/p does not fit"),
        ]  # fmt: skip

    def test_foreign_shares_of_a_gpu_are_not_free(self, limited: Api, cluster: Any, operator: Api) -> None:
        from workers.schedule import run

        operator(
            "POST", "workloads/", self.OTHER.replace("namespace: rest}", CARD), kind="application/yaml", status=202
        )
        run(cluster.pk)
        cards = limited.get("nodes/n2/gpu/")["cards"]
        assert [(card["freeMilli"], card["holders"]) for card in cards] == [(700, []), (1000, [])]

    def test_limited_token_asks_what_if_about_its_namespaces(self, limited: Api, cluster: Any) -> None:
        limited("POST", "what-if/", self.OWN, kind="application/yaml", status=200)
        limited("POST", "what-if/", self.OTHER, kind="application/yaml", status=403)
        limited("POST", "what-if/?drain=n1", self.OWN, kind="application/yaml", status=403)

    def test_namespace_operator_cannot_change_clusters(self, api: Callable[..., Api], cluster: Any) -> None:
        limited = api("operator", "team")
        for method, address, body in (
            ("POST", "nodes/n1/actions/", {"action": "cordon", "reason": "x"}),
            ("POST", "clusters/", {"name": "more", "reason": "x"}),
            ("POST", "clusters/lab/import/?reason=x", {"manifest": ""}),
            ("GET", "clusters/lab/export/", None),
        ):
            answer = limited(method, address, body, if_match="*")
            assert (answer.status_code, answer.json()["code"]) == (403, "NamespaceNotAllowed")
