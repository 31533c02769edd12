"""Read-only admin pages of nodes (every fact with its source) and of collectors."""

from __future__ import annotations

from django.contrib import admin

from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.units import format_amount
from hetsched.journal.admin import ReadOnlyAdmin, pretty, quantities

from .models import Node
from .models.collectors import Collector


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = ("name", "cluster", "isa_family", "pool", "ready", "unschedulable", "cpu", "memory", "gpu", "pods")
    list_filter = ("cluster", "isa_family", "ready", "unschedulable", "pool")
    search_fields = ("name",)
    list_select_related = ("cluster",)
    fieldsets = (
        (None, {"fields": ("cluster", "name", "pool", "ready", "unschedulable", "cordoned_by_operator", "updated_at")}),
        ("Load", {"fields": ("cpu", "memory", "gpu", "pods", "requested_amounts")}),
        ("Instruction set", {"fields": ("isa_family", "isa", "isa_facts")}),
        ("Cards", {"fields": ("card_facts",)}),
        ("NUMA", {"fields": ("numa_facts",)}),
        ("Measured", {"fields": ("usage_facts",)}),
        ("Labels and taints", {"fields": ("labels", "taints")}),
        ("Problems", {"fields": ("problems", "doubtful")}),
        ("Whole report", {"classes": ("collapse",), "fields": ("whole_report",)}),
    )
    readonly_fields = (
        "cpu", "memory", "gpu", "requested_amounts", "isa_facts", "card_facts", "numa_facts", "usage_facts", "labels",
        "taints", "problems", "doubtful", "whole_report",
    )  # fmt: skip

    @admin.display(description="CPU")
    def cpu(self, node: Node) -> str:
        return _of(node, "cpu")

    @admin.display(description="memory")
    def memory(self, node: Node) -> str:
        return _of(node, "memory")

    @admin.display(description="GPU")
    def gpu(self, node: Node) -> str:
        return f"{node.gpu_milli_used / 1000:g} of {node.cards_installed}" if node.cards_installed else "–"

    @admin.display(description="requested")
    def requested_amounts(self, node: Node) -> str:
        return quantities(node.requested)

    @admin.display(description="facts")
    def isa_facts(self, node: Node) -> str:
        return pretty(node.report.isa)

    @admin.display(description="facts")
    def card_facts(self, node: Node) -> str:
        return pretty(cards_of(node.report))

    @admin.display(description="facts")
    def numa_facts(self, node: Node) -> str:
        return pretty(node.report.numa)

    @admin.display(description="facts")
    def usage_facts(self, node: Node) -> str:
        return pretty(node.report.usage)

    @admin.display(description="labels")
    def labels(self, node: Node) -> str:
        return pretty(node.report.labels)

    @admin.display(description="taints")
    def taints(self, node: Node) -> str:
        return pretty(node.report.taints)

    @admin.display(description="problems")
    def problems(self, node: Node) -> str:
        return pretty(node.report.problems)

    @admin.display(description="fact conflicts")
    def doubtful(self, node: Node) -> str:
        return pretty(node.doubts)

    @admin.display(description="report")
    def whole_report(self, node: Node) -> str:
        return pretty(node.report)


@admin.register(Collector)
class CollectorAdmin(ReadOnlyAdmin):
    """Read-only status of collectors, which are configured through the REST API."""

    list_display = (
        "name",
        "cluster",
        "kind",
        "enabled",
        "load",
        "answered_at",
        "stale_since",
        "nodes_reported",
        "failure",
    )
    list_filter = ("cluster", "kind", "enabled")
    search_fields = ("name",)
    list_select_related = ("cluster",)
    fieldsets = (
        (None, {"fields": ("cluster", "name", "kind", "enabled", "load", "parameters")}),
        ("Schedule and limits", {"fields": ("interval_seconds", "most_failures", "most_age_seconds")}),
        (
            "Status",
            {"fields": ("tried_at", "answered_at", "stale_since", "failures", "failure", "nodes_reported",
                        "nodes_stale", "wrong")},
        ),
    )  # fmt: skip
    readonly_fields = ("parameters", "wrong")

    @admin.display(description="parameters")
    def parameters(self, row: Collector) -> str:
        return pretty(row.params)

    @admin.display(description="problems")
    def wrong(self, row: Collector) -> str:
        return pretty(row.problems)


def _of(node: Node, resource: str) -> str:
    have = node.allocatable.get(resource, 0)
    held = node.requested.get(resource, 0)
    share = f" ({100 * held // have} %)" if have else ""
    return f"{format_amount(resource, held)} of {format_amount(resource, have)}{share}"
