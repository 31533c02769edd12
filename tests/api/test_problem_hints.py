"""Every field of a body, replaced by a value of a wrong type, leads to a problem with code, detail and hint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from django.conf import LazySettings

from tests.situations import a_cluster

from .conftest import Api

ODD = (None, True, -1, 1.5, "x", [1], {"x": 1}, "x" * 3000, 10**30)
POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
}  # fmt: skip
DRAFT = {"plugins": [{"name": "binpack", "weight": 1, "params": {"mode": "plain"}}], "ties": {"by": "name", "seed": 1}}
BODIES = [
    ("operator", "workloads/", {"manifest": POD, "policy": "spread", "priority": 5, "name": "n", "strict": True}),
    (
        "operator", "what-if/",
        {"manifest": "kind: Pod", "policyDraft": DRAFT, "drain": ["n1"], "addNodes": [{"like": "n1", "count": 1}]},
    ),
    ("operator", "holds/", {"cluster": "demo", "manifest": "kind: Pod", "seconds": 60, "note": "n"}),
    ("operator", "clusters/", {"name": "c2", "kind": "offline", "reason": "r", "kubeconfig": {}}),
    ("operator", "nodes/n1/actions/", {"action": "cordon", "reason": "r"}),
    ("policy-admin", "policies/", {"name": "mine", "spec": DRAFT, "message": "m"}),
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) inside a value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def with_odd_values(body: dict[str, Any]) -> Iterator[str]:
    """Yield the body once for each field and each odd value."""
    for number in range(len(list(places(body)))):
        for odd in ODD:
            changed = deepcopy(body)
            container, key = list(places(changed))[number]
            container[key] = odd
            yield json.dumps(changed)


@pytest.mark.parametrize(("role", "address", "body"), BODIES, ids=[address for _, address, _ in BODIES])
def test_wrong_type_of_any_field(
    api: Callable[..., Api], settings: LazySettings, role: str, address: str, body: dict[str, Any]
) -> None:
    settings.HETSCHED_WRITES_PER_MINUTE = settings.HETSCHED_SUBMITS_PER_MINUTE = 0
    a_cluster()
    call = api(role)
    answers = [(text, call("POST", address, text, if_match="*")) for text in with_odd_values(body)]
    assert {answer.status_code // 100 for _, answer in answers} <= {2, 4}
    problems = [(text, answer.json()) for text, answer in answers if answer.status_code >= 400]
    assert problems
    assert [
        text for text, problem in problems if not (problem["code"] and problem["detail"] and problem.get("hint"))
    ] == []


@pytest.mark.parametrize("address", ["workloads/", "what-if/", "policies/"])
@pytest.mark.parametrize("body", [b"[", b"null", b"\xff", b"[" * 50_000, b'{"a":1,"a":2}', b'{"x":NaN}'])
def test_malformed_body(api: Callable[..., Api], db: Any, address: str, body: bytes) -> None:
    a_cluster()
    problem = api("policy-admin" if address == "policies/" else "operator")("POST", address, body, status=400).json()
    assert problem["code"]
    assert problem["hint"]
