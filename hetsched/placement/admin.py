"""Admin pages: adding, importing and exporting clusters; read-only workloads, pods, decisions and reservations.

All writes use the actions. The cluster pages are in this app because an import creates pods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.inventory.actions import create_cluster, set_default_policy
from hetsched.inventory.models import Cluster
from hetsched.journal.admin import ReadOnlyAdmin, acting_user, pretty, quantities
from hetsched.journal.audit import record

from .actions import export_cluster, import_cluster
from .forms import ClusterForm, DefaultPolicyForm, ImportForm
from .models import Decision, Pod, Rebalance, RebalanceMove, Reservation, Workload


@admin.register(Cluster)
class ClusterAdmin(ReadOnlyAdmin):
    change_form_template = "admin/inventory/cluster/change_form.html"
    list_display = ("name", "kind", "policy_name", "node_count", "ready_count", "card_count", "revision", "created_at")
    list_filter = ("kind",)
    search_fields = ("name",)
    fieldsets = (
        (None, {"fields": ("name", "kind", "policy_name", "created_at")}),
        (
            "Fleet",
            {"fields": ("node_count", "ready_count", "card_count", "totals", "requested_amounts", "gpu_milli_used")},
        ),
        ("Ledger", {"fields": ("revision", "inventory_revision", "leader_id", "leader_epoch", "leader_until")}),
    )
    readonly_fields = ("totals", "requested_amounts")

    @admin.display(description="capacity")
    def totals(self, cluster: Cluster) -> str:
        return quantities(cluster.capacity)

    @admin.display(description="requested")
    def requested_amounts(self, cluster: Cluster) -> str:
        return quantities(cluster.requested)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("inventory.add_cluster"))

    def _may_change(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("inventory.change_cluster"))

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        own = [
            path("add/", wrap(self.add_page), name="inventory_cluster_add"),
            path("<int:pk>/import/", wrap(self.import_page), name="inventory_cluster_import"),
            path("<int:pk>/export/", wrap(self.export_page), name="inventory_cluster_export"),
            path("<int:pk>/policy/", wrap(self.policy_page), name="inventory_cluster_policy"),
        ]
        return own + super().get_urls()

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        context["may_change"] = self._may_change(request)
        return super().render_change_form(request, context, *args, **kwargs)

    def add_page(self, request: HttpRequest) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = ClusterForm(request.POST or None, request.FILES or None)

        def act() -> Cluster:
            values = {
                "name": form.cleaned_data["name"],
                "kind": form.cleaned_data["kind"],
                "policy_name": form.cleaned_data["policy_name"],
                "reason": form.cleaned_data["reason"],
                "actor": acting_user(request),
            }
            if Cluster.objects.filter(name=values["name"]).exists():
                message = Message("cluster {name} already exists", name=repr(values["name"]))
                raise InputError("ClusterExists", message, place="name")
            return import_cluster(form.content, **values) if form.content else create_cluster(**values)

        return self._page(request, form, _("Add a cluster"), None, act)

    def import_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        cluster = self._cluster(request, pk)
        form = ImportForm(request.POST or None, request.FILES or None)

        def act() -> Cluster:
            assert form.content is not None
            reason = form.cleaned_data["reason"]
            return import_cluster(form.content, name=cluster.name, actor=acting_user(request), reason=reason)

        return self._page(request, form, _("Import files into %s") % cluster.name, cluster, act)

    def policy_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        cluster = self._cluster(request, pk)
        form = DefaultPolicyForm(request.POST or None, initial={"policy_name": cluster.policy_name})

        def act() -> Cluster:
            chosen, reason = form.cleaned_data["policy_name"], form.cleaned_data["reason"]
            return set_default_policy(cluster, chosen, actor=acting_user(request), reason=reason)

        return self._page(request, form, _("Default policy of %s") % cluster.name, cluster, act)

    def export_page(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        cluster = get_object_or_404(Cluster, pk=pk)
        actor = acting_user(request)
        record(actor=actor.name, role=actor.role, action="cluster.export", obj=cluster)
        response = HttpResponse(write_cluster(export_cluster(cluster)), content_type="application/json")
        response["Content-Disposition"] = f'attachment; filename="{cluster.name}.json"'
        return response

    def _cluster(self, request: HttpRequest, pk: int) -> Cluster:
        if not self._may_change(request):
            raise PermissionDenied
        return get_object_or_404(Cluster, pk=pk)

    def _page(
        self, request: HttpRequest, form: forms.Form, title: str, cluster: Cluster | None, act: Callable[[], Cluster]
    ) -> HttpResponse:
        """Show a form, run its action when the form is submitted, and show the action's errors in the form."""
        if request.method == "POST" and form.is_valid():
            try:
                done = act()
            except InputError as error:
                form.add_error(None, str(error))
            else:
                self.message_user(request, _("%s is up to date.") % done.name, messages.SUCCESS)
                return HttpResponseRedirect(reverse("admin:inventory_cluster_change", args=[done.pk]))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "cluster": cluster,
            "form": form,
        }
        return render(request, "admin/inventory/cluster/form.html", context)


