"""`Idempotency-Key`: the same body gets the first response again, another body 422; keys are private to their owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.placement.models import IdempotencyKey, Workload

from .conftest import POD, Api

OTHER = POD.replace("web", "other")


def submit(caller: Api, manifest: str = POD, key: str = "build-17", **more: Any) -> Any:
    return caller("POST", "workloads/", manifest, kind="application/yaml", idempotency_key=key, **more)


def test_same_body_gets_the_first_response(operator: Api, cluster: Any) -> None:
    first, second = submit(operator, status=202), submit(operator, status=202)
    assert first.content == second.content
    assert ("Idempotency-Replayed" in first, second["Idempotency-Replayed"]) == (False, "true")
    assert Workload.objects.count() == 1


def test_changed_body_is_rejected(operator: Api, cluster: Any) -> None:
    submit(operator, status=202)
    assert submit(operator, OTHER, status=422).json()["code"] == "IdempotencyKeyReused"
    assert Workload.objects.count() == 1


def test_changed_query_parameters_are_rejected(operator: Api, cluster: Any) -> None:
    submit(operator, status=202)
    again = operator("POST", "workloads/?priority=3", POD, kind="application/yaml", idempotency_key="build-17")
    assert again.status_code == 422


def test_rejected_submission_keeps_its_key_unused(operator: Api, cluster: Any) -> None:
    submit(operator, POD.replace("500m", "-1"), status=400)
    assert not IdempotencyKey.objects.exists()
    submit(operator, status=202)


def test_keys_of_other_owners_are_other_keys(operator: Api, api: Callable[..., Api], cluster: Any) -> None:
    mine = submit(operator, status=202).json()
    theirs = submit(api("submitter"), OTHER, status=202).json()
    assert mine["id"] != theirs["id"]


def test_key_of_another_token_is_a_separate_submission(operator: Api, api: Callable[..., Api], cluster: Any) -> None:
    submit(operator, status=202)
    # The same request of another token is a separate submission, whose pod name is in use.
    assert submit(api("submitter"), status=409).json()["code"] == "PodExists"


@pytest.mark.parametrize("key", ["x" * 256, "with space", "a\tb", "ünï"])
def test_invalid_key_is_rejected(operator: Api, cluster: Any, key: str) -> None:
    assert submit(operator, key=key, status=400).json()["code"] == "IdempotencyKeyInvalid"


@pytest.mark.parametrize("key", ["a,b", "a, a", "a,"], ids=["two", "the same twice", "an empty one"])
def test_two_idempotency_keys_are_rejected(operator: Api, cluster: Any, key: str) -> None:
    """Servers join headers of the same name with commas."""
    problem = submit(operator, key=key, status=400).json()
    assert (problem["code"], problem["place"]) == ("IdempotencyKeyInvalid", "Idempotency-Key")
    assert "once" in problem["hint"]
    assert not Workload.objects.exists()


def test_without_a_key_each_request_counts(operator: Api, cluster: Any) -> None:
    submit(operator, key="", status=202)
    submit(operator, OTHER, key="", status=202)
    assert Workload.objects.count() == 2
