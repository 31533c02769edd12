"""The form of a policy, generated from the declarations of the plugins.

Each plugin in the registry gets a row: a switch, its position, its weight, and one field per property of its JSON
Schema. A new plugin therefore appears in the form without a change to this module.
Each field gets its type, bounds, title and default from the schema. Properties whose type has no form field (lists,
mappings, alternatives) are edited as JSON and validated by the plugin's declaration.
"""

from __future__ import annotations

import json
import math
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.engine.framework.policy import MAX_WEIGHT
from hetsched.engine.framework.registry import Registry

from .actions import check_policy
from .models import NamespaceRule, Policy


class FiniteField(forms.Field):
    """A number field with specific errors for missing, infinite and out-of-range values."""

    def __init__(self, *, least: float | None = None, most: float | None = None, **kwargs: Any) -> None:
        kwargs["widget"] = forms.NumberInput(attrs={"step": "any", "size": 8})
        super().__init__(**kwargs)
        self.least, self.most = least, most

    def to_python(self, value: Any) -> float | None:
        if value in self.empty_values:
            return None
        try:
            number = float(str(value).strip())
        except ValueError:
            number = math.nan
        low, high = self.least, self.most
        if not math.isfinite(number):
            raise ValidationError(_("%(value)s is not a finite number."), params={"value": str(value)[:40]})
        if (low is not None and number < low) or (high is not None and number > high):
            message = _("%(value)g is not between %(low)s and %(high)s.")
            low_text, high_text = (("∞" if bound is None else f"{bound:g}") for bound in (low, high))
            raise ValidationError(message, params={"value": number, "low": low_text, "high": high_text})
        return number


def field_of(schema: dict[str, Any], default: Any) -> forms.Field:
    """Return a form field for one property of a parameter schema."""
    common: dict[str, Any] = {
        "label": schema.get("title", ""),
        "help_text": schema.get("description", ""),
        "required": False,
        "initial": default,
    }
    kind, choices = schema.get("type"), schema.get("enum")
    if choices:
        return forms.ChoiceField(choices=[(value, str(value)) for value in choices], **common)
    if kind == "boolean":
        return forms.BooleanField(**common)
    if kind == "integer":
        return forms.IntegerField(min_value=schema.get("minimum"), max_value=schema.get("maximum"), **common)
    if kind == "number":
        return FiniteField(least=schema.get("minimum"), most=schema.get("maximum"), **common)
    if kind == "string":
        return forms.CharField(max_length=schema.get("maxLength"), **common)
    widget = forms.Textarea(attrs={"rows": 2, "cols": 40, "spellcheck": "false"})
    return forms.JSONField(widget=widget, **{**common, "initial": to_plain(default)})


class PluginRow:
    """One plugin's row of the form, for the template."""

    def __init__(self, form: PolicyForm, info: dict[str, Any]) -> None:
        self.name: str = info["name"]
        self.summary: str = info["summary"]
        self.points: list[str] = info["points"]
        self.on, self.order = form[f"{self.name}.on"], form[f"{self.name}.order"]
        self.weight = form[f"{self.name}.weight"] if f"{self.name}.weight" in form.fields else None
        self.params = [form[f"{self.name}.param.{name}"] for name in info["params"].get("properties", {})]


