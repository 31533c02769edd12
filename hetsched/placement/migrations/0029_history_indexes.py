import django.db.models.deletion
from django.db import migrations, models


def _without_index(model: str, name: str, to: str, **options: object) -> migrations.AlterField:
    """Drop the index of a foreign key whose column is the first one of another index."""
    field = models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, to=to, **options)
    return migrations.AlterField(model, name, field)


class Migration(migrations.Migration):
    """Add indexes for searches that read all finished pods and workloads, and drop indexes that others contain."""

    dependencies = [
        ("inventory", "0023_event_and_effect_revisions"),
        ("placement", "0028_model_names"),
    ]

    operations = [
        migrations.RemoveIndex("pod", "placement_pod_live_state"),
        migrations.RemoveIndex("pod", "placement_pod_remnant"),
        migrations.AddIndex(
            "pod",
            models.Index(
                fields=["cluster", "state", "not_before"],
                name="placement_pod_orphaned",
                condition=models.Q(origin="remnant"),
            ),
        ),
        _without_index("decision", "cluster", "inventory.cluster", related_name="decisions", verbose_name="cluster"),
        _without_index("pod", "cluster", "inventory.cluster", related_name="pods", verbose_name="cluster"),
        _without_index(
            "pod", "workload", "placement.workload", null=True, related_name="pods", verbose_name="workload"
        ),
        _without_index("reservation", "cluster", "inventory.cluster", related_name="+", verbose_name="cluster"),
        _without_index("workload", "cluster", "inventory.cluster", related_name="workloads", verbose_name="cluster"),
        migrations.AddIndex(
            "pod",
            models.Index(fields=["cluster", "state"], name="placement_pod_cluster_state"),
        ),
        migrations.AddIndex(
            "pod",
            models.Index(
                fields=["cluster", "state"],
                name="placement_pod_unreported",
                condition=models.Q(decision__isnull=False)
                & (models.Q(reported_decision__isnull=True) | models.Q(reported_decision__lt=models.F("decision_id"))),
            ),
        ),
        migrations.AddIndex(
            "pod",
            models.Index(
                fields=["cluster", "finished_at"],
                name="placement_pod_foreign_ended",
                condition=models.Q(workload__isnull=True, finished_at__isnull=False),
            ),
        ),
        migrations.AddIndex(
            "workload",
            models.Index(
                fields=["cluster", "finished_at"],
                name="placement_workload_finished",
                condition=models.Q(finished_at__isnull=False),
            ),
        ),
    ]
