"""A request during a database outage gets 503 with Retry-After, in whichever part the outage is detected."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import InternalError, OperationalError
from django.http import HttpRequest
from django.test import Client

from .conftest import Api


class _ReadOnly(Exception):
    sqlstate = "25006"


def _away() -> Exception:
    return OperationalError("secret")


def _read_only() -> Exception:
    error = InternalError("secret")
    error.__cause__ = _ReadOnly()
    return error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Make every request fail outside of its view with the first of these errors."""
    errors: list[Exception] = []

    def process(self: Any, request: HttpRequest) -> None:
        raise errors[0]

    monkeypatch.setattr("django.middleware.common.CommonMiddleware.process_request", process)
    return errors


@pytest.mark.parametrize(("error", "code"), [(_away(), "StorageUnavailable"), (_read_only(), "StorageReadOnly")])
def test_outside_of_a_view_too(failing: list[Exception], error: Exception, code: str) -> None:
    failing.append(error)
    caller = Api()
    answer = caller("GET", "nodes/", status=503)
    assert answer.json()["code"] == code
    assert answer["Retry-After"]
    assert b"secret" not in answer.content


def test_people_see_a_page(failing: list[Exception]) -> None:
    failing.append(_away())
    answer = Client(raise_request_exception=False).get("/nodes/")
    assert answer.status_code == 503
    assert b"Try again" in answer.content


def test_other_failures_are_internal_errors(failing: list[Exception]) -> None:
    failing.append(KeyError("secret"))
    caller = Api()
    assert caller("GET", "nodes/", status=500).json()["code"] == "InternalError"
