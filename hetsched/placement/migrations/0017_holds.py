"""Add holds, which reserve capacity for pods that do not exist yet, and idempotency keys for hold requests."""

import django.db.models.deletion
from django.db import migrations, models

import hetsched.placement.models.holds


class Migration(migrations.Migration):
    dependencies = [("inventory", "0014_collectors"), ("placement", "0016_webhooks")]

    operations = [
        migrations.CreateModel(
            name="Hold",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=hetsched.placement.models.holds.new_hold_id, editable=False, max_length=40,
                        primary_key=True, serialize=False,
                    ),
                ),
                ("namespace", models.CharField(max_length=63, verbose_name="namespace")),
                ("owner", models.CharField(max_length=200, verbose_name="owner")),
                ("held_by", models.CharField(max_length=255, verbose_name="held by")),
                ("note", models.CharField(blank=True, max_length=300, verbose_name="note")),
                ("state", models.CharField(default="held", max_length=10, verbose_name="state")),
                ("policy_name", models.CharField(max_length=63, verbose_name="policy")),
                ("policy_version", models.IntegerField(verbose_name="policy version")),
                ("pod_count", models.IntegerField(verbose_name="pods")),
                ("created_at", models.DateTimeField(verbose_name="since")),
                ("expires_at", models.DateTimeField(verbose_name="until")),
                ("ended_at", models.DateTimeField(null=True, verbose_name="ended")),
                ("end_reason", models.CharField(blank=True, max_length=300, verbose_name="end reason")),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="holds", to="inventory.cluster",
                        verbose_name="cluster",
                    ),
                ),
                (
                    "workload",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+",
                        to="placement.workload",
                    ),
                ),
            ],
            options={
                "verbose_name": "hold",
                "verbose_name_plural": "holds",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["claimed", "held"])), fields=["cluster", "expires_at"],
                        name="placement_hold_open",
                    ),
                    models.Index(fields=["cluster", "-id"], name="placement_hold_recent"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["cancelled", "claimed", "expired", "held", "lost", "used"])),
                        name="placement_hold_state",
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="pod",
            name="hold",
            field=models.ForeignKey(
                db_index=False, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL,
                related_name="pods", to="placement.hold",
            ),
        ),
        migrations.AddIndex(
            model_name="pod",
            index=models.Index(
                condition=models.Q(("hold__isnull", False)), fields=["hold"], name="placement_pod_hold"
            ),
        ),
        migrations.AddField(
            model_name="decision",
            name="room",
            field=models.CharField(blank=True, default="", max_length=320, verbose_name="used capacity of a hold"),
            preserve_default=False,
        ),
        migrations.AlterField(
            model_name="idempotencykey",
            name="workload",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="placement.workload"
            ),
        ),
        migrations.AddField(
            model_name="idempotencykey",
            name="hold",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="placement.hold"
            ),
        ),
    ]  # fmt: skip
