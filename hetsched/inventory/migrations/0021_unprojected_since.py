from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the first revision whose placements are not yet counted in node loads and workloads."""

    dependencies = [
        ("inventory", "0020_message_columns"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="unprojected_since",
            field=models.BigIntegerField(blank=True, editable=False, null=True),
        ),
    ]
