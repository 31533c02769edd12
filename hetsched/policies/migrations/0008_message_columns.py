from django.db import migrations, models


class Migration(migrations.Migration):
    """Remove the length limit of two columns that store messages with their parameters; rows are not changed."""

    dependencies = [
        ("policies", "0007_reported_column"),
    ]

    operations = [
        migrations.AlterField("goldenplacement", "got", models.TextField(blank=True, verbose_name="actual result")),
        migrations.AlterField("policyplan", "note", models.TextField(blank=True, verbose_name="note")),
    ]
