from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PlacementConfig(AppConfig):
    name = "hetsched.placement"
    verbose_name = _("Placement")

    def ready(self) -> None:
        from hetsched.storage.planner_statistics import TableSize, register_size
        from hetsched.storage.triggers import Guard, append_only, guard

        from . import receivers
        from .lifecycle import pairs
        from .models import Decision, Pod

        receivers.connect()
        append_only(Decision)
        # Many pods have no workload, so `workload_id` gets a small number of distinct values.
        register_size(
            TableSize(
                Pod,
                rows=1_000_000,
                distinct={"cluster_id": 5, "state": 4, "namespace": 50, "node_id": 5_000, "workload_id": 20},
                partial={
                    "placement_pod_live_name": 100_000,
                    "placement_pod_queue": 1_000,
                    "placement_pod_unreported": 1_000,
                    "placement_pod_orphaned": 100,
                    "placement_pod_hold": 1_000,
                    "placement_pod_gang": 10_000,
                    "placement_pod_foreign_ended": 200_000,
                },
            )
        )
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
