"""Admin of policies: a generated form that saves drafts, and activation with a reason.

All writes go through the actions; saving never changes the active version.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import msgspec
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.engine.framework.registry import load_registry
from hetsched.journal.admin import ReadOnlyAdmin, acting_user

from . import workflow_admin  # noqa: F401 - registers golden placements, plans and previews
from .actions import activate, remove_namespace_rule, rollback, save_draft, set_namespace_rule
from .cluster_policies import set_owner
from .forms import NamespaceRuleForm, PolicyForm, ReasonForm
from .models import NamespaceRule, Policy, PolicyRevision


@admin.register(Policy)
class PolicyAdmin(admin.ModelAdmin):
    list_display = ("name", "active_version", "latest_version", "keeper", "description")
    search_fields = ("name", "description")

    @admin.display(description="latest version")
    def latest_version(self, policy: Policy) -> int:
        return policy.revisions.values_list("version", flat=True).first() or 0

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        own = [
            path("<int:pk>/activate/<int:version>/", wrap(self.activate_view), name="policies_policy_activate"),
            path("<int:pk>/rollback/", wrap(self.rollback_view), name="policies_policy_rollback"),
            path("<int:pk>/take-over/", wrap(self.take_over_view), name="policies_policy_take_over"),
        ]
        return own + super().get_urls()

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        policy = self.get_object(request, object_id) if object_id else None
        if object_id and policy is None:
            raise Http404
        if policy is None and not self.has_add_permission(request):
            raise PermissionDenied
        if policy is not None and not self.has_view_or_change_permission(request, policy):
            raise PermissionDenied
        may_change = (self.has_change_permission(request, policy) and policy.keeper is None) if policy else True
        shown = _requested_revision(policy, request.GET.get("version")) if policy else None
        form = PolicyForm(load_registry(), request.POST or None, spec=shown.spec if shown else None)
        if request.method == "POST":
            if not may_change:
                raise PermissionDenied
            if form.is_valid():
                return self._save(request, form)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("Policy %s") % policy.name if policy else _("New policy"),
            "policy": policy,
            "shown": shown,
            "revisions": policy.revisions.all() if policy else (),
            "previous": policy.previous if policy else None,
            "form": form,
            "may_change": may_change,
            **(extra_context or {}),
        }
        return render(request, "admin/policies/policy/change_form.html", context)

    def _save(self, request: HttpRequest, form: PolicyForm) -> HttpResponse:
        try:
            draft = save_draft(form.spec, actor=acting_user(request), reason=form.cleaned_data["note"])
        except InputError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        text = _("Draft version %d is saved. It takes effect only after activation.") % draft.version
        self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:policies_policy_change", args=[draft.policy_id]))

    def activate_view(self, request: HttpRequest, pk: int, version: int) -> HttpResponse:
        policy = get_object_or_404(Policy, pk=pk)
        chosen = get_object_or_404(PolicyRevision, policy=policy, version=version)

        def act(reason: str, seen: int | None) -> PolicyRevision:
            return activate(policy.name, version, actor=acting_user(request), reason=reason, expected_active=seen)

        return self._with_reason(request, policy, chosen, _title(policy, chosen), act)

    def rollback_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        policy = get_object_or_404(Policy, pk=pk)
        previous = policy.previous
        if previous is None:
            self.message_user(request, _("No earlier version was ever active."), messages.WARNING)
            return HttpResponseRedirect(reverse("admin:policies_policy_change", args=[pk]))

        def act(reason: str, seen: int | None) -> PolicyRevision:
            return rollback(policy.name, actor=acting_user(request), reason=reason, expected_active=seen)

        return self._with_reason(request, policy, previous, _title(policy, previous), act)

    def take_over_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        policy = get_object_or_404(Policy, pk=pk)
        active = get_object_or_404(PolicyRevision, policy=policy, version=policy.active_version)

        def act(reason: str, seen: int | None) -> PolicyRevision:
            set_owner(policy.name, None, actor=acting_user(request), reason=reason)
            return active

        title = _("Take %(name)s over from cluster %(cluster)s") % {"name": policy.name, "cluster": policy.keeper}
        return self._with_reason(request, policy, active, title, act)

    def _with_reason(
        self,
        request: HttpRequest,
        policy: Policy,
        chosen: PolicyRevision,
        title: str,
        act: Callable[[str, int | None], PolicyRevision],
    ) -> HttpResponse:
        """Show the changes and ask for a reason, then activate if the active version has not changed since."""
        if not self.has_change_permission(request, policy):
            raise PermissionDenied
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            seen = request.POST.get("seen", "")
            try:
                done = act(form.cleaned_data["reason"], int(seen) if seen.isdecimal() else None)
            except InputError as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                text = _("Version %d takes effect with the next scheduling batch.") % done.version
                self.message_user(request, text, messages.SUCCESS)
            return HttpResponseRedirect(reverse("admin:policies_policy_change", args=[policy.pk]))
        active = policy.revisions.filter(state="active").first()
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "policy": policy,
            "chosen": chosen,
            "form": form,
            "changes": _changes(active.spec if active else None, chosen.spec),
        }
        return render(request, "admin/policies/policy/reason.html", context)


def _title(policy: Policy, chosen: PolicyRevision) -> str:
    """Return the title of an activation page, which is also the label of its button."""
    titles = {
        "activate": _("Activate version %(version)d of %(name)s"),
        "rollback": _("Roll %(name)s back to version %(version)d"),
        "rollforward": _("Roll %(name)s forward to version %(version)d"),
    }
    return titles[chosen.step] % {"version": chosen.version, "name": policy.name}


def _requested_revision(policy: Policy, version: str | None) -> PolicyRevision:
    """Return the requested revision, or the latest one if none is requested."""
    revisions = policy.revisions.all()
    wanted = revisions.filter(version=int(version)).first() if version and version.isdecimal() else None
    return wanted or get_object_or_404(revisions[:1])


def _changes(before: PolicySpec | None, after: PolicySpec) -> list[str]:
    """Return the lines of a unified diff, without its header."""
    old, new = (
        msgspec.json.format(encode(msgspec.structs.replace(spec, version=0))).decode().splitlines() if spec else []
        for spec in (before, after)
    )
    return [line for line in difflib.unified_diff(old, new, n=2, lineterm="") if not line.startswith(("---", "+++"))]


@admin.register(PolicyRevision)
class PolicyRevisionAdmin(ReadOnlyAdmin):
    list_display = ("policy", "version", "state", "author", "reason", "created_at", "activated_at")
    list_filter = ("state", "policy")


@admin.register(NamespaceRule)
class NamespaceRuleAdmin(admin.ModelAdmin):
    form = NamespaceRuleForm
    list_display = ("cluster", "namespace", "default_policy", "allowed")
    list_filter = ("cluster",)
    search_fields = ("namespace",)

    @admin.display(description="allowed policies")
    def allowed(self, rule: NamespaceRule) -> str:
        return ", ".join(rule.allowed_policies) or "all"

    def save_model(self, request: HttpRequest, obj: NamespaceRule, form: Any, change: bool) -> None:
        saved = set_namespace_rule(
            obj.cluster, obj.namespace, obj.default_policy, obj.allowed_policies, actor=acting_user(request)
        )
        obj.pk = saved.pk

    def get_readonly_fields(self, request: HttpRequest, obj: NamespaceRule | None = None) -> tuple[str, ...]:
        return ("cluster", "namespace") if obj else ()

    def delete_model(self, request: HttpRequest, obj: NamespaceRule) -> None:
        remove_namespace_rule(obj, actor=acting_user(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[NamespaceRule]) -> None:
        for rule in queryset:
            remove_namespace_rule(rule, actor=acting_user(request))
