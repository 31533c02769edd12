"""Validated access to the fields of a plain object.

Each error contains the full path of its field. A `FieldView` knows its value, its parent and its key, and builds the
path only for an error, so paths cost nothing for valid objects. The checks are those of the API server's schema: types,
names (RFC 1123), label syntax, quantities.
Source: Kubernetes apimachinery `validation.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NoReturn

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.remedies import (
    ADD_FIELD,
    WRITE_KEY,
    WRITE_LABEL_VALUE,
    WRITE_LIST,
    WRITE_OBJECT,
    WRITE_TEXTS,
    add_quotes,
    allowed_range,
    allowed_values,
    remove_quotes,
    valid_name,
)
from hetsched.contracts.units import INT64_MAX, parse_amount

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_QUALIFIED = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
MAX_ANNOTATIONS = 256 * 1024


def is_dns_label(text: str) -> bool:
    """Return whether `text` is a DNS label, the form of names of namespaces and containers."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Return whether `text` is a DNS subdomain, the form of names of nodes, pods and most other objects."""
    return len(text) <= 253 and _DNS_SUBDOMAIN.fullmatch(text) is not None


@lru_cache(maxsize=16384)
def is_qualified_name(key: str) -> bool:
    """Return whether `key` is a valid label key, taint key or resource name: an optional DNS prefix and a name."""
    prefix, slash, name = key.rpartition("/")
    return (not slash or is_dns_subdomain(prefix)) and _QUALIFIED.fullmatch(name) is not None


@lru_cache(maxsize=16384)
def is_label_value(value: str) -> bool:
    """Return whether `value` is a valid label value."""
    return not value or _QUALIFIED.fullmatch(value) is not None


