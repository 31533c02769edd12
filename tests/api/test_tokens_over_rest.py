"""Administrators create and revoke tokens; the plaintext is returned once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from hetsched.access.models import Token
from hetsched.journal.models import AuditEntry

from .conftest import Api


@pytest.fixture
def root(person: Callable[..., User]) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(person("root", superuser=True))
    return client


def make(root: Client, **asked: Any) -> Any:
    body = {"name": "CI of team", "role": "submitter", "reason": "new pipeline", **asked}
    return root.post("/api/v1/tokens/", body, content_type="application/json")


def test_plaintext_is_returned_once(root: Client) -> None:
    answer = make(root, namespaces="team, rest team", days=30)
    assert (answer.status_code, answer["Cache-Control"]) == (201, "no-store")
    made = answer.json()
    assert (made["role"], made["namespaces"], made["ending"]) == ("submitter", ["rest", "team"], made["token"][-4:])
    assert Api(made["token"]).get("workloads/")["items"] == []
    (listed,) = root.get("/api/v1/tokens/").json()["items"]
    assert {**listed, "lastUsedAt": None} == {name: value for name, value in made.items() if name != "token"}
    assert made["token"] not in root.get("/api/v1/tokens/").content.decode()


def test_revoked_token_is_rejected_immediately(root: Client) -> None:
    made = make(root).json()
    address = f"/api/v1/tokens/{made['key']}/revoke/"
    assert root.post(address, {"reason": " "}, content_type="application/json").json()["code"] == "ReasonMissing"
    assert root.post(address, {"reason": "leaked"}, content_type="application/json").status_code == 204
    assert Api(made["token"])("GET", "workloads/").status_code == 401
    entries = AuditEntry.objects.filter(object_kind="token").order_by("id")
    said = [(entry.actor, entry.action, entry.reason) for entry in entries]
    assert said == [("root", "token.create", "new pipeline"), ("root", "token.revoke", "leaked")]
    assert root.post(address, {"reason": "again"}, content_type="application/json").status_code == 404


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"role": "root"}, "RoleUnknown"),
        ({"days": 91}, "TokenLifetimeInvalid"),
        ({"days": 0}, "TokenLifetimeInvalid"),
        ({"days": 10**12}, "TokenLifetimeInvalid"),
        ({"name": " "}, "TokenNameInvalid"),
        ({"namespaces": "No_such!"}, "NamespaceInvalid"),
        ({"role": "agent"}, "NodeInvalid"),
        ({"role": "agent", "cluster": "nowhere", "node": "n1"}, "ClusterUnknown"),
        ({"reason": ""}, "ReasonMissing"),
    ],
)
def test_impossible_token_is_rejected(root: Client, asked: dict[str, Any], code: str) -> None:
    answer = make(root, **asked)
    assert (answer.status_code, answer.json()["code"], Token.objects.count()) == (400, code, 0)
