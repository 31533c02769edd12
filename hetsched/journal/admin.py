"""Admin pages of the audit trail and the outbox, and the base classes of the other admin pages.

An admin page is either read-only (`ReadOnlyAdmin`), or calls an action that writes the rows, or is an `AuditedAdmin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html

from hetsched.contracts.documents import encode
from hetsched.contracts.units import format_amount
from hetsched.storage.write_lock import write_transaction

from .audit import Program, record
from .models import AuditEntry, AuditSeal, OutboxEvent

admin.site.site_header = admin.site.site_title = "hetsched"


class ReadOnlyAdmin(admin.ModelAdmin):
    """Read-only admin page."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class AuditedAdmin(admin.ModelAdmin):
    """Admin page that writes rows and records each change in the audit trail, in the same transaction."""

    audited_as: ClassVar[str]  # the object kind in the audit trail
    unaudited: ClassVar[tuple[str, ...]] = ()  # fields whose values are left out of the audit trail

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        # Read the old values here, because `log_change` runs after the many-to-many rows are saved.
        request.audited_before = self._auditable(self.model._default_manager.get(pk=obj.pk)) if change else {}  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._record(request, "create", obj, {"after": self._auditable(obj)})
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        before, after = getattr(request, "audited_before", None), self._auditable(obj)
        if before is None:  # only values that are not audited have changed, such as a password
            self._record(request, "secret", obj, {})
            return super().log_change(request, obj, message)
        moved = [name for name in after if before[name] != after[name]]
        details = {"before": {name: before[name] for name in moved}, "after": {name: after[name] for name in moved}}
        self._record(request, "change", obj, details)
        return super().log_change(request, obj, message)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with write_transaction():
            self._record(request, "delete", obj, {"before": self._auditable(obj)})
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        with write_transaction():
            for row in queryset:
                self.delete_model(request, row)

    def _record(self, request: HttpRequest, verb: str, row: Any, details: dict[str, Any]) -> None:
        actor = acting_user(request)
        action = f"{self.audited_as}.{verb}"
        record(actor=actor.name, role=actor.role, action=action, obj=(self.audited_as, str(row)), details=details)

    def _auditable(self, row: Any) -> dict[str, Any]:
        """Return the values of a row to audit: its plain fields, and the names of its many-to-many rows."""
        values = {field.name: field.value_from_object(row) for field in self.opts.fields}
        audited = {name: value for name, value in values.items() if name not in self.unaudited}
        links = {field.name: sorted(map(str, getattr(row, field.name).all())) for field in self.opts.many_to_many}
        return {name: _plain(value) for name, value in audited.items()} | links


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


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def acting_user(request: HttpRequest) -> Program:
    """Return the user of an admin page as the actor of an audit entry."""
    user: Any = request.user
    names = user.groups.order_by("name").values_list("name", flat=True)
    return Program(user.get_username(), "superuser" if user.is_superuser else ",".join(names))


def quantities(amounts: Mapping[str, int]) -> str:
    """Format amounts in base units as Kubernetes quantities."""
    return pretty({name: format_amount(name, amount) for name, amount in amounts.items()})


def pretty(value: Any) -> str:
    """Format a struct or JSON value as indented JSON, and an empty value as a dash."""
    if value is None or value == {} or value == ():
        return "–"
    return format_html("<pre>{}</pre>", msgspec.json.format(encode(value)).decode())
