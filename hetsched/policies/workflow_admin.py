"""Admin of golden placements, plans and previews.

Golden placements and plans are written by the actions, and each change requires a reason. Previews and measures are
read-only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from hetsched.contracts.errors import InputError
from hetsched.journal.admin import ReadOnlyAdmin, acting_user
from hetsched.journal.audit import Actor

from .forms import ReasonForm
from .goldens import remove_golden
from .models import GoldenPlacement, Measure, PolicyPlan, Preview
from .plans import remove_plan
from .workflow_forms import GoldenForm, PlanForm, WorkflowForm


class WorkflowAdmin(admin.ModelAdmin):
    """Admin base for models that are changed only through actions; saving and deleting require a reason."""

    remove: ClassVar[Callable[..., None]]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        return type(form.__name__, (form,), {"actor": acting_user(request)})

    def save_model(self, request: HttpRequest, obj: Any, form: WorkflowForm, change: bool) -> None:
        saved = form.act()
        obj.pk = saved.pk
        obj.refresh_from_db()

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Skip Django's admin log, because the action writes the audit trail."""

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Skip Django's admin log, because the action writes the audit trail."""

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {name: found for name, found in super().get_actions(request).items() if name != "delete_selected"}

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for a reason, then remove the row."""
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        if not self.has_delete_permission(request, row):
            raise PermissionDenied
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            actor: Actor = acting_user(request)
            try:
                type(self).remove(row.name, actor=actor, reason=form.cleaned_data["reason"])
            except InputError as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                self.message_user(request, _("%s is removed.") % row.name, messages.SUCCESS)
            return HttpResponseRedirect(reverse(f"admin:policies_{self.opts.model_name}_changelist"))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("Remove %s") % row.name,
            "row": row,
            "form": form,
        }
        return render(request, "admin/policies/remove.html", context)


@admin.register(GoldenPlacement)
class GoldenPlacementAdmin(WorkflowAdmin):
    form = GoldenForm
    remove = staticmethod(remove_golden)
    list_display = ("name", "cluster", "guards", "expects", "state", "got", "enabled", "author", "changed_at")
    list_filter = ("state", "enabled", "cluster", "policy_name")
    search_fields = ("name", "policy_name", "reason")
    fieldsets = (
        (None, {"fields": ("name", "cluster", "manifest")}),
        (_("Expectation"), {"fields": ("kind", "which", "policy_name", "enabled", "reason")}),
        (_("Status"), {"fields": ("state", "got", "checked_at", "broken_since", "author", "changed_at")}),
    )
    readonly_fields = ("state", "got", "checked_at", "broken_since", "author", "changed_at")

    @admin.display(description=_("applies to"))
    def guards(self, row: GoldenPlacement) -> str:
        return row.policy_name or _("all policies")

    @admin.display(description=_("expected"))
    def expects(self, row: GoldenPlacement) -> str:
        return str(row.expectation)


@admin.register(PolicyPlan)
class PolicyPlanAdmin(WorkflowAdmin):
    form = PlanForm
    remove = staticmethod(remove_plan)
    list_display = ("name", "policy", "says", "state", "note", "last_value", "last_looked_at", "enabled", "author")
    list_filter = ("state", "enabled", "policy")
    search_fields = ("name", "policy__name", "reason")
    fieldsets = (
        (None, {"fields": ("name", "policy", "kind", "enabled", "reason")}),
        (_("once, at a set time"), {"fields": ("version", "at", "late_minutes")}),
        (
            _("when a metric crosses a threshold"),
            {
                "fields": (
                    ("cluster", "metric"),
                    ("above", "above_version"),
                    ("below", "below_version"),
                    "minutes",
                )
            },
        ),
        (_("Status"), {"fields": ("state", "note", "last_value", "last_looked_at", "last_switched_at")}),
    )
    readonly_fields = ("state", "note", "last_value", "last_looked_at", "last_switched_at")

    @admin.display(description=_("when"))
    def says(self, row: PolicyPlan) -> str:
        if row.once is not None:
            return f"v{row.once.version}, {row.once.at:%Y-%m-%d %H:%M %Z}"
        found = row.condition
        if found is None:
            return ""
        high, low = (f"{found.above:g}: v{found.above_version}", f"{found.below:g}: v{found.below_version}")
        return f"{found.cluster} {found.metric} > {high}, < {low}, {found.minutes} min"


@admin.register(Preview)
class PreviewAdmin(ReadOnlyAdmin):
    list_display = ("id", "policy", "version", "cluster", "state", "progress", "asked_by", "asked_at", "ended_at")
    list_filter = ("state", "policy", "cluster")
    exclude = ("changes", "owner")


@admin.register(Measure)
class MeasureAdmin(ReadOnlyAdmin):
    list_display = ("cluster", "at", "figures")
    list_filter = ("cluster",)
    date_hierarchy = "at"
