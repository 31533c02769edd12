"""Form rows of a policy's plugins, built from each plugin's declaration.

A parameter's JSON Schema determines its control: choice, switch, number with bounds, or text. Other types (lists,
mappings) are edited as JSON. The last word of a parameter's name is its unit.
Invariant: a listed plugin that this release does not have keeps its settings.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from hetsched.contracts.documents import encode
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.params import default_params, params_schema
from hetsched.engine.framework.registry import PluginInfo, Registry

_KINDS = {"boolean": "switch", "integer": "integer", "number": "number", "string": "text"}
_UNITS = {"seconds": "s", "percent": "%", "mib": "MiB", "millis": "ms", "bytes": "B", "hours": "h"}


class ParameterField(msgspec.Struct, frozen=True):
    """Form control of a parameter: `value` and `default` are JSON text for the script; `shown` is the visible text."""

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
        """Return the bounds as text, or "" if the parameter has none."""
        if self.least is not None and self.most is not None:
            return f"{self.least:g}–{self.most:g}"
        if self.most is not None:
            return f"≤ {self.most:g}"
        return f"≥ {self.least:g}" if self.least is not None else ""


class PluginFields(msgspec.Struct, frozen=True):
    """Form row of one plugin; `parts` are its extension points as text."""

    name: str
    summary: str
    parts: tuple[tuple[str, str], ...]
    weight: float
    scores: bool
    on: bool
    fields: tuple[ParameterField, ...] = ()
    params: str = "{}"
    known: bool = True

    @property
    def weight_text(self) -> str:
        return f"{self.weight:g}"

    @property
    def set_fields(self) -> int:
        """Return the number of parameters whose value differs from the default."""
        return sum(field.value != field.default for field in self.fields)


def rows_of(spec: PolicySpec, registry: Registry) -> tuple[list[PluginFields], list[PluginFields]]:
    """Return the plugins in use, in the order of the policy, and all other plugins by name."""
    used = [_row(use, registry, on=True) for use in spec.plugins]
    names = {use.name for use in spec.plugins}
    unused = [_row(PluginUse(info.name), registry, on=False) for info in registry if info.name not in names]
    return used, unused


def _row(use: PluginUse, registry: Registry, *, on: bool) -> PluginFields:
    params = _json(use.params)
    if use.name not in registry:
        summary = _("This release does not have this plugin. A policy that lists it cannot be activated.")
        return PluginFields(use.name, summary, (), use.weight, False, on, params=params, known=False)
    info = registry[use.name]
    defaults = default_params(info.params)
    properties = params_schema(info.params).get("properties", {})
    fields = tuple(
        _field(name, schema, use.params.get(name, defaults.get(name)), defaults.get(name))
        for name, schema in properties.items()
    )
    # Texts of built-in plugins are in the message catalogue; those of other plugins are shown unchanged.
    summary = translation.gettext(info.summary) if info.summary else ""
    return PluginFields(use.name, summary, parts_of(info), use.weight, "score" in info.points, on, fields, params)


def _field(name: str, schema: dict[str, Any], value: Any, default: Any) -> ParameterField:
    choices = tuple((choice, _choice(choice)) for choice in map(str, schema.get("enum", ())))
    kind = "choice" if choices else _KINDS.get(schema.get("type", ""), "json")
    text = _json(value)
    return ParameterField(
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
    """Return the translated text of a plugin's parameter description."""
    return pgettext("parameter", text) if text else ""


def _choice(value: str) -> str:
    """Return the label of a choice; a translated label is followed by the value in the policy."""
    text = _declared(value)
    return text if text == value else _("%(label)s (%(value)s)") % {"label": text, "value": value}


def _json(value: Any) -> str:
    """Encode a value as JSON; a float without a fraction becomes an integer, as in JavaScript."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return encode(value).decode()


def parts_of(info: PluginInfo) -> tuple[tuple[str, str], ...]:
    """Return the extension points of a plugin, each with a style and a label."""
    points = set(info.points)
    found = (
        ("queue", _("queue sort"), {"queue-sort"}),
        ("filter", _("filter"), {"filter", "pre-filter"}),
        ("score", _("score"), {"score"}),
        ("room", _("preemption"), {"post-filter"}),
        ("hold", _("permit"), {"permit"}),
        ("reserve", _("reserve"), {"reserve"}),
        ("bind", _("bind"), {"bind", "pre-bind", "post-bind"}),
    )
    return tuple((kind, word) for kind, word, served in found if points & served)
