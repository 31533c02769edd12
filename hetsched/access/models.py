"""Models of API tokens, rate limits, sessions and failed logins.

The plaintext of a token exists only in the response to its creation. The row holds a keyed digest (`tokens.py`) and the
first characters, which are its lookup key. The rights of a token are the intersection of its role's rights and its
owner's rights. An agent's token is bound to one node of one cluster.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models
from django.utils.translation import gettext_lazy as _
from knox.models import AbstractAuthToken

from .roles import MAY, Action, Role


class Token(AbstractAuthToken):
    """Bearer token `hs_…` with one role, optionally limited to namespaces."""

    user_groups: list[str] | None = None  # names of the user's groups, if they were loaded with the token
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="auth_token_set")
    name = models.CharField(_("name"), max_length=100)
    role = models.CharField(_("role"), max_length=20, choices=[(role.value, role.value) for role in Role])
    namespaces = models.JSONField(
        _("namespaces"), default=list, blank=True, help_text=_("If empty, all namespaces are allowed.")
    )
    # The only node for which an agent's token may report.
    cluster = models.CharField(_("cluster"), max_length=63, blank=True)
    node = models.CharField(_("node"), max_length=253, blank=True)
    # The last characters, by which a user can recognize the token. They reveal 16 of its 256 bits.
    ending = models.CharField(_("ends with"), max_length=4, blank=True, default="", editable=False)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)
    # Limits on submissions with the token. Null means the default (see `priority_ceiling` and
    # HETSCHED_SUBMITS_PER_MINUTE), an empty quota no limit.
    most_priority = models.IntegerField(
        _("maximum pod priority"),
        null=True,
        blank=True,
        help_text=_("Applies to the pods submitted with the token."),
    )
    submits_per_minute = models.PositiveIntegerField(
        _("submissions per minute"), null=True, blank=True, help_text=_("Replaces the default limit of the server.")
    )
    quota = models.JSONField(
        _("quota"),
        default=dict,
        blank=True,
        help_text=_("Total requests of all unfinished pods of the token, as quantities: pods, cpu, memory and so on."),
    )

    class Meta:
        verbose_name = _("token")
        verbose_name_plural = _("tokens")
        constraints = [
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="access_token_role_known"
            ),
            models.CheckConstraint(
                condition=models.Q(node="") | models.Q(role=Role.AGENT.value) & ~models.Q(cluster=""),
                name="access_token_node_of_agent",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.token_key}…)"

    @property
    def submits(self) -> bool:
        """Whether the token's role may submit pods."""
        return Action.SUBMIT in MAY[Role(self.role)]

    @property
    def priority_ceiling(self) -> int | None:
        """Maximum priority of pods submitted with this token, or None for no limit.

        The default is 0 for a token that is limited to namespaces. The default is not stored, so it also applies to
        older tokens.
        """
        if self.most_priority is not None:
            return self.most_priority
        return 0 if self.namespaces else None


class Bucket(models.Model):
    """Rate limit bucket of one key: the time, in microseconds, when it is full again; see `limits.py`."""

    key = models.CharField(max_length=300, primary_key=True)
    full_at = models.BigIntegerField(db_index=True)

    def __str__(self) -> str:
        return self.key


class LoginFailure(models.Model):
    """Count of recent failed logins for one key, such as an account or a client address."""

    key = models.CharField(max_length=300, primary_key=True)
    count = models.PositiveIntegerField(default=0)
    window_ends_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.key}: {self.count}"


class BrowserSession(AbstractBaseSession):
    """Session of a signed-in browser; its key is stored only as a digest (`sessions.py`)."""

    account = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, related_name="browser_sessions"
    )
    started_at = models.DateTimeField(_("signed in"), null=True)
    seen_at = models.DateTimeField(_("last seen"))
    address = models.CharField(_("address"), max_length=45, blank=True)
    browser = models.CharField(_("browser"), max_length=200, blank=True)

    class Meta:
        verbose_name = _("session")
        verbose_name_plural = _("sessions")

    @classmethod
    def get_session_store_class(cls) -> Any:
        from .sessions import SessionStore

        return SessionStore

    @property
    def name(self) -> str:
        """Return the session's name in URLs, which is not secret because the key cannot be derived from it."""
        return self.session_key[:16]


class ExternalAccount(models.Model):
    """Link from an account of an identity provider, identified by issuer and subject, to a user."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="external")
    issuer = models.CharField(_("issuer"), max_length=300)
    subject = models.CharField(_("subject"), max_length=255)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    objects: ClassVar[Any] = models.Manager()

    class Meta:
        verbose_name = _("external account")
        verbose_name_plural = _("external accounts")
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="access_external_account_once")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"
