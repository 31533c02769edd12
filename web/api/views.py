"""The base class of every REST view.

`actions` maps each method to its permission; other methods are rejected (405). A token that is limited to namespaces
may change data only with the methods in `within`, whose views themselves restrict the change to these namespaces, and
it cannot read views that are `cluster_wide`. Views redact pods of other namespaces in documents (`redaction`); a metric
counts responses that nevertheless name such a pod. GET responses have an ETag and are never stored by shared caches; a
GET changes no resource, but an export is recorded in the audit trail. Query strings with NUL characters or unknown
parameters are rejected.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, NoReturn
from urllib.parse import unquote_plus

from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpResponse
from django.http.request import RawPostDataException
from django.utils import translation
from rest_framework.exceptions import MethodNotAllowed, PermissionDenied
from rest_framework.parsers import BaseParser
from rest_framework.views import APIView

from hetsched.access.models import Token
from hetsched.access.permissions import RolePermission
from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.placement.queries.redaction import Redaction
from hetsched.placement.queries.redaction_scan import out_of_scope_names
from web.translation import hook_for, language_of

from . import request_scope
from .documents import ApiSchema
from .etags import etag_of, in_language, unchanged
from .monitoring.prometheus import OUT_OF_SCOPE, REQUESTS
from .problems import permission_denied
from .queries import kind_of
from .rates import READ, WRITE, refuse_late, take_token

_LOOKING = frozenset({"GET", "OPTIONS"})


class UnparsedBody(BaseParser):
    """Parser that leaves the body to the stricter readers in `bodies`. Without it, the framework would parse the body
    as a form during its CSRF check.
    """

    media_type = "*/*"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> dict[str, Any]:
        return {}


class ApiView(APIView):
    """Base class of views; a view is one URL with its methods."""

    parser_classes = [UnparsedBody]
    permission_classes = [RolePermission]
    schema = ApiSchema()
    actions: ClassVar[dict[str, Action]] = {}
    cluster_wide: ClassVar[bool] = False  # whether reads are also rejected for tokens limited to namespaces
    within: ClassVar[tuple[str, ...]] = ()  # write methods that are allowed for tokens limited to namespaces
    queries: ClassVar[dict[str, str]] = {}
    matched: ClassVar[dict[str, bool]] = {}  # method that checks If-Match -> whether If-Match is required
    kinds: ClassVar[dict[str, dict[str, Any]]] = {}  # JSON Schemas of queries that differ from `queries.KINDS`
    counted: ClassVar[dict[str, str]] = {}  # method -> kind of rate limit, if not the default of its permission
    keyed: ClassVar[tuple[str, ...]] = ()  # methods that read Idempotency-Key

    def permission_denied(self, request: Any, message: str | None = None, code: str | None = None) -> NoReturn:
        """Reject the request with the original `Message`; the framework's exception would drop its parameters."""
        try:
            super().permission_denied(request, message, code)
        except PermissionDenied as error:
            raise (error if message is None else permission_denied(message)) from None

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        method = "GET" if request.method == "HEAD" else request.method
        if method != "OPTIONS" and method not in self.actions:
            raise MethodNotAllowed(str(request.method))
        if method in self.actions and self._kind(method) not in (READ, None):
            refuse_late(request)
        super().initial(request, *args, **kwargs)
        if method in self.actions:
            self._count(str(method))
        if method not in _LOOKING and method not in self.within:
            request_scope.check_unlimited(self.subject)
        if any("\0" in str(part) for part in kwargs.values()):
            raise Http404
        for name, values in request.GET.lists():
            if name not in self.queries:
                known = Message("Known: {names}", names=joined(", ", sorted(self.queries) or [Message("none")]))
                raise InputError("QueryUnknown", "unknown parameter", place=name, hint=known)
            if len(values) > 1 or "\0" in values[0]:
                message = "the parameter must occur once and must not contain a NUL character"
                raise InputError("QueryInvalid", message, place=name, hint="Send the parameter once, as text")
            possible = kind_of(name, self.kinds).get("enum")
            if possible and values[0] not in possible:
                message = Message("the value must be one of {names}", names=joined(", ", possible))
                hint = "Send one of the allowed values, or omit the parameter"
                raise InputError("QueryInvalid", message, place=name, hint=hint)
        if self.cluster_wide and method != "OPTIONS":
            request_scope.check_unlimited(self.subject)

    def _count(self, method: str) -> None:
        """Take a rate-limit token of the caller; for reads, this does not write to the database."""
        kind = self._kind(method)
        if kind is not None:
            self.headers |= take_token(kind, self.subject)

    def _kind(self, method: str) -> str | None:
        """Return the kind of rate limit of a method, or None for agents, which have a separate rate limit."""
        action = self.actions[method]
        if action == Action.REPORT:
            return None
        return self.counted.get(method) or (READ if method == "GET" or action == Action.VIEW else WRITE)

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        with translation.override(language_of(request)):  # also translates the messages of Django REST framework
            response = super().dispatch(request, *args, **kwargs)
        route = getattr(request.resolver_match, "route", "")
        # Clients may send arbitrary methods; fold unknown ones into one label value to bound cardinality.
        method = request.method if str(request.method).lower() in self.http_method_names else "other"
        REQUESTS.labels(method, route, response.status_code).observe(time.perf_counter() - began)
        # Check the names after the duration was observed: tokens limited to namespaces may read the histogram, and must
        # not learn from it how long the check took. A request that failed authentication has no token.
        if isinstance(auth := getattr(self.request, "_auth", None), Token) and auth.namespaces:
            _watch(request, response, auth, route)
        return response

    @property
    def allowed_methods(self) -> list[str]:
        return [*self.actions, *(["HEAD"] if "GET" in self.actions else []), "OPTIONS"]

    @property
    def subject(self) -> Subject:
        """The subject of the request."""
        return subject_of(self.request)

    @property
    def redaction(self) -> Redaction:
        """Return the redaction for rows that name pods, which hides pods outside the caller's namespaces."""
        return Redaction(self.subject.namespaces)


