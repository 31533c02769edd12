"""Error pages: what happened, what to do, and the request ID.

Below `/api/` the same errors are problem documents. 403 and 404 show the console's navigation to users with read
access. The page for 500 uses neither the database nor the session, because either may have failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from hetsched.access.subject import subject_of
from web.api import problems

from .shell import grouped, places_for
from .visible_characters import visible


class LinkedHttp404(Http404):
    """404 page with links to related pages; `links` are pairs of label and URL."""

    def __init__(self, text: str, links: Iterable[tuple[str, str]]) -> None:
        super().__init__(text)
        self.links = [{"label": label, "url": url} for label, url in links]


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _plain(request, 400, _("Bad request"), _("Go back and try a different request."))


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    text = _message_of(exception) or _(
        "Your account does not have permission for this. Ask an administrator for the required role."
    )
    return _page(request, exception, 403, _("Permission denied"), text)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    text = _message_of(exception) or _("This page does not exist. The object was removed, or the address is wrong.")
    return _page(request, exception, 404, _("Not found"), text)


def failed(request: HttpRequest) -> HttpResponse:
    refused = _refusal()
    if refused is not None and refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
        if request.path.startswith("/api/"):
            return problems.response(refused, request)
        text = _("The server is unreachable. Nothing was changed. Try again.")  # the database is unavailable
        return _plain(request, refused.status, _("Internal error"), text)
    text = _(
        "An internal error occurred and was logged. Try again. If the error persists, report the request ID below."
    )
    return _plain(request, 500, _("Internal error"), text)


def too_many_requests(request: HttpRequest, refused: problems.RequestRefused) -> HttpResponse:
    """Respond with 429 to a request above the rate limit; a request for data (`?format=`) gets a problem document."""
    if request.GET.get("format"):
        return problems.response(refused, request)
    text = _("Your account requested too many pages. Wait %(seconds)s s, then reload the page.")
    answer = _plain(request, 429, _("Too many requests"), text % {"seconds": refused.headers["Retry-After"]})
    for name, value in refused.headers.items():
        answer.headers[name] = value
    return answer


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    text = _("The form expired, or the browser blocks cookies. Reload the page and repeat the action.")
    return _plain(request, 403, _("Form expired"), text)


def _refusal() -> problems.RequestRefused | None:
    """Convert the current exception to a RequestRefused; Django does not pass the exception to handler500."""
    error = sys.exc_info()[1]
    return problems.refusal_of(error) if isinstance(error, Exception) else None


def _message_of(exception: Exception) -> str:
    """Return the message of the exception if the view provided one."""
    first = exception.args[0] if exception.args else ""
    return first if isinstance(first, str) else ""


def _context(request: HttpRequest, status: int, title: str, text: str) -> dict[str, Any]:
    return {"status": status, "title": title, "text": text, "request_id": getattr(request, "request_id", "")}


def _page(request: HttpRequest, exception: Exception, status: int, title: str, text: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        return problems.response(problems.refusal_of(exception), request)
    context = _context(request, status, title, text) | _frame(request) | {"links": getattr(exception, "links", [])}
    return HttpResponse(visible(render_to_string("error.html", context, request)), status=status)


def _frame(request: HttpRequest) -> dict[str, Any]:
    """Return the navigation for a logged-in user: the permitted pages. It is empty without read access."""
    if not hasattr(request, "user") or not request.user.is_authenticated:
        return {}
    places = places_for(subject_of(request))
    return {"nav": places, "nav_groups": grouped(places)}


def _plain(request: HttpRequest, status: int, title: str, text: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        code = {400: "RequestMalformed", 403: "CsrfFailed"}.get(status, "InternalError")
        return problems.response(problems.RequestRefused(status, code, text), request)
    return HttpResponse(render_to_string("failure.html", _context(request, status, title, text)), status=status)
