"""RFC 9457 problem documents for all errors: our own, the framework's, and unexpected exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError

from hetsched.inventory.node_loads import Conflict
from web.api import resources

from .conftest import POD, Api

TOKEN_HINT = "Send `Authorization: Bearer TOKEN`, with an unexpired token from `hetsched token create`"


def assert_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, "about:blank")
    assert problem["title"]
    assert problem["detail"]
    assert problem["requestId"] == answer["X-Request-ID"]
    return problem


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "address",
    ["/api/", "/api/v1/", "/api/v1/none/", "/api/v2/nodes/", "/api/v1/nodes/n1/none/", "/api/v1/decisions/x/"],
)
def test_unknown_path_returns_404(operator: Api, method: str, address: str) -> None:
    problem = assert_problem(operator(method, address), 404, "NotFound")
    assert problem["hint"] == "The URLs and fields are documented at /api/v1/docs"


@pytest.mark.parametrize(
    "address",
    [
        "nodes/none/", "clusters/none/", "policies/none/", "plugins/none/", "decisions/999/", "workloads/w-0/",
        "policies/hetsched/versions/99/", "decisions/99999999999999999999/", "policies/hetsched/versions/99999999999/",
        "nodes/n1%00/", "workloads/%00/", "nodes/?cluster=none", "decisions/?cluster=none", "shadow/?cluster=none",
        "workloads/?cluster=none",
        "nodes/%F0%9F%92%A9/", "clusters/../../etc/",
    ],
)  # fmt: skip
def test_missing_object_returns_404(operator: Api, cluster: Any, address: str) -> None:
    assert assert_problem(operator("GET", address), 404, "NotFound")["hint"]


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("nodes/none/", "GET nodes/ lists the existing objects"),
        ("policies/none/", "GET policies/ lists the existing objects"),
        ("policies/hetsched/versions/99/", "GET policies/NAME/versions/ lists the existing objects"),
        ("decisions/999/", "GET decisions/ lists the existing objects"),
        ("workloads/w-0/", "GET workloads/ lists the existing objects"),
        ("webhooks/none/", "GET webhooks/ lists the existing objects"),
    ],
)
def test_unknown_object_names_its_list(operator: Api, cluster: Any, address: str, hint: str) -> None:
    assert assert_problem(operator("GET", address), 404, "NotFound")["hint"] == hint


@pytest.mark.parametrize(
    ("method", "address", "sent", "code", "hint"),
    [
        ("GET", "nodes/?limit=x", {}, "QueryInvalid", "Send a number in the allowed range, or omit the parameter"),
        ("GET", "nodes/?limit=5&limit=6", {}, "QueryInvalid", "Send the parameter once, as text"),
        ("GET", "queue/?standing=x", {}, "QueryInvalid", "Send one of the allowed values, or omit the parameter"),
        ("GET", f"isa/parse/?text={'x' * 5000}", {}, "QueryInvalid", "Send a shorter text"),
        ("POST", "what-if/", {"body": "{", "kind": "application/json"}, "BodyMalformed",
         "Send one JSON document in UTF-8"),
        ("POST", "workloads/", {"body": POD, "kind": "application/yaml", "idempotency_key": "a b"},
         "IdempotencyKeyInvalid", "Send a new UUID as the key"),
    ],
)  # fmt: skip
def test_refused_request_states_what_to_do(
    operator: Api, cluster: Any, method: str, address: str, sent: dict[str, Any], code: str, hint: str
) -> None:
    assert assert_problem(operator(method, address, **sent), 400, code)["hint"] == hint


def test_path_without_trailing_slash_redirects(operator: Api, cluster: Any) -> None:
    answer = operator("POST", "workloads?priority=1", POD, kind="application/yaml")
    assert (answer.status_code, answer["Location"]) == (308, "/api/v1/workloads/?priority=1")


def test_misspelt_address_of_a_program_is_a_problem_document(operator: Api, cluster: Any) -> None:
    operator.client.handler.enforce_csrf_checks = True
    assert_problem(operator("POST", "workload/", POD, kind="application/yaml"), 404, "NotFound")
    assert operator("POST", "workloads", POD, kind="application/yaml").status_code == 308


def test_missing_token_returns_401(api: Callable[..., Api]) -> None:
    answer = api("anonymous")("GET", "nodes/")
    assert_problem(answer, 401, "NotAuthenticated")
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_wrong_token_gets_no_further_detail(db: Any) -> None:
    answers = [Api(token)("GET", "nodes/") for token in ("x", "hs_" + "0" * 64, "hs_é")]
    problems = [assert_problem(answer, 401, "TokenInvalid") for answer in answers]
    assert len({problem["detail"] for problem in problems}) == 1
    assert {problem["hint"] for problem in problems} == {TOKEN_HINT}


def test_insufficient_role_returns_403(api: Callable[..., Api], cluster: Any) -> None:
    answer = api("viewer")("POST", "workloads/", POD, kind="application/yaml")
    problem = assert_problem(answer, 403, "PermissionDenied")
    assert problem["detail"] == "the request needs the right submit, which the role viewer does not have"
    assert problem["hint"] == "Use a token or an account whose role has this right"


def test_unsupported_method_returns_405(operator: Api, cluster: Any) -> None:
    answer = operator("PUT", "nodes/")
    assert_problem(answer, 405, "MethodNotAllowed")
    assert answer["Allow"] == "GET, HEAD, OPTIONS"
    assert_problem(operator("POST", "/healthz"), 405, "MethodNotAllowed")


def test_unacceptable_media_type_returns_406(operator: Api, cluster: Any) -> None:
    assert_problem(operator("GET", "nodes/", accept="text/html"), 406, "NotAcceptable")


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/yaml; charset=utf-16",
        "application/json; charset=latin-1",
    ],
)
@pytest.mark.parametrize("address", ["workloads/", "what-if/", "policies/", "clusters/"])
def test_unsupported_media_type_returns_415(api: Callable[..., Api], cluster: Any, address: str, kind: str) -> None:
    caller = api("policy-admin") if address == "policies/" else api("operator")
    answer = caller("POST", address, POD, kind=kind)
    assert_problem(answer, 415, "UnsupportedMediaType")
    assert "application/json" in answer["Accept-Post"]


@pytest.mark.parametrize("query", ["limt=5", "limit=0", "limit=1001", "limit=x", "limit=5&limit=6", "cursor=%00"])
def test_invalid_query_parameter_returns_400(operator: Api, cluster: Any, query: str) -> None:
    assert_problem(operator("GET", f"nodes/?{query}"), 400, "QueryUnknown" if "limt" in query else "QueryInvalid")


@pytest.mark.parametrize(
    "address", ["workloads/?state=runing", "deliveries/?state=lost", "holds/?state=", "queue/?standing=x"]
)
def test_unknown_state_is_rejected(operator: Api, cluster: Any, address: str) -> None:
    problem = assert_problem(operator("GET", address), 400, "QueryInvalid")
    assert problem["detail"].startswith("the value must be one of ")


def test_missing_reason_returns_400(operator: Api, cluster: Any) -> None:
    answer = operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": " "}, if_match="*")
    assert assert_problem(answer, 400, "ReasonMissing")["place"] == "reason"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OperationalError("database is locked"), 503, "StorageUnavailable"),
        (DatabaseError("disk image is malformed: secret"), 500, "StorageFailed"),
        (Conflict("n"), 409, "Conflict"),
        (KeyError("secret"), 500, "InternalError"),
        (RecursionError("secret"), 500, "InternalError"),
    ],
)
def test_internal_error_hides_its_text(
    operator: Api, cluster: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(resources, "page", fail)
    answer = operator("GET", "nodes/")
    assert_problem(answer, status, code)
    assert b"secret" not in answer.content
    assert b"Traceback" not in answer.content
    assert ("Retry-After" in answer) == (status == 503)


def test_request_id_of_the_caller_is_returned(operator: Api) -> None:
    answer = operator("GET", "none/", x_request_id="build-17-step-3")
    assert assert_problem(answer, 404, "NotFound")["requestId"] == "build-17-step-3"
