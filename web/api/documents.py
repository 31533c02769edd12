"""REST documents: structs that msgspec encodes and that OpenAPI describes.

A response is a `Document`: its fields are in camelCase, and times are in RFC 3339, UTC. The OpenAPI schema is generated
from the same structs, so it cannot differ from the responses.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec
import msgspec.inspect
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiParameter

import hetsched.access.authentication  # noqa: F401 - it registers how tokens are described
from hetsched.contracts.message import Message

from .examples import with_example
from .problems import CONTENT_TYPE, Problem
from .queries import kind_of, serves

_TAGS = {"type": "string", "examples": ["*"]}
_KEY = {"type": "string", "pattern": "^[!-+\\--~]{0,255}$"}  # an empty key is treated as a missing key


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """Base of REST response bodies."""


class Request(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base of REST request bodies."""


class Rows(Document, frozen=True):
    """A page of a list; `next` is the address of the next page, or null on the last page."""

    items: list[Any]
    next: str | None = None


class StructSchema(OpenApiSerializerExtension):
    """OpenAPI extension that describes any msgspec struct as a component."""

    target_class = "msgspec.Struct"
    match_subclasses = True

    def get_name(self, auto_schema: Any, direction: Any) -> str:
        return str(self.target.__name__)

    def map_serializer(self, auto_schema: Any, direction: Any) -> Any:
        target = self.target if isinstance(self.target, type) else type(self.target)
        _, components = msgspec.json.schema_components(
            [target], schema_hook=_schema, ref_template="#/components/schemas/{name}"
        )
        own = components.pop(target.__name__)
        classes = {found.__name__: found for found in _classes(msgspec.inspect.type_info(target))}
        for name, schema in components.items():
            auto_schema.registry.register_on_missing(
                ResolvedComponent(name=name, type=ResolvedComponent.SCHEMA, object=classes[name], schema=schema)
            )
        return own


def _schema(kind: type) -> dict[str, Any]:
    assert kind is Message, kind
    return {"type": "string"}


def _classes(root: msgspec.inspect.Type) -> set[type]:
    """Return every struct and enumeration that a type contains."""
    found: set[type] = set()
    open_types: list[Any] = [root]
    while open_types:
        kind = open_types.pop()
        if isinstance(kind, (msgspec.inspect.StructType, msgspec.inspect.EnumType)):
            if kind.cls in found:
                continue
            found.add(kind.cls)
        open_types.extend(field.type for field in getattr(kind, "fields", ()))
        open_types.extend(getattr(kind, name) for name in ("item_type", "value_type", "type") if hasattr(kind, name))
        open_types.extend((*getattr(kind, "types", ()), *getattr(kind, "item_types", ())))
    return found


def page_of(document: type[msgspec.Struct]) -> Any:
    """Return the type of a page of these documents, for OpenAPI."""
    name = f"{document.__name__}Page"
    return msgspec.defstruct(name, [("items", list[document]), ("next", str | None)], bases=(Document,), frozen=True)  # type: ignore[valid-type]


class ApiSchema(AutoSchema):
    """OpenAPI generator that adds the query parameters and headers of the view to each operation, and problem documents
    as its error responses.
    """

    def get_override_parameters(self) -> list[Any]:
        own = getattr(self.view, "kinds", {})
        found = [
            OpenApiParameter(name, kind_of(name, own), OpenApiParameter.QUERY, description=text)
            for name, text in getattr(self.view, "queries", {}).items()
            if serves(name, text, self.method)
        ]
        match = getattr(self.view, "matched", {}).get(self.method)
        if match is not None:
            text = "ETag of the version that you read, or * for any version; 412 if the current version differs."
            found.append(
                OpenApiParameter(
                    "If-Match",
                    _TAGS | ({"pattern": "[!-~]"} if match else {}),
                    OpenApiParameter.HEADER,
                    required=match,
                    description=text,
                )
            )
        if self.method in getattr(self.view, "keyed", ()):
            text = "Key for safe retries: the same key and body return the first response; 422 if the body differs."
            found.append(OpenApiParameter("Idempotency-Key", _KEY, OpenApiParameter.HEADER, description=text))
        return found

    def map_parsers(self) -> list[str]:
        return ["application/json"]

    def _get_request_body(self, direction: Any = "request") -> Any:
        body = super()._get_request_body(direction)
        if not body:
            return body
        for kind in set(body["content"]) & {"application/yaml"}:
            body["content"][kind]["schema"] = {"description": "One or more Kubernetes objects."}
        return {**body, "required": True}

    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Any:
        view: Any = self.view
        view.get_queryset = _no_queryset  # the queryset of a view needs a request and the database
        operation = super().get_operation(path, path_regex, path_prefix, method, registry)
        return with_example(operation, method, path) if operation else operation

    def get_operation_id(self) -> str:
        words = re.findall(r"[a-z_]+", self.path.removeprefix("/api/v1/").replace("_id}", "}").replace("-", "_"))
        return "_".join((self.method.lower(), *words))

    def get_summary(self) -> str:
        return str(self.get_description())

    def get_tags(self) -> list[str]:
        return [self.path.removeprefix("/api/v1/").strip("/").partition("/")[0]]

    def _get_response_bodies(self, direction: Any = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        problem = self.resolve_serializer(Problem, direction)  # type: ignore[arg-type]  # by StructSchema
        bodies["default"] = {
            "description": "Problem document (RFC 9457).",
            "content": {CONTENT_TYPE: {"schema": problem.ref}},
        }
        return bodies


def _no_queryset() -> NoReturn:
    """Raise an error, so that drf-spectacular describes path parameters as text instead of looking up the model."""
    raise RuntimeError("the OpenAPI document is generated without a request")
