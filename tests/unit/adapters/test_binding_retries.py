"""A busy API server is retried after its Retry-After, a few times at most."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import ApiFailure
from hetsched.adapters.kubernetes.pods import binding
from hetsched.adapters.kubernetes.pods.binding import BindingRequest, BindingResult, bind

ONE = BindingRequest(1, "default", "p", "u1", "n1")


class Busy:
    """An API server that rejects the first calls."""

    def __init__(self, *refusals: ApiFailure) -> None:
        self.refusals = list(refusals)
        self.calls = 0
        self.node = ""

    def get(self, _: str) -> bytes:
        return json.dumps({"metadata": {"uid": "u1"}, "spec": {"nodeName": self.node}}).encode()

    def send(self, *_: Any, query: dict[str, str] | None = None, **__: Any) -> bytes:
        if query:  # a dry run with a wrong UID
            raise ApiFailure(409, "Conflict", "another uid")
        self.calls += 1
        if self.refusals:
            raise self.refusals.pop(0)
        return b"{}"


def result_and_waits(api: Any) -> tuple[BindingResult, list[float]]:
    waits: list[float] = []
    return bind(api, ONE, sleep=waits.append).result, waits


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_retry_after_is_respected(status: int) -> None:
    api = Busy(ApiFailure(status, "Busy", "", 3.0), ApiFailure(status, "Busy", "", 0.0))
    assert result_and_waits(api) == (BindingResult.BOUND, [3.0, 0.5])
    assert api.calls == 3


def test_retry_delay_is_bounded() -> None:
    assert result_and_waits(Busy(ApiFailure(503, "Busy", "", 3600.0))) == (BindingResult.BOUND, [10.0])


def test_persistently_busy_server_leaves_the_result_unknown() -> None:
    api = Busy(*[ApiFailure(503, "Busy", "")] * 9)
    assert result_and_waits(api) == (BindingResult.UNKNOWN, [0.1, 0.5, 2.0])
    assert api.calls == 4


def test_rejection_is_not_retried() -> None:
    api = Busy(ApiFailure(422, "Invalid", "no"), ApiFailure(422, "Invalid", "no"))
    assert result_and_waits(api) == (BindingResult.REFUSED, [])


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("refused", [403, 409, 422])
@pytest.mark.parametrize(
    ("node", "expected"), [("n1", BindingResult.BOUND), ("n2", BindingResult.LOST), ("", BindingResult.UNKNOWN)]
)
def test_rejection_after_a_possibly_successful_try_is_read_back(
    status: int, refused: int, node: str, expected: BindingResult
) -> None:
    api = Busy(ApiFailure(status, "Timeout", ""), ApiFailure(refused, "Refused", "no"))
    binding._proven.add(api)  # type: ignore[arg-type]
    api.node = node
    assert result_and_waits(api)[0] is expected
    assert api.calls == 2


def test_rejection_after_a_refused_try_is_a_rejection() -> None:
    assert (
        result_and_waits(Busy(ApiFailure(429, "Busy", ""), ApiFailure(422, "Invalid", "no")))[0]
        is BindingResult.REFUSED
    )


def test_no_retry_after_the_lease_is_lost() -> None:
    api = Busy(*[ApiFailure(503, "Busy", "")] * 9)
    ours = iter([True, False])
    assert bind(api, ONE, sleep=lambda _: None, is_ours=lambda: next(ours)).result is BindingResult.UNKNOWN  # type: ignore[arg-type]
    assert api.calls == 1
