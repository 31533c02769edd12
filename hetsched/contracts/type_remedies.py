"""Remedies for plain values that a msgspec type rejects: known fields, allowed values, ranges and types."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from msgspec import inspect

from .errors import without_path
from .message import Message
from .remedies import ADD_FIELD, add_quotes, allowed_range, allowed_values, known_names, range_above, remove_quotes

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"(unknown|missing required) field `(.+)`")


def field_of(error: msgspec.ValidationError) -> str:
    """Return the path of the wrong, unknown or missing field in the converted value, such as `plugins[0].weight`."""
    message, path = without_path(error)
    found = _FIELD.search(message)
    place = f"{path}.{found[2]}" if found else path
    return place.removeprefix("$").lstrip(".")


def remedy_for(error: msgspec.ValidationError, declared: Any, value: Any, *, added: Collection[str] = ()) -> Message:
    """Return the remedy for an error of `msgspec.convert(value, declared)`.

    `added` has the fields of `declared` that the caller adds to the user's value. The text is empty if there is no
    remedy, as for a field that allows several types.
    """
    message, path = without_path(error)
    steps = _STEP.findall(path)
    kinds = list(_kinds_at(inspect.type_info(declared), steps))
    if field := _FIELD.search(message):
        if field[1] != "unknown":
            return ADD_FIELD
        structs = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
        known = [each.encode_name for kind in structs for each in kind.fields]
        return known_names(field[2], [name for name in known if steps or name not in added])
    return _remedy(kinds[0], _value_at(value, steps)) if len(kinds) == 1 else Message("")


def _kinds_at(kind: inspect.Type | None, steps: list[tuple[str, str]]) -> Iterator[inspect.Type]:
    """Yield the alternatives of the type at a path, without None."""
    if isinstance(kind, inspect.Metadata):
        yield from _kinds_at(kind.type, steps)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _kinds_at(each, steps)
    elif steps and kind is not None:
        yield from _kinds_at(_below(kind, *steps[0]), steps[1:])
    elif kind is not None and not isinstance(kind, inspect.NoneType):
        yield kind


def _below(kind: inspect.Type, field: str, position: str) -> inspect.Type | None:
    match kind:
        case inspect.StructType() if field:
            return next((each.type for each in kind.fields if each.encode_name == field), None)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType() if position:
            return kind.item_type
        case inspect.TupleType() if position.isdigit() and int(position) < len(kind.item_types):
            return kind.item_types[int(position)]
        case inspect.DictType() if position:
            return kind.value_type
    return None


def _value_at(value: Any, steps: list[tuple[str, str]]) -> Any:
    """Return the value at a path, or None if the path does not name it, as for the values of a mapping."""
    for field, position in steps:
        if field and isinstance(value, dict):
            value = value.get(field)
        elif position.isdigit() and isinstance(value, list | tuple) and int(position) < len(value):
            value = value[int(position)]
        else:
            return None
    return value


def _remedy(kind: inspect.Type, found: Any) -> Message:
    match kind:
        case inspect.LiteralType():
            return allowed_values(found, map(str, kind.values))
        case inspect.EnumType():
            return allowed_values(found, [str(each.value) for each in kind.cls])
        case inspect.BoolType():
            return remove_quotes(found, bool, allowed_values(found, ("true", "false")))
        case inspect.IntType():
            return remove_quotes(found, int, _whole_number(kind, found))
        case inspect.FloatType():
            return remove_quotes(found, float, _number(kind))
        case inspect.StrType():
            return add_quotes(found) if not isinstance(found, str) else _length(kind)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return Message("" if isinstance(found, list) else "Write a list")
        case inspect.TupleType():
            return Message("Write a list of {n} items", n=len(kind.item_types))
        case inspect.StructType() | inspect.DictType():
            return Message("" if isinstance(found, dict) else "Write an object")
    return Message("")


def _whole_number(kind: inspect.IntType, found: Any) -> Message:
    low = kind.ge if kind.gt is None else kind.gt + 1
    if low is None:
        return Message("Write a whole number")
    return allowed_range(low, kind.le if kind.lt is None else kind.lt - 1, found)


def _number(kind: inspect.FloatType) -> Message:
    if kind.gt is not None and kind.le is not None:
        return range_above(kind.gt, kind.le)
    return Message("Write a number") if kind.ge is None else allowed_range(kind.ge, kind.le)


def _length(kind: inspect.StrType) -> Message:
    if kind.max_length is None:
        return Message("")
    return Message("Write {low} to {high} characters", low=kind.min_length or 0, high=kind.max_length)
