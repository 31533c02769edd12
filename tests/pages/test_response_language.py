"""Language of REST responses: browser sessions get the language of the reader, tokens get English."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from hetsched.access.tokens import create_token
from hetsched.inventory.models import Cluster
from workers.schedule import run

CHINESE = {"accept-language": "zh-CN"}
MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: main, image: example.com/web, resources: {requests: {cpu: "900"}}}
"""


@pytest.fixture
def by_token(cluster: Cluster) -> Client:
    _token, plaintext = create_token(role="viewer", name="reader")
    return Client(headers={"authorization": f"Bearer {plaintext}"})


def what_if(client: Client, **headers: str) -> Any:
    body = {"manifest": MANIFEST}
    return client.post("/api/v1/what-if/", body, content_type="application/json", headers=headers)


def test_sessions_get_problems_in_their_language(viewer: Client, cluster: Cluster) -> None:
    said = {}
    for language in ("zh-CN", "en", "fr"):
        answer = viewer.get("/api/v1/nodes/n9/", headers={"accept-language": language})
        said[language] = (answer.json()["code"], answer.json()["detail"], answer["Content-Language"])
    english = ("NotFound", "there is no node 'n9'", "en")
    assert said == {"zh-CN": ("NotFound", "没有 节点 'n9'", "zh-hans"), "en": english, "fr": english}


def test_missing_rights_are_translated(viewer: Client, cluster: Cluster) -> None:
    answer = viewer.post("/api/v1/workloads/", MANIFEST, content_type="application/yaml", headers=CHINESE)
    assert (answer.status_code, answer.json()["detail"]) == (403, "此操作需要 submit 权限，角色 viewer 没有此权限")


def test_errors_of_bodies_are_translated(viewer: Client, cluster: Cluster) -> None:
    answer = viewer.post(
        "/api/v1/what-if/", {"manifest": MANIFEST, "more": 1}, content_type="application/json", headers=CHINESE
    )
    problem = answer.json()
    assert (problem["place"], problem["detail"]) == ("more", "对象含有未知字段 `more`")
    assert problem["hint"].startswith("可用：")


def test_what_if_is_in_the_language_of_a_session_and_english_for_a_token(
    viewer: Client, by_token: Client, cluster: Cluster
) -> None:
    chinese = what_if(viewer, **CHINESE).json()
    english = what_if(by_token, **CHINESE)
    assert "节点" in chinese["summary"]
    assert english.json()["summary"] == what_if(viewer).json()["summary"]
    assert english["Content-Language"] == "en"
    assert "nodes" in english.json()["summary"]


def test_tokens_get_english_problems(by_token: Client) -> None:
    answer = by_token.get("/api/v1/nodes/n9/", headers=CHINESE)
    assert answer.json()["detail"] == "there is no node 'n9'"
    unknown = by_token.get("/api/v1/nothing/", headers=CHINESE)
    assert unknown.json()["detail"] == "the requested resource does not exist"
    refused = Client(headers={"authorization": "Bearer hs_bad", **CHINESE}).get("/api/v1/nodes/")
    assert refused.json()["detail"].isascii()


@pytest.mark.parametrize("address", ["nodes/", "nodes/n1/", "clusters/fleet/"])
def test_each_language_has_a_tag_and_writes_accept_all(viewer: Client, cluster: Cluster, address: str) -> None:
    english = viewer.get(f"/api/v1/{address}")
    chinese = viewer.get(f"/api/v1/{address}", headers=CHINESE)
    assert "Accept-Language" in english["Vary"]
    assert english.content == chinese.content or english["ETag"] != chinese["ETag"]
    tag = {"if-none-match": chinese["ETag"]}
    assert viewer.get(f"/api/v1/{address}", headers={**CHINESE, **tag}).status_code == 304


def test_write_accepts_the_etag_of_any_language(browsing: Any, cluster: Cluster) -> None:
    operator = browsing("operator")
    tag = operator.get("/api/v1/nodes/n1/", headers=CHINESE)["ETag"]
    assert tag != operator.get("/api/v1/nodes/n1/")["ETag"]
    body = {"action": "cordon", "reason": "x"}
    answer = operator.post(
        "/api/v1/nodes/n1/actions/", body, content_type="application/json", headers={"if-match": tag}
    )
    assert answer.status_code == 200, answer.content


def test_etag_of_a_chinese_response_is_valid_for_a_write(browsing: Callable[..., Client], cluster: Cluster) -> None:
    client = browsing("operator")
    sent = client.post("/api/v1/workloads/", MANIFEST, content_type="application/yaml")
    run(cluster.pk)
    address = f"/api/v1/workloads/{sent.json()['id']}/"
    chinese = client.get(address, headers=CHINESE)
    assert chinese.content != client.get(address).content
    cancel = {"action": "cancel", "reason": "done"}
    given = {"if-match": chinese["ETag"]}
    assert client.post(f"{address}actions/", cancel, content_type="application/json", headers=given).status_code == 200
