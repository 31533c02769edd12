"""Check the credential of a request before its body is read.

Middleware and REST views decide which clients may send a large body, but Django calls them only after storing the body.
A request with a large body therefore passes all middleware and its route twice. The first pass has no body and ends in
this middleware: a REST view checks credential and permission with its own authenticators, and a page requires a
signed-in user. If the check succeeds, the response `BodyRequested` makes `project.handler` read the body and repeat the
request, which is then checked like any other. If the check fails, the REST view responds with its own error before a
body is read; a page responds with 413. CSRF is checked in the second pass, because a form carries its token in the
body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.views import APIView

from .bodies import MOST_UNVERIFIED, BodyRefused
from .middleware import BodyRequested


class BodyGate:
    """Innermost middleware, which ends the first pass of a request with a large body."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: Any, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        if not getattr(request, "body_awaited", False):
            return None
        view_class = getattr(view, "cls", None)
        if view_class is None or not issubclass(view_class, APIView):
            if request.user.is_authenticated:
                return BodyRequested()
            message = f"without a credential, a body is limited to {MOST_UNVERIFIED} bytes"
            return BodyRequested(BodyRefused(413, "BodyTooLarge", message, hint="Sign in first"))
        if _is_admitted(view_class(**view.initkwargs), request, args, kwargs):
            return BodyRequested()
        request._dont_enforce_csrf_checks = False
        return None


def _is_admitted(view: Any, request: Any, args: Any, kwargs: Any) -> bool:
    view.setup(request, *args, **kwargs)
    view.request = view.initialize_request(request, *args, **kwargs)
    try:
        view.perform_authentication(view.request)
        view.check_permissions(view.request)
    except Exception:  # the view runs the same checks again and responds with the error
        return False
    return bool(view.request.user and view.request.user.is_authenticated)
