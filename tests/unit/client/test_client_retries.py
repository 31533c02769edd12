"""Retries of the client: repeated, delayed and rejected requests, and their messages."""

from typing import Any

import httpx
import pytest

from hetsched.client import Client, Refused, ServerUnavailable
from hetsched.contracts.errors import InputError

Answers = list[httpx.Response | Exception]


def client(*answers: httpx.Response | Exception, **options: Any) -> tuple[Client, list[httpx.Request]]:
    """Return a client that gets these responses in turn, and the requests that it sends."""
    waiting, asked = list(answers), []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client("http://hetsched.test", "hs_x", transport=httpx.MockTransport(handle), **options), asked


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Skip pauses, and record their durations."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    return pauses


ROWS = httpx.Response(200, json={"items": [], "next": None})
ACCEPTED = httpx.Response(202, json={"id": "w-1", "state": "pending", "pods": [{"pod": "a/b", "state": "pending"}]})


def too_many(after: str = "5") -> httpx.Response:
    headers = {"Retry-After": after} if after else {}
    return httpx.Response(429, json={"code": "RateLimited", "detail": "too many"}, headers=headers)


def test_retry_waits_for_retry_after_plus_jitter(slept: list[float]) -> None:
    pauses: list[float] = []
    api_client, asked = client(too_many("5"), ROWS, on_pause=pauses.append)
    assert list(api_client.nodes()) == []
    assert len(asked) == 2
    assert 5 <= slept[0] <= 6  # Retry-After and up to a fifth of it
    assert pauses == slept


def test_throttled_request_was_not_executed_and_is_always_repeated() -> None:
    api_client, asked = client(too_many("1"), httpx.Response(201, json={}))
    api_client.send("POST", "clusters/", body=b"{}")
    assert len(asked) == 2


@pytest.mark.parametrize("after", ["31", "", "soon"])
def test_patience_ends(after: str, slept: list[float]) -> None:
    api_client, asked = client(too_many(after))
    with pytest.raises(ServerUnavailable, match="RateLimited") as caught:
        list(api_client.nodes())
    assert (len(asked), slept, caught.value.passing) == (1, [], True)


def test_patience_is_spent_in_all_and_not_each_time(slept: list[float]) -> None:
    # 12 s and up to a fifth more, twice, is within 30 s; a third time is not.
    api_client, asked = client(too_many("12"))
    with pytest.raises(ServerUnavailable):
        list(api_client.nodes())
    assert len(asked) == 3


def test_write_with_a_lost_response_is_repeated_only_with_a_key() -> None:
    api_client, asked = client(httpx.ReadError("reset"), ACCEPTED)
    with pytest.raises(ServerUnavailable, match="ServerUnreachable"):
        api_client.send("POST", "clusters/", body=b"{}")
    assert len(asked) == 1
    api_client, asked = client(httpx.ReadError("reset"), ACCEPTED)
    assert api_client.submit("kind: Pod").id == "w-1"
    keys = {request.headers["Idempotency-Key"] for request in asked}
    assert (len(asked), len(keys)) == (2, 1)


def test_rejection_has_the_whole_problem_document() -> None:
    problem = {"code": "PlanOutdated", "detail": "it moved", "place": "plan", "hint": "Look again", "whatIf": {"a": 1}}
    api_client, _ = client(httpx.Response(412, json=problem))
    with pytest.raises(Refused) as caught:
        api_client.submit("kind: Pod")
    assert (caught.value.status, caught.value.code, caught.value.problem["whatIf"]) == (412, "PlanOutdated", {"a": 1})
    assert isinstance(caught.value, InputError)
    assert str(caught.value) == "plan: it moved [PlanOutdated]. Look again"


def test_rejected_token_is_not_retried() -> None:
    api_client, _ = client(httpx.Response(401, json={"code": "NotAuthenticated", "detail": "no"}))
    with pytest.raises(ServerUnavailable) as caught:
        list(api_client.nodes())
    assert not caught.value.passing


def test_foreign_response_is_reported_as_such() -> None:
    api_client, _ = client(httpx.Response(200, json={"hello": "world"}))
    with pytest.raises(InputError, match="AnswerUnreadable"):
        api_client.workload("w-1")


def test_unknown_fields_of_a_newer_server_are_kept() -> None:
    api_client, _ = client(httpx.Response(202, json={**ACCEPTED.json(), "colour": "red"}))
    assert api_client.submit("kind: Pod").document["colour"] == "red"


@pytest.mark.parametrize(
    "address", ["", "hetsched", "ftp://x", "http://u:p@x", "http://x?y", "http://[::1", "http://x:0"]
)
def test_only_server_addresses_are_accepted(address: str) -> None:
    with pytest.raises(InputError, match="ServerUrlInvalid"):
        Client(address)
