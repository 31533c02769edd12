from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the lease of the process that reports decisions to a live cluster."""

    dependencies = [
        ("inventory", "0021_unprojected_since"),
    ]

    operations = [
        migrations.AddField(
            model_name="connection",
            name="reporter_id",
            field=models.CharField(blank=True, editable=False, max_length=120),
        ),
        migrations.AddField(
            model_name="connection",
            name="reporter_until",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="connection",
            name="reporter_epoch",
            field=models.BigIntegerField(default=0, editable=False),
        ),
    ]