class PodInline(admin.TabularInline):
    model = Pod
    fields = readonly_fields = ("namespace", "name", "state", "node", "attempts", "decided_at")
    extra = 0
    max_num = 0
    can_delete = False
    show_change_link = True

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Workload)
class WorkloadAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "cluster",
        "namespace",
        "name",
        "state",
        "pod_count",
        "priority",
        "submitted_by",
        "created_at",
    )
    list_filter = ("state", "cluster")
    search_fields = ("id", "name", "namespace", "submitted_by")
    list_select_related = ("cluster",)
    show_full_result_count = False

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        # A page with thousands of rows is unusable: list at most 200 pods here. The list of pods has filters.
        return [PodInline] if obj and obj.pod_count <= 200 else []


@admin.register(Pod)
class PodAdmin(ReadOnlyAdmin):
    list_display = ("key", "cluster", "state", "node", "policy", "priority", "attempts", "created_at")
    list_filter = ("state", "cluster", "origin")
    search_fields = ("name", "namespace")
    list_select_related = ("cluster", "node")
    show_full_result_count = False
    exclude = ("spec", "allocation")
    readonly_fields = ("request", "holds")

    @admin.display(description="request")
    def request(self, pod: Pod) -> str:
        return pretty(pod.spec)

    @admin.display(description="holds")
    def holds(self, pod: Pod) -> str:
        return pretty(pod.allocation)


@admin.register(Decision)
class DecisionAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "created_at",
        "cluster",
        "namespace",
        "pod_name",
        "verdict",
        "node_name",
        "policy_name",
        "score",
    )
    list_filter = ("verdict", "cluster", "policy_name")
    search_fields = ("pod_name", "namespace", "node_name")
    list_select_related = ("cluster",)
    show_full_result_count = False
    exclude = ("allocation", "reasons", "top")
    readonly_fields = ("holds", "why", "best")

    @admin.display(description="holds")
    def holds(self, decision: Decision) -> str:
        return pretty(decision.allocation)

    @admin.display(description="reasons")
    def why(self, decision: Decision) -> str:
        return pretty(decision.reasons)

    @admin.display(description="best nodes")
    def best(self, decision: Decision) -> str:
        return pretty(decision.top)


@admin.register(Reservation)
class ReservationAdmin(ReadOnlyAdmin):
    list_display = ("pod", "node", "cluster", "active", "revision", "released_revision", "release_reason")
    list_filter = ("active", "cluster")
    list_select_related = ("pod", "node", "cluster")
    show_full_result_count = False
    exclude = ("requests", "allocation")
    readonly_fields = ("requested_amounts", "holds")

    @admin.display(description="requests")
    def requested_amounts(self, reservation: Reservation) -> str:
        return quantities(reservation.requests)

    @admin.display(description="holds")
    def holds(self, reservation: Reservation) -> str:
        return pretty(reservation.allocation)


class RebalanceMoves(admin.TabularInline):
    """Read-only list of a rebalance plan's moves on the page of the plan."""

    model = RebalanceMove
    fields = ("step", "pod_key", "source", "target", "state", "actual_node", "message")
    readonly_fields = fields
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Rebalance)
class RebalanceAdmin(ReadOnlyAdmin):
    list_display = ("id", "created_at", "cluster", "goal", "state", "asked_by", "summary")
    list_filter = ("state", "goal", "cluster")
    list_select_related = ("cluster",)
    inlines = (RebalanceMoves,)
