"""The audit trail and the outbox, to read."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from .models import AuditEntry, OutboxEvent


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


@admin.register(OutboxEvent)
class OutboxEventAdmin(ReadOnlyAdmin):
    list_display = ("id", "topic", "revision", "created_at", "published_at")
    search_fields = ("topic",)
    show_full_result_count = False
