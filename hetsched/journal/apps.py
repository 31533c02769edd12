from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class JournalConfig(AppConfig):
    name = "hetsched.journal"
    verbose_name = _("Journal")

    def ready(self) -> None:
        from hetsched.storage import planner_statistics
        from hetsched.storage.text_lookups import register
        from hetsched.storage.triggers import Guard, append_only, guard, install_of

        from .models import AuditEntry, AuditSeal

        register()
        append_only(AuditEntry)
        fixed = ("first_entry", "last_entry", "entries", "digest", "key", "sealed_at")
        guard(Guard("journal_auditseal_fixed", AuditSeal, "an audit seal cannot be changed", fixed))
        post_migrate.connect(install_of, dispatch_uid="hetsched.storage.triggers")
        post_migrate.connect(planner_statistics.install, dispatch_uid="hetsched.storage.planner_statistics")
