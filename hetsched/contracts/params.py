"""Parameters that a plugin declares.

The admin form, the REST schema, the docs page and the validation of policy files must agree. Parameters are therefore
declared once, as a frozen msgspec Struct whose fields have `Meta(title, description, bounds)`. The JSON Schema, the
defaults and the validated values are all derived from this Struct.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

from hetsched.contracts.documents import to_plain

from .errors import InputError
from .message import Message
from .type_remedies import remedy_for


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every plugin's parameters; a plugin without parameters uses it directly."""


ParamsT = TypeVar("ParamsT", bound=Params)


def check_params(declaration: type[ParamsT], values: dict[str, Any], *, plugin: str) -> ParamsT:
    """Convert plain values into validated parameters.

    Raises: InputError `PolicyParamInvalid`, naming the plugin and the field.
    """
    if not _finite(values):
        raise InputError(
            "PolicyParamInvalid", Message("{name}: parameters must be finite numbers", name=plugin), place="params"
        )
    try:
        return msgspec.convert(values, declaration, strict=True)
    except msgspec.ValidationError as error:
        hint = remedy_for(error, declaration, values)
        if not hint:
            hint = Message("The reference page of {name} describes its parameters", name=plugin)
        message = Message("{name}: {detail}", name=plugin, detail=str(error))
        raise InputError("PolicyParamInvalid", message, place="params", hint=hint) from None


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def params_schema(declaration: type[Params]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a parameter declaration, with top-level definitions inlined."""
    (schema,), components = msgspec.json.schema_components([declaration], ref_template="#/$defs/{name}")
    name = schema["$ref"].rsplit("/", 1)[1]
    top = dict(components.pop(name))
    if components:
        top["$defs"] = components
    return top


def default_params(declaration: type[Params]) -> dict[str, Any]:
    """Return the default values of all parameters, as plain JSON values."""
    built: dict[str, Any] = to_plain(declaration())
    return built
