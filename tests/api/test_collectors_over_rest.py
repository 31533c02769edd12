"""Collectors over REST: created, changed and deleted with a reason; tokens are never returned."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.inventory.models import Cluster, Collector
from tests.api.conftest import Api

AT = "clusters/lab/collectors/racks/"
BODY = {
    "kind": "prometheus-load",
    "params": {"url": "http://prometheus.monitoring:9090"},
    "intervalSeconds": 15,
    "token": "canary-of-a-token",
    "reason": "measure",
}


@pytest.fixture(autouse=True)
def surroundings(settings: Any, cluster: Cluster) -> None:
    settings.HETSCHED_SOURCE_HOSTS = ["prometheus.monitoring:9090"]
    settings.SECRET_KEY_GIVEN = True


def test_collector_is_created_read_changed_and_deleted(operator: Api) -> None:
    operator("PUT", AT, BODY, status=201)
    shown = operator("GET", AT, status=200)
    assert "canary" not in shown.content.decode()
    facts = shown.json()
    assert (facts["hasToken"], facts["load"], facts["up"], facts["mostFailures"]) == (True, True, False, 1)
    assert operator.get("clusters/lab/collectors/")["items"] == [facts]
    operator("PUT", AT, BODY, status=428)
    operator("PUT", AT, BODY, status=412, if_match='"old"')
    changed = operator("PUT", AT, {**BODY, "enabled": False}, status=200, if_match=shown["ETag"])
    assert changed.json()["enabled"] is False
    operator("DELETE", f"{AT}?reason=moved", status=412, if_match=shown["ETag"])
    operator("DELETE", f"{AT}?reason=moved", status=204, if_match=operator.tag(AT))
    assert not Collector.objects.exists()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"params": {"url": "http://169.254.169.254/latest"}}, "SourceNotAllowed"),
        ({"params": {"url": "http://prometheus.monitoring:9090", "colour": 1}}, "CollectorParamInvalid"),
        ({"kind": "pigeon"}, "CollectorUnknown"),
        ({"reason": ""}, "ReasonMissing"),
    ],
)
def test_invalid_collectors_are_rejected_with_a_code(operator: Api, change: dict[str, Any], code: str) -> None:
    assert operator("PUT", AT, {**BODY, **change}, status=400).json()["code"] == code


def test_collector_kinds_describe_their_parameters(operator: Api) -> None:
    kinds = {kind["name"]: kind for kind in operator.get("collectors/")["items"]}
    assert {"http-json", "prometheus-facts", "prometheus-load"} <= kinds.keys()
    assert kinds["prometheus-load"]["params"]["properties"]["window_seconds"]["minimum"] == 2


def test_viewers_have_read_access_only(api: Any, operator: Api) -> None:
    operator("PUT", AT, BODY, status=201)
    viewer = api("viewer")
    viewer("GET", AT, status=200)
    viewer("PUT", AT, BODY, status=403, if_match="*")
    viewer("DELETE", f"{AT}?reason=x", status=403, if_match="*")
