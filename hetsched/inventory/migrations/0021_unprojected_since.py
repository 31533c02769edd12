from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the position of the projector of placements."""

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
