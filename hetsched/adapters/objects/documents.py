"""Kubernetes objects of a YAML or JSON text, each with its location.

`plain_values` reads the text. The sizes of the text and of one object are limited, because manifests are untrusted.
`List` kinds are flattened.
Source: Kubernetes API conventions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.remedies import WRITE_LIST

from ..plain_values import LOADER, MAX_NODES, SPLIT, SYNTAX, Plain, malformed, read_json, read_yaml

MAX_BYTES = 64 * 1024 * 1024
MAX_OBJECT_NODES = 100_000


class Document(msgspec.Struct, frozen=True):
    """One Kubernetes object with its location: `path` is the path inside document `number` of `file`."""

    file: str
    number: int
    object: Plain
    path: str = ""

    def locate(self, error: InputError) -> InputError:
        """Return the error with its full location: file, document and path, as in `cluster.yaml#3 spec.replicas`."""
        return _with_prefix(f"{self.file}#{self.number}", error.at(self.path))


def load_documents(data: bytes, *, name: str, max_bytes: int = MAX_BYTES, max_nodes: int = MAX_NODES) -> list[Document]:
    """Read all Kubernetes objects of a YAML or JSON text in order, with lists flattened; an empty list gives no object.

    Raises: InputError; its place consists of `name`, the document's number and, inside a list, the item.
    """
    text = _decode(data, name, max_bytes)
    found: list[Document] = []
    empty = True
    for number, plain in _read(text, name, max_nodes):
        if plain is None:
            continue
        empty = False
        try:
            found.extend(_flatten(plain, name, number, ""))
        except InputError as error:
            raise _with_prefix(f"{name}#{number}", error) from None
    if empty:
        raise InputError("ManifestEmpty", "the manifest contains no objects", place=name, hint=_AN_OBJECT)
    return found


def lines_of_documents(data: bytes) -> list[int]:
    """Return the line (from 1) on which each document of a text begins. The text must have been read successfully."""
    text = data.decode("utf-8-sig")
    if text.lstrip()[:1] in ("{", "["):
        return [1]
    lines: list[int] = []
    fresh = False
    event: Any
    for event in yaml.parse(text, Loader=LOADER):
        if fresh:
            lines.append(event.start_mark.line + 1)
        fresh = isinstance(event, yaml.DocumentStartEvent)
    return lines


def _decode(data: bytes, name: str, max_bytes: int) -> str:
    if len(data) > max_bytes:
        raise InputError(
            "ManifestTooLarge",
            Message("the document has {n} bytes; the maximum is {m}", n=len(data), m=max_bytes),
            place=name,
            hint=SPLIT,
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "ManifestNotUtf8",
            Message("byte {n} is not UTF-8", n=error.start),
            place=name,
            hint="Save the file as UTF-8 text",
        ) from None


def _read(text: str, name: str, max_nodes: int) -> Iterator[tuple[int, Any]]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            yield 1, read_json(text, max_nodes=max_nodes)
            return
        except json.JSONDecodeError as error:
            if name.endswith(".json"):
                raise malformed(
                    Message("the text is not valid JSON: {text}", text=error.msg),
                    f"{name}:{error.lineno}",
                    hint=SYNTAX,
                ) from None
        except InputError as error:
            raise _with_prefix(f"{name}#1", error) from None
    yield from read_yaml(text, name, max_nodes)


def _with_prefix(place: str, error: InputError) -> InputError:
    return error.at(f"{place} " if error.place else place)


_AN_OBJECT = "Write a Kubernetes object"
_KIND = "Write apiVersion and kind, such as apiVersion: v1 and kind: Pod"


# -- objects -------------------------------------------------------------------------------------------------------


def _flatten(plain: Any, name: str, number: int, path: str) -> Iterator[Document]:
    if not isinstance(plain, dict):
        raise malformed("the value must be an object with apiVersion and kind", path.rstrip("."), hint=_AN_OBJECT)
    kind, version = plain.get("kind"), plain.get("apiVersion")
    for field, value in (("apiVersion", version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            raise malformed("the value must be a non-empty string", f"{path}{field}", hint=_KIND)
    assert isinstance(kind, str)
    items = plain.get("items")
    if kind.endswith("List") and (items is not None or kind == "List"):
        if not isinstance(items, list):
            raise malformed("the value must be a list", f"{path}items", hint=WRITE_LIST)
        for position, item in enumerate(items):
            if kind != "List" and isinstance(item, dict) and "kind" not in item:
                # The API server omits kind and version from the items of a typed list.
                item = {**item, "kind": kind.removesuffix("List"), "apiVersion": item.get("apiVersion", version)}
            yield from _flatten(item, name, number, f"{path}items[{position}].")
    else:
        if count_values(plain, MAX_OBJECT_NODES) > MAX_OBJECT_NODES:
            raise InputError(
                "ObjectTooLarge",
                Message("an object contains more than {n} values", n=MAX_OBJECT_NODES),
                place=path.rstrip("."),
                hint="Keep large values in a ConfigMap",
            )
        yield Document(name, number, plain, path)


def count_values(plain: Plain, limit: int) -> int:
    """Count the values of an object; counting stops soon after `limit`."""
    count = 0
    open_values: list[Any] = [plain]
    while open_values and count <= limit:
        value = open_values.pop()
        count += 1
        if type(value) is dict:
            open_values.extend(value.values())
        elif type(value) is list:
            open_values.extend(value)
    return count
