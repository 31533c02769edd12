"""Problem documents for all errors.

RFC 9457 `application/problem+json` with the HTTP status and its `title`, a stable CamelCase `code`, a readable `detail`
and, if useful, `place` (the field or line) and `hint` (what to do). `requestId` identifies the log record.
Invariants: no client input leads to a 5xx, and no response contains a traceback or the text of an unexpected error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, InterfaceError, InternalError, OperationalError, connections
from django.http import Http404, HttpResponse
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions

from hetsched.contracts.api.decision import WhatIfAnswer
from hetsched.contracts.api.golden import GoldenPlacementBroken, GoldenVerdict
from hetsched.contracts.api.workload import ItemProblem
from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, as_message
from hetsched.contracts.objects.warnings import ManifestWarning
from hetsched.contracts.remedies import SPLIT_REQUEST
from hetsched.inventory.node_loads import Conflict
from hetsched.policies.policy_diff import PolicyDiff
from web.translation import hook_for, language_of

CONTENT_TYPE = "application/problem+json"
log = structlog.get_logger(__name__)

# HTTP status by code of an InputError; 400 for all other codes.
_STATUS = {
    "BodyTooLarge": 413,
    "ManifestTooLarge": 413,
    "OciTooLarge": 413,
    "ObjectTooLarge": 413,
    "PodTooLarge": 413,
    "PermissionDenied": 403,
    "NamespaceNotAllowed": 403,
    "NamespaceNotEnrolled": 403,
    "PolicyNotAllowed": 403,
    "PriorityNotAllowed": 403,
    "QuotaTooSmall": 403,
    "AgentSuperseded": 409,
    "CardHeldTwice": 409,
    "ClusterExists": 409,
    "ClusterIsLive": 409,
    "ClusterNotLive": 409,
    "DeliveryUnderWay": 409,
    "FactStillHeld": 409,
    "GoldenExists": 409,
    "HoldClaimed": 409,
    "HoldOver": 409,
    "NodeHoldsPods": 409,
    "NodeTooSmall": 409,
    "NothingToRetry": 409,
    "PodExists": 409,
    "PlanExists": 409,
    "PolicyKeptInCluster": 409,
    "PolicyNothingToRollBack": 409,
    "PolicyObjectMissing": 409,
    "PreviewRunning": 409,
    "ReportOutOfOrder": 409,
    "ReportTooSoon": 429,
    "WebhookExists": 409,
    "WebhookPaused": 409,
    "WebhooksTooMany": 409,
    "WorkloadNotOurs": 409,
    "PolicyChanged": 412,
    "IdempotencyKeyReused": 422,
    "NamespaceFull": 429,
    "QuotaExceeded": 429,
}
# Value of `Retry-After` in seconds, by problem code.
_LATER = {"NamespaceFull": "30", "QuotaExceeded": "30", "ReportTooSoon": "1"}
_READ_ONLY = "25006"  # PostgreSQL: read_only_sql_transaction
# Exception of Django REST framework -> problem code.
_CODES: dict[type[exceptions.APIException], str] = {
    exceptions.NotAuthenticated: "NotAuthenticated",
    exceptions.PermissionDenied: "PermissionDenied",
    exceptions.NotFound: "NotFound",
    exceptions.MethodNotAllowed: "MethodNotAllowed",
    exceptions.NotAcceptable: "NotAcceptable",
    exceptions.UnsupportedMediaType: "UnsupportedMediaType",
    exceptions.ParseError: "BodyMalformed",
}


_DOCS = "The URLs and fields are documented at /api/v1/docs"
_SEND_JSON = "Send one JSON document in UTF-8"
_SEND_CREDENTIAL = "Send `Authorization: Bearer TOKEN`, with an unexpired token from `hetsched token create`"
# Problem code -> hint of errors without a hint.
_HINTS = {
    "BodyMalformed": _SEND_JSON,
    "BodyTooLarge": SPLIT_REQUEST,
    "BodyUnreadable": "Send the request again",
    "NotAuthenticated": _SEND_CREDENTIAL,
    "NotFound": _DOCS,
    "PermissionDenied": "Use a token or an account whose role has this right",
    "TokenInvalid": _SEND_CREDENTIAL,
}
# Kind of object -> path of the list of these objects.
LISTS = {
    "cluster": "clusters/",
    "collector": "clusters/NAME/collectors/",
    "decision": "decisions/",
    "delivery": "deliveries/",
    "golden placement": "golden-placements/",
    "hold": "holds/",
    "node": "nodes/",
    "plan": "policy-plans/",
    "plugin": "plugins/",
    "pod": "workloads/",
    "policy": "policies/",
    "preview": "policies/NAME/preview/",
    "rebalance": "clusters/NAME/rebalances/",
    "shadow decision": "shadow/",
    "token": "tokens/",
    "version": "policies/NAME/versions/",
    "webhook": "webhooks/",
    "workload": "workloads/",
}


class FieldError(msgspec.Struct, frozen=True, omit_defaults=True):
    """One wrong field of the request."""

    code: str
    detail: Message
    place: str = ""
    hint: str = ""


class Problem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Problem document of an error response."""

    title: str
    status: int
    code: str
    detail: Message
    place: str = ""
    hint: str = ""
    request_id: str = ""
    type: str = msgspec.field(default="about:blank")
    # Warnings about the manifest of the rejected request.
    warnings: tuple[ManifestWarning, ...] = ()
    # All wrong fields of the manifest, if there are several; the first one is also in the fields above.
    errors: tuple[FieldError, ...] = ()
    # `goldens` is set for `GoldenPlacementBroken`. `yours`, `theirs` and `diff` (both edits and their difference) are
    # set if a write to a policy fails with 412.
    goldens: tuple[GoldenVerdict, ...] = ()
    yours: Any = None
    theirs: Any = None
    diff: PolicyDiff | None = None
    # `what_if`, the current result, is set if the submission of a plan fails with 412. `items`, the invalid items, is
    # set for `BatchRefused`.
    what_if: WhatIfAnswer | None = None
    items: tuple[ItemProblem, ...] = ()


