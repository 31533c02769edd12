"""Previews of a version on recorded decisions: requested, followed, read in pages, cancelled."""

from __future__ import annotations

from collections.abc import Callable
from threading import BoundedSemaphore
from typing import Any

import pytest

from hetsched.placement import dispatch
from hetsched.policies.models import Preview
from web.api.policies import previews
from workers import replay

from .conftest import Api

PACKING = {"plugins": [{"name": "resource-fit"}, {"name": "tightest-fit", "weight": 5}]}


@pytest.fixture
def admin(api: Callable[..., Api], decided: str) -> Api:
    admin = api("policy-admin")
    admin("POST", "policies/hetsched/versions/", PACKING, status=201)
    return admin


def ask(admin: Api, status: int = 202, **more: Any) -> Any:
    return admin("POST", "policies/hetsched/preview/", {"version": 2, "cluster": "lab", **more}, status=status)


def test_preview_is_requested_run_and_read(
    admin: Api, local_messages: list[tuple[str, list[int]]], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        asked = ask(admin, last=500)
    number = asked.json()["id"]
    assert (dispatch.REPLAY, [number]) in local_messages
    assert asked["Location"] == f"/api/v1/policies/hetsched/preview/{number}/"
    assert (asked.json()["state"], asked.json()["last"], asked.json()["result"]) == ("waiting", 500, None)
    assert replay.run(number)
    preview = admin.get(f"policies/hetsched/preview/{number}/", wait=30)
    assert (preview["state"], preview["progress"]) == ("done", 1.0)
    result = preview["result"]
    # Of the two decided pods one never fits, under any policy.
    assert (result["decisions"], result["pendingBoth"], result["fidelity"]["equal"]) == (2, 1, 2)
    assert set(result["draft"]["metrics"]) == {
        "balance", "cpuUtilization", "gpuAllocation", "gpuFragmentation", "memoryUtilization", "unallocatedGpus",
    }  # fmt: skip
    assert [row["id"] for row in admin.get("policies/hetsched/preview/")["items"]] == [number]


def test_waiting_requests_are_limited(admin: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    number = ask(admin).json()["id"]
    waited: list[int] = []
    monkeypatch.setattr(previews, "_wait", lambda row, until: waited.append(row.pk))
    monkeypatch.setattr(previews, "_waiting", BoundedSemaphore(1))
    assert admin.get(f"policies/hetsched/preview/{number}/", wait=30)["state"] == "waiting"
    with previews._waiting:
        assert admin.get(f"policies/hetsched/preview/{number}/", wait=30)["state"] == "waiting"
    assert waited == [number]


def test_changes_are_paginated_and_filtered_by_kind(admin: Api) -> None:
    number = ask(admin).json()["id"]
    replay.run(number)
    address = f"policies/hetsched/preview/{number}/changes/"
    found = admin.get(address, limit=1)["items"]
    assert len(found) <= 1
    assert admin.get(address, change="feasible")["items"] == []
    assert admin("GET", f"{address}?change=other", status=400).json()["place"] == "change"


def test_one_open_preview_per_user_can_be_cancelled(admin: Api) -> None:
    number = ask(admin).json()["id"]
    refused = ask(admin, status=409).json()
    assert refused["code"] == "PreviewRunning"
    assert f"preview/{number}/" in refused["hint"]
    admin("DELETE", f"policies/hetsched/preview/{number}/", status=204)
    assert admin.get(f"policies/hetsched/preview/{number}/")["state"] == "cancelled"
    admin("DELETE", f"policies/hetsched/preview/{number}/", status=204)
    admin("GET", f"policies/hetsched/preview/{number}/", status=404)
    assert ask(admin).json()["state"] == "waiting"


@pytest.mark.parametrize(
    ("body", "status"),
    [({"version": 9}, 404), ({"version": 2, "last": 10_001}, 400), ({"version": 2, "scope": "some"}, 400), ({}, 400)],
)
def test_invalid_request_is_rejected(admin: Api, body: dict[str, Any], status: int) -> None:
    admin("POST", "policies/hetsched/preview/", body, status=status)
    assert not Preview.objects.exists()


def test_namespace_token_sees_no_previews(api: Callable[..., Api], admin: Api) -> None:
    limited = api("policy-admin", "team")
    assert limited("GET", "policies/hetsched/preview/", status=403).json()["code"] == "NamespaceNotAllowed"
    limited("POST", "policies/hetsched/preview/", {"version": 2}, status=403)