def _watch(request: Any, response: Any, token: Token, route: str) -> None:
    """Count a response that names a pod outside the token's namespaces; the response is not changed."""
    if "Transfer-Encoding" in request.headers and not hasattr(request, "_body"):
        return  # the length of the body is unknown, and `request.body` would load a large file into memory
    try:
        sent = request.body
    except (RawPostDataException, OSError, RequestDataTooBig):  # the body was rejected, or read as a stream
        return
    head = unquote_plus(f"{request.get_full_path()} {dict(request.headers)}").encode(errors="replace")
    if out_of_scope_names(response.content, token.namespaces, head + sent):
        OUT_OF_SCOPE.labels(route).inc()


def answer(
    request: Any, document: Any, *, status: int = 200, etag: str | None = None, headers: dict[str, str] | None = None
) -> HttpResponse:
    """Respond with a document as JSON, in the language of the request. A GET response without `etag` gets an ETag
    computed from its content.
    """
    body = encode(document, hook=hook_for(language_of(request)))
    return send(request, body, "application/json", status=status, etag=etag, headers=headers)


def send(
    request: Any,
    body: bytes,
    content_type: str,
    *,
    status: int = 200,
    etag: str | None = None,
    headers: dict[str, str] | None = None,
) -> HttpResponse:
    """Return a response with the body and its ETag, or a 304 response if the caller already has the current version."""
    reading = request.method in ("GET", "HEAD")
    language = language_of(request)
    if reading:
        etag = etag_of(body) if etag is None else in_language(etag, language)
    shared = {
        "Cache-Control": "private, no-cache",
        "Content-Language": language,
        "Vary": "Authorization, Cookie, Accept, Accept-Language",
        **(headers or {}),
    }
    if etag is not None:
        shared["ETag"] = etag
        if reading and unchanged(request, etag):
            return HttpResponse(status=304, headers=shared)
    return HttpResponse(body, status=status, content_type=content_type, headers=shared)
