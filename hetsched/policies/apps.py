from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PoliciesConfig(AppConfig):
    name = "hetsched.policies"
    verbose_name = _("Policies")

    def ready(self) -> None:
        from hetsched.storage.triggers import Guard, guard

        from .models import PolicyRevision

        guard(
            Guard(
                "policies_policyrevision_fixed",
                PolicyRevision,
                "a policy revision cannot be changed",
                columns=("policy_id", "version", "spec", "author", "created_at"),
            )
        )
