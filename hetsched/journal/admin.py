"""The audit trail and the outbox, to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html

from hetsched.contracts.units import format_amount

from .audit import Program
from .models import AuditEntry, AuditSeal, OutboxEvent

admin.site.site_header = admin.site.site_title = "hetsched"


class ReadOnlyAdmin(admin.ModelAdmin):
    """An admin page that shows rows and changes none."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ("at", "actor", "role", "action", "object_kind", "object_name", "reason")
    list_filter = ("action", "object_kind", "role")
    search_fields = ("actor", "object_name", "reason")
    date_hierarchy = "at"


@admin.register(AuditSeal)
class AuditSealAdmin(ReadOnlyAdmin):
    list_display = ("first_entry", "last_entry", "entries", "sealed_at", "verified_at", "problem")


@admin.register(OutboxEvent)
class OutboxEventAdmin(ReadOnlyAdmin):
    list_display = ("id", "topic", "revision", "created_at", "published_at")
    search_fields = ("topic",)
    show_full_result_count = False


def acting(request: HttpRequest) -> Program:
    """Return the person behind an admin page, for the audit trail."""
    user: Any = request.user
    names = user.groups.order_by("name").values_list("name", flat=True)
    return Program(user.get_username(), "superuser" if user.is_superuser else ",".join(names))


def quantities(amounts: Mapping[str, int]) -> str:
    """Show amounts in base units as quantities."""
    return pretty({name: format_amount(name, amount) for name, amount in amounts.items()})


def pretty(value: Any) -> str:
    """Show a contract value as indented JSON; nothing as a dash."""
    if value is None or value == {} or value == ():
        return "–"
    return format_html("<pre>{}</pre>", msgspec.json.format(msgspec.json.encode(value)).decode())
