from django.db import migrations, models


class Migration(migrations.Migration):
    """Give columns with messages the length of any message with its parameters; the rows keep their text."""

    dependencies = [
        ("journal", "0003_audit_seals"),
    ]

    operations = [
        migrations.AlterField("auditseal", "problem", models.TextField(blank=True, verbose_name="problem")),
    ]