class FieldView:
    """A mapping inside an object; null fields are treated as absent."""

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: Any, parent: FieldView | None = None, key: str | int = "") -> None:
        self._parent = parent
        self._key = key
        if value is None:
            value = {}
        elif type(value) is not dict:
            self.fail("must be an object", hint=WRITE_OBJECT)
        self.value: dict[str, Any] = value

    @property
    def path(self) -> str:
        """The field path from the object's root, such as `spec.containers[0].name`."""
        if self._parent is None:
            return ""
        above = self._parent.path
        if isinstance(self._key, int):
            return f"{above}[{self._key}]"
        return f"{above}.{self._key}" if above else self._key

    def place(self, key: str) -> str:
        """Return the path of one field of this mapping."""
        above = self.path
        step = f"[{key!r}]" if "/" in key or "." in key else f".{key}"
        return f"{above}{step}" if above else step.removeprefix(".")

    def fail(self, message: str, key: str | None = None, *, code: str = "FieldInvalid", hint: str = "") -> NoReturn:
        """Raise InputError for this mapping, or for one field of it."""
        raise InputError(code, message, place=self.path if key is None else self.place(key), hint=hint)

    def __contains__(self, key: str) -> bool:
        return self.value.get(key) is not None

    def view(self, key: str) -> FieldView:
        """Return a view of the nested mapping at `key`; it is empty if the field is absent."""
        return FieldView(self.value.get(key), self, key)

    def views(self, key: str) -> list[FieldView]:
        """Return views of the mappings in the list at `key`; the result is empty if the field is absent."""
        found = self.value.get(key)
        if found is None:
            return []
        if type(found) is not list:
            self.fail("must be a list", key, hint=WRITE_LIST)
        above = _ListView(self, key)
        return [FieldView(item, above, position) for position, item in enumerate(found)]

    def text(self, key: str, default: str = "") -> str:
        found = self.value.get(key)
        if found is None:
            return default
        if type(found) is not str:
            self.fail(Message("must be a string, not {text}", text=_shown(found)), key, hint=add_quotes(found))
        return found

    def choice(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """Return the text at `key`, which must be one of `allowed`; without a default the field is required."""
        if default is not None and key not in self:
            return default
        found = self.text(key)
        if found not in allowed:
            message = Message("{text} is not an allowed value", text=repr(found[:80]))
            self.fail(message, key, hint=allowed_values(found, allowed))
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        found = self.value.get(key)
        if found is None:
            return default
        if type(found) is not bool:
            hint = remove_quotes(found, bool, allowed_values(found, ("true", "false")))
            self.fail(Message("must be true or false, not {text}", text=_shown(found)), key, hint=hint)
        return found

    def integer(self, key: str, default: int = 0, *, least: int = 0, most: int = INT64_MAX) -> int:
        found = self.value.get(key)
        if found is None:
            return default
        return self._integer(found, key, least, most)

    def maybe_integer(self, key: str, *, most: int) -> int | None:
        found = self.value.get(key)
        return None if found is None else self._integer(found, key, 0, most)

    def _integer(self, found: Any, key: str, least: int, most: int) -> int:
        if type(found) is not int:
            hint = remove_quotes(found, int, allowed_range(least, most))
            self.fail(Message("must be a whole number, not {text}", text=_shown(found)), key, hint=hint)
        if not least <= found <= most:
            self._out_of_range(found, key, least, most)
        return found

    def _out_of_range(self, found: Any, key: str, least: float, most: float) -> NoReturn:
        self.fail(Message("{text} is out of range", text=_shown(found)), key, hint=allowed_range(least, most, found))

    def maybe_number(self, key: str, *, most: float = 1e12) -> float | None:
        found = self.value.get(key)
        if found is None:
            return None
        if type(found) not in (int, float):
            hint = remove_quotes(found, float, allowed_range(0, most))
            self.fail(Message("must be a number, not {text}", text=_shown(found)), key, hint=hint)
        if not 0 <= found <= most:
            self._out_of_range(found, key, 0, most)
        return float(found)

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.value.get(key)
        if found is None:
            return ()
        if type(found) is not list or any(type(item) is not str for item in found):
            self.fail("must be a list of strings", key, hint=WRITE_TEXTS)
        return tuple(found)

    def text_map(self, key: str) -> dict[str, str]:
        """Return a mapping of text to text. It is the object's own dict, so callers must not modify it."""
        found = self.value.get(key)
        if found is None:
            return {}
        if type(found) is not dict:
            self.fail("must be an object", key, hint=WRITE_OBJECT)
        for name, value in found.items():
            if type(value) is not str:
                message = Message("must be a string, not {text}", text=_shown(value))
                self.view(key).fail(message, name, hint=add_quotes(value))
        return found

    def labels(self, key: str = "labels") -> dict[str, str]:
        found = self.text_map(key)
        for name, value in found.items():
            if not is_qualified_name(name):
                self.view(key).fail("is not a valid label key", name, code="LabelInvalid", hint=WRITE_KEY)
            if not is_label_value(value):
                message = Message("{text} is not a valid label value", text=repr(value[:80]))
                self.view(key).fail(message, name, code="LabelInvalid", hint=WRITE_LABEL_VALUE)
        return found

    def annotations(self) -> dict[str, str]:
        """Return the annotations of metadata, up to the API server's limit on their total size."""
        found = self.text_map("annotations")
        if sum(len(name) + len(value) for name, value in found.items()) > MAX_ANNOTATIONS:
            self.fail(
                Message("may have at most {n} characters in total", n=MAX_ANNOTATIONS),
                "annotations",
                code="ObjectTooLarge",
                hint="Keep large values in a ConfigMap",
            )
        return found

    def amounts(self, key: str) -> dict[str, int]:
        """Return a resource list in base units: millicores for CPU, bytes or counts for other resources."""
        found = self.value.get(key)
        if found is None:
            return {}
        if type(found) is not dict:
            self.fail("must be an object", key, hint=WRITE_OBJECT)
        amounts = {}
        for resource, quantity in found.items():
            if not is_qualified_name(resource):
                self.view(key).fail(
                    "is not a valid resource name", resource, code="ResourceNameInvalid", hint=WRITE_KEY
                )
            try:
                amounts[resource] = parse_amount(resource, quantity)
            except InputError as error:
                raise error.at(self.view(key).place(resource)) from None
        return amounts

    def name(self, key: str = "name", *, label: bool = False) -> str:
        """Return a required object name: a DNS label if `label` is true, otherwise a DNS subdomain."""
        found = self.text(key)
        if not found:
            self.fail("is required", key, code="NameInvalid", hint=ADD_FIELD)
        if not (is_dns_label(found) if label else is_dns_subdomain(found)):
            wanted = "must be a lower-case RFC 1123 name, not {text}"
            if label:
                wanted = "must be a lower-case RFC 1123 label, not {text}"
            message = Message(wanted, text=repr(found[:80]))
            self.fail(message, key, code="NameInvalid", hint=valid_name(found, label=label))
        return found


class _ListView(FieldView):
    """The parent of list items; its path is the path of the list."""

    __slots__ = ()

    def __init__(self, parent: FieldView, key: str) -> None:
        self._parent = parent
        self._key = key


def _shown(value: Any) -> str:
    return repr(value) if type(value) in (bool, int, float, str) and len(repr(value)) <= 80 else type(value).__name__


def metadata(root: FieldView) -> FieldView:
    """Return an object's metadata after checking its name."""
    found = root.view("metadata")
    found.name()
    return found


def unique_names(views: Iterator[FieldView] | list[FieldView], template: str) -> None:
    """Reject two entries of a list with the same name. Raises: InputError with the message `template`."""
    seen: set[str] = set()
    for view in views:
        name = view.text("name")
        if name in seen:
            view.fail(Message(template, name=repr(name[:80])), "name", code="NameDuplicate", hint="Rename one of them")
        seen.add(name)
