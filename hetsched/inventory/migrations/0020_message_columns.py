from django.db import migrations, models


class Migration(migrations.Migration):
    """Give columns with messages the length of any message with its parameters; the rows keep their text."""

    dependencies = [
        ("inventory", "0019_reported_columns"),
    ]

    operations = [
        migrations.AlterField("collector", "failure", models.TextField(blank=True, editable=False, verbose_name="last failure")),
        migrations.AlterField("connection", "failure", models.TextField(blank=True, verbose_name="informer failure")),
        migrations.AlterField("connection", "stale_reason", models.TextField(blank=True, editable=False, verbose_name="reason for stale data")),
        migrations.AlterField("imageindex", "message", models.TextField(blank=True, verbose_name="read failure")),
        migrations.AlterField("sync", "reason", models.TextField(blank=True, verbose_name="last failure")),
    ]
