"""The base of every REST view.

Rule: `actions` names the right each method needs; a method without one does not exist (405). A token that is limited to
namespaces changes nothing, unless the method is one of `within`: then the view itself keeps to these namespaces. What
it is answered names nobody of the others (`veil`). GET answers carry an ETag and are never kept by shared caches; a GET
never writes. Query strings hold no NUL and only known names.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import msgspec
from django.http import Http404, HttpResponse
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.parsers import BaseParser
from rest_framework.views import APIView

from hetsched.access.models import Token
from hetsched.access.permissions import RolePermission
from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.contracts.errors import InputError
from hetsched.placement.queries.redaction_scan import veil

from . import reach
from .documents import ApiSchema
from .etags import etag_of, unchanged
from .prometheus import REQUESTS
from .queries import kind_of
from .rates import READ, WRITE, refuse_late, take_turn

_LOOKING = frozenset({"GET", "OPTIONS"})


class Unread(BaseParser):
    """Leave every body to `bodies`, which is stricter; the framework looks for a form when it checks CSRF."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> dict[str, Any]:
        return {}


class ApiView(APIView):
    """One address and its methods."""

    parser_classes = [Unread]
    permission_classes = [RolePermission]
    schema = ApiSchema()
    actions: ClassVar[dict[str, Action]] = {}
    within: ClassVar[tuple[str, ...]] = ()  # methods that a token limited to namespaces may use
    queries: ClassVar[dict[str, str]] = {}
    matched: ClassVar[dict[str, bool]] = {}  # methods that read If-Match, and whether they need it
    kinds: ClassVar[dict[str, dict[str, Any]]] = {}  # JSON Schemas of queries that differ from `queries.KINDS`
    counted: ClassVar[dict[str, str]] = {}  # methods that are counted otherwise than by what they may do
    keyed: ClassVar[tuple[str, ...]] = ()  # methods that read Idempotency-Key

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
            reach.check_unlimited(self.subject)
        if any("\0" in str(part) for part in kwargs.values()):
            raise Http404
        for name, values in request.GET.lists():
            if name not in self.queries:
                known = ", ".join(sorted(self.queries)) or "none"
                raise InputError("QueryUnknown", "there is no such parameter", place=name, hint=f"Known: {known}")
            if len(values) > 1 or "\0" in values[0]:
                raise InputError("QueryInvalid", "it must be given once and hold no NUL", place=name)
            possible = kind_of(name, self.kinds).get("enum")
            if possible and values[0] not in possible:
                raise InputError("QueryInvalid", f"it is one of {', '.join(possible)}", place=name)

    def _count(self, method: str) -> None:
        """Take a turn of the asker's; who only looks writes nothing for it."""
        kind = self._kind(method)
        if kind is not None:
            self.headers |= take_turn(kind, self.subject)

    def _kind(self, method: str) -> str | None:
        """Return as what a method is counted; None for agents, who have a pace of their own."""
        action = self.actions[method]
        if action == Action.REPORT:
            return None
        return self.counted.get(method) or (READ if method == "GET" or action == Action.VIEW else WRITE)

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        response = super().dispatch(request, *args, **kwargs)
        # Who was refused at the door is not asked for again.
        if isinstance(auth := getattr(self.request, "_auth", None), Token) and auth.namespaces:
            response.content = veil(response.content, auth.namespaces)  # type: ignore[attr-defined]
        route = getattr(request.resolver_match, "route", "")
        # Whoever asks may invent methods; each would be a time series for ever.
        method = request.method if str(request.method).lower() in self.http_method_names else "other"
        REQUESTS.labels(method, route, response.status_code).observe(time.perf_counter() - began)
        return response

    @property
    def allowed_methods(self) -> list[str]:
        return [*self.actions, *(["HEAD"] if "GET" in self.actions else []), "OPTIONS"]

    @property
    def subject(self) -> Subject:
        """Who asks."""
        return subject_of(self.request)


def answer(
    request: Any, document: Any, *, status: int = 200, etag: str | None = None, headers: dict[str, str] | None = None
) -> HttpResponse:
    """Write a document as JSON; a GET without a tag of its own is tagged by its content."""
    body = msgspec.json.encode(document)
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
    """Write a body with its validators; 304 where the asker has it already."""
    reading = request.method in ("GET", "HEAD")
    if reading and etag is None:
        etag = etag_of(body)
    shared = {"Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie, Accept", **(headers or {})}
    if etag is not None:
        shared["ETag"] = etag
        if reading and unchanged(request, etag):
            return HttpResponse(status=304, headers=shared)
    return HttpResponse(body, status=status, content_type=content_type, headers=shared)
