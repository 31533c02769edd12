"""Tokens in the admin: create (the plaintext is shown once), look, revoke; never edit."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.translation import gettext as _

from .models import Token
from .subject import Subject
from .tokens import create_token, revoke_token


@admin.register(Token)
class TokenAdmin(admin.ModelAdmin):
    list_display = ["name", "user", "role", "namespaces", "token_key", "created", "expiry", "last_used_at"]
    list_filter = ["role"]
    search_fields = ["name", "token_key"]
    fields = ["name", "role", "namespaces"]

    def has_change_permission(self, request: HttpRequest, obj: Token | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        created, plaintext = create_token(
            role=obj.role, name=obj.name, namespaces=obj.namespaces, actor=Subject(request.user)
        )
        obj.__dict__.update(created.__dict__)
        messages.warning(request, _("The token, shown only now: %(token)s") % {"token": plaintext})

    def delete_model(self, request: HttpRequest, obj: Token) -> None:
        revoke_token(obj, actor=Subject(request.user), reason=_("revoked in the admin"))

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for token in queryset:
            self.delete_model(request, token)
