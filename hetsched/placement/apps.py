from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PlacementConfig(AppConfig):
    name = "hetsched.placement"
    verbose_name = _("Placement")

    def ready(self) -> None:
        from hetsched.storage.triggers import Guard, append_only, guard

        from . import receivers
        from .lifecycle import pairs
        from .models import Decision, Pod

        receivers.connect()
        append_only(Decision)
        allowed = ", ".join(f"'{source}>{target}'" for source, target in pairs())
        guard(
            Guard(
                "placement_pod_lifecycle",
                Pod,
                "this pod state transition is not allowed",
                columns=("state",),
                condition=f"OLD.state <> NEW.state AND (OLD.state || '>' || NEW.state) NOT IN ({allowed})",
            )
        )
