import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inventory", "0011_definitions_revision"), ("placement", "0013_tell_failed_at")]

    operations = [
        migrations.CreateModel(
            name="HandedOut",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reservation", models.BigIntegerField(editable=False)),
                ("advisory", models.BooleanField(verbose_name="advisory")),
                ("granted", models.JSONField(default=tuple, verbose_name="granted")),
                ("cards", models.JSONField(null=True, verbose_name="allocated")),
                ("problem", models.CharField(blank=True, max_length=400, verbose_name="problem")),
                ("seen_at", models.DateTimeField(verbose_name="seen at")),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="inventory.node",
                        verbose_name="node",
                    ),
                ),
                (
                    "pod",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="handed_out",
                        to="placement.pod",
                        verbose_name="pod",
                    ),
                ),
            ],
            options={
                "verbose_name": "device allocation",
                "verbose_name_plural": "device allocations",
                "indexes": [models.Index(fields=["node"], name="placement_handed_out_node")],
            },
        ),
    ]
