"""Recorded example of every operation, added to the OpenAPI document.

`tests/api/test_operation_examples.py` sends all requests and writes `examples.json`. Long lists are cut to their first
entries. Random names and times are replaced by fixed values of the same kind, and secrets by placeholders.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).with_name("examples.json")
JSON = "application/json"


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request and the response of one operation; `media` is the media type of the request."""

    status: int
    path: dict[str, Any] = {}
    query: dict[str, Any] = {}
    headers: dict[str, str] = {}
    media: str = JSON
    request: Any = None
    answer: Any = None


@lru_cache(maxsize=1)
def examples() -> dict[str, Example]:
    """Return the examples by operation, for example `GET nodes/{name}/`."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Example])


def with_example(operation: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    """Return the description of an operation with its example added."""
    found = examples().get(f"{method} {path.removeprefix('/api/v1/')}")
    if found is None:
        return operation
    given = {"path": found.path, "query": found.query, "header": found.headers}
    for parameter in operation.get("parameters", ()):
        value = given.get(parameter["in"], {}).get(parameter["name"])
        if value is not None:
            parameter["example"] = value
    asked = operation.get("requestBody", {}).get("content", {})
    if found.request is not None and found.media in asked:
        asked[found.media]["example"] = found.request
    answered = operation["responses"].get(str(found.status), {}).get("content", {})
    if found.answer is not None and JSON in answered:
        answered[JSON]["example"] = found.answer
    return operation
