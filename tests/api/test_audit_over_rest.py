"""The audit trail over REST, limited to objects in the reader's scope."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from hetsched.access.tokens import create_token
from hetsched.journal.audit import record
from hetsched.journal.chain import seal_new

from .conftest import POD, Api


@pytest.fixture
def acted(cluster: Any, operator: Api) -> Any:
    for node, reason in (("n1", "fan"), ("n2", "fan")):
        body = {"action": "cordon", "reason": reason}
        operator("POST", f"nodes/{node}/actions/", body, if_match="*", status=200, X_Request_ID=f"request-of-{node}")
    return cluster


def names(api: Api, **query: Any) -> list[str]:
    return [f"{row['action']} {row['objectName']}" for row in api.get("audit/", **query)["items"]]


def test_entries_are_newest_first_with_reason_and_request(acted: Any, operator: Api) -> None:
    row = operator.get("audit/", action="node.cordon")["items"][1]
    assert (row["objectKind"], row["objectName"], row["reason"], row["requestId"]) == (
        "node", "lab/n1", "fan", "request-of-n1",
    )  # fmt: skip
    assert names(operator, action="node.") == ["node.cordon lab/n2", "node.cordon lab/n1"]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"object": "n1"}, 1), ({"object": "n9"}, 0), ({"actor": "operator"}, 2), ({"actor": "ada"}, 0),
        ({"kind": "workload"}, 0), ({"request": "request-of-n2"}, 1), ({"since": "2026-01-01"}, 2),
        ({"until": "2026-01-01"}, 0), ({"since": "2999-01-01T00:00:00Z"}, 0),
    ],
)  # fmt: skip
def test_entries_are_found_by_their_text(acted: Any, operator: Api, query: Any, count: int) -> None:
    rows = operator.get("audit/", **query)["items"]
    assert len([row for row in rows if row["action"] == "node.cordon"]) == count


def test_limited_token_sees_entries_of_its_namespaces(acted: Any, operator: Api, api: Callable[..., Api]) -> None:
    for name, namespace in (("ours", "team"), ("theirs", "rest")):
        manifest = POD.replace("{name: web}", f"{{name: {name}, namespace: {namespace}}}")
        operator("POST", "workloads/", manifest, kind="application/yaml", status=202)
    limited = api("viewer", "team")
    (row,) = limited.get("audit/")["items"]
    assert row["action"] == "workload.submit"
    assert limited.get(f"workloads/{row['objectName']}/")["name"] == "ours"


def test_entries_about_tokens_require_the_right_to_manage_them(operator: Api, person: Any) -> None:
    assert [row for row in operator.get("audit/")["items"] if row["objectKind"] == "token"] == []
    root = Client()
    root.force_login(person("root", superuser=True))
    assert "token.create" in root.get("/api/v1/audit/").content.decode()


def test_response_has_the_last_sealed_entry(db: Any, operator: Api) -> None:
    record(actor="ada", action="x", obj=("node", "n1"))
    unsealed = operator.get("audit/chain/")["unsealed"]
    seal_new(settled=timedelta(0))
    chain = operator.get("audit/chain/")
    assert (chain["sealed"], chain["unsealed"], chain["broken"]) == (unsealed, 0, [])
    assert len(chain["head"]) == 64


def test_entries_of_an_equally_named_cluster_are_hidden(cluster: Any, db: Any) -> None:
    tokens = [create_token(role="submitter", name="ci", namespaces=[space])[1] for space in ("team", "rest")]
    ours, theirs = map(Api, tokens)
    manifest = POD.replace("{name: web}", "{name: ours, namespace: team}")
    ours("POST", "workloads/", manifest, kind="application/yaml", status=202)
    assert [row["action"] for row in ours.get("audit/")["items"]] == ["workload.submit"]
    assert theirs.get("audit/")["items"] == []


@pytest.mark.parametrize(
    "query",
    [
        "actor=" + "_" * 25_001,
        "action=" + "a" * 1_001 + ".",
        "since=yesterday",
        "colour=red",
        "since=0001-01-01T00:00:00%2B14:00",
        "until=9999-12-31T23:59:59-14:00",
    ],
)
def test_invalid_query_is_rejected(operator: Api, query: str) -> None:
    assert operator("GET", f"audit/?{query}", status=400).json()["code"] in ("QueryInvalid", "QueryUnknown")
