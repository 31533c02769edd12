from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class AccessConfig(AppConfig):
    name = "hetsched.access"
    verbose_name = _("Access")

    def ready(self) -> None:
        post_migrate.connect(ensure_groups, sender=self)


def ensure_groups(**_signal: Any) -> None:
    """Make the groups that bear the names of the roles, so that an admin can put people into them."""
    from django.contrib.auth.models import Group

    from .roles import Role

    for role in Role:
        Group.objects.get_or_create(name=role.value)
