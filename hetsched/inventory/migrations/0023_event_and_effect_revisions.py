from django.db import migrations, models


class Migration(migrations.Migration):
    """Rename two attributes of clusters; the columns keep their names."""

    dependencies = [
        ("inventory", "0022_reporter_lease"),
    ]

    operations = [
        migrations.AlterField(
            "cluster",
            "stirred",
            models.JSONField(blank=True, db_column="stirred", default=dict, editable=False, verbose_name="changes"),
        ),
        migrations.RenameField("cluster", "stirred", "event_revisions"),
        migrations.AlterField(
            "cluster",
            "unprojected_since",
            models.BigIntegerField(blank=True, db_column="unprojected_since", editable=False, null=True),
        ),
        migrations.RenameField("cluster", "unprojected_since", "effects_due_since"),
    ]
