"""The plugins of a policy as rows of a form, made from what each plugin declares about itself.

Rule: a parameter's JSON Schema says which control it gets: a choice, a switch, a number with its bounds, a text; what
has no control of its own (lists, mappings) is edited as JSON. A unit is the last word of a parameter's name.
Invariant: a plugin that a policy lists and this release does not know keeps what it says.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from hetsched.contracts.params import default_params, params_schema
from hetsched.contracts.policy import PluginUse, PolicySpec
from hetsched.engine.framework.registry import PluginInfo, Registry

_KINDS = {"boolean": "switch", "integer": "integer", "number": "number", "string": "text"}
_UNITS = {"seconds": "s", "percent": "%", "mib": "MiB", "millis": "ms", "bytes": "B", "hours": "h"}


class Field(msgspec.Struct, frozen=True):
    """One parameter: `value` and `default` are JSON text, as the script reads them; `shown` is what stands in it."""

    name: str
    title: str
    help: str
    kind: str
    value: str
    default: str
    shown: str
    unit: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    least: float | None = None
    most: float | None = None

    @property
    def bounds(self) -> str:
        """Say between which values it must lie; nothing where there is no bound."""
        if self.least is not None and self.most is not None:
            return f"{self.least:g}–{self.most:g}"
        return f"≥ {self.least:g}" if self.least is not None else ""


class Row(msgspec.Struct, frozen=True):
    """One plugin; `parts` are what it takes part in, as words."""

    name: str
    summary: str
    parts: tuple[tuple[str, str], ...]
    weight: float
    scores: bool
    on: bool
    fields: tuple[Field, ...] = ()
    params: str = "{}"
    known: bool = True

    @property
    def weight_text(self) -> str:
        return f"{self.weight:g}"

    @property
    def set_fields(self) -> int:
        """Return how many parameters are not at their default."""
        return sum(field.value != field.default for field in self.fields)


def rows_of(spec: PolicySpec, registry: Registry) -> tuple[list[Row], list[Row]]:
    """Return the plugins in use, in order, and the others by name."""
    used = [_row(use, registry, on=True) for use in spec.plugins]
    names = {use.name for use in spec.plugins}
    unused = [_row(PluginUse(info.name), registry, on=False) for info in registry if info.name not in names]
    return used, unused


def _row(use: PluginUse, registry: Registry, *, on: bool) -> Row:
    params = _json(use.params)
    if use.name not in registry:
        summary = _("This release does not know it; a policy that lists it cannot be activated.")
        return Row(use.name, summary, (), use.weight, False, on, params=params, known=False)
    info = registry[use.name]
    defaults = default_params(info.params)
    properties = params_schema(info.params).get("properties", {})
    fields = tuple(
        _field(name, schema, use.params.get(name, defaults.get(name)), defaults.get(name))
        for name, schema in properties.items()
    )
    # What plugins of the product say of themselves stands in the catalogue; of others it is shown as they say it.
    summary = translation.gettext(info.summary) if info.summary else ""
    return Row(use.name, summary, parts_of(info), use.weight, "score" in info.points, on, fields, params)


def _field(name: str, schema: dict[str, Any], value: Any, default: Any) -> Field:
    choices = tuple((choice, _choice(choice)) for choice in map(str, schema.get("enum", ())))
    kind = "choice" if choices else _KINDS.get(schema.get("type", ""), "json")
    text = _json(value)
    return Field(
        name=name,
        title=_declared(schema.get("title", name)),
        help=_declared(schema.get("description", "")),
        kind=kind,
        value=text,
        default=_json(default),
        shown=str(value) if kind in ("choice", "text") else text,
        unit=_UNITS.get(name.rpartition("_")[2], ""),
        choices=choices,
        least=schema.get("minimum"),
        most=schema.get("maximum"),
    )


def _declared(text: str) -> str:
    """Return what a plugin says of its parameters in the reader's language."""
    return pgettext("parameter", text) if text else ""


def _choice(value: str) -> str:
    """Name a choice; where it has another name in the reader's language, with the word that stands in the policy."""
    said = _declared(value)
    return said if said == value else _("%(said)s (%(word)s)") % {"said": said, "word": value}


def _json(value: Any) -> str:
    """Write a value as JSON, a whole number without its point, as a script would."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return msgspec.json.encode(value).decode()


def parts_of(info: PluginInfo) -> tuple[tuple[str, str], ...]:
    """Return what a plugin takes part in: a kind for its look, and the word."""
    points = set(info.points)
    found = (
        ("queue", _("orders the queue"), {"queue-sort"}),
        ("filter", _("filter"), {"filter", "pre-filter"}),
        ("score", _("score"), {"score"}),
        ("room", _("makes room"), {"post-filter"}),
        ("hold", _("holds together"), {"permit"}),
        ("reserve", _("reserves"), {"reserve"}),
        ("bind", _("binds"), {"bind", "pre-bind", "post-bind"}),
    )
    return tuple((kind, word) for kind, word, served in found if points & served)
