"""Add the expiry time of usage samples by the server's clock; existing samples are due for a check immediately."""

from django.db import migrations, models
from django.utils import timezone


def fill(apps, schema_editor):
    apps.get_model("inventory", "Node").objects.update(sample_due_at=timezone.now())


class Migration(migrations.Migration):

    dependencies = [
        ("inventory", "0017_cards_installed"),
    ]

    operations = [
        migrations.AddField(
            "node", "sample_due_at",
            models.DateTimeField(blank=True, editable=False, null=True, verbose_name="sample expires at"),
        ),
        migrations.AddIndex(
            "node", models.Index(fields=["cluster", "sample_due_at"], name="inventory_node_sample_due")
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
