"""Plugins of the last release with the schemas of their parameters, in `released_plugins.json`.

During an upgrade the previous version compiles the policies of the next one. `python -m tests.released_plugins` writes
the file again; run it after each release.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from hetsched.contracts.documents import to_plain
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.params import params_schema
from hetsched.engine.framework.registry import load_registry

FILE = Path(__file__).with_suffix(".json")
_TEXTS = {"title", "description", "default"}
Schemas = Mapping[str, Any]


def current() -> dict[str, Any]:
    """Return the schema of the parameters of each plugin of this version, without texts and defaults."""
    return {info.name: _without_texts(params_schema(info.params)) for info in load_registry()}


def released() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def unknown_uses(policies: Iterable[PolicySpec], schemas: Schemas) -> Iterator[str]:
    """Yield each use of a plugin, a parameter or a value that the schemas do not have."""
    for policy in policies:
        for use in policy.plugins:
            if use.name not in schemas:
                yield f"{policy.name}: the plugin {use.name}"
                continue
            for error in Draft202012Validator(schemas[use.name]).iter_errors(to_plain(use.params)):
                yield f"{policy.name}: {use.name}: {error.message}"


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, dict):
        # A parameter may have the name of a keyword.
        names = {name: _without_texts(value) for name, value in schema.get("properties", {}).items()}
        rest = {key: _without_texts(value) for key, value in schema.items() if key not in {*_TEXTS, "properties"}}
        return {**rest, "properties": names} if "properties" in schema else rest
    return [_without_texts(item) for item in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    FILE.write_text(json.dumps(current(), indent=1, sort_keys=True) + "\n")
