"""Admin forms of golden placements and plans.

The actions validate the data. A form runs its action inside a transaction that is rolled back, so that the action's
errors are shown in the form before anything is written.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django import forms
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.api.golden import Expectation
from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM, Actor
from hetsched.storage.write_lock import write_transaction

from .goldens import save_golden
from .models import GoldenPlacement, Policy, PolicyPlan
from .plan_contracts import METRIC_NAMES, Condition, Once
from .plans import save_plan


def _number(*, max_value: int = 2**31 - 1, **options: Any) -> forms.IntegerField:
    return forms.IntegerField(required=False, min_value=1, max_value=max_value, **options)


class WorkflowForm(forms.ModelForm):
    """Base of forms that save through `act`; the admin page sets `actor`."""

    actor: Actor = SYSTEM

    reason = forms.CharField(
        label=_("Reason"),
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text=_("The reason is recorded in the audit log."),
    )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        try:
            with write_transaction():
                self.act()
                transaction.set_rollback(True)
        except InputError as error:
            raise ValidationError(str(error)) from None
        except msgspec.ValidationError as error:
            raise ValidationError(str(error)) from None
        return cleaned

    def act(self) -> Any:
        """Run the form's action with the cleaned data."""
        raise TypeError("subclasses must implement act()")

    def _get_validation_exclusions(self) -> set[str]:
        return {field.name for field in self._meta.model._meta.fields}


class GoldenForm(WorkflowForm):
    """Form of a golden placement: one pod and its expected placement."""

    manifest = forms.CharField(
        label=_("Pod"),
        widget=forms.Textarea(attrs={"rows": 10, "cols": 90, "spellcheck": "false"}),
        help_text=_("Manifest of one pod, as YAML or JSON, evaluated on the empty nodes of the cluster."),
    )
    kind = forms.ChoiceField(
        label=_("Expected placement"),
        choices=[
            ("nodes", _("one of these nodes (comma-separated names)")),
            ("selector", _("a node with these labels (comma-separated key=value)")),
            ("isa", _("a node that natively runs this instruction set")),
            ("verdict", _("no placement: never-fits or misconfigured")),
        ],
    )
    which = forms.CharField(label=_("Values"), max_length=2000, widget=forms.TextInput(attrs={"size": 60}))
    policy_name = forms.ChoiceField(label=_("Applies to policy"), required=False)

    class Meta:
        model = GoldenPlacement
        fields = ("name", "cluster", "manifest", "kind", "which", "policy_name", "enabled", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Policy.objects.values_list("name", flat=True)
        self.fields["policy_name"].choices = [("", _("all policies")), *((name, name) for name in names)]  # type: ignore[attr-defined]
        self.initial["reason"] = ""
        if self.instance.pk:
            self.fields["name"].disabled = True
            kind, value = next(iter(to_plain(self.instance.expectation).items()))
            shown = [f"{key}={item}" for key, item in value.items()] if kind == "selector" else value
            self.initial.update(kind=kind, which=", ".join(shown) if isinstance(shown, list | tuple) else shown)

    @property
    def expectation(self) -> Expectation:
        kind, text = self.cleaned_data["kind"], self.cleaned_data["which"].strip()
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if kind == "selector":
            pairs = [part.partition("=") for part in parts]
            return Expectation(selector={key.strip(): value.strip() for key, _equals, value in pairs})
        return msgspec.convert({kind: parts if kind == "nodes" else text}, Expectation)

    def act(self) -> GoldenPlacement:
        given = self.cleaned_data
        return save_golden(
            given["name"],
            cluster=given["cluster"],
            manifest=given["manifest"],
            expectation=self.expectation,
            policy_name=given["policy_name"],
            enabled=given["enabled"],
            creates=self.instance.pk is None,
            actor=self.actor,
            reason=given["reason"],
        )


class PlanForm(WorkflowForm):
    """Form of a plan: the time or the condition at which it activates a version."""

    policy = forms.ModelChoiceField(label=_("Policy"), queryset=Policy.objects.filter(keeper=None))
    kind = forms.ChoiceField(
        label=_("Trigger"),
        choices=[("once", _("once, at a set time")), ("condition", _("when a metric crosses a threshold"))],
    )
    version = _number(label=_("Version"), help_text=_("Once: the version to activate."))
    at = forms.SplitDateTimeField(label=_("At"), required=False, widget=AdminSplitDateTime())
    late_minutes = forms.IntegerField(
        label=_("Skip the activation if it is more than this many minutes late"),
        required=False,
        min_value=0,
        max_value=10_080,
        initial=60,
    )
    cluster = forms.ModelChoiceField(
        label=_("Cluster"),
        queryset=Cluster.objects.defer("definitions"),
        required=False,
        help_text=_("Cluster of the metric."),
    )
    metric = forms.ChoiceField(label=_("Metric"), choices=list(METRIC_NAMES.items()), required=False)
    above = forms.FloatField(label=_("Above"), required=False)
    above_version = _number(label=_("activates version"))
    below = forms.FloatField(label=_("Below"), required=False)
    below_version = _number(label=_("activates version"))
    minutes = _number(label=_("Minimum duration (minutes)"), initial=10, max_value=1440)

    class Meta:
        model = PolicyPlan
        fields = ("name", "policy", "kind", "enabled", "reason", "cluster")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["reason"] = ""
        if not self.instance.pk:
            return
        for field in ("name", "policy"):
            self.fields[field].disabled = True
        stated = self.instance.once or self.instance.condition
        shown = {**msgspec.structs.asdict(stated), "kind": "once" if self.instance.once else "condition"}
        shown.pop("cluster", None)
        self.initial.update(shown)

    def clean(self) -> dict[str, Any]:
        needed = {
            "once": ("version", "at"),
            "condition": ("cluster", "metric", "above", "above_version", "below", "below_version"),
        }
        for field in needed.get(self.cleaned_data.get("kind", ""), ()):
            if self.cleaned_data.get(field) in (None, "") and field not in self.errors:
                self.add_error(field, _("This field is required."))
        return super().clean()

    def act(self) -> PolicyPlan:
        given = self.cleaned_data
        once = condition = None
        if given["kind"] == "once":
            at: datetime = given["at"]
            late = given["late_minutes"]
            once = Once(given["version"], at, 60 if late is None else late)
        else:
            condition = Condition(
                given["cluster"].name,
                given["metric"],
                given["above"],
                given["above_version"],
                given["below"],
                given["below_version"],
                given["minutes"] or 10,
            )
        return save_plan(
            given["name"],
            policy_name=given["policy"].name,
            once=once,
            condition=condition,
            enabled=given["enabled"],
            creates=self.instance.pk is None,
            actor=self.actor,
            reason=given["reason"],
        )
