from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class JournalConfig(AppConfig):
    name = "hetsched.journal"
    verbose_name = _("Journal")

    def ready(self) -> None:
        from .guards import append_only, install_of
        from .models import AuditEntry

        append_only(AuditEntry)
        post_migrate.connect(install_of, dispatch_uid="hetsched.journal.guards")
