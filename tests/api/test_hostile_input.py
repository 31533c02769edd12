"""Every hostile request gets a 4xx problem document and writes nothing; none gets a 5xx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.placement.models import Workload

from .conftest import POD, Api

JSON, YAML, CSV = "application/json", "application/yaml", "text/csv"
BOMB = "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n"
HEAD = b'{"apiVersion":"v1","kind":"Pod","metadata":'

BODIES: dict[str, tuple[str, bytes]] = {
    "empty": (JSON, b""),
    "white space": (JSON, b" \n"),
    "cut off": (JSON, b'{"manifest": "x'),
    "only a number": (JSON, b"5"),
    "null": (JSON, b"null"),
    "list of nothing": (JSON, b"[]"),
    "33 deep": (JSON, b'{"manifest": {"a":' * 33 + b"1" + b"}" * 33),
    "1,000 deep": (JSON, b"[" * 1000 + b"]" * 1000),
    "100,000 deep": (JSON, b"[" * 100_000 + b"]" * 100_000),
    "100,000 open": (JSON, b'{"a":' * 100_000),
    "5,000 digits": (JSON, b'{"manifest": "x", "priority": ' + b"9" * 5000 + b"}"),
    "20 digits": (JSON, b'{"manifest": "x", "priority": 99999999999999999999}'),
    "NaN": (JSON, b'{"manifest": "x", "priority": NaN}'),
    "infinity": (JSON, b'{"manifest": "x", "priority": -Infinity}'),
    "overflowing exponent": (JSON, b'{"manifest": "x", "priority": 1e999}'),
    "NUL in text": (JSON, b'{"manifest": "a\\u0000b"}'),
    "NUL in a key": (JSON, b'{"a\\u0000": 1}'),
    "raw NUL": (YAML, b"a: \0\n"),
    "half a surrogate": (JSON, b'{"manifest": "\\ud800"}'),
    "half a surrogate in a name": (JSON, HEAD + b'{"name":"\\udc00"}}'),
    "bad UTF-8": (JSON, b'{"manifest": "\xff\xfe"}'),
    "bad UTF-8 in YAML": (YAML, b"a: \xc3\x28\n"),
    "UTF-16": (JSON, POD.encode("utf-16")),
    "same key twice": (JSON, b'{"manifest": "x", "manifest": "y"}'),
    "same key twice inside": (YAML, b"apiVersion: v1\nkind: Pod\nkind: Pod\nmetadata: {name: x}\n"),
    "anchors": (YAML, BOMB.encode()),
    "a billion laughs": (YAML, b"".join(b"x%d: &x%d [*x%d,*x%d]\n" % (i, i, i - 1, i - 1) for i in range(1, 40))),
    "merge key": (YAML, b"a: {<<: {b: 1}}\n"),
    "tag that builds": (YAML, b"!!python/object/apply:os.system ['true']\n"),
    "endless flow": (YAML, b"[" * 50_000),
    "tabs": (YAML, b"a:\n\t- b\n"),
    "binary": (YAML, bytes(range(256)) * 8),
    "control characters": (YAML, b"a: \x01\x02\x7f\n"),
    "no kind": (YAML, b"apiVersion: v1\nmetadata: {name: x}\n"),
    "kind is a list": (JSON, b'{"apiVersion":"v1","kind":["Pod"],"metadata":{"name":"x"}}'),
    "items is a text": (JSON, b'{"apiVersion":"v1","kind":"List","items":"x"}'),
    "metadata is a number": (JSON, HEAD + b"5}"),
    "name is a number": (JSON, HEAD + b'{"name":5}}'),
    "name of 254": (JSON, HEAD + b'{"name":"' + b"a" * 254 + b'"}}'),
    "name with dots only": (JSON, HEAD + b'{"name":".."}}'),
    "name with a slash": (JSON, HEAD + b'{"name":"../x"}}'),
    "name right to left": (JSON, HEAD + '{"name":"a\u202eb"}}'.encode()),
    "name of zero width": (JSON, HEAD + '{"name":"a\u200bb"}}'.encode()),
    "namespace with dots": (JSON, HEAD + b'{"name":"x","namespace":".."}}'),
    "no containers": (JSON, HEAD + b'{"name":"x"},"spec":{}}'),
    "containers is an object": (JSON, HEAD + b'{"name":"x"},"spec":{"containers":{}}}'),
    "huge quantity": (YAML, POD.replace("500m", "1" + "0" * 60).encode()),
    "negative quantity": (YAML, POD.replace("500m", "-500m").encode()),
    "quantity is a list": (YAML, POD.replace("500m", "[1]").encode()),
    "quantity is not finite": (YAML, POD.replace("500m", ".inf").encode()),
    "10,000 containers": (
        JSON,
        HEAD + b'{"name":"x"},"spec":{"containers":[' + b",".join([b'{"name":"c"}'] * 10_000) + b"]}}",
    ),
    "100,001 labels": (
        JSON,
        HEAD + b'{"name":"x","labels":{' + b",".join(b'"k%d":""' % i for i in range(100_001)) + b"}}}",
    ),
    "a million replicas": (
        JSON,
        b'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"replicas":1000000,'
        b'"template":{"spec":{"containers":[{"name":"c"}]}}}}',
    ),
    "replicas negative": (
        JSON,
        b'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"replicas":-1,'
        b'"template":{"spec":{"containers":[{"name":"c"}]}}}}',
    ),
    "CSV without rows": (CSV, b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"),
    "CSV cut in a row": (CSV, b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nx,1\n"),
    "CSV with a negative": (CSV, b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\nx,-1,1,0,0,\n"),
    "CSV of nodes": (CSV, b"sn,cpu_milli,memory_mib,gpu,model\nx,1,1,0,\n"),
    "CSV with an endless field": (
        CSV, b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + b"x" * 300_000 + b",1,1,0,0,\n"
    ),
    "CSV with an open quote": (CSV, b'name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"x,1,1,0,0,\n'),
}  # fmt: skip


def assert_refused(answer: Any) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.content[:500])
    assert answer["Content-Type"] == "application/problem+json"
    answer.json()


@pytest.mark.parametrize("case", BODIES)
def test_invalid_body_is_rejected(api: Callable[..., Api], cluster: Any, case: str) -> None:
    kind, body = BODIES[case]
    operator, admin = api("operator"), api("policy-admin")
    assert_refused(operator("POST", "workloads/", body, kind=kind))
    assert_refused(operator("POST", "what-if/", body, kind=kind))
    if case != "CSV of nodes":
        assert_refused(operator("POST", "clusters/lab/import/?reason=x", body, kind=kind, if_match="*"))
    assert_refused(admin("POST", "policies/", body, kind=kind))
    if kind == JSON:
        assert_refused(operator("POST", "clusters/", body))
        assert_refused(operator("POST", "nodes/n1/actions/", body, if_match="*"))
        assert_refused(admin("POST", "policies/hetsched/activate/", body, if_match="*"))
    assert not Workload.objects.exists()


WEIGHTS = ["-1", "1e308", "NaN", "1000.1", '"5"', "true", "null", "[]", "9" * 400]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_invalid_weight_is_rejected(api: Callable[..., Api], cluster: Any, weight: str) -> None:
    body = b'{"name": "mine", "plugins": [{"name": "resource-fit", "weight": %s}]}' % weight.encode()
    assert_refused(api("policy-admin")("POST", "policies/", body))
    wrapped = b'{"manifest": "%s", "policyDraft": %s}' % (POD.encode().replace(b"\n", b"\\n"), body)
    assert_refused(api("viewer")("POST", "what-if/", wrapped))


@pytest.mark.parametrize(
    "plugins",
    [
        "[]", '[{"name": "none-such"}]', '[{"name": "taints"}, {"name": "taints"}]', '[{"name": 5}]', "{}",
        '[{"name": "taints", "params": {"x": 1}}]', '[{"name": "binpack", "params": {"shape": [[0, 1e999]]}}]',
        '[{"name": "binpack", "params": {"shape": "x"}}]', '[{"name": "taints", "more": 1}]',
    ],
)  # fmt: skip
def test_invalid_policy_is_rejected(api: Callable[..., Api], cluster: Any, plugins: str) -> None:
    assert_refused(api("policy-admin")("POST", "policies/", f'{{"name": "mine", "plugins": {plugins}}}'))


@pytest.mark.parametrize("name", ["", "..", "A", "a b", "x" * 64, "é", "-a", "a\\u0000", "a/b"])
def test_invalid_name_is_rejected(api: Callable[..., Api], cluster: Any, name: str) -> None:
    operator = api("operator")
    assert_refused(operator("POST", "clusters/", f'{{"name": "{name}", "reason": "x"}}'))
    draft = f'{{"name": "{name}", "plugins": [{{"name": "taints"}}]}}'
    assert_refused(api("policy-admin")("POST", "policies/", draft))


def test_body_over_the_limit_of_its_path_returns_413(operator: Api, cluster: Any, settings: Any) -> None:
    settings.HETSCHED_BODY_BYTES, settings.HETSCHED_MANIFEST_BYTES = 1000, 5000
    operator("POST", "nodes/n1/actions/", b" " * 1001, if_match="*", status=413)
    operator("POST", "workloads/", POD + "#" * 1001, kind=YAML, status=202)
    operator("POST", "workloads/", POD + "#" * 5001, kind=YAML, status=413)


def test_body_over_the_limit_of_django(operator: Api, cluster: Any, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    problem = operator("POST", "workloads/", POD + "#" * 1001, kind=YAML, status=413).json()
    assert problem["code"] == "BodyTooLarge"


@pytest.mark.parametrize(
    "cursor", ["x", "é", "bnVsbA", "MQ", "IngAIg", "WzFd", "A" * 5000, "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5"]
)
@pytest.mark.parametrize("address", ["nodes/", "workloads/", "decisions/", "plugins/"])
def test_forged_cursor(operator: Api, cluster: Any, address: str, cursor: str) -> None:
    answer = operator.client.get(f"/api/v1/{address}", {"cursor": cursor})
    assert answer.status_code in (200, 400), answer.content


@pytest.mark.parametrize(
    "header", ["if_match", "if_none_match", "accept", "idempotency_key", "x_request_id", "authorization"]
)
@pytest.mark.parametrize("value", ["", '"', '"' * 5000, "\x80\xff", "W/", "*, *", "a" * 8000, "\xe2\x80\xae"])
def test_malformed_header_causes_no_server_error(operator: Api, cluster: Any, header: str, value: str) -> None:
    answer = operator("POST", "nodes/n1/actions/", {"action": "uncordon", "reason": "x"}, **{header: value})
    assert answer.status_code < 500, answer.content


@pytest.mark.parametrize("address", ["what-if/?priority=2147483648", "workloads/?priority=x", "what-if/?explain=maybe"])
def test_wrong_query_with_a_document(operator: Api, cluster: Any, address: str) -> None:
    # The fields of the document count, so the parameter of the address must not look as if it had an effect.
    problem = operator("POST", address, {"manifest": POD}, status=400).json()
    assert (problem["code"], problem["place"]) == ("QueryInvalid", address.partition("?")[2].partition("=")[0])
