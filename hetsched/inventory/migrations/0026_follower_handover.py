from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the watch position at which an informer released its lease."""

    dependencies = [
        ("inventory", "0025_stored_tokens"),
    ]

    operations = [
        migrations.AddField(
            model_name="connection",
            name="follower_handover",
            field=models.JSONField(editable=False, null=True),
        ),
    ]
