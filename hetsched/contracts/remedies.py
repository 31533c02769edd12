"""Remedies for wrong values: hints that name the probable correction, the allowed values or the allowed range."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .message import Message, joined
from .spelling import nearest, suggestion
from .units import INT64_MAX

ADD_FIELD = Message("Add this field")
ADD_POD = Message("Add a Pod, Job, Deployment, StatefulSet or ReplicaSet")
ADD_PLUGIN = Message("Add a plugin, such as {name: resource-fit}")
WRITE_LIST = Message('Write a list: each item begins with "-"')
WRITE_OBJECT = Message("Write an object: fields as NAME: VALUE")
WRITE_TEXTS = Message('Write a list of strings: each item begins with "-", and numbers are in quotes')
WRITE_KEY = Message("Write NAME or DOMAIN/NAME, where NAME has at most 63 letters, digits, dots, '-' and '_'")
WRITE_LABEL_VALUE = Message(
    "Use at most 63 letters, digits, dots, '-' and '_'; the first and the last character are letters or digits"
)
SPLIT_REQUEST = Message("Split the request; HETSCHED_BODY_BYTES and HETSCHED_MANIFEST_BYTES set the limits")
INSPECT_LOCALLY = Message("Run hetsched isa inspect on the file, or raise HETSCHED_BINARY_BYTES")
SHORTEN_REPORT = Message("Send a shorter report; this limit is fixed")
# Texts that are a value of the type after their quotes are removed. A leading zero would change the number in YAML.
_UNQUOTED = {
    bool: re.compile(r"true|false"),
    int: re.compile(r"-?(0|[1-9][0-9]*)"),
    float: re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"),
}
_NOT_IN_LABELS = re.compile(r"[^a-z0-9-]+")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9.-]+")
_EMPTY_ENDS = re.compile(r"[-.]*\.[-.]*")


def allowed_values(found: object, allowed: Iterable[str]) -> Message:
    """Return the remedy for a value that is not one of `allowed`."""
    return _with_nearest(found, allowed, "Allowed values: {names}")


def known_names(found: object, known: Iterable[str], template: str = "Known: {names}") -> Message:
    """Return the remedy for an unknown name, such as that of a field."""
    return _with_nearest(found, known, template)


def _with_nearest(found: object, known: Iterable[str], template: str) -> Message:
    names = [name for name in known if name]
    listed = Message(template, names=joined(", ", names or [Message("none")]))
    near = nearest(found, names) if isinstance(found, str) else ""
    return joined(" ", [suggestion(near), listed]) if near else listed


def known_object(found: str, known: Iterable[str]) -> Message:
    """Return the remedy for a reference to an object that does not exist."""
    near = nearest(found, known)
    return suggestion(near) if near else Message("Create the object, or correct the name")


def allowed_range(low: float, high: float | None, found: object = None) -> Message:
    """Return the remedy for a number outside its range.

    The upper limit of a range to 2^63-1 (or None) is named only if `found` exceeds it.
    """
    high = INT64_MAX if high is None else high
    if high == INT64_MAX and not (isinstance(found, int) and found > high):
        return Message("Smallest allowed value: {low}", low=_digits(low))
    return Message("Allowed range: {low} to {high}", low=_digits(low), high=_digits(high))


def range_above(low: float, high: float) -> Message:
    """Return the remedy for a number outside a range that does not contain its lower limit."""
    return Message("More than {low}, at most {high}", low=_digits(low), high=_digits(high))


def _digits(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:.15g}"


def remove_quotes(found: object, wanted: type[bool | int | float], otherwise: Message) -> Message:
    """Return the remedy for a value that must have the type `wanted`; `otherwise` is for all but such a text."""
    if isinstance(found, str) and _UNQUOTED[wanted].fullmatch(found):
        return Message("Remove the quotes: {text}", text=found[:80])
    return otherwise


def add_quotes(found: object) -> Message:
    """Return the remedy for a value that must be a string; YAML's 1.10 was already read as 1.1, and yes as true."""
    if isinstance(found, bool | int | float):
        return Message("Write the value in quotes")
    return Message("Write one string")


def valid_name(found: str, *, label: bool) -> Message:
    """Return the remedy for an object name that is not an RFC 1123 label or subdomain; it proposes a valid name."""
    near = (_NOT_IN_LABELS if label else _NOT_IN_NAMES).sub("-", found.lower())
    near = _EMPTY_ENDS.sub(".", near).strip("-.")[:63].strip("-.")
    return suggestion(near) if near else Message("Write a name of lower-case letters, digits and '-'")
