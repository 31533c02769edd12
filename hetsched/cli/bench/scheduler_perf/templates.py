"""Object templates of scheduler_perf: YAML with a subset of Go's text/template.

Supported are `.Index`, `.Count`, integers, and one call of `AddInt`, `SubtractInt`, `MultiplyInt`, `DivideInt` or `Mod`
with these as arguments. Like Go's typed decoding, reading a template ignores the case of the first letter of a field.
Source: getTemplateFuncs in test/integration/scheduler_perf/operations.go; Go documentation, text/template.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import yaml

_ACTION = re.compile(r"\{\{-?(.*?)-?\}\}", re.DOTALL)
_ARGUMENT = re.compile(r"\.Index|\.Count|-?\d+")
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "AddInt": lambda *numbers: sum(numbers),
    "MultiplyInt": lambda *numbers: math.prod(numbers),
    "SubtractInt": lambda a, b: a - b,
    "DivideInt": lambda a, b: int(a / b),
    "Mod": lambda a, b: int(math.fmod(a, b)),
}
# Fields whose keys are data, not names of fields.
_DATA = {"labels", "annotations", "matchLabels", "nodeSelector", "requests", "limits", "capacity", "allocatable"}
_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TemplateError(ValueError):
    """Raised for a template that is not supported; the text contains the reason."""


class TemplateAction(msgspec.Struct, frozen=True):
    """One action of a template: a function, empty for a single value, and its arguments."""

    function: str
    arguments: tuple[str, ...]

    def value(self, index: int, count: int) -> int:
        known = {".Index": index, ".Count": count}
        numbers = [known[one] if one in known else int(one) for one in self.arguments]
        return _FUNCTIONS[self.function](*numbers) if self.function else numbers[0]


class Template:
    """Template of one object. Raises: TemplateError for syntax that is not supported or an invalid object."""

    def __init__(self, text: str) -> None:
        pieces = _ACTION.split(text)
        self._texts = pieces[0::2]
        self._actions = [_action(piece.strip()) for piece in pieces[1::2]]
        self._fixed = None if self._actions else _read(text)
        self.kind = self.render(0, 1)["kind"]

    def render(self, index: int, count: int) -> dict[str, Any]:
        """Return object number `index` of `count`; the caller may change it."""
        if self._fixed is not None:
            return deepcopy(self._fixed)
        values = [str(action.value(index, count)) for action in self._actions]
        return _read("".join(text + value for text, value in zip(self._texts, [*values, ""], strict=True)))


def _action(text: str) -> TemplateAction:
    function, *arguments = text.split()
    if _ARGUMENT.fullmatch(function) and not arguments:
        return TemplateAction("", (function,))
    if function not in _FUNCTIONS or not all(_ARGUMENT.fullmatch(one) for one in arguments):
        raise TemplateError(f"the template action {{{{{text}}}}} is not supported")
    try:
        _FUNCTIONS[function](*(1 for _ in arguments))
    except TypeError:
        raise TemplateError(f"the template action {{{{{text}}}}} has the wrong number of arguments") from None
    return TemplateAction(function, tuple(arguments))


def _read(text: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, Loader=_loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise TemplateError(f"the template is not YAML: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise TemplateError("the template is not an object with a kind")
    spelled: dict[str, Any] = _spelled(found)
    return spelled


def _spelled(value: Any) -> Any:
    """Spell the fields of an object as the API server does, with a lower-case first letter."""
    if isinstance(value, list):
        return [_spelled(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key[:1].lower() + key[1:]: one if key in _DATA else _spelled(one) for key, one in value.items()}
