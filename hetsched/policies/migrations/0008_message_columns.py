from django.db import migrations, models


class Migration(migrations.Migration):
    """Give columns with messages the length of any message with its parameters; the rows keep their text."""

    dependencies = [
        ("policies", "0007_reported_column"),
    ]

    operations = [
        migrations.AlterField("goldenplacement", "got", models.TextField(blank=True, verbose_name="actual result")),
        migrations.AlterField("policyplan", "note", models.TextField(blank=True, verbose_name="note")),
    ]
