"""Resources: views of single rows and of lists of rows.

`ResourceView` is the generic view of Django REST framework, with documents instead of serializers. `get_queryset`
returns the rows that the caller may see, and `get_object` the row that the URL names; `list` and `retrieve` respond to
a GET. A write locks the row, compares If-Match with the row's tag if `matched` names the method, and returns the new
tag. Each view defines its methods explicitly, because their docstrings describe the operations in the OpenAPI document.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from django.db.models import Model, QuerySet
from django.http import HttpResponse
from rest_framework.filters import BaseFilterBackend
from rest_framework.generics import GenericAPIView
from rest_framework.pagination import BasePagination

from hetsched.contracts.documents import encode

from .documents import Rows
from .etags import check_match, etag_of, locked
from .pagination import page
from .request_scope import filter_by_query, get_row
from .views import ApiView, answer


class QueryFilter(BaseFilterBackend):
    """Filter by query parameters; `filters` of the view maps each parameter to a Django field lookup."""

    def filter_queryset(self, request: Any, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        return filter_by_query(request, queryset, **view.filters)


class KeyPagination(BasePagination):
    """Pagination in the order of a unique key, the view's `ordering`."""

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> list[Any]:
        self.request = request
        rows, self.next = page(request, queryset, view.ordering)
        return rows

    def get_paginated_response(self, data: Any) -> Any:
        return answer(self.request, Rows(data, self.next))

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return schema  # `schema` already describes a page, because views declare `page_of`


class ResourceView(ApiView, GenericAPIView, metaclass=ABCMeta):
    """Base of the views of one kind of row."""

    noun: ClassVar[str]  # kind of object in a 404 response, a key of `problems.LISTS`
    ordering: ClassVar[str] = "name"  # order of lists: a unique key, prefixed with `-` for descending
    filters: ClassVar[dict[str, str]] = {}
    filter_backends: Sequence[Any] = [QueryFilter]
    pagination_class = KeyPagination

    @abstractmethod
    def document(self, row: Any) -> Any:
        """Return the document of a row, limited to what the caller may see."""

    def tag(self, row: Any) -> str:
        """Return the ETag of a row, by default the ETag of its document."""
        return etag_of(encode(self.document(row)))

    def lock_of(self, row: Any) -> Model:
        """Return the row that a write locks."""
        found: Model = row
        return found

    def get_object(self) -> Any:
        """Return the row that the URL names. Raises: RequestRefused 404."""
        key = self.kwargs[self.lookup_url_kwarg or self.lookup_field]
        return get_row(self.get_queryset(), self.noun, key, self.lookup_field)

    def list(self, request: Any) -> HttpResponse:
        """Respond with one page of the rows."""
        rows = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([self.document(row) for row in rows or ()])

    def retrieve(self, request: Any) -> HttpResponse:
        """Respond with the row that the URL names, and its ETag."""
        row = self.get_object()
        return answer(request, self.document(row), etag=self.tag(row))

    def written(self, row: Any, *, status: int = 200, location: str = "") -> HttpResponse:
        """Respond to a write with the row and its new ETag."""
        headers = {"ETag": self.tag(row)} | ({"Location": location} if location else {})
        return answer(self.request, self.document(row), status=status, headers=headers)

    @contextmanager
    def locked_object(self) -> Iterator[Any]:
        """Lock the row that the URL names and yield its current state. Raises: RequestRefused 404."""
        with locked(self.lock_of(self.get_object())):
            yield self.get_object()

    @contextmanager
    def matched_object(self) -> Iterator[Any]:
        """Lock the row that the URL names and yield it if If-Match contains its current ETag. Raises: RequestRefused
        404, 412, 428.
        """
        with self.locked_object() as row:
            self.check_match(row)
            yield row

    def check_match(self, row: Any) -> None:
        """Reject the write if If-Match does not contain the ETag of the row. Raises: RequestRefused 412, 428."""
        check_match(self.request, self.tag(row), required=self.matched[str(self.request.method)])
