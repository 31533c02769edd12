"""Admin pages of accounts and tokens.

Each change to an account or group is recorded in the audit trail. Tokens can be created (the plaintext is shown once),
viewed and revoked, but not edited. Deleting an account first revokes its tokens.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from hetsched.contracts.errors import InputError
from hetsched.journal.admin import AuditedAdmin
from hetsched.storage.write_lock import write_transaction

from .models import Token
from .roles import Action
from .subject import Subject
from .tokens import check_binding, check_bounds, check_namespaces, create_token, revoke_token


class TokenForm(forms.ModelForm):
    """Form of a new token; the namespaces are a JSON list of names."""

    class Meta:
        model = Token
        fields = (
            "name", "role", "namespaces", "cluster", "node", "most_priority", "submits_per_minute", "quota"
        )  # fmt: skip

    def clean_namespaces(self) -> list[str]:
        given = self.cleaned_data["namespaces"]
        try:
            return check_namespaces([] if given is None else given)
        except InputError as error:
            raise ValidationError(str(error)) from None

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        role = given.get("role", "")
        try:
            check_binding(role, given.get("cluster", ""), given.get("node", ""))
            if role:
                bounds = given.get("most_priority"), given.get("submits_per_minute"), given.get("quota") or {}
                given.update(check_bounds(role, *bounds))
        except InputError as error:
            raise ValidationError(str(error)) from None
        return given


@admin.register(Token)
class TokenAdmin(admin.ModelAdmin):
    form = TokenForm
    list_display = ["name", "user", "role", "namespaces", "node", "token_key", "created", "expiry", "last_used_at"]
    list_filter = ["role"]
    search_fields = ["name", "token_key"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and Subject(request.user).may(Action.ADMIN)

    def has_change_permission(self, request: HttpRequest, obj: Token | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        created, plaintext = create_token(
            role=obj.role,
            name=obj.name,
            namespaces=obj.namespaces,
            cluster=obj.cluster,
            node=obj.node,
            most_priority=obj.most_priority,
            submits_per_minute=obj.submits_per_minute,
            quota=obj.quota,
            actor=Subject(request.user),
        )
        obj.__dict__.update(created.__dict__)
        messages.warning(request, _("The token, shown only once: %(token)s") % {"token": plaintext})

    def delete_model(self, request: HttpRequest, obj: Token) -> None:
        revoke_token(obj, actor=Subject(request.user), reason=_("revoked in the administration"))

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for token in queryset:
            self.delete_model(request, token)


class AccountAdmin(AuditedAdmin, UserAdmin):
    """Admin page of accounts: names, roles, passwords."""

    audited_as = "account"
    unaudited = ("password", "last_login", "date_joined")

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        with write_transaction():  # Django does not open a transaction here
            return super().user_change_password(request, id, form_url)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with write_transaction():
            for token in Token.objects.filter(user=obj):
                revoke_token(token, actor=Subject(request.user), reason=_("the account is deleted"))
            super().delete_model(request, obj)


class RolesAdmin(AuditedAdmin, GroupAdmin):
    """Admin page of groups; members of a group that is named after a role have that role."""

    audited_as = "group"


for model, page in ((get_user_model(), AccountAdmin), (Group, RolesAdmin)):
    admin.site.unregister(model)
    admin.site.register(model, page)
