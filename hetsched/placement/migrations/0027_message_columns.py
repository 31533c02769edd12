from django.db import migrations, models


class Migration(migrations.Migration):
    """Remove the length limit of columns with messages, because they also store parameters; the rows are unchanged."""

    dependencies = [
        ("placement", "0026_reported_columns"),
    ]

    operations = [
        migrations.AlterField("delivery", "message", models.TextField(blank=True, verbose_name="message")),
        migrations.AlterField("deliveryattempt", "message", models.TextField(blank=True, verbose_name="message")),
        migrations.AlterField("eviction", "message", models.TextField(blank=True, verbose_name="message")),
        migrations.AlterField("eviction", "reason", models.TextField(blank=True, verbose_name="reason")),
        migrations.AlterField("halfgang", "reason", models.TextField(verbose_name="reason")),
        migrations.AlterField("handedout", "problem", models.TextField(blank=True, verbose_name="problem")),
        migrations.AlterField("hold", "end_reason", models.TextField(blank=True, verbose_name="end reason")),
        migrations.AlterField("nomination", "end_reason", models.TextField(blank=True, verbose_name="end reason")),
        migrations.AlterField("rebalance", "message", models.TextField(blank=True, verbose_name="message")),
        migrations.AlterField("rebalancemove", "message", models.TextField(blank=True, verbose_name="message")),
        migrations.AlterField("rejection", "message", models.TextField(blank=True, verbose_name="message")),
        migrations.AlterField("submittedobject", "message", models.TextField(blank=True, verbose_name="message")),
        migrations.AlterField("webhook", "paused_because", models.TextField(blank=True, verbose_name="pause reason")),
    ]
