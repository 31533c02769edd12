from typing import Any

import structlog
from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class AccessConfig(AppConfig):
    name = "hetsched.access"
    verbose_name = _("Access")

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_in

        from . import changes

        changes.listen()
        user_logged_in.connect(note_login, dispatch_uid="hetsched.access")
        post_migrate.connect(ensure_groups, sender=self)


def note_login(request: Any, user: Any, **_signal: Any) -> None:
    """Initialize the session of a user who signed in."""
    from .sessions import record_sign_in

    record_sign_in(request)
    structlog.get_logger(__name__).info("login.succeeded", username=user.get_username())


def ensure_groups(**_signal: Any) -> None:
    """Create a group for each role, so that an administrator can add users to it."""
    from django.contrib.auth.models import Group

    from .roles import Role

    for role in Role:
        Group.objects.get_or_create(name=role.value)
