"""REST views are closed unless the permission table opens them; bearer tokens and sessions authenticate."""

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from hetsched.access.roles import Action
from hetsched.access.tokens import create_token

pytestmark = pytest.mark.django_db
make = APIRequestFactory(enforce_csrf_checks=True)


class ReadView(APIView):
    actions = {"GET": Action.VIEW, "POST": Action.SUBMIT}

    def get(self, request: Any) -> Response:
        return Response(str(request.auth))

    post = put = get


class UndeclaredView(ReadView):
    actions = {}


def status(request: Any, view: type[APIView] = ReadView) -> int:
    return int(view.as_view()(request).status_code)


def bearer(role: str) -> dict[str, str]:
    return {"HTTP_AUTHORIZATION": f"Bearer {create_token(role=role, name='ci')[1]}"}


def test_anonymous_request_returns_401() -> None:
    answer = ReadView.as_view()(make.get("/"))
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("method", "expected"), [("get", 200), ("post", 403), ("put", 403), ("options", 200)])
def test_viewer_by_token(method: str, expected: int) -> None:
    assert status(getattr(make, method)("/", **bearer("viewer"))) == expected


def test_submitter_posts_without_csrf() -> None:
    assert status(make.post("/", **bearer("submitter"))) == 200


def test_undeclared_view_is_closed_even_to_superusers(person: Any) -> None:
    request = make.get("/")
    force_authenticate(request, person("root", superuser=True))
    assert status(request, UndeclaredView) == 403


@pytest.mark.parametrize("header", ["Bearer", "Bearer x", "Bearer hs_" + "0" * 64, "Bearer \xff\xfe", "bearer a b"])
def test_bad_tokens_get_one_answer(header: str) -> None:
    answer = ReadView.as_view()(make.get("/", HTTP_AUTHORIZATION=header))
    assert answer.status_code == 401
    assert b"The token is not valid." in answer.content


def test_session_needs_csrf_to_write(person: Any) -> None:
    request = make.post("/")
    request.user = person("ada", "submitter")
    assert status(request) == 403


def test_session_reads(person: Any) -> None:
    request = make.get("/")
    request.user = person("ada", "viewer")
    assert status(request) == 200
    request.user = AnonymousUser()