class PolicyForm(forms.Form):
    """Form of a whole policy; after a successful `is_valid`, `spec` contains the policy."""

    name = forms.CharField(label=_("Name"), max_length=63)
    description = forms.CharField(
        label=_("Description"), max_length=400, required=False, widget=forms.TextInput(attrs={"size": 80})
    )
    ties_by = forms.ChoiceField(
        label=_("Tie breaking"), choices=[("name", _("lowest node name")), ("random", _("seeded random choice"))]
    )
    ties_seed = forms.IntegerField(label=_("Random seed"), min_value=0, max_value=2**63 - 1, required=False)
    note = forms.CharField(
        label=_("Note"),
        required=False,
        max_length=2000,
        widget=forms.TextInput(attrs={"size": 80}),
        help_text=_("Reason for this draft, shown to other users."),
    )

    def __init__(self, registry: Registry, *args: Any, spec: PolicySpec | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known = registry.describe()
        # A plugin without a score has no weight field and keeps its previous weight.
        self._kept_weights = {use.name: use.weight for use in spec.plugins} if spec else {}
        used = {use.name: (place, use) for place, use in enumerate(spec.plugins, start=1)} if spec else {}
        if spec is not None:
            self.fields["name"].disabled = True
            self.initial.update(
                name=spec.name, description=spec.description, ties_by=spec.ties.by, ties_seed=spec.ties.seed
            )
        for position, info in enumerate(self._known, start=1):
            self._add_plugin(info, *used.get(info["name"], (len(used) + position, None)))

    def _add_plugin(self, info: dict[str, Any], place: int, use: PluginUse | None) -> None:
        name, fields = info["name"], self.fields
        fields[f"{name}.on"] = forms.BooleanField(required=False, initial=use is not None, label=_("on"))
        fields[f"{name}.order"] = forms.IntegerField(
            required=False, initial=10 * place, min_value=0, max_value=100_000, label=_("order")
        )
        if "score" in info["points"]:
            fields[f"{name}.weight"] = FiniteField(
                required=False, initial=use.weight if use else 1.0, least=0, most=MAX_WEIGHT, label=_("weight")
            )
        given = {**info["defaults"], **(use.params if use else {})}
        for param, schema in info["params"].get("properties", {}).items():
            fields[f"{name}.param.{param}"] = field_of(schema, given.get(param))

    @property
    def rows(self) -> list[PluginRow]:
        """Return one row per plugin for the template: the policy's plugins in their order, then all other plugins."""
        rows = [PluginRow(self, info) for info in self._known]
        return sorted(rows, key=lambda row: (not row.on.value(), _whole(row.order.value()), row.name))

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if self.errors:
            return cleaned
        uses = [
            (cleaned.get(f"{info['name']}.order") or 0, info["name"], self._use(info, cleaned))
            for info in self._known
            if cleaned.get(f"{info['name']}.on")
        ]
        spec = PolicySpec(
            name=cleaned["name"],
            plugins=tuple(use for _, _, use in sorted(uses, key=lambda item: item[:2])),
            ties=Ties(cleaned["ties_by"], cleaned.get("ties_seed") or 0),
            description=cleaned.get("description", ""),
        )
        try:
            self.spec = check_policy(spec)
        except InputError as error:
            raise ValidationError(str(error)) from None
        return cleaned

    def _use(self, info: dict[str, Any], cleaned: dict[str, Any]) -> PluginUse:
        """Return the policy's entry for one plugin; parameters that have their default value are omitted."""
        name = info["name"]
        defaults = json.loads(json.dumps(to_plain(info["defaults"])))
        params = {}
        for param in info["params"].get("properties", {}):
            value = cleaned.get(f"{name}.param.{param}")
            if value is not None and value != defaults.get(param):
                params[param] = value
        weight = cleaned.get(f"{name}.weight")
        return PluginUse(name, self._kept_weights.get(name, 1.0) if weight is None else weight, params)


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


class ReasonForm(forms.Form):
    """Form that asks for the reason of a change that takes effect immediately."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 80}),
        help_text=_("The reason is recorded in the audit log."),
    )


class NamespaceRuleForm(forms.ModelForm):
    """Form of the default policy and the allowed policies of a namespace, selected from the existing policies."""

    default_policy = forms.ChoiceField(label=_("Default policy"), required=False)
    allowed_policies = forms.MultipleChoiceField(
        label=_("Allowed policies"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("If no policy is selected, all policies are allowed."),
    )

    class Meta:
        model = NamespaceRule
        fields = ("cluster", "namespace", "default_policy", "allowed_policies")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = [(name, name) for name in Policy.objects.values_list("name", flat=True)]
        self.fields["default_policy"].choices = [("", _("the cluster's default")), *names]  # type: ignore[attr-defined]
        self.fields["allowed_policies"].choices = names  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        default, allowed = cleaned.get("default_policy"), cleaned.get("allowed_policies")
        if default and allowed and default not in allowed:
            raise ValidationError(_("The default policy is not one of the allowed policies."))
        return cleaned
