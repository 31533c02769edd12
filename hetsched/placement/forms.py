"""Forms of the admin's cluster pages: they parse and validate files before anything is written."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from hetsched.adapters.files import parse_cluster
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.inventory.models import DNS_LABEL, ClusterKind
from hetsched.policies.models import Policy


class ManyFilesInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class ManyFilesField(forms.FileField):
    """A form field for multiple uploads; the value is a list."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(widget=ManyFilesInput(), **kwargs)

    def clean(self, data: Any, initial: Any = None) -> list[Any]:
        clean_one = super().clean
        files = data if isinstance(data, list | tuple) else [data]
        return [clean_one(file, initial) for file in files if file or self.required]


class ImportForm(forms.Form):
    """A form for cluster files; `content` is the parsed content once the form is valid."""

    documents = ManyFilesField(
        label=_("Files"),
        help_text=_("Kubernetes YAML or JSON, or an openb node list. Several files are read as one."),
    )
    reason = forms.CharField(label=_("Reason"), max_length=2000, required=False)

    content: ClusterContent | None = None

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        files = cleaned.get("documents")
        if files:
            try:
                self.content = parse_cluster([(file.name, file.read()) for file in files])
            except InputError as error:
                raise ValidationError(str(error)) from None
        return cleaned


class ClusterForm(ImportForm):
    """A form for a new cluster, empty or from files."""

    name = forms.CharField(label=_("Name"), max_length=63, validators=[DNS_LABEL])
    # A live cluster needs credentials, which no page accepts or shows.
    kind = forms.ChoiceField(
        label=_("Kind"), choices=[choice for choice in ClusterKind.choices if choice[0] != ClusterKind.KUBERNETES]
    )
    policy_name = forms.ChoiceField(label=_("Default policy"))

    field_order = ("name", "kind", "policy_name", "documents", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Policy.objects.filter(active_version__gt=0).values_list("name", flat=True)
        self.fields["policy_name"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]
        self.initial.setdefault("policy_name", "hetsched")
        self.fields["documents"].required = False


class DefaultPolicyForm(forms.Form):
    """A form for a cluster's default policy, which applies to pods that do not name a policy."""

    policy_name = forms.ChoiceField(label=_("Default policy"))
    reason = forms.CharField(label=_("Reason"), max_length=2000)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Policy.objects.filter(active_version__gt=0).values_list("name", flat=True)
        self.fields["policy_name"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]
