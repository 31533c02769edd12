from django.db import migrations, models


class Migration(migrations.Migration):
    """Remove the length limit of columns that store messages with parameters; existing text is not changed."""

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
