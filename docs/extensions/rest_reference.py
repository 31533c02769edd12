"""Add the operations and objects of the REST API to its page, and publish the OpenAPI document as `openapi.json`.

The document is generated from the code by `manage.py spectacular`, so the page cannot differ from the responses.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PAGE = "docs/reference/rest"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#$~])")
Plain = dict[str, Any]


@cache
def document(source: str) -> Plain:
    """Return the OpenAPI document of the code in this folder."""
    with tempfile.TemporaryDirectory(prefix="hetsched-docs-") as data:
        environment = {**os.environ, "HETSCHED_DATA": data, "DJANGO_SETTINGS_MODULE": "hetsched.project.settings"}
        command = [sys.executable, "manage.py", "spectacular", "--format", "openapi-json"]
        done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the OpenAPI document cannot be generated: {done.stderr[-2000:]}")
    found: Plain = json.loads(done.stdout)
    return found


def add_reference(app: Sphinx, docname: str, content: list[str]) -> None:
    """Append all operations and objects to the page (event `source-read`)."""
    if docname == PAGE:
        found = document(str(app.srcdir))
        content[0] += "\n".join(["", *_operations(found), *_objects(found), ""])


def write_document(app: Sphinx, exception: Exception | None) -> None:
    """Write `openapi.json` after a successful build (event `build-finished`)."""
    if exception is None and app.builder.name == "html" and PAGE in app.env.found_docs:
        (Path(app.outdir) / "openapi.json").write_text(json.dumps(document(str(app.srcdir)), indent=1) + "\n")


def _operations(found: Plain) -> Iterator[str]:
    tags: dict[str, list[str]] = {}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            lines = tags.setdefault(operation["tags"][0], [])
            lines += [f"### `{method.upper()} {path}`", "", _text(operation["description"]), ""]
            lines += _parameters(operation.get("parameters", []))
            lines += _bodies("Request", operation.get("requestBody", {}).get("content", {}))
            for status, response in operation["responses"].items():
                if status != "default":
                    lines += _bodies(f"Response {status}", response.get("content", {})) or [f"Response {status}.", ""]
    for tag, lines in sorted(tags.items()):
        yield from (f"## {tag}", "", *lines)


def _parameters(parameters: list[Plain]) -> list[str]:
    if not parameters:
        return []
    rows = [
        f"| `{one['name']}` | {one['in']}{', required' if one.get('required') else ''} | {_type(one['schema'])} | "
        f"{_text(one.get('description', ''))} |"
        for one in parameters
    ]
    return ["| parameter | in | type | meaning |", "|---|---|---|---|", *rows, ""]


def _bodies(label: str, content: Plain) -> list[str]:
    shown = [f"`{media}` {_type(body.get('schema', {}))}" for media, body in content.items()]
    return [f"{label}: {', '.join(shown)}", ""] if shown else []


def _objects(found: Plain) -> Iterator[str]:
    yield from ("## Objects", "")
    for name, schema in sorted(found["components"]["schemas"].items()):
        yield from (f"({_label(name)})=", "", f"### {name}", "", _text(schema.get("description", "")), "")
        if "enum" in schema:
            yield from (f"One of {_values(schema)}.", "")
        elif schema.get("properties"):
            yield from ("| field | type | default |", "|---|---|---|")
            for field, inner in schema["properties"].items():
                yield f"| `{field}` | {_type(inner)} | {_default(field, inner, schema)} |"
            yield ""


def _default(field: str, inner: Plain, schema: Plain) -> str:
    if field in schema.get("required", ()):
        return "required"
    return f"`{json.dumps(inner['default'])}`" if "default" in inner else ""


def _type(schema: Plain) -> str:
    """Return a type as text, with links to the objects that it contains."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_label(name)})"
    if "enum" in schema:
        return _values(schema)
    if "anyOf" in schema:
        return " or ".join(_type(inner) for inner in schema["anyOf"])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type(schema['items'])}" if isinstance(schema.get("items"), dict) else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    bounds = [
        f"{word} {schema[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in schema
    ]
    return ", ".join([str(kind), *bounds])


def _values(schema: Plain) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])


def _label(name: str) -> str:
    return f"rest-{name.lower()}"


def _text(text: str) -> str:
    """Return a text on one line, in which Markdown has no special characters except code spans."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if index % 2 else _SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_reference)
    app.connect("build-finished", write_document)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
