from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the state of the service account tokens that a connection stores."""

    dependencies = [
        ("inventory", "0024_device_shares"),
    ]

    operations = [
        migrations.AddField(
            model_name="connection",
            name="stored_tokens",
            field=models.JSONField(blank=True, default=tuple, editable=False),
        ),
    ]