class RequestRefused(Exception):
    """Exception that rejects the request with a problem document; the request has no effect."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        place: str = "",
        hint: str = "",
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = as_message(detail)
        self.place = place
        self.hint = as_message(hint)
        self.headers = dict(headers or {})
        self.members = dict(members or {})  # additional fields of the problem document


def not_found(what: str, name: object, hint: str = "") -> RequestRefused:
    """Return the 404 problem for an object that does not exist or that the caller may not see.

    The default hint names the list of such objects.
    """
    if not hint:
        hint = listed_at(LISTS[what]) if what in LISTS else _DOCS
    detail = Message("there is no {what} {name}", what=Message(what), name=repr(str(name)[:200]))
    return RequestRefused(404, "NotFound", detail, hint=hint)


def listed_at(path: str) -> Message:
    """Return the hint that names the list of the existing objects."""
    return Message("GET {path} lists the existing objects", path=path)


def permission_denied(message: str) -> RequestRefused:
    """Return the 403 problem for a missing permission."""
    return RequestRefused(403, "PermissionDenied", message)


def no_address() -> RequestRefused:
    """Return the 404 problem for an unknown URL."""
    return RequestRefused(404, "NotFound", "the requested resource does not exist", hint=_DOCS)


def response(refused: RequestRefused, request: Any = None) -> HttpResponse:
    """Render a problem as an HTTP response."""
    problem = Problem(
        title=HTTPStatus(refused.status).phrase,
        status=refused.status,
        code=refused.code,
        detail=refused.detail,
        place=refused.place,
        hint=refused.hint or _HINTS.get(refused.code, ""),
        request_id=getattr(request, "request_id", ""),
        **refused.members,
    )
    language = language_of(request)
    document = {"type": problem.type, **to_plain(problem, hook=hook_for(language))}
    return HttpResponse(
        encode(document),
        status=refused.status,
        content_type=CONTENT_TYPE,
        headers={"Cache-Control": "no-store", "Content-Language": language, **refused.headers},
    )


def handler(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """Turn an exception of a view into a response; this is the exception handler of Django REST framework."""
    request = context["request"]
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)
    refused = refusal_of(error)
    if refused.status >= 500:
        log.error("request failed", code=refused.code, exc_info=error)
    return response(refused, request._request)


def refusal_of(error: Exception) -> RequestRefused:
    """Translate any exception into a problem."""
    match error:
        case RequestRefused():
            return error
        case GoldenPlacementBroken():
            goldens = {"goldens": error.broken}
            return RequestRefused(409, error.code, error.message, place=error.place, hint=error.hint, members=goldens)
        case InputError():
            status = _STATUS.get(error.code, 400)
            later = {"Retry-After": _LATER[error.code]} if error.code in _LATER else {}
            members: dict[str, Any] = {"warnings": error.warnings}
            if error.further:
                members["errors"] = tuple(
                    FieldError(one.code, one.message, one.place, one.hint or "") for one in (error, *error.further)
                )
            return RequestRefused(
                status, error.code, error.message, place=error.place, hint=error.hint, headers=later, members=members
            )
        case exceptions.APIException():
            return _of_framework(error)
        case Conflict():
            return RequestRefused(
                409, "Conflict", "a concurrent request changed the object", hint="Reload and try again"
            )
        case Http404():
            return no_address()
        case PermissionDenied():
            return RequestRefused(403, "PermissionDenied", "you do not have permission for this action")
        case RequestDataTooBig():
            return RequestRefused(413, "BodyTooLarge", "the body is larger than this server accepts")
        case SuspiciousOperation() | BadRequest() | MultiPartParserError():
            return RequestRefused(400, "RequestMalformed", "the request cannot be read")
        case InternalError() if getattr(error.__cause__, "sqlstate", "") == _READ_ONLY:
            detail = "the database is read-only at the moment"
            return RequestRefused(503, "StorageReadOnly", detail, headers={"Retry-After": "5"})
        case OperationalError() | InterfaceError():
            return RequestRefused(
                503, "StorageUnavailable", "the database does not respond", headers={"Retry-After": "2"}
            )
        case DatabaseError():
            return RequestRefused(
                500, "StorageFailed", "the database rejected the request; the log has details under the request id"
            )
        case _:
            return RequestRefused(500, "InternalError", "internal error; the log has details under the request id")


def _of_framework(error: exceptions.APIException) -> RequestRefused:
    headers: dict[str, str] = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    detail = str(error.detail) if not isinstance(error.detail, (dict, list)) else "the request is not valid"
    code = _CODES.get(type(error)) or getattr(error.detail, "code", "") or "RequestRefused"
    if isinstance(error, exceptions.PermissionDenied) and detail.startswith("CSRF"):
        code, detail = "CsrfFailed", Message("CSRF Failed: {text}", text=detail.removeprefix("CSRF Failed: "))
    return RequestRefused(error.status_code, code, detail, headers=headers)


def read_only(view: Callable[[Any], HttpResponse]) -> Callable[[Any], HttpResponse]:
    """Allow only GET and HEAD for a plain Django view."""

    @wraps(view)
    def answer(request: Any) -> HttpResponse:
        if request.method in ("GET", "HEAD"):
            return view(request)
        detail = Message("method {method} is not allowed", method=request.method)
        return response(RequestRefused(405, "MethodNotAllowed", detail, headers={"Allow": "GET, HEAD"}), request)

    return answer
