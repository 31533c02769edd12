"""What people see when a page cannot be shown: what happened, what to do, and the id to quote.

Rule: below `/api/` the same refusals are problem documents. What is not there or not allowed is told inside the
console's frame to whoever may go on from it. The page for a failure of our own needs neither the database nor the
session, which may be what failed.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from hetsched.access.subject import subject_of
from web.api import problems

from .sentences_document import address as sentences
from .shell import grouped, places_for
from .visible import visible


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _plain(request, 400, _("This request cannot be read"), _("Go back and try it another way."))


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    said = _said(exception) or _("Your account may not do this. Ask an administrator for the role it needs.")
    return _page(request, exception, 403, _("Not allowed"), said)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    said = _said(exception) or _("Nothing is at this address. It may have been removed, or the address is misspelt.")
    return _page(request, exception, 404, _("Not found"), said)


def failed(request: HttpRequest) -> HttpResponse:
    refused = _refusal()
    if refused is not None and refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
        if request.path.startswith("/api/"):
            return problems.response(refused, request)
        said = _("The server cannot be reached. Nothing was changed; try again.")  # what it stands on cannot
        return _plain(request, refused.status, _("This did not work"), said)
    said = _("Something went wrong here, and it was logged. Try again; if it stays, quote the id below.")
    return _plain(request, 500, _("This did not work"), said)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    said = _("The form was too old, or cookies are blocked. Load the page again, then repeat what you did.")
    return _plain(request, 403, _("The form is no longer valid"), said)


def _refusal() -> problems.Refused | None:
    """Return what the failure that is being answered means; one outside of any view comes here too."""
    error = sys.exc_info()[1]
    return problems.refusal_of(error) if isinstance(error, Exception) else None


def _said(exception: Exception) -> str:
    """Return the sentence that a view gave, if it gave one."""
    first = exception.args[0] if exception.args else ""
    return first if isinstance(first, str) else ""


def _context(request: HttpRequest, status: int, title: str, text: str) -> dict[str, Any]:
    return {"status": status, "title": title, "text": text, "request_id": getattr(request, "request_id", "")}


def _page(request: HttpRequest, exception: Exception, status: int, title: str, text: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        return problems.response(problems.refusal_of(exception), request)
    context = _context(request, status, title, text) | _frame(request)
    return HttpResponse(visible(render_to_string("error.html", context, request)), status=status)


def _frame(request: HttpRequest) -> dict[str, Any]:
    """Return the navigation of somebody who is logged in: the places they may go to, none for whoever may not look."""
    if not hasattr(request, "user") or not request.user.is_authenticated:
        return {}
    places = places_for(subject_of(request))
    return {"nav": places, "nav_groups": grouped(places), "sentences": sentences()}


def _plain(request: HttpRequest, status: int, title: str, text: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        code = {400: "RequestMalformed", 403: "CsrfFailed"}.get(status, "InternalError")
        return problems.response(problems.Refused(status, code, text), request)
    return HttpResponse(render_to_string("failure.html", _context(request, status, title, text)), status=status)
